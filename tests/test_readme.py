"""The Python examples in README run."""

import re
from pathlib import Path

from seeupo.models.loading import load_policy
from seeupo.models.saving import save_model
from seeupo.models.tiny import TinyConfig

README = Path(__file__).parent.parent / "README.md"
FAST = {
    "run": {"iterations": 2, "checkpoint_every": 1},
    "collect": {"tasks": 2, "group_size": 2},
    "evaluation": {"tasks": 2, "attempts": 4},
}


def example(marker: str) -> str:
    (code,) = (block for block in re.findall(r"```python\n(.*?)```", README.read_text(), re.DOTALL) if marker in block)
    return str(code)


def test_custom_environment_example_trains_and_evaluates(tmp_path, monkeypatch, capsys):
    code = example("seeupo.train(")
    monkeypatch.chdir(tmp_path)
    tiny = load_policy("tiny", tiny=TinyConfig(width=16, layers=1, heads=2, context=256))
    save_model(tiny.model, tiny.tokenizer, tmp_path / "model")
    assert code.count('{"name": "smollm2-135m"}') == 1
    code = code.replace('{"name": "smollm2-135m"}', f'{{"name": {str(tmp_path / "model")!r}}}, **FAST')
    exec(compile(code, str(README), "exec"), {"FAST": FAST, "__name__": "__main__"})
    lines = capsys.readouterr().out.splitlines()
    assert [line.split()[:2] for line in lines if line.startswith("iteration")] == [
        ["iteration", "1"],
        ["iteration", "2"],
    ]
    assert "'value'" in lines[-1]
    assert (tmp_path / "runs" / "addition" / "policy" / "model.safetensors").exists()


def test_enumerated_example_approaches_the_best_return(capsys):
    exec(compile(example("ExactEngine("), str(README), "exec"), {})
    last = capsys.readouterr().out.splitlines()[-1].split()
    assert float(last[1]) > 0.95 * float(last[-1])
