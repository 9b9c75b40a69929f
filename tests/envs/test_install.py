import sys
import threading
import zipfile
from dataclasses import replace
from pathlib import Path

import pytest

from envs.worlds import TOY, everywhere
from seeupo.envs.install import folder_of, install, installed, interpreter
from seeupo.envs.pool.pool import EnvPool
from seeupo.errors import EnvError

SPEC = replace(TOY, name="packaged", requirements=("tiny-benchmark==1.2",), factory="envs.packaged:Factory")
PREPARED = replace(SPEC, prepare="envs.packaged:prepare")


@pytest.fixture
def index(tmp_path, monkeypatch):
    """A package index of one wheel on disk, and an empty cache."""
    wheels = tmp_path / "wheels"
    wheels.mkdir()
    name = "tiny_benchmark-1.2"
    with zipfile.ZipFile(wheels / f"{name}-py3-none-any.whl", "w") as wheel:
        wheel.writestr("tiny_benchmark.py", "VERSION = '1.2'\n")
        metadata = "Metadata-Version: 2.1\nName: tiny-benchmark\nVersion: 1.2\nRequires-Dist: not-there\n"
        wheel.writestr(f"{name}.dist-info/METADATA", metadata)
        wheel.writestr(f"{name}.dist-info/WHEEL", "Wheel-Version: 1.0\nRoot-Is-Purelib: true\nTag: py3-none-any\n")
        wheel.writestr(f"{name}.dist-info/RECORD", "")
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    monkeypatch.setenv("PIP_FIND_LINKS", str(wheels))
    monkeypatch.setenv("SEEUPO_CACHE", str(tmp_path / "cache"))


@everywhere
def test_install_and_run_an_environment(index, unsandboxed):
    """The worker sees the benchmark's package and ours, but none of our dependencies."""
    with pytest.raises(EnvError, match=r"packaged is not installed.*seeupo envs install packaged"):
        EnvPool(PREPARED)
    messages = []
    folder = install(PREPARED, report=messages.append)
    assert [message.split()[0] for message in messages] == ["creating", "installing", "preparing"]
    assert (folder / "prepared").read_text() == "1.2"
    assert interpreter(PREPARED).is_relative_to(folder)
    with EnvPool(PREPARED, workers=1, unsandboxed=unsandboxed) as pool:
        assert pool.splits == ("tiny-benchmark 1.2",)
    # A second installation does nothing; another version requires another installation.
    messages.clear()
    assert install(PREPARED, report=messages.append) == folder
    assert messages == []
    assert not installed(replace(PREPARED, requirements=("tiny-benchmark==1.3",)))


def test_another_installation_replaces_the_last(index):
    first, second = (replace(TOY, prepare=f"envs.packaged:{name}") for name in ("count", "mark"))
    install(first)
    install(second)
    assert installed(second)
    assert not installed(first)
    assert sorted(path.name for path in folder_of(TOY).iterdir()) == ["marked", "ready.json"]


def test_an_installation_that_fails_leaves_nothing_usable(index):
    missing = replace(SPEC, requirements=("tiny-benchmark==9.9",))
    with pytest.raises(EnvError, match=r"packaged: pip could not install its packages(.|\n)*tiny-benchmark==9.9"):
        install(missing)
    assert not installed(missing)
    failing = replace(TOY, prepare="envs.packaged:fail")
    with pytest.raises(EnvError, match=r"toy: its files could not be prepared(.|\n)*the bundle is damaged"):
        install(failing)
    assert not installed(failing)


def test_concurrent_installations_run_once(index):
    once = replace(TOY, prepare="envs.packaged:count")
    threads = [threading.Thread(target=install, args=[once]) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert (folder_of(once).parent / "count").read_text() == "x"


@pytest.mark.parametrize("requirement", ["tiny-benchmark", "tiny-benchmark>=1", "--index-url=x", "a==1 b==2"])
def test_requirements_must_be_pinned(index, requirement):
    with pytest.raises(EnvError, match="is not pinned; write it as name==version"):
        install(replace(SPEC, requirements=(requirement,)))


def test_without_requirements_the_trainers_interpreter_is_used(index):
    assert installed(TOY)
    assert interpreter(TOY) == Path(sys.executable)
