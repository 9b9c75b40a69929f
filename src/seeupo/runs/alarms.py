"""Detect problems in a run's metrics and suggest which settings to change. See docs/reference/metrics.md."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass

from seeupo.runs.metric_history import History, Record, all_equal, mean, number, turn_values
from seeupo.utils.text import counted

COOLDOWN = 30
"""Number of iterations in which an alarm is not repeated."""


@dataclass(frozen=True)
class Alarm:
    """A value with two thresholds and a message.

    The alarm is raised beyond `threshold` and cleared beyond `clear`, on the other side of it. The gap between the two
    keeps a value that fluctuates around its limit from raising the alarm each time.

    Attributes:
        value: Value after the latest iteration; None if unknown, which changes nothing.
        threshold, clear: High values are bad if `threshold` is the higher of the two, low values otherwise.
        message: Text for the user, which may contain {value}, {success} of the latest iteration and {history}; or a
            function that returns it.
    """

    value: Callable[[History], float | None]
    threshold: float
    clear: float
    message: str | Callable[[float, History], str]

    def text(self, value: float, history: History) -> str:
        if isinstance(self.message, str):
            return self.message.format(value=value, success=history.latest["success"], history=history)
        return self.message(value, history)

    def is_bad(self, value: float) -> bool:
        return value > self.threshold if self.threshold > self.clear else value < self.threshold

    def is_good(self, value: float) -> bool:
        return value < self.clear if self.threshold > self.clear else value > self.clear


class Alarms:
    """Checks every record of a run. An alarm is raised once, and again only after it has cleared and cooled down.

    When a run is resumed, its earlier records must be checked first.

    Args:
        dtype: Data type of the computation (`model.dtype`).
    """

    def __init__(self, dtype: str = "float32") -> None:
        self._history = History(dtype)
        self._raised: set[Alarm] = set()
        self._reported: dict[Alarm, int] = {}

    def check(self, record: Record) -> list[str]:
        """Return the messages of the alarms that this record raises."""
        if record.get("kind") != "iteration":
            return []
        self._history.add(record)
        messages = []
        for alarm in ALARMS:
            value = alarm.value(self._history)
            if value is None:
                continue
            if alarm in self._raised and alarm.is_good(value):
                self._raised.remove(alarm)
            elif alarm not in self._raised and alarm.is_bad(value):
                self._raised.add(alarm)
                iteration = int(record["iteration"])
                if iteration - self._reported.get(alarm, -COOLDOWN) >= COOLDOWN:
                    self._reported[alarm] = iteration
                    messages.append(f"iteration {iteration}: {alarm.text(value, self._history)}")
        return messages


def per_episode(key: str) -> Callable[[History], float | None]:
    def value(history: History) -> float | None:
        count, episodes = number(history.latest, key), number(history.latest, "episodes")
        return None if count is None else count / max(1.0, episodes or count)

    return value


def dead_group_share(history: History) -> float | None:
    """Return the share of groups with equal rewards in the last five iterations; None where partial scores are common.

    A group of equal partial scores has neither solved nor failed its task, and what to do about it depends on the task.
    """
    records = history.last(5)
    if records is None or any(all_equal(record) is None for record in records):
        return None
    if mean([number(record, "partial") or 0.0 for record in records]) > 0.1:
        return None
    dead, groups = (sum(float(record[key]) for record in records) for key in ("dead_groups", "groups"))
    return dead / groups


def dead_group_message(share: float, history: History) -> str:
    success = history.mean_success(5) or 0.0
    seen = f"in {share:.0%} of the groups of the last 5 iterations all rewards were equal, at success {success:.2f}"
    if success > 0.9:
        return (
            f"{seen}: most tasks are solved in every attempt and give no learning signal. "
            "Use harder tasks (environment.options) or stop (run.target)."
        )
    if success < 0.1:
        return (
            f"{seen}: most tasks fail in every attempt, and a group without a success gives no learning signal. "
            "Start with more demonstrations (warm_start.batches), use easier tasks (environment.options), or increase "
            "the attempts per task (collect.group_size)."
        )
    return (
        f"{seen}: most tasks are solved either always or never, and neither gives a learning signal. "
        "Replace such groups (collect.equal_rounds, for example 2) or increase the attempts per task "
        "(collect.group_size)."
    )


def steps_missing(history: History) -> float | None:
    """Return the number of iterations without an optimizer step among the last five."""
    idle = [_is_idle(record) for record in history.last(5) or [history.latest]]
    known = [without_step for without_step in idle if without_step is not None]
    return float(sum(known)) if known else None


def steps_missing_message(count: float, history: History) -> str:
    reason = "all rewards of each group were equal" if all_equal(history.latest) else "no trajectory was left to use"
    return (
        f"no optimizer step was made ({reason}), so the weights did not change. Once in a while this is harmless. If "
        "it recurs, collect more tasks (collect.tasks) or replace groups with equal rewards (collect.equal_rounds)."
    )


def _is_idle(record: Record) -> bool | None:
    metrics = record.get("algorithm") or {}
    steps = number(metrics, "optimizer_steps")
    # While a critic warms up, the policy is not updated on purpose.
    return all_equal(record) if steps is None else steps == 0 and not number(metrics, "critic_steps")


def untrained_warning(records: Iterable[Record]) -> str | None:
    """Return a warning if a run has made no optimizer step in any of its iterations."""
    records = list(records)
    iterations = [record for record in records if record.get("kind") == "iteration"]
    metrics = [record.get("algorithm") for record in iterations]
    steps = [number(values, "optimizer_steps") if isinstance(values, Mapping) else None for values in metrics]
    if not steps or any(count != 0 for count in steps):  # an algorithm that does not count its steps may have made some
        return None
    reason = (
        "all rewards of each group were equal" if all(map(all_equal, iterations)) else "no trajectory could be used"
    )
    warmed = any(record.get("kind") == "warm_start" for record in records)
    start = "Raise warm_start.batches" if warmed else "Start with demonstrations ([warm_start])"
    return (
        f"no optimizer step was made in {counted(len(steps), 'iteration')} ({reason}): training did not change the "
        f"policy. {start}, use tasks that are solved sometimes (environment.options), "
        "or collect more (collect.tasks, collect.group_size)."
    )


def entropy_over_floor(history: History) -> float | None:
    """Return the entropy relative to a tenth of its initial value."""
    entropy, first = number(history.latest, "entropy"), history.first_entropy
    if entropy is None:
        return None
    if float(history.latest["success"]) >= 0.8:
        return math.inf  # A policy that solves its tasks may be deterministic.
    return entropy / max(0.01, 0.1 * (first or 0.0))


def entropy_message(over_floor: float, history: History) -> str:
    first = history.first_entropy
    initial = "" if first is None else f" (first 5 iterations: {first:.3f})"
    return (
        f"entropy is {history.latest['entropy']:.3f}{initial}, at success {history.latest['success']:.2f}: the policy "
        "is nearly deterministic and no longer explores. Start again with a lower optimizer.learning_rate, or add an "
        "entropy bonus (algorithm.entropy_coef, for example 0.001)."
    )


def success_over_best(history: History) -> float | None:
    """Return the success rate of the last 10 iterations relative to the best such rate."""
    recent = history.recent_success
    # Near 0, a ratio is noise.
    return None if recent is None or history.best_success < 0.05 else recent / history.best_success


def max_clip_fraction(history: History) -> float | None:
    """Return the highest clip fraction of the last 20 iterations."""
    records = history.last(20)
    if records is None or not (fractions := turn_values(records, "clip_fraction")):
        return None
    return max(fractions)


def mean_clip_fraction(history: History) -> float | None:
    """Return the mean clip fraction of the last five iterations."""
    records = history.last(5)
    fractions = turn_values(records or (), "clip_fraction")
    return mean(fractions) if fractions else None


def max_carry(history: History) -> float | None:
    """Return the largest M / A of the latest iteration."""
    return max(turn_values([history.latest], "carry_max"), default=None)


def lowest_gain(history: History) -> tuple[float, int, float] | None:
    """Return the expected gain over the last five iterations of the turn where it is most significantly negative.

    The gain in standard errors, the turn from 0, and the mean gain per iteration.
    """
    gains: dict[int, list[tuple[float, float]]] = {}
    for record in history.last(5) or ():
        for turn in record.get("turns") or ():
            gain, error = number(turn, "expected_gain"), number(turn, "expected_gain_se")
            if gain is not None and error is not None and isinstance(turn.get("turn"), int):
                gains.setdefault(turn["turn"], []).append((gain, error))
    scores = []
    for turn, values in gains.items():
        total, error = sum(gain for gain, _ in values), math.hypot(*(error for _, error in values))
        if len(values) == 5 and error > 0:
            scores.append((total / error, turn, total / len(values)))
    return min(scores, default=None)


def gain_message(errors: float, history: History) -> str:
    _, turn, gain = lowest_gain(history) or (errors, 0, 0.0)
    return (
        f"the expected gain of turn {turn + 1} was {gain:.2g} per iteration over the last 5 iterations, {-errors:.1f} "
        "standard errors below 0: its updates lower the expected reward on the very trajectories that they are trained "
        "on. Lower optimizer.learning_rate, or shrink such steps (algorithm.trust_region, for example {kl = 0.01})."
    )


def non_finite_norms(history: History) -> float | None:
    """Return the number of gradient norms in the latest iteration that are not finite."""
    norms = turn_values([history.latest], "grad_norm")
    overall = number(history.latest.get("algorithm") or {}, "grad_norm")
    norms += [] if overall is None else [overall]
    return float(sum(not math.isfinite(norm) for norm in norms)) if norms else None


def gap_over_bound(history: History) -> float | None:
    """Return the gap between the log-probs of sampler and trainer, relative to the highest expected one."""
    gap = number(history.latest, "sampler_gap")
    return None if gap is None else gap / history.gap_bound


def gap_message(over_bound: float, history: History) -> str:
    advice = "Check that the sampler has the latest weights"
    if history.dtype == "bfloat16":
        advice += ', and correct for the difference (mismatch.tis_cap, for example 2) or use model.dtype = "float32"'
    return (
        f"the sampler's log-probs differ from the trainer's by {history.latest['sampler_gap']:.2g} on average, more "
        f"than the {history.gap_bound:g} that rounding explains in {history.dtype}: updates are off-policy. {advice}."
    )


ALARMS = (
    Alarm(
        lambda history: float(history.iterations_all_equal),
        threshold=9.5,
        clear=0.5,
        message="all rewards of each group were equal for {value:.0f} iterations in a row, at success {success:.2f}: "
        "training cannot progress, because it learns from differences between attempts at the same task. If no task is "
        "solved, start with demonstrations (warm_start.batches) or easier tasks (environment.options); if all are "
        "solved, stop or use harder ones.",
    ),
    Alarm(steps_missing, threshold=0.75, clear=0.25, message=steps_missing_message),
    Alarm(dead_group_share, threshold=0.7, clear=0.6, message=dead_group_message),
    Alarm(entropy_over_floor, threshold=1.0, clear=1.5, message=entropy_message),
    Alarm(
        success_over_best,
        threshold=0.5,
        clear=0.7,
        message="success over the last 10 iterations is {history.recent_success:.2f}, {value:.0%} of its best, "
        "{history.best_success:.2f}: the policy has collapsed. The best checkpoint is kept. Start again with a lower "
        "optimizer.learning_rate, or a penalty for leaving the reference policy (algorithm.kl_coef, for example "
        "0.002).",
    ),
    Alarm(
        max_carry,
        threshold=10.0,
        clear=5.0,
        message="the carried advantage M reached {value:.3g} times A, more than 10: a few trajectories dominate the "
        "updates of the turns that are updated last. Lower optimizer.learning_rate, set algorithm.trust_region, or "
        'use algorithm.ratio = "length_normalized" if it is "product".',
    ),
    Alarm(
        max_clip_fraction,
        threshold=1e-9,
        clear=1e-3,
        message="clip_fraction was 0 in every turn of the last 20 iterations: the clip has no effect, and only the "
        "step size limits an update. This is fine if success rises steadily or algorithm.clip is off. If success rises "
        "slowly, raise optimizer.learning_rate; if it is unstable, narrow algorithm.clip (length-normalized ratios "
        "stay close to 1: GSPO uses about 3e-4).",
    ),
    Alarm(
        mean_clip_fraction,
        threshold=0.5,
        clear=0.4,
        message="clip_fraction was {value:.2f} on average over the last 5 iterations: more than half of the turns "
        "end outside the clip range, so steps are larger than it is meant to allow. Lower optimizer.learning_rate "
        "or widen algorithm.clip.",
    ),
    Alarm(
        lambda history: None if (gain := lowest_gain(history)) is None else gain[0],
        threshold=-3.0,
        clear=-1.0,
        message=gain_message,
    ),
    Alarm(
        non_finite_norms,
        threshold=0.75,
        clear=0.25,
        message="a gradient norm is not finite: the weights can no longer be trusted. Start again with "
        'a lower optimizer.learning_rate, set optimizer.max_grad_norm, or use model.dtype = "float32".',
    ),
    Alarm(gap_over_bound, threshold=1.0, clear=0.5, message=gap_message),
    Alarm(
        per_episode("failed_episodes"),
        threshold=0.05,
        clear=0.025,
        message="infrastructure failures ended {value:.1%} of the episodes, more than 5%: the remaining tasks may be a "
        "biased selection. A note gives the last failure. Try fewer environment.workers, a lower "
        "agent.concurrency or a longer agent.episode_seconds, and run `seeupo envs check`.",
    ),
    Alarm(
        per_episode("truncated_responses"),
        threshold=0.2,
        clear=0.1,
        message="{value:.2f} responses per episode were truncated at agent.max_tokens, more than 0.2: a truncated "
        "response is rarely a valid action. Raise agent.max_tokens; if responses do not end, train longer on "
        "demonstrations (warm_start.batches).",
    ),
)
