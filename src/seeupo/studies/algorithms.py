"""Study that trains a recipe with every algorithm, each with its own defaults.

The same seed gives each algorithm the same model, demonstrations, tasks and warm start. Optimizer steps and forward
passes differ, and the recipe's learning rate was chosen for one algorithm: the study shows that each of them learns,
not which is best.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from seeupo.core.statistics import format_estimate
from seeupo.studies.runs import Runs


@dataclass(frozen=True)
class Study:
    """Runs of every algorithm with every seed.

    Attributes:
        runs: Training runs of the recipe.
        algorithms: Registry names.
        seeds: Number of seeds, counted from 0.
    """

    runs: Runs
    algorithms: Sequence[str]
    seeds: int

    def run(self, report: Callable[[str], None]) -> dict[str, Any]:
        """Train the missing runs, report each one as it finishes, and return the table of all runs."""
        wanted = [(name, seed) for seed in range(self.seeds) for name in self.algorithms]
        rows = {}
        for row in self.runs.map(self._row, wanted):
            rows[row["algorithm"], row["seed"]] = row
            report(
                f"{row['algorithm']}, seed {row['seed']}: avg@{row['k']} {row['before']['value']:.3f} -> "
                f"{row['after']['value']:.3f}, {row['minutes']:.1f} minutes"
            )
        return table_of(self.runs.recipe, [rows[name, seed] for name in self.algorithms for seed in range(self.seeds)])

    def _row(self, algorithm: str, seed: int) -> dict[str, Any]:
        summary = self.runs.summary(f"{algorithm}-{seed}", [f"--algorithm.name={algorithm}", f"--run.seed={seed}"])
        name = f"avg@{summary['k']}"
        return {
            "algorithm": algorithm,
            "seed": seed,
            "before": summary["before"][name],
            "after": summary["after"][name],
            "optimizer_steps": summary["optimizer_steps"],
            "minutes": sum(summary["seconds"].values()) / 60,
            "k": summary["k"],
        }


def table_of(recipe: str, rows: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """Return mean scores per algorithm, and whether every run at least doubled its score."""
    by_algorithm: dict[str, list[Mapping[str, Any]]] = {}
    for row in rows:
        by_algorithm.setdefault(row["algorithm"], []).append(row)
    return {
        "recipe": recipe,
        "k": rows[0]["k"],
        "algorithms": {
            name: {
                "mean_before": sum(row["before"]["value"] for row in members) / len(members),
                "mean_after": sum(row["after"]["value"] for row in members) / len(members),
                "all_double": all(row["after"]["value"] >= 2 * row["before"]["value"] for row in members),
                "runs": [{key: value for key, value in row.items() if key != "algorithm"} for row in members],
            }
            for name, members in by_algorithm.items()
        },
    }


def markdown(table: Mapping[str, Any]) -> Iterator[str]:
    """Yield the table as Markdown lines."""
    yield f"| algorithm | seed | avg@{table['k']} after the warm start | after training | optimizer steps | minutes |"
    yield "|---|---|---|---|---|---|"
    for name, found in table["algorithms"].items():
        for row in found["runs"]:
            cells = " | ".join(format_estimate(row[when]) for when in ("before", "after"))
            yield f"| {name} | {row['seed']} | {cells} | {row['optimizer_steps']} | {row['minutes']:.1f} |"
