"""Warnings found in a run's numbers: what was seen, what it means, and what to do about it.

docs/metrics.md explains the numbers themselves.
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

Record = Mapping[str, Any]
LONGEST = 20  # iterations that an alarm looks back
QUIET = 30  # iterations in which an alarm that came and went is not repeated


@dataclass(frozen=True)
class Alarm:
    """A number, when it is bad, and what is said then.

    It is bad beyond `at` and good again beyond `clear`, on the other side of it: in between, nothing is said and
    nothing forgotten, so that a number which trembles around its limit does not raise the alarm each time.

    Attributes:
        measure: the number after the latest iteration; None if that cannot be known, which changes nothing.
        at, clear: high numbers are bad if `at` is the higher one, low numbers otherwise.
        text: of the number and the latest records.
    """

    measure: Callable[[History], float | None]
    at: float
    clear: float
    text: Callable[[float, History], str]

    def is_bad(self, value: float) -> bool:
        return value > self.at if self.at > self.clear else value < self.at

    def is_good(self, value: float) -> bool:
        return value < self.clear if self.at > self.clear else value > self.clear


class History:
    """The latest iterations, and what is remembered of those before."""

    def __init__(self) -> None:
        self._records: deque[Record] = deque(maxlen=LONGEST)
        self._first_entropies: list[float] = []
        self.best_success = 0.0
        self.iterations_all_equal = 0

    def add(self, record: Record) -> None:
        self._records.append(record)
        entropy = number(record, "entropy")
        if entropy is not None and len(self._first_entropies) < 5:
            self._first_entropies.append(entropy)
        if (recent := self.mean_success(10)) is not None:
            self.best_success = max(self.best_success, recent)
        if (equal := all_equal(record)) is not None:
            self.iterations_all_equal = self.iterations_all_equal + 1 if equal else 0

    @property
    def latest(self) -> Record:
        return self._records[-1]

    @property
    def first_entropy(self) -> float | None:
        """The mean of the first five iterations; None before that."""
        return mean(self._first_entropies) if len(self._first_entropies) == 5 else None

    def last(self, count: int) -> list[Record] | None:
        """The last iterations; None if there have not been so many."""
        return list(self._records)[-count:] if len(self._records) >= count else None

    def mean_success(self, count: int) -> float | None:
        records = self.last(count)
        return None if records is None else mean([float(record["success"]) for record in records])


class Alarms:
    """Hears every record and says what is wrong, each thing once until it has been right again, and not too often.

    A run that goes on from a checkpoint lets it hear the earlier records first, to know what is usual.
    """

    def __init__(self) -> None:
        self._history = History()
        self._raised: set[Alarm] = set()
        self._said: dict[Alarm, int] = {}

    def check(self, record: Record) -> list[str]:
        """What is newly wrong after this record; most often nothing."""
        if record.get("kind") != "iteration":
            return []
        self._history.add(record)
        texts = []
        for alarm in ALARMS:
            value = alarm.measure(self._history)
            if value is None:
                continue
            if alarm in self._raised and alarm.is_good(value):
                self._raised.remove(alarm)
            elif alarm not in self._raised and alarm.is_bad(value):
                self._raised.add(alarm)
                iteration = int(record["iteration"])
                if iteration - self._said.get(alarm, -QUIET) >= QUIET:
                    self._said[alarm] = iteration
                    texts.append(f"iteration {iteration}: {alarm.text(value, self._history)}")
        return texts


def number(record: Record, key: str) -> float | None:
    value = record.get(key)
    try:
        return float(value) if isinstance(value, int | float) else None
    except OverflowError:  # a whole number beyond all floats
        return None


def mean(values: Sequence[float]) -> float:
    return sum(values) / len(values)


def of_turns(records: Iterable[Record], key: str) -> list[float]:
    """All values of a metric of the turns."""
    return [
        value for record in records for turn in record.get("turns") or () if (value := number(turn, key)) is not None
    ]


def all_equal(record: Record) -> bool | None:
    """Whether all rewards were equal within each group; None if that is not known."""
    dead, groups = number(record, "dead_groups"), number(record, "groups")
    return None if dead is None or not groups else dead >= groups


def share_of_episodes(key: str) -> Callable[[History], float | None]:
    def measure(history: History) -> float | None:
        count, episodes = number(history.latest, key), number(history.latest, "episodes")
        return None if count is None else count / max(1.0, episodes or count)

    return measure


def dead_share(history: History) -> float | None:
    records = history.last(5)
    if records is None or any(all_equal(record) is None for record in records):
        return None
    dead, groups = (sum(float(record[key]) for record in records) for key in ("dead_groups", "groups"))
    return dead / groups


def dead_text(share: float, history: History) -> str:
    success = history.mean_success(5) or 0.0
    seen = f"in {share:.0%} of the groups of the last 5 iterations all rewards were equal, with success {success:.2f}"
    if success > 0.9:
        return (
            f"{seen}: most tasks are solved in every attempt and have nothing left to teach. "
            "Take harder tasks (environment.options), or stop here (run.target)."
        )
    if success < 0.1:
        return (
            f"{seen}: most tasks fail in every attempt, and a group without a success has nothing to teach. Begin with "
            "demonstrations or more of them (warm_start.batches), take easier tasks (environment.options), "
            "or try each more often (collect.group_size)."
        )
    return (
        f"{seen}: most tasks are either always solved or never, and neither teaches. "
        "Replace such groups by other tasks (collect.equal_rounds, say 2), or try each more often (collect.group_size)."
    )


def no_step(history: History) -> float | None:
    """Iterations without an optimizer step, of the last five."""
    found = [idle for record in (history.last(5) or [history.latest]) if (idle := _is_idle(record)) is not None]
    return float(sum(found)) if found else None


def no_step_text(count: float, history: History) -> str:
    reason = "all rewards of each group were equal" if all_equal(history.latest) else "nothing was left to learn from"
    return (
        f"no optimizer step was made ({reason}), so the weights are what they were. Now and then this is harmless. If "
        "it comes back, sample more tasks (collect.tasks) or replace groups of equal rewards (collect.equal_rounds)."
    )


def _is_idle(record: Record) -> bool | None:
    found = record.get("algorithm") or {}
    steps = number(found, "optimizer_steps")
    # While a critic warms up, the policy is meant to stay.
    return all_equal(record) if steps is None else steps == 0 and not number(found, "critic_steps")


def entropy_over_floor(history: History) -> float | None:
    entropy, first = number(history.latest, "entropy"), history.first_entropy
    if entropy is None:
        return None
    if float(history.latest["success"]) >= 0.8:
        return math.inf  # A policy that solves its tasks may be sure of itself.
    return entropy / max(0.01, 0.1 * (first or 0.0))


def entropy_text(over_floor: float, history: History) -> str:
    first = history.first_entropy
    began = "" if first is None else f", {first:.3f} over the first 5 iterations"
    return (
        f"entropy is {history.latest['entropy']:.3f}{began}, with success {history.latest['success']:.2f}: the policy "
        "says nearly the same each time and will find nothing better. Begin again with a lower "
        "optimizer.learning_rate, or reward variety (algorithm.entropy_coef, say 0.001)."
    )


def success_over_best(history: History) -> float | None:
    recent = history.mean_success(10)
    # Half of next to nothing is noise.
    return None if recent is None or history.best_success < 0.05 else recent / history.best_success


def highest_clip(history: History) -> float | None:
    records = history.last(20)
    if records is None or not (fractions := of_turns(records, "clip_fraction")):
        return None
    return max(fractions)


def mean_clip(history: History) -> float | None:
    records = history.last(5)
    fractions = of_turns(records or (), "clip_fraction")
    return mean(fractions) if fractions else None


def highest_carry(history: History) -> float | None:
    return max(of_turns([history.latest], "carry_max"), default=None)


def not_finite(history: History) -> float | None:
    norms = of_turns([history.latest], "grad_norm")
    overall = number(history.latest.get("algorithm") or {}, "grad_norm")
    norms += [] if overall is None else [overall]
    return float(sum(not math.isfinite(norm) for norm in norms)) if norms else None


ALARMS = (
    Alarm(
        lambda history: float(history.iterations_all_equal),
        at=9.5,
        clear=0.5,
        text=lambda count, history: (
            f"all rewards of each group were equal for {count:.0f} iterations in a row, with success "
            f"{history.latest['success']:.2f}: training cannot progress, as it learns from differences between "
            "attempts at the same task and there are none. If nothing is solved, begin with demonstrations "
            "(warm_start.batches) or easier tasks (environment.options); if everything is, stop or take harder ones."
        ),
    ),
    Alarm(no_step, at=0.75, clear=0.25, text=no_step_text),
    Alarm(dead_share, at=0.7, clear=0.6, text=dead_text),
    Alarm(entropy_over_floor, at=1.0, clear=1.5, text=entropy_text),
    Alarm(
        success_over_best,
        at=0.5,
        clear=0.7,
        text=lambda share, history: (
            f"success over the last 10 iterations is {history.mean_success(10):.2f}, {share:.0%} of its best, "
            f"{history.best_success:.2f}: the policy has lost what it could do. The best checkpoint is kept. Begin "
            "again with a lower optimizer.learning_rate, or hold it closer to where it began (algorithm.kl_coef, "
            "say 0.002)."
        ),
    ),
    Alarm(
        highest_carry,
        at=10.0,
        clear=5.0,
        text=lambda carry, history: (
            f"M / A reached {carry:.3g}, more than 10: a few trajectories decide the update of the turns that come "
            "last. Lower optimizer.learning_rate, bound the factors of M (algorithm.carry_clip, say [0.5, 0.5]), "
            'or use algorithm.ratio = "length_normalized" if it is "product".'
        ),
    ),
    Alarm(
        highest_clip,
        at=1e-9,
        clear=1e-3,
        text=lambda fraction, history: (
            "clip_fraction was 0 in every turn of the last 20 iterations: the clip does nothing, nothing but the step "
            "size limits an update. That is as it should be if success rises steadily or algorithm.clip is off. If "
            "success rises slowly, raise optimizer.learning_rate; if it is unsteady, narrow algorithm.clip "
            "(length-normalised ratios move little: GSPO uses about 3e-4)."
        ),
    ),
    Alarm(
        mean_clip,
        at=0.5,
        clear=0.4,
        text=lambda fraction, history: (
            f"clip_fraction was {fraction:.2f} on average over the last 5 iterations: more than half of the samples "
            "end outside the clip, so steps are larger than it means to allow. Lower optimizer.learning_rate, or widen "
            "algorithm.clip."
        ),
    ),
    Alarm(
        not_finite,
        at=0.75,
        clear=0.25,
        text=lambda count, history: (
            "a gradient norm was not finite: the weights can no longer be trusted. Begin again with "
            'a lower optimizer.learning_rate, set optimizer.max_grad_norm, or use model.dtype = "float32".'
        ),
    ),
    Alarm(
        lambda history: number(history.latest, "sampler_gap"),
        at=1e-3,
        clear=5e-4,
        text=lambda gap, history: (
            f"the sampler's log-probs differ from the trainer's by {gap:.2g} on average, more than 0.001: what is "
            "trained is not what was sampled. Use the same model.dtype for both, float32 at best, and see that the "
            "sampler has the latest weights."
        ),
    ),
    Alarm(
        share_of_episodes("failed_episodes"),
        at=0.05,
        clear=0.025,
        text=lambda share, history: (
            f"{share:.1%} of the episodes failed by fault of the infrastructure, more than 5%: what is left may be a "
            "biased selection of the tasks. A note says how the last one failed; fewer environment.workers, a lower "
            "agent.concurrency or a longer agent.episode_seconds often help, `seeupo envs check` finds the rest."
        ),
    ),
    Alarm(
        share_of_episodes("truncated_responses"),
        at=0.2,
        clear=0.1,
        text=lambda per_episode, history: (
            f"{per_episode:.2f} responses per episode were cut at agent.max_tokens, more than 0.2: a cut response is "
            "rarely a valid action. Raise agent.max_tokens; if responses ramble without end, more "
            "warm_start.batches teach when to stop."
        ),
    ),
)
