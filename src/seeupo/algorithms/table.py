"""Write what commands show and check about the shipped algorithms without importing them.

python -m seeupo.algorithms.table
"""

from __future__ import annotations

import json
from pathlib import Path

import seeupo.config
from seeupo.algorithms import ALGORITHMS
from seeupo.config.algorithms import algorithm_entry


def algorithm_table() -> str:
    """Return the content of config/algorithms.json."""
    entries = {name: algorithm_entry(algorithm) for name, algorithm in ALGORITHMS.items()}
    return json.dumps(entries, indent=1, ensure_ascii=False) + "\n"


if __name__ == "__main__":
    (Path(seeupo.config.__file__).parent / "algorithms.json").write_text(algorithm_table(), encoding="utf-8")
