"""The Python example in README runs."""

import re
from pathlib import Path

ROOT = Path(__file__).parent.parent


def example(page: str) -> str:
    (code,) = re.findall(r"```python\n(.*?)```", (ROOT / page).read_text(), re.DOTALL)
    return str(code)


def test_custom_environment_example_learns_and_shows_progress(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    made: dict[str, object] = {"__name__": "__main__"}
    exec(compile(example("README.md"), "README.md", "exec"), made)
    scores = {when: made["result"].summary[when]["avg@4"]["value"] for when in ("before", "after")}
    assert scores["before"] < 0.5
    assert scores["after"] > scores["before"] + 0.3
    assert made["greedy"].summary()["avg@1"]["value"] > 0.9
    shown = capsys.readouterr()
    assert "iteration 15 of 15: success" in shown.err
    assert "Improved: avg@4" in shown.err
    assert shown.out.startswith("success of the greedy policy:")
    assert (tmp_path / "runs" / "run-001" / "policy" / "model.safetensors").exists()
