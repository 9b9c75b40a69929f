"""Run the comparisons with the peers installed in this interpreter, and print the largest differences.

`make peers` runs this in a separate environment, with src and tests on the path.
"""

from __future__ import annotations

import sys
import warnings
from importlib import import_module

import torch

from peers.ledger import TOLERANCE, Ledger

SEEDS = range(6)
PEERS = ("checks_verl", "checks_turns", "checks_trl")


def main() -> int:
    torch.set_num_threads(1)  # the batches are small
    warnings.simplefilter("ignore")  # from the peers
    chosen = sys.argv[1:] or PEERS
    ledgers = []
    for name in chosen:
        checks = import_module(f"peers.{name}")
        ledger = Ledger(checks.NAME)
        ledgers.append(ledger)
        for ledger.dtype in (torch.float64, torch.float32):
            for check in checks.CHECKS:
                for seed in SEEDS:
                    ledger.run(check, seed)

    rows = [("compared", "with", "float64", "float32"), *(row for ledger in ledgers for row in ledger.rows())]
    widths = [max(len(row[column]) for row in rows) for column in range(4)]
    for row in rows:
        print("  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip())
    failures = [failure for ledger in ledgers for failure in ledger.failures]
    for failure in failures:
        print(f"FAILED {failure}", file=sys.stderr)
    print(f"{len(rows) - 1} comparisons, {len(SEEDS)} batches each, {len(failures)} failures at {TOLERANCE:g}")
    return 1 if failures else 0


if __name__ == "__main__":
    sys.exit(main())
