import getpass
import json
import os
import platform
import subprocess

import pytest
import torch

import seeupo
from seeupo.runs import env_info as facts
from seeupo.runs.env_info import collect_env_info, git_info


@pytest.fixture
def package(tmp_path, monkeypatch):
    """A package in a repository of its own, with one commit."""
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


def test_versions_cores_and_threads_are_told():
    found = collect_env_info()
    assert found["versions"]["seeupo"] == seeupo.__version__
    assert found["versions"]["torch"] == torch.__version__
    assert set(found["versions"]) == {"python", "seeupo", "torch", "transformers", "numpy"}
    assert found["threads"] == torch.get_num_threads()
    assert found["cores"] >= 1


def test_nothing_private_is_told(monkeypatch):
    monkeypatch.setenv("SECRET_TOKEN", "a-secret-that-nobody-should-see")
    monkeypatch.setattr(platform, "node", lambda: "a-host-that-nobody-should-see")
    monkeypatch.setattr(getpass, "getuser", lambda: "a-user-that-nobody-should-see")
    text = json.dumps(collect_env_info())
    assert "nobody-should-see" not in text
    assert os.path.expanduser("~") + "/" not in text  # noqa: PTH111
    assert set(json.loads(text)) == {"versions", "platform", "cores", "threads", "git"}


def test_the_commit_and_changes_of_the_package_are_told(package):
    commit = git(package, "rev-parse", "HEAD").strip()
    assert git_info(package) == {"commit": commit, "dirty": False}
    (package.parent.parent / "notes.txt").write_text("beside the package")
    assert git_info(package) == {"commit": commit, "dirty": False}
    (package / "new.py").write_text("")
    assert git_info(package) == {"commit": commit, "dirty": True}
    (package / "new.py").unlink()
    (package / "__init__.py").write_text("changed = True\n")
    assert git_info(package) == {"commit": commit, "dirty": True}


def test_a_repository_around_an_installed_package_is_not_its_own(package):
    installed = package.parent.parent / ".venv" / "installed"
    installed.mkdir(parents=True)
    (installed / "__init__.py").write_text("")
    assert git_info(installed) is None


def test_variables_of_a_git_hook_do_not_mislead(package, tmp_path, monkeypatch):
    monkeypatch.setenv("GIT_DIR", str(tmp_path / "elsewhere"))
    assert git_info(package) is not None


def test_without_git_the_rest_is_told(monkeypatch):
    monkeypatch.setenv("PATH", "")
    assert collect_env_info()["git"] is None


def test_a_git_that_hangs_or_fails_is_no_obstacle(package, monkeypatch):
    def hang(command, **options):
        raise subprocess.TimeoutExpired(command, options["timeout"])

    monkeypatch.setattr(facts.subprocess, "run", hang)
    assert git_info(package) is None


def test_a_folder_outside_any_repository_has_no_commit(tmp_path):
    (tmp_path / "__init__.py").write_text("")
    assert git_info(tmp_path) is None
