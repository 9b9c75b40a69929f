"""The example of exact problems in the README of the studies runs."""

import re
from pathlib import Path

README = Path(__file__).parents[3] / "studies" / "README.md"


def test_example_approaches_the_best_return(capsys):
    (example,) = re.findall(r"```python\n(.*?)```", README.read_text(), re.DOTALL)
    exec(compile(example, str(README), "exec"), {})
    last = capsys.readouterr().out.splitlines()[-1].split()
    assert float(last[1]) > 0.95 * float(last[-1])
