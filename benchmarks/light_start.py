"""Measure the CPU seconds of commands that need no model: their own and those of their workers, without torch.

python benchmarks/light_start.py                     # this installation
python benchmarks/light_start.py --python OTHER/bin/python   # another one, such as that of an earlier commit
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys

LIMIT = 0.7
COMMANDS = (
    "--help",
    "recipes list",
    "recipes show tiny-pocket",
    "recipes schema",
    "algorithms list",
    "algorithms show ppo",
    "envs list",
    "train tiny-pocket --dry-run",
    "train qwen3-14b-bfcl --dry-run",
    "train tiny-pocket --agent.max_turn 3",
    "train tiny-pocket --algorithm.clip 3",
    "train tiny-poket",
    "train tiny-pocket --out /proc/run",
    "train tiny-pocket --model.name smolm2",
    "train --resume missing",
    "eval missing",
)
"""The last seven are errors."""


def cpu_seconds(command: list[str]) -> float:
    """Run a command and return the CPU time of it and its children, in seconds."""
    before = os.times()
    subprocess.run(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, check=False)
    after = os.times()
    return after.children_user + after.children_system - before.children_user - before.children_system


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--python", default=sys.executable, help="Interpreter of the installation to measure.")
    parser.add_argument("--repeats", type=int, default=5, help="Number of runs per command; the fastest counts.")
    arguments = parser.parse_args()
    slow = 0
    for command in COMMANDS:
        times = [cpu_seconds([arguments.python, "-m", "seeupo", *command.split()]) for _ in range(arguments.repeats)]
        slow += min(times) > LIMIT
        print(f"{min(times):6.2f} s  seeupo {command}")
    sys.exit(f"{slow} commands need more than {LIMIT} s" if slow else 0)


if __name__ == "__main__":
    main()
