import getpass
import json
import os
import platform
import subprocess

import pytest
import torch

import seeupo
from seeupo.runs import env_info
from seeupo.runs.env_info import collect_env_info, git_info


@pytest.fixture
def package(tmp_path, monkeypatch):
    """A package in a new git repository with one commit."""
    for name in ("GIT_CONFIG_GLOBAL", "GIT_CONFIG_SYSTEM"):
        monkeypatch.setenv(name, os.devnull)
    folder = tmp_path / "src" / "package"
    folder.mkdir(parents=True)
    (folder / "__init__.py").write_text("")
    git(tmp_path, "init", "--quiet")
    git(tmp_path, "add", ".")
    git(tmp_path, "-c", "user.name=n", "-c", "user.email=e", "commit", "--quiet", "-m", "m")
    return folder


def git(folder, *arguments) -> str:
    return subprocess.run(["git", *arguments], cwd=folder, check=True, capture_output=True, text=True).stdout


def test_env_info_has_versions_cores_and_threads():
    found = collect_env_info()
    assert found["versions"]["seeupo"] == seeupo.__version__
    assert found["versions"]["torch"] == torch.__version__
    assert set(found["versions"]) == {"python", "seeupo", "torch", "transformers", "numpy"}
    assert found["threads"] == torch.get_num_threads()
    assert found["cores"] >= 1
    assert len(found["gpus"]) == torch.cuda.device_count()


def test_env_info_has_nothing_private(monkeypatch):
    monkeypatch.setenv("SECRET_TOKEN", "a-secret-that-must-stay-private")
    monkeypatch.setattr(platform, "node", lambda: "a-host-that-must-stay-private")
    monkeypatch.setattr(getpass, "getuser", lambda: "a-user-that-must-stay-private")
    text = json.dumps(collect_env_info())
    assert "must-stay-private" not in text
    assert os.path.expanduser("~") + "/" not in text  # noqa: PTH111
    assert set(json.loads(text)) == {"versions", "platform", "cores", "threads", "gpus", "git"}


def test_git_info_has_the_commit_and_whether_the_package_changed(package):
    commit = git(package, "rev-parse", "HEAD").strip()
    assert git_info(package) == {"commit": commit, "dirty": False}
    (package.parent.parent / "notes.txt").write_text("beside the package")
    assert git_info(package) == {"commit": commit, "dirty": False}
    (package / "new.py").write_text("")
    assert git_info(package) == {"commit": commit, "dirty": True}
    (package / "new.py").unlink()
    (package / "__init__.py").write_text("changed = True\n")
    assert git_info(package) == {"commit": commit, "dirty": True}


def test_a_repository_around_an_installed_package_is_ignored(package):
    installed = package.parent.parent / ".venv" / "installed"
    installed.mkdir(parents=True)
    (installed / "__init__.py").write_text("")
    assert git_info(installed) is None


def test_git_variables_are_ignored(package, tmp_path, monkeypatch):
    monkeypatch.setenv("GIT_DIR", str(tmp_path / "elsewhere"))
    assert git_info(package) is not None


def test_env_info_works_without_git(monkeypatch):
    monkeypatch.setenv("PATH", "")
    assert collect_env_info()["git"] is None


def test_a_git_that_hangs_gives_no_info(package, monkeypatch):
    def hang(command, **options):
        raise subprocess.TimeoutExpired(command, options["timeout"])

    monkeypatch.setattr(env_info.subprocess, "run", hang)
    assert git_info(package) is None


def test_a_package_outside_a_repository_has_no_git_info(tmp_path):
    (tmp_path / "__init__.py").write_text("")
    assert git_info(tmp_path) is None
