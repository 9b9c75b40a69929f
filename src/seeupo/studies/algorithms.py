"""Do all algorithms learn a recipe, each with its own defaults?

The same seed gives each of them the same model, demonstrations, tasks and warm start. Their numbers of optimizer steps
and passes through the model differ, and the recipe's learning rate was chosen for one of them: this says that each of
them works, and not which is best.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from seeupo.core.statistics import format_estimate
from seeupo.studies.runs import Runs


@dataclass(frozen=True)
class Study:
    """Every algorithm with every seed."""

    runs: Runs
    algorithms: Sequence[str]
    seeds: int

    def run(self, report: Callable[[str], None]) -> dict[str, Any]:
        """All runs that are missing, then the table of all of them."""
        wanted = [(name, seed) for seed in range(self.seeds) for name in self.algorithms]
        rows = {}
        for row in self.runs.each(self._row, wanted):
            rows[row["algorithm"], row["seed"]] = row
            report(
                f"{row['algorithm']}, seed {row['seed']}: avg@{row['k']} {row['before']['value']:.3f} -> "
                f"{row['after']['value']:.3f}, {row['minutes']:.1f} minutes"
            )
        return table_of(self.runs.recipe, [rows[name, seed] for name in self.algorithms for seed in range(self.seeds)])

    def _row(self, algorithm: str, seed: int) -> dict[str, Any]:
        found = self.runs.summary(f"{algorithm}-{seed}", [f"--algorithm.name={algorithm}", f"--run.seed={seed}"])
        name = f"avg@{found['k']}"
        return {
            "algorithm": algorithm,
            "seed": seed,
            "before": found["before"][name],
            "after": found["after"][name],
            "optimizer_steps": found["optimizer_steps"],
            "minutes": sum(found["seconds"].values()) / 60,
            "k": found["k"],
        }


def table_of(recipe: str, rows: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """What the runs show together."""
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
    """The table's lines, for docs."""
    yield f"| algorithm | seed | avg@{table['k']} after the warm start | after training | optimizer steps | minutes |"
    yield "|---|---|---|---|---|---|"
    for name, found in table["algorithms"].items():
        for row in found["runs"]:
            cells = " | ".join(format_estimate(row[when]) for when in ("before", "after"))
            yield f"| {name} | {row['seed']} | {cells} | {row['optimizer_steps']} | {row['minutes']:.1f} |"
