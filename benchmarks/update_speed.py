"""Measure one update of a group: log-probs of 8 actions after a shared prompt, forward and backward.

Compares tree packing, padded rows, and TRL's per-token log-probs, each with the fastest number of rows at once that
fits in memory, on the same model (SmolLM2-135M) and tokens. The share is that of the rate of matrix products, measured
after each of our steps, counting two operations per weight of a layer, distinct token and pass, without attention.
On a shared machine, `--threads 1 --clock cpu` measures the processor time of one thread per side.
"""

from __future__ import annotations

import argparse
import os
import tempfile
from pathlib import Path
from typing import Any

import torch
from side_by_side import Worker, machine, peer_environment, table, write_results

from seeupo.models.catalog import fetch

GROUP = 8
LAYER_WEIGHTS = 106_168_320
"""Number of weights in the matrices of SmolLM2-135M's layers."""
CASES: dict[str, dict[str, Any]] = {
    "400/40": {"prompt": 400, "action": 40, "rows": [8, 2], "repeats": 3},
    "1500/60": {"prompt": 1500, "action": 60, "rows": [1], "repeats": 2},
}


def tokens(case: dict[str, Any]) -> dict[str, Any]:
    generator = torch.Generator().manual_seed(0)

    def random_ids(*shape: int) -> list[Any]:
        return torch.randint(100, 49_000, shape, generator=generator).tolist()

    weights = torch.randn(GROUP, generator=generator).tolist()
    return {"prompt": random_ids(case["prompt"]), "actions": random_ids(GROUP, case["action"]), "weights": weights}


def gradient_difference(first: Path, second: Path) -> float:
    ours, theirs = torch.load(first), torch.load(second)
    apart = sum(float((a - b).double().square().sum()) for a, b in zip(ours, theirs, strict=True))
    size = sum(float(b.double().square().sum()) for b in theirs)
    return float((apart / size) ** 0.5)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--case", choices=CASES, action="append", help="Case to run; may be repeated.  [default: all]")
    parser.add_argument("--threads", type=int, default=torch.get_num_threads(), help="Threads of each side.")
    parser.add_argument("--clock", choices=["wall", "cpu"], default="wall", help="Wall time, or processor time.")
    options = parser.parse_args()
    cases = options.case or list(CASES)
    torch.set_num_threads(options.threads)
    os.environ["OMP_NUM_THREADS"] = str(options.threads)  # of the workers
    model = str(fetch("smollm2-135m", on_note=print))
    trl = peer_environment("trl", "trl==1.16.0", "transformers<5.20")
    results: dict[str, Any] = {"machine": machine(), "model": "smollm2-135m", "group": GROUP, "cases": {}}
    results["clock"] = options.clock
    rows = [["prompt/action", "way", "rows at once", "seconds", "peak GiB", "against ours", "share"]]
    for name in cases:
        case, data = CASES[name], tokens(CASES[name]) | {"clock": options.clock}
        ways = [
            ("tree", 0),
            *(("padded", count) for count in case["rows"]),
            *(("trl", count) for count in case["rows"]),
        ]
        best: dict[tuple[str, int], dict[str, float]] = {}
        rate = 0.0
        difference = float("nan")
        # One process for each side at a time: two models and their activations do not fit beside each other.
        for repeat in range(case["repeats"]):
            for side in ("ours", "trl"):
                worker = (
                    Worker("update_ours.py", model) if side == "ours" else Worker("update_trl.py", model, python=trl)
                )
                for way, count in ways:
                    if (way == "trl") == (side == "trl"):
                        measured = worker.ask(way=way, rows=count, **data)
                        rate = max(rate, measured.pop("gflops_of_matrix_products", 0.0))
                        if (way, count) not in best or measured["seconds"] < best[way, count]["seconds"]:
                            best[way, count] = measured
                worker.close()
            if repeat == 0 and name == "400/40":
                difference = compare_gradients(model, trl, data)
        ours = best["tree", 0]["seconds"]
        share = 6 * LAYER_WEIGHTS * (case["prompt"] + GROUP * case["action"]) / ours / rate / 1e9
        for (way, count), measured in best.items():
            ratio = f"{measured['seconds'] / ours:.1f}x"
            figures = [f"{measured['seconds']:.1f}", f"{measured['peak_gib']:.1f}", ratio]
            rows.append([name, way, str(count or ""), *figures, f"{share:.0%}" if way == "tree" else ""])
        results["cases"][name] = {
            "ways": [{"way": way, "rows_at_once": count, **measured} for (way, count), measured in best.items()],
            "gflops_of_matrix_products": rate,
            "share_of_matrix_products": share,
            "relative_gradient_difference_to_trl": difference,
        }
    table(rows)
    write_results("update_speed" if options.clock == "wall" else "update_speed_cpu_time", results)


def compare_gradients(model: str, trl: Path, data: dict[str, Any]) -> float:
    with tempfile.TemporaryDirectory() as folder:
        paths = [Path(folder) / "ours.pt", Path(folder) / "trl.pt"]
        for worker, way, path in [
            (Worker("update_ours.py", model), "tree", paths[0]),
            (Worker("update_trl.py", model, python=trl), "trl", paths[1]),
        ]:
            worker.ask(way=way, rows=2, gradient=str(path), **data)
            worker.close()
        return gradient_difference(*paths)


if __name__ == "__main__":
    main()
