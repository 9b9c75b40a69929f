"""Run the properties of `tests/fuzz` for a time budget, with fresh random inputs, and record inputs and findings.

Targets take turns, and results are written after each turn, so that an interrupt loses nothing. A run adds a session to
the results that are already there, and several may run at once: delete the file to start again. A finding is an
exception that a property does not allow, an input that takes too long, or one that needs too much memory. Hypothesis
shrinks the first input of each finding; later inputs with the same finding are only counted.
"""

from __future__ import annotations

import argparse
import faulthandler
import importlib
import json
import os
import platform
import random
import resource
import signal
import sys
import time
import traceback
import warnings
from collections.abc import Callable, Iterator
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import hypothesis
from filelock import FileLock

ROOT = Path(__file__).resolve().parent.parent
TESTS = ROOT / "tests"
RESULTS = ROOT / "benchmarks" / "results" / "fuzz.json"
TARGETS = {
    "endpoint client": "test_fuzz_endpoint",
    "recipe reader": "test_fuzz_recipes",
    "wire protocol": "test_fuzz_wire",
    "trajectory reader": "test_fuzz_trajectory_files",
    "run reader and report": "test_fuzz_runs",
    "action parsers": "test_fuzz_actions",
}
SESSION = datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
EXAMPLES = 500
"""Inputs per property and turn."""
INPUT_SECONDS = 60
MEMORY_BYTES = 6 * 2**30


class TooSlow(BaseException):
    """An input took more than `INPUT_SECONDS`. Not an `Exception`, so that the tested code cannot catch it."""


class Property:
    """A property with its counts and findings."""

    def __init__(self, target: str, name: str, test: Any) -> None:
        self.target, self.name, self.test = target, name, test
        self.inputs, self.seconds, self.slowest = 0, 0.0, 0.0
        self.findings: dict[str, dict[str, Any]] = {}
        self._known: set[str] = set()
        self._inner: Callable[..., Any] = test.hypothesis.inner_test
        test.hypothesis.inner_test = self._counted
        hypothesis.settings(
            max_examples=EXAMPLES,
            deadline=None,
            database=None,
            print_blob=False,
            report_multiple_bugs=False,
            suppress_health_check=list(hypothesis.HealthCheck),
        )(test)

    def _counted(self, *arguments: Any, **options: Any) -> Any:
        self.inputs += 1
        start = time.process_time()
        signal.alarm(INPUT_SECONDS)
        try:
            return self._inner(*arguments, **options)
        except hypothesis.errors.HypothesisException:
            raise
        except BaseException as error:
            if isinstance(error, KeyboardInterrupt) or type(error).__module__.startswith("hypothesis"):
                raise
            place = fingerprint(error)
            found = self.findings.setdefault(place, {"inputs": 0, "error": describe(error)})
            found["inputs"] += 1
            if place in self._known:
                return None
            raise
        finally:
            signal.alarm(0)
            self.slowest = max(self.slowest, time.process_time() - start)

    def run(self, seed: int) -> None:
        start = time.process_time()
        try:
            hypothesis.seed(seed)(self.test)()
        except (KeyboardInterrupt, hypothesis.errors.InvalidArgument):
            raise
        except BaseException as error:
            place = fingerprint(error)
            found = self.findings.setdefault(place, {"inputs": 1, "error": describe(error)})
            found["example"] = without_root("\n".join(getattr(error, "__notes__", [])))[:2000]
            print(f"FINDING {self.name}: {place}\n{found['error']}\n{found['example']}\n", flush=True)
        self._known |= self.findings.keys()
        self.seconds += time.process_time() - start

    def to_json(self) -> dict[str, Any]:
        return {
            "inputs": self.inputs,
            "cpu_seconds": round(self.seconds, 1),
            "slowest_cpu_seconds": round(self.slowest, 2),
            "findings": self.findings,
        }


def fingerprint(error: BaseException) -> str:
    """Return the type of an error and the innermost lines of the package and of the properties that raised it."""
    frames = traceback.extract_tb(error.__traceback__)
    own = [frame for frame in frames if "/src/seeupo/" in frame.filename or "/tests/fuzz/" in frame.filename]
    return f"{type(error).__name__} at " + " < ".join(
        f"{Path(frame.filename).name}:{frame.lineno} {frame.name}" for frame in own[:-3:-1]
    )


def describe(error: BaseException) -> str:
    return without_root("".join(traceback.format_exception(error)[-8:]))[-3000:]


def without_root(text: str) -> str:
    """Make the paths of the repository relative to it."""
    return text.replace(f"{ROOT}{os.sep}", "")


def properties() -> Iterator[Property]:
    for target, module in TARGETS.items():
        for name, test in vars(importlib.import_module(f"fuzz.{module}")).items():
            if getattr(test, "is_hypothesis_test", False):
                yield Property(target, name, test)


def write(found: list[Property], start: float, path: Path) -> None:
    """Write this session into the results, beside those of earlier and of concurrent processes."""
    targets = {}
    for target in dict.fromkeys(each.target for each in found):
        own = [each for each in found if each.target == target]
        targets[target] = {
            "inputs": sum(each.inputs for each in own),
            "cpu_minutes": round(sum(each.seconds for each in own) / 60, 2),
            "findings": sum(len(each.findings) for each in own),
            "properties": {each.name: each.to_json() for each in own},
        }
    session = {
        "inputs": sum(each["inputs"] for each in targets.values()),
        "cpu_minutes": round(sum(each["cpu_minutes"] for each in targets.values()), 1),
        "wall_minutes": round((time.monotonic() - start) / 60, 1),
        "findings": sum(each["findings"] for each in targets.values()),
        "peak_memory_mb": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss // 1024,
        "targets": targets,
    }
    versions = {"python": platform.python_version(), "hypothesis": hypothesis.__version__}
    path.parent.mkdir(parents=True, exist_ok=True)
    with FileLock(f"{path}.lock"):
        sessions = json.loads(path.read_text(encoding="utf-8"))["sessions"] if path.exists() else {}
        sessions[SESSION] = session
        names = ("inputs", "cpu_minutes", "findings")
        totals = {name: round(sum(each[name] for each in sessions.values()), 1) for name in names}
        record = {**totals, "versions": versions, "sessions": sessions}
        path.write_text(json.dumps(record, indent=1) + "\n", encoding="utf-8")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--minutes", type=float, default=120.0, help="CPU time over all targets")
    parser.add_argument("--out", type=Path, default=RESULTS)
    parser.add_argument("--only", default="", help="part of a target's name")
    options = parser.parse_args()
    faulthandler.enable()
    os.environ["RUST_BACKTRACE"] = "0"  # the tokenizers library prints its panics
    sys.path[:0] = [str(TESTS)]
    warnings.simplefilter("error")
    warnings.simplefilter("ignore", hypothesis.errors.HypothesisWarning)  # about the size of inputs
    signal.signal(signal.SIGALRM, _too_slow)
    resource.setrlimit(resource.RLIMIT_AS, (MEMORY_BYTES, MEMORY_BYTES))
    found = [each for each in properties() if options.only in each.target]
    start = time.monotonic()
    spent = {each.target: 0.0 for each in found}
    while sum(spent.values()) < options.minutes * 60:
        target = min(spent, key=lambda name: spent[name])
        for each in found:
            if each.target == target:
                each.run(random.SystemRandom().getrandbits(64))
                write(found, start, options.out)
        spent[target] = sum(each.seconds for each in found if each.target == target)
    findings = sum(len(each.findings) for each in found)
    print(f"{sum(each.inputs for each in found)} inputs, {findings} findings: {options.out}")
    sys.exit(1 if findings else 0)


def _too_slow(*_: object) -> None:
    raise TooSlow(f"an input took more than {INPUT_SECONDS} s")


if __name__ == "__main__":
    main()
