"""Does a recipe learn on every seed, and more than supervised learning alone would have brought?

Each seed draws its own model, demonstrations, tasks and warm start. Beside each run stands a control that spends as
many optimizer steps on the same demonstrations instead.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from seeupo.config.loader import read_recipe
from seeupo.core.statistics import format_estimate
from seeupo.errors import TrainingError
from seeupo.studies.runs import Runs


@dataclass(frozen=True)
class Study:
    """Each seed's run and its control."""

    runs: Runs
    seeds: int

    def run(self, report: Callable[[str], None]) -> dict[str, Any]:
        """All runs that are missing, then the table of all of them."""
        rows = []
        for row in self.runs.each(self._seed, ((seed,) for seed in range(self.seeds))):
            rows.append(row)
            report(sentence(row))
        return table_of(self.runs.recipe, sorted(rows, key=lambda row: row["seed"]))

    def _seed(self, seed: int) -> dict[str, Any]:
        trained = self.runs.summary(f"seed-{seed}", [f"--run.seed={seed}"])
        batches = (read_recipe(self.runs.recipe).warm_start or _no_warm_start(self.runs.recipe)).batches
        steps = batches + trained["optimizer_steps"]
        control = self.runs.summary(
            f"control-{seed}",
            [
                f"--run.seed={seed}",
                f"--warm_start.batches={steps}",
                "--run.iterations=1",
                "--optimizer.learning_rate=0",
            ],
        )
        return {
            "seed": seed,
            "before": trained["before"],
            "after": trained["after"],
            "control": control["before"],
            "minutes": sum(trained["seconds"].values()) / 60,
            "optimizer_steps": trained["optimizer_steps"],
            "k": trained["k"],
        }


def table_of(recipe: str, rows: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """What the runs show together."""
    name = f"avg@{rows[0]['k']}"

    def scores(when: str) -> list[float]:
        return [row[when][name]["value"] for row in rows]

    return {
        "recipe": recipe,
        "seeds": len(rows),
        "lowest_after": min(scores("after")),
        "mean_before": sum(scores("before")) / len(rows),
        "mean_after": sum(scores("after")) / len(rows),
        "mean_control": sum(scores("control")) / len(rows),
        "all_double": all(after >= 2 * before for before, after in zip(scores("before"), scores("after"), strict=True)),
        "all_above_control": all(a > c for a, c in zip(scores("after"), scores("control"), strict=True)),
        "runs": [_short(row, name) for row in rows],
    }


def markdown(table: Mapping[str, Any]) -> Iterator[str]:
    """The table's lines, for docs."""
    yield "| seed | after the warm start | after SeeUPO | supervised learning instead | minutes |"
    yield "|---|---|---|---|---|"
    for row in table["runs"]:
        cells = " | ".join(format_estimate(row[when]) for when in ("before", "after", "control"))
        yield f"| {row['seed']} | {cells} | {row['minutes']:.1f} |"


def sentence(row: Mapping[str, Any]) -> str:
    name = f"avg@{row['k']}"
    before, after, control = (row[when][name]["value"] for when in ("before", "after", "control"))
    return (
        f"seed {row['seed']}: {name} {before:.3f} -> {after:.3f}, control {control:.3f}, {row['minutes']:.1f} minutes"
    )


def _short(row: Mapping[str, Any], name: str) -> dict[str, Any]:
    return {**row, **{when: row[when][name] for when in ("before", "after", "control")}}


def _no_warm_start(recipe: str) -> Any:
    raise TrainingError(f"{recipe} has no warm start, so that there is nothing to compare it with")
