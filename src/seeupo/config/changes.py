"""Changes of a recipe between the start of a run and its resumption: which are possible, and which need consent."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from seeupo.config.toml import dotted, format_value
from seeupo.envs.references import same_code
from seeupo.errors import TrainingError

LENGTH = tuple(
    f"run.{name}"
    for name in ("iterations", "max_minutes", "target", "patience", "checkpoint_every", "keep_checkpoints")
)
"""Keys that need no consent if they are typed: they decide when a run ends and what it keeps."""
OPTIMIZER = ("learning_rate", "schedule", "warmup", "beta1", "beta2", "eps", "weight_decay", "max_grad_norm")
CHANGEABLE = (
    *LENGTH,
    "run.deterministic",
    "run.threads",
    "model.batch_tokens",
    "model.trunk_gib",
    "model.row_tokens",
    "model.gradient_checkpointing",
    "environment.workers",
    "agent.concurrency",
    "agent.episode_seconds",
    "collect",
    "algorithm",
    *(f"optimizer.{name}" for name in OPTIMIZER),
    *(f"critic.optimizer.{name}" for name in OPTIMIZER),
    "engine",
    "sampler",
    "mismatch",
    "evaluation.every",
    "trackers",
)
"""Keys and sections that the loop can change at a checkpoint."""
FIXED = ("algorithm.name",)
"""Keys of these sections that cannot change."""


@dataclass(frozen=True)
class Change:
    """A key of a recipe with its value before and after; None if the recipe does not have it."""

    key: str
    old: Any
    new: Any

    @property
    def possible(self) -> bool:
        """Whether a run can be resumed with this change: its checkpoints and scores do not depend on the key."""
        within = any(self.key == key or self.key.startswith(f"{key}.") for key in CHANGEABLE)
        return within and self.key not in FIXED

    @property
    def refusal(self) -> str:
        """The change as a request that may be refused."""
        old, new = self._values()
        return f"{self.key}: the run used {old}, you asked for {new}"

    def __str__(self) -> str:
        old, new = self._values()
        return f"{self.key} = {new} instead of {old}"

    def _values(self) -> tuple[str, str]:
        old, new = ("(not set)" if value is None else format_value(value) for value in (self.old, self.new))
        return old, new


def recipe_changes(before: Mapping[str, Any], after: Mapping[str, Any]) -> list[Change]:
    """Return the keys with different values in two tables of recipes."""
    old, new = dict(flat(before)), dict(flat(after))
    return [Change(key, old.get(key), new.get(key)) for key in {**old, **new} if old.get(key) != new.get(key)]


def renamed(table: Mapping[str, Any], name: str) -> tuple[Mapping[str, Any], list[Change]]:
    """Return a recipe's table with this name of its algorithm if its class was only moved, and that change."""
    algorithm = table.get("algorithm", {})
    old = algorithm.get("name") if isinstance(algorithm, Mapping) else None
    if not isinstance(old, str) or old == name or not same_code(old, name):
        return table, []
    return {**table, "algorithm": dict(algorithm, name=name)}, [Change("algorithm.name", old, name)]


def check_changes(changes: Sequence[Change], *, typed: Collection[str], accepted: bool) -> None:
    """Raise unless a run may be resumed with these changes.

    Args:
        typed: Keys that the user set for this resumption; others were edited in the run's recipe.
        accepted: Whether the user accepts all changes.
    """

    def is_typed(change: Change) -> bool:
        return any(change.key == key or change.key.startswith(f"{key}.") for key in typed)

    def described(refused: Sequence[Change]) -> str:
        return "; ".join(
            f"{change.refusal}{'' if is_typed(change) else ' (edited in recipe.toml)'}" for change in refused
        )

    if impossible := [change for change in changes if not change.possible]:
        raise TrainingError(
            f"{described(impossible)}. This cannot change when a run is resumed, because checkpoints or scores depend "
            "on it. Undo it, or start a new run"
        )
    pending = [change for change in changes if not (change.key in LENGTH and is_typed(change))]
    if pending and not accepted:
        raise TrainingError(
            f"{described(pending)}. Undo this, or resume with --accept-changes (accept_changes=True in Python), which "
            "records it"
        )


def recorded_changes(records: object) -> list[tuple[int, Change]]:
    """Return the changes that a run directory records, each with its iteration. Malformed ones are left out."""
    changes = [record for record in records if isinstance(record, Mapping)] if isinstance(records, list) else []
    return [
        (change["iteration"], Change(str(change["key"]), change.get("old"), change.get("new")))
        for change in changes
        if "key" in change and isinstance(change.get("iteration"), int)
    ]


def changes_text(records: object) -> str | None:
    """Return the changes that a run directory records, as text; None if there are none."""
    return (
        "; ".join(f"after iteration {iteration}: {change}" for iteration, change in recorded_changes(records)) or None
    )


def flat(table: Mapping[str, Any], prefix: str = "") -> Iterator[tuple[str, Any]]:
    """Yield the dotted keys of nested tables with their values."""
    for name, value in table.items():
        key = dotted(prefix, name)
        if isinstance(value, Mapping):
            yield from flat(value, key)
        else:
            yield key, value
