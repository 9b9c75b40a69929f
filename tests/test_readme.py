"""What README shows runs."""

import re
from pathlib import Path

from seeupo.models.loading import load_policy
from seeupo.models.saving import save_model
from seeupo.models.tiny import TinyConfig

README = Path(__file__).parent.parent / "README.md"
FAST = {
    "run": {"iterations": 2, "checkpoint_every": 1},
    "collect": {"tasks": 2, "group_size": 2},
    "evaluation": {"tasks": 2, "samples": 4},
}


def test_the_library_way_in_less_than_thirty_lines(tmp_path, monkeypatch, capsys):
    """As it stands there, but for a smaller model in a folder, and fewer iterations."""
    (code,) = (block for block in re.findall(r"```python\n(.*?)```", README.read_text(), re.S) if "train(" in block)
    assert len([line for line in code.splitlines() if line.strip()]) <= 30
    monkeypatch.chdir(tmp_path)
    tiny = load_policy("tiny", tiny=TinyConfig(width=16, layers=1, heads=2, context=256))
    save_model(tiny.model, tiny.tokenizer, tmp_path / "model")
    assert code.count('"smollm2-135m"') == 1
    code = code.replace('{"name": "smollm2-135m"}', f'{{"name": {str(tmp_path / "model")!r}}}, **FAST')
    exec(compile(code, str(README), "exec"), {"FAST": FAST, "__name__": "__main__"})
    assert "'value'" in capsys.readouterr().out
    assert (tmp_path / "runs" / "sums" / "policy" / "model.safetensors").exists()
