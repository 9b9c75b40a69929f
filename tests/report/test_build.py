"""Builds and installations from the sources, with and without npm, in processes without network access."""

import os
import shutil
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

from envs.worlds import needs_sandbox
from report.conftest import TIMEOUT
from report.made_runs import odd_run

pytest.importorskip("hatchling", reason="hatchling is not installed")
pytestmark = needs_sandbox

ROOT = Path(__file__).parents[2]
LIBRARIES = "src/seeupo/report/libraries"


@pytest.fixture
def sources(tmp_path):
    """A copy of the sources without the chart libraries, as in a fresh clone."""
    folder = tmp_path / "sources"
    no_libraries = shutil.ignore_patterns("libraries", "__pycache__")
    shutil.copytree(ROOT / "src", folder / "src", ignore=no_libraries)
    for name in ("pyproject.toml", "hatch_build.py", "README.md", "LICENSE", "CHANGELOG.md"):
        shutil.copy(ROOT / name, folder / name)
    return folder


def run_offline(*command, cwd, path="/nowhere", **variables):
    """Run a command of this interpreter without a network, and with nothing on the PATH unless given."""
    offline = [shutil.which("bwrap"), "--dev-bind", "/", "/", "--unshare-net", "--", sys.executable, *map(str, command)]
    return subprocess.run(
        offline,
        cwd=cwd,
        env={**os.environ, "PATH": str(path), **variables},
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        check=False,
    )


def build_wheel(sources, **options):
    """Return the files of a wheel, and what the build printed."""
    built = run_offline("-m", "hatchling", "build", "-t", "wheel", "-d", "dist", cwd=sources, **options)
    assert built.returncode == 0, built.stdout
    (wheel,) = (sources / "dist").iterdir()
    with zipfile.ZipFile(wheel) as archive:
        return archive.namelist(), built.stdout


def test_an_offline_installation_without_npm_writes_reports_with_tables(sources, tmp_path, browser):
    site = tmp_path / "site"
    options = ("--no-build-isolation", "--no-deps", "--no-index", "--disable-pip-version-check", "--target", site)
    installed = run_offline("-m", "pip", "install", *options, sources, cwd=tmp_path)
    assert installed.returncode == 0, installed.stdout
    run = odd_run(tmp_path / "run")
    page = tmp_path / "page.html"
    done = run_offline("-P", "-m", "seeupo", "report", run, "--out", page, cwd=tmp_path, PYTHONPATH=str(site))
    assert done.returncode == 0, done.stdout
    assert "To add charts" in done.stdout
    opened = browser.new_page()
    opened.set_default_timeout(TIMEOUT)
    opened.goto(page.as_uri())
    opened.wait_for_selector("html[data-ready]")
    assert "pip install" in opened.inner_text("#no-charts")
    assert opened.locator("#curves-grid .panel").count() > 0
    opened.wait_for_selector("#curves-grid details[open] td")
    opened.close()


def test_wheels_contain_the_chart_libraries(sources):
    shutil.copytree(ROOT / LIBRARIES, sources / LIBRARIES)
    names, printed = build_wheel(sources)
    assert {f"seeupo/report/libraries/{name}" for name in ("d3.min.js", "plot.umd.min.js", "LICENSES.txt")} <= {*names}
    assert "no charts" not in printed


@pytest.mark.parametrize("npm", [None, "echo the registry is gone; exit 1", "exit 0"], ids=["no", "failing", "broken"])
def test_a_build_without_the_chart_libraries_warns(sources, tmp_path, npm):
    if npm is not None:
        program = tmp_path / "bin" / "npm"
        program.parent.mkdir()
        program.write_text(f"#!/bin/sh\n{npm}\n")
        program.chmod(0o755)
    names, printed = build_wheel(sources, path=tmp_path / "bin")
    assert "Reports of this build will have no charts" in printed
    assert ("the registry is gone" in printed) == (npm is not None and "registry" in npm)
    assert "seeupo/report/page/page.html" in names
    assert not any("libraries" in name for name in names)
    assert not (sources / LIBRARIES).exists()
