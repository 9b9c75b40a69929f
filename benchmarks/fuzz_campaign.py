"""Run the properties of `tests/fuzz` with new random inputs, until a time budget is spent or an input fails.

Hypothesis shrinks the input of a finding, prints it, and repeats it first in the next run. An input that takes too
long or too much memory is a finding as well.
"""

from __future__ import annotations

import argparse
import resource
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
MEMORY_BYTES = 6 * 2**30
PROPERTY_SECONDS = 600
"""Time limit for the inputs of one property in one round."""


def cpu_minutes() -> float:
    """Return the CPU time of all finished rounds."""
    usage = resource.getrusage(resource.RUSAGE_CHILDREN)
    return (usage.ru_utime + usage.ru_stime) / 60


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--minutes", type=float, default=120.0, help="CPU time")
    parser.add_argument("--only", default="", help="part of the name of a property or its file")
    options = parser.parse_args()
    resource.setrlimit(resource.RLIMIT_AS, (MEMORY_BYTES, MEMORY_BYTES))
    pytest = [sys.executable, "-m", "pytest", "-q", "-n", "0", "--hypothesis-profile", "nightly", "tests/fuzz"]
    while cpu_minutes() < options.minutes:
        done = subprocess.run([*pytest, "--timeout", str(PROPERTY_SECONDS), "-k", options.only], cwd=ROOT, check=False)
        if done.returncode:
            sys.exit(done.returncode)


if __name__ == "__main__":
    main()
