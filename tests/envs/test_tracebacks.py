"""Exceptions of an environment are shown with the frames of its author's files only, also from workers."""

import pytest

from envs.worlds import everywhere, failing
from seeupo.envs.pool.pool import EnvPool
from seeupo.envs.tracebacks import explain_exception
from seeupo.errors import EnvError
from seeupo.types import FailureKind

BROKEN = """
import json
from seeupo.types import Message, StepResult, Task

class Env:
    def reset(self, task, *, seed):
        return StepResult((Message("user", "hello"),))
    def step(self, text):
        return parse(text)
    def score(self): return 0.0
    def close(self): ...

def parse(text):
    return json.loads(text)

class Factory:
    splits = ("train", "test")
    make = Env
    def tasks(self, split): return [Task("a", split)]
    def expert(self, task): return None
"""


@pytest.fixture
def project(tmp_path, monkeypatch):
    (tmp_path / "broken.py").write_text(BROKEN)
    monkeypatch.chdir(tmp_path)
    return tmp_path


@everywhere
@pytest.mark.filterwarnings("ignore:environments run without a sandbox")
def test_workers_show_only_the_users_frames(project, unsandboxed):
    with EnvPool("broken:Factory", workers=1, trust=["broken:Factory"], unsandboxed=unsandboxed) as pool:
        env = pool.env()
        env.reset(pool.tasks("train")[0], seed=0)
        with failing(FailureKind.RAISED) as caught:
            env.step("{")
    first, *trace = str(caught.value).split("\n")
    assert first.startswith("broken:Factory, task a, last action '{': step raised JSONDecodeError: ")
    assert first.endswith(f"({project}/broken.py:14)")
    assert trace[1:3] == [f'  File "{project}/broken.py", line 9, in step', "    return parse(text)"]
    assert f'  File "{project}/broken.py", line 14, in parse' in trace
    assert "seeupo" not in "\n".join(trace)


def test_frames_of_this_package_are_kept_if_there_are_no_others():
    with pytest.raises(EnvError) as caught:
        EnvPool("pocket", workers=0)
    own = caught.value.with_traceback(caught.value.__traceback__.tb_next)
    assert "pool.py" in explain_exception(own)


@pytest.mark.parametrize(
    ("source", "first", "inside"),
    [
        ("x = 1\ny = undefined\n", "cannot be loaded: NameError: name 'undefined' is not defined", "broken.py:2)"),
        ("def f(:\n", "cannot be loaded: SyntaxError: invalid syntax (broken.py, line 1)", 'broken.py", line 1'),
        ("import missing_helper\n", "ModuleNotFoundError: No module named 'missing_helper'", "broken.py:1)"),
    ],
)
@pytest.mark.parametrize("reference", ["broken:Factory", "broken.py:Factory"])
@pytest.mark.filterwarnings("ignore:environments run without a sandbox")
def test_modules_that_cannot_be_loaded_are_shown_with_their_line(project, reference, source, first, inside):
    (project / "broken.py").write_text(source)
    with pytest.raises(EnvError) as caught:
        EnvPool(reference, workers=1, trust=[reference])
    assert first in caught.value.lines[0]
    assert inside in str(caught.value)
    assert "seeupo/envs" not in str(caught.value)


@pytest.mark.filterwarnings("ignore:environments run without a sandbox")
def test_a_missing_module_is_a_line_that_says_where_it_is_expected(project):
    with pytest.raises(
        EnvError, match=r"there is no module 'nowhere'.*name its file: path/to/nowhere/env.py:F"
    ) as caught:
        EnvPool("nowhere.env:F", workers=1, trust=["nowhere.env:F"])
    assert len(caught.value.lines) == 1
