import sys

import pytest

from envs.worlds import TOY, worker_pids
from seeupo.envs import registry
from seeupo.envs.pool.pool import EnvPool
from seeupo.envs.registry import EnvSpec, lookup, names
from seeupo.errors import EnvError


@pytest.fixture
def package(tmp_path, monkeypatch):
    """A user's installed package with custom environments."""
    (tmp_path / "their_worlds.py").write_text(
        "from envs.toy import Toy, ToyFactory\n"
        "from seeupo.envs.registry import EnvSpec\n"
        "class Counting(ToyFactory):\n"
        '    """Counting, as they do it.\n\n    At length."""\n'
        "spec = EnvSpec(name='theirs-in-process', factory='their_worlds:Counting', in_process=True)\n"
        "number = 3\n"
    )
    information = tmp_path / "their_worlds-1.0.dist-info"
    information.mkdir()
    (information / "METADATA").write_text("Metadata-Version: 2.1\nName: their-worlds\nVersion: 1.0\n")
    (information / "entry_points.txt").write_text(
        "[seeupo.environments]\ntheirs = their_worlds:Counting\ntheirs-in-process = their_worlds:spec\n"
        "wrong = their_worlds:number\nmissing = their_worlds:nothing\ntoy = their_worlds:Counting\n"
    )
    monkeypatch.syspath_prepend(tmp_path)
    yield
    sys.modules.pop("their_worlds", None)


def test_a_class_becomes_an_environment_in_workers(package):
    spec = lookup("theirs")
    assert spec == EnvSpec(name="theirs", factory="their_worlds:Counting", summary="Counting, as they do it.")
    assert not spec.in_process


def test_a_spec_is_used_unchanged(package):
    with EnvPool("theirs-in-process", options={"size": 2}) as pool:
        assert len(pool.tasks("train")) == 2
        assert worker_pids(pool) == []


def test_all_names_are_listed(package):
    assert {"theirs", "theirs-in-process"} <= set(names())


def test_a_package_does_not_replace_what_is_built_in(package, monkeypatch):
    monkeypatch.setattr(registry, "BUILT_IN", {"toy": TOY})
    assert lookup("toy") is TOY
    assert names().count("toy") == 1


def test_an_unknown_name_suggests_the_nearest(package):
    with pytest.raises(EnvError, match="there is no environment 'thiers'; did you mean 'theirs'"):
        lookup("thiers")
    with pytest.raises(EnvError, match=r"there is no environment 'zzz'; available: .*theirs"):
        EnvPool("zzz")


def test_an_invalid_entry_point_is_an_error(package):
    with pytest.raises(EnvError, match="'wrong': their_worlds:number is 3; expected an EnvSpec"):
        lookup("wrong")
    with pytest.raises(EnvError, match="'missing': their_worlds:nothing cannot be loaded"):
        lookup("missing")
