"""Programs import from three places: `seeupo`, `seeupo.rl` and `seeupo.algorithms`."""

import ast
import inspect
import re
import subprocess
import sys
from pathlib import Path

import pytest

import seeupo
import seeupo.algorithms
import seeupo.rl

ROOT = Path(__file__).parents[1]
PLACES = {"seeupo", "seeupo.rl", "seeupo.algorithms"}
NAMES = {
    "seeupo": {
        "Callback", "Env", "EnvFactory", "EnvSpec", "Evaluation", "Expert", "Message", "Recipe", "StepResult", "Task",
        "Tool", "ToolCall", "TrainingResult", "UserError", "agent_program", "compare", "env_maker", "evaluate",
        "expert_maker", "export", "resume", "reward_function", "train", "write_report",
    },
    "seeupo.rl": {
        "Attempt", "EnvPool", "LocalEngine", "Optimizer", "Runner", "SamplingParameters", "Trajectory", "Turn",
        "imitate", "load_policy", "rollout_groups",
    },
}  # fmt: skip


def sources():
    """Yield the name and code of every example and every Python block of a page."""
    for path in sorted((ROOT / "examples").glob("*.py")):
        yield str(path.relative_to(ROOT)), path.read_text(encoding="utf-8")
    for path in [ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md"))]:
        for code in re.findall(
            r"^ *```python\n(.*?)^ *```", path.read_text(encoding="utf-8"), re.DOTALL | re.MULTILINE
        ):
            yield str(path.relative_to(ROOT)), code


def imported(code: str) -> set[str]:
    """Return the modules of this package that code imports, indented blocks included."""
    lines = re.findall(r"^ *(?:from (seeupo[\w.]*) import|import (seeupo[\w.]*))", code, re.MULTILINE)
    return {first or second for first, second in lines}


def test_examples_and_pages_import_from_three_places_only():
    wrong = {}
    for name, code in sources():
        if modules := imported(code) - PLACES:
            wrong.setdefault(name, set()).update(modules)
    assert wrong == {}


def test_the_minimal_loop_imports_from_two_places_at_most():
    assert len(imported((ROOT / "examples" / "minimal_loop.py").read_text(encoding="utf-8"))) <= 2


@pytest.mark.parametrize("place", sorted(NAMES))
def test_public_names(place):
    module = sys.modules[place]
    assert set(module.__all__) == NAMES[place]
    for name in module.__all__:
        value = getattr(module, name)
        if inspect.isclass(value) or inspect.isfunction(value):
            assert value.__doc__, name


@pytest.mark.parametrize("place", sorted(PLACES))
def test_the_reference_lists_every_public_name(place):
    page = (ROOT / "docs/reference/api.md").read_text(encoding="utf-8")
    section = page.partition(f"## `{place}`\n")[2].partition("\n## ")[0]
    names = {
        name for row in re.findall(r"^\| (`.*?) \|", section, re.MULTILINE) for name in re.findall(r"`(\w+)`", row)
    }
    assert names == set(sys.modules[place].__all__)


@pytest.mark.parametrize("place", ["seeupo", "seeupo.rl"])
def test_public_functions_document_every_argument(place):
    module = sys.modules[place]
    functions = [value for name in module.__all__ if inspect.isfunction(value := getattr(module, name))]
    for function in functions:
        arguments = list(inspect.signature(function).parameters)
        if len(arguments) > 1:  # not decorators
            assert "Args:" in function.__doc__
            missing = [name for name in arguments if not re.search(rf"\b{name}\b.*:", function.__doc__)]
            assert missing == [], function.__name__


def test_importing_the_package_loads_no_torch():
    code = "import sys, seeupo; seeupo.Callback, seeupo.Env, seeupo.UserError; print('torch' in sys.modules)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "False"


def test_only_listed_names_resolve():
    with pytest.raises(AttributeError):
        getattr(seeupo, "nothing_like_it")  # noqa: B009
    tree = ast.parse(Path(seeupo.__file__).read_text(encoding="utf-8"))
    typed = {
        alias.asname
        for node in ast.walk(tree)
        if isinstance(node, ast.ImportFrom)
        for alias in node.names
        if alias.asname is not None
    }
    assert typed == set(seeupo.__all__)
