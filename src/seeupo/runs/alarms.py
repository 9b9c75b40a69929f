"""Detect problems in a run's metrics and suggest which settings to change. See docs/reference/metrics.md."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass

from seeupo.runs.metric_history import History, Record, all_equal, mean, number, turn_values
from seeupo.utils.text import counted

COOLDOWN = 30
"""Number of iterations in which an alarm is not repeated."""
Reading = tuple[float, str]
"""Value after the latest iteration, and the text for the user if it is bad."""


@dataclass(frozen=True)
class Alarm:
    """A value with two thresholds.

    The alarm is raised beyond `threshold` and cleared beyond `clear`, on the other side of it. The gap between the two
    keeps a value that fluctuates around its limit from raising the alarm each time.

    Attributes:
        read: Returns the value and its text; None if the value is unknown, which changes nothing.
        threshold, clear: High values are bad if `threshold` is the higher of the two, low values otherwise.
    """

    read: Callable[[History], Reading | None]
    threshold: float
    clear: float

    def is_bad(self, value: float) -> bool:
        return value > self.threshold if self.threshold > self.clear else value < self.threshold

    def is_good(self, value: float) -> bool:
        return value < self.clear if self.threshold > self.clear else value > self.clear


ALARMS: list[Alarm] = []


def alarm_at(*, threshold: float, clear: float) -> Callable[[Callable[[History], Reading | None]], None]:
    """Add a function to the alarms; see `Alarm`."""
    return lambda read: ALARMS.append(Alarm(read, threshold, clear))


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
        if record.get("kind") == "warm_start":
            self._history.warm_start = record
        elif record.get("kind") == "evaluation" and _is_unsolved_start(record):
            advice = _more_demonstrations(self._history.warm_start)
            return [
                f"before training: no held-out attempt scored above 0. Where no attempt succeeds, all rewards of a "
                f"group are equal and training changes nothing. {advice}, or use easier tasks (environment.options)."
            ]
        if record.get("kind") != "iteration":
            return []
        self._history.add(record)
        messages = []
        for alarm in ALARMS:
            reading = alarm.read(self._history)
            if reading is None:
                continue
            value, text = reading
            if alarm in self._raised and alarm.is_good(value):
                self._raised.remove(alarm)
            elif alarm not in self._raised and alarm.is_bad(value):
                self._raised.add(alarm)
                iteration = int(record["iteration"])
                if iteration - self._reported.get(alarm, -COOLDOWN) >= COOLDOWN:
                    self._reported[alarm] = iteration
                    messages.append(f"iteration {iteration}: {text}")
        return messages


UNSOLVED_EPISODES = 32
"""Number of attempts from which an evaluation without any score says something about the policy."""


def _is_unsolved_start(record: Record) -> bool:
    """Return whether the evaluation before training has no score above 0 in enough attempts."""
    scores = [value.get("value") for key, value in record.items() if key.startswith("avg@") and isinstance(value, dict)]
    enough = (number(record, "episodes") or 0) - (number(record, "failures") or 0) >= UNSOLVED_EPISODES
    return record.get("iteration") == 0 and scores == [0] and enough


def _more_demonstrations(warm_start: Record | None) -> str:
    """Return the advice for a policy that solves nothing: the beginning of a sentence."""
    if warm_start is None:
        return "Start with demonstrations ([warm_start])"
    steps, loss = number(warm_start, "step"), number(warm_start, "loss")
    length = "" if steps is None or loss is None else f" ({steps:g} batches, loss {loss:.2f})"
    return f"The warm start was too short{length}. Raise warm_start.batches and warm_start.episodes"


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


@alarm_at(threshold=0.75, clear=0.25)
def missing_steps(history: History) -> Reading | None:
    """Read the number of iterations without an optimizer step among the last five."""
    known = [idle for record in history.last(5) or [history.latest] if (idle := _is_idle(record)) is not None]
    reason = "all rewards of each group were equal" if all_equal(history.latest) else "no trajectory was left to use"
    if not known:
        return None
    advice = (
        "Once in a while this is harmless. If it recurs, collect more tasks (collect.tasks) or replace groups with "
        "equal rewards (collect.equal_rounds)."
    )
    if all_equal(history.latest) and not history.solved:
        more = _more_demonstrations(history.warm_start)
        advice = f"No attempt has been solved yet. {more}, or use easier tasks (environment.options)."
    return sum(known), f"no optimizer step was made ({reason}), so the weights did not change. {advice}"


def _is_idle(record: Record) -> bool | None:
    metrics = record.get("algorithm") or {}
    steps = number(metrics, "optimizer_steps")
    # While a critic warms up, the policy is not updated on purpose.
    return all_equal(record) if steps is None else steps == 0 and not number(metrics, "critic_steps")


@alarm_at(threshold=0.7, clear=0.6)
def dead_groups(history: History) -> Reading | None:
    """Read the share of groups with equal rewards in the last five iterations, unless partial scores are common.

    A group of equal partial scores has neither solved nor failed its task, and what to do about it depends on the task.
    """
    records = history.last(5)
    if records is None or any(all_equal(record) is None for record in records):
        return None
    if mean([number(record, "partial") or 0.0 for record in records]) > 0.1:
        return None
    dead, groups = (sum(float(record[key]) for record in records) for key in ("dead_groups", "groups"))
    success = history.mean_success(5) or 0.0
    if success > 0.9:
        advice = (
            "most tasks are solved in every attempt and give no learning signal. Use harder tasks "
            "(environment.options) or stop (run.target)."
        )
    elif success < 0.1:
        advice = (
            "most tasks fail in every attempt, and a group without a success gives no learning signal. Start with more "
            "demonstrations (warm_start.batches), use easier tasks (environment.options), or increase the attempts per "
            "task (collect.group_size)."
        )
    else:
        advice = (
            "most tasks are solved either always or never, and neither gives a learning signal. Replace such groups "
            "(collect.equal_rounds, for example 2) or increase the attempts per task (collect.group_size)."
        )
    share = dead / groups
    return share, (
        f"in {share:.0%} of the groups of the last 5 iterations all rewards were equal, at success {success:.2f}: "
        f"{advice}"
    )


@alarm_at(threshold=1.0, clear=1.5)
def entropy(history: History) -> Reading | None:
    """Read the entropy relative to a tenth of its initial value."""
    entropy, first = number(history.latest, "entropy"), history.first_entropy
    if entropy is None:
        return None
    success = float(history.latest["success"])
    # A policy that solves its tasks may be deterministic.
    over_floor = math.inf if success >= 0.8 else entropy / max(0.01, 0.1 * (first or 0.0))
    initial = "" if first is None else f" (first 5 iterations: {first:.3f})"
    return over_floor, (
        f"entropy is {entropy:.3f}{initial}, at success {success:.2f}: the policy is nearly deterministic and no "
        "longer explores. Start again with a lower optimizer.learning_rate, or add an entropy bonus "
        "(algorithm.entropy_coef, for example 0.001)."
    )


@alarm_at(threshold=0.5, clear=0.7)
def success(history: History) -> Reading | None:
    """Read the success rate of the last 10 iterations relative to the best such rate."""
    recent, best = history.recent_success, history.best_success
    if recent is None or best < 0.05:  # near 0, a ratio is noise
        return None
    return recent / best, (
        f"success over the last 10 iterations is {recent:.2f}, {recent / best:.0%} of its best, {best:.2f}: the policy "
        "has collapsed. The best checkpoint is kept. Start again with a lower optimizer.learning_rate, or a penalty "
        "for leaving the reference policy (algorithm.kl_coef, for example 0.002)."
    )


@alarm_at(threshold=10.0, clear=5.0)
def carry(history: History) -> Reading | None:
    """Read the largest M / A of the latest iteration."""
    if not (carries := turn_values([history.latest], "carry_max")):
        return None
    return max(carries), (
        f"the carried advantage M reached {max(carries):.3g} times A, more than 10: a few trajectories dominate the "
        "updates of the turns that are updated last. Lower optimizer.learning_rate, set algorithm.trust_region, or "
        'use algorithm.ratio = "length_normalized" if it is "product".'
    )


@alarm_at(threshold=1e-9, clear=1e-3)
def clip_without_effect(history: History) -> Reading | None:
    """Read the highest clip fraction of the last 20 iterations."""
    if not (fractions := turn_values(history.last(20) or (), "clip_fraction")):
        return None
    return max(fractions), (
        "clip_fraction was 0 in every turn of the last 20 iterations: the clip has no effect, and only the step size "
        "limits an update. This is fine if success rises steadily or algorithm.clip is off. If success rises slowly, "
        "raise optimizer.learning_rate; if it is unstable, narrow algorithm.clip (length-normalized ratios stay close "
        "to 1: GSPO uses about 3e-4)."
    )


@alarm_at(threshold=0.5, clear=0.4)
def clip_fraction(history: History) -> Reading | None:
    """Read the mean clip fraction of the last five iterations."""
    if not (fractions := turn_values(history.last(5) or (), "clip_fraction")):
        return None
    return mean(fractions), (
        f"clip_fraction was {mean(fractions):.2f} on average over the last 5 iterations: more than half of the turns "
        "end outside the clip range, so steps are larger than it is meant to allow. Lower optimizer.learning_rate "
        "or widen algorithm.clip."
    )


@alarm_at(threshold=-3.0, clear=-1.0)
def expected_gain(history: History) -> Reading | None:
    """Read the expected gain, in standard errors, of the turn where it is most significantly negative."""
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
    if not scores:
        return None
    errors, turn, gain = min(scores)
    return errors, (
        f"the expected gain of turn {turn + 1} was {gain:.2g} per iteration over the last 5 iterations, {-errors:.1f} "
        "standard errors below 0: its updates lower the expected reward on the very trajectories that they are trained "
        "on. Lower optimizer.learning_rate, or shrink such steps (algorithm.trust_region, for example {kl = 0.01})."
    )


@alarm_at(threshold=0.75, clear=0.25)
def gradient_norm(history: History) -> Reading | None:
    """Read the number of gradient norms in the latest iteration that are not finite."""
    norms = turn_values([history.latest], "grad_norm")
    overall = number(history.latest.get("algorithm") or {}, "grad_norm")
    norms += [] if overall is None else [overall]
    if not norms:
        return None
    return sum(not math.isfinite(norm) for norm in norms), (
        "a gradient norm is not finite: the weights can no longer be trusted. Start again with a lower "
        'optimizer.learning_rate, set optimizer.max_grad_norm, or use model.dtype = "float32".'
    )


@alarm_at(threshold=1.0, clear=0.5)
def sampler_gap(history: History) -> Reading | None:
    """Read the gap between the log-probs of sampler and trainer, relative to the highest expected one."""
    gap = number(history.latest, "sampler_gap")
    if gap is None:
        return None
    correction = ""
    if history.dtype == "bfloat16":
        correction = ', and correct for the difference (mismatch.tis_cap, for example 2) or use model.dtype = "float32"'
    return gap / history.gap_bound, (
        f"the sampler's log-probs differ from the trainer's by {gap:.2g} on average, more than the "
        f"{history.gap_bound:g} that rounding explains in {history.dtype}: updates are off-policy. Check that the "
        f"sampler has the latest weights{correction}."
    )


@alarm_at(threshold=0.05, clear=0.025)
def failed_episodes(history: History) -> Reading | None:
    if (share := _per_episode(history, "failed_episodes")) is None:
        return None
    return share, (
        f"infrastructure failures ended {share:.1%} of the episodes, more than 5%: the remaining tasks may be a biased "
        "selection. A note gives the last failure. Try fewer environment.workers, a lower agent.concurrency or a "
        "longer agent.episode_seconds, and run `seeupo envs check`."
    )


@alarm_at(threshold=0.2, clear=0.1)
def truncated_responses(history: History) -> Reading | None:
    if (count := _per_episode(history, "truncated_responses")) is None:
        return None
    return count, (
        f"{count:.2f} responses per episode were truncated at agent.max_tokens, more than 0.2: a truncated response is "
        "rarely a valid action. Raise agent.max_tokens; if responses do not end, train longer on demonstrations "
        "(warm_start.batches)."
    )


def _per_episode(history: History, key: str) -> float | None:
    count, episodes = number(history.latest, key), number(history.latest, "episodes")
    return None if count is None else count / max(1.0, episodes or count)
