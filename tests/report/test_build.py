"""An installation from the sources needs no network and no npm, and writes reports with charts."""

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from envs.worlds import needs_sandbox
from report.conftest import TIMEOUT
from report.made_runs import odd_run

pytest.importorskip("hatchling", reason="hatchling is not installed")
pytestmark = needs_sandbox

ROOT = Path(__file__).parents[2]


def run_offline(*command, cwd, **variables):
    """Run a command of this interpreter without a network, with nothing on the PATH."""
    offline = [shutil.which("bwrap"), "--dev-bind", "/", "/", "--unshare-net", "--", sys.executable, *map(str, command)]
    return subprocess.run(
        offline,
        cwd=cwd,
        env={**os.environ, "PATH": "/nowhere", **variables},
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        check=False,
    )


def test_an_offline_installation_without_npm_writes_reports_with_charts(tmp_path, browser):
    sources, site = tmp_path / "sources", tmp_path / "site"
    shutil.copytree(ROOT / "src", sources / "src", ignore=shutil.ignore_patterns("__pycache__"))
    for name in ("pyproject.toml", "README.md", "LICENSE", "CHANGELOG.md"):
        shutil.copy(ROOT / name, sources / name)
    options = ("--no-build-isolation", "--no-deps", "--no-index", "--disable-pip-version-check", "--target", site)
    installed = run_offline("-m", "pip", "install", *options, sources, cwd=tmp_path)
    assert installed.returncode == 0, installed.stdout
    page = tmp_path / "page.html"
    command = ("-P", "-m", "seeupo", "report", odd_run(tmp_path / "run"), "--out", page)
    done = run_offline(*command, cwd=tmp_path, PYTHONPATH=str(site))
    assert done.returncode == 0, done.stdout
    opened = browser.new_page()
    opened.set_default_timeout(TIMEOUT)
    opened.goto(page.as_uri())
    opened.wait_for_selector("html[data-ready]")
    opened.wait_for_selector("#curves-grid .panel .chart svg")
    opened.close()
