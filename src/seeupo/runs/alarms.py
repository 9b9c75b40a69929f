"""Detect problems in a run's metrics and suggest which settings to change. See docs/reference/metrics.md.

An alarm is a function of the latest metrics that returns a text for the user, or None if it finds no problem.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping

from seeupo.runs.metric_history import History, Record, all_equal, mean, number, turn_values
from seeupo.utils.text import counted

COOLDOWN = 30
"""Number of iterations in which an alarm is not repeated."""
Alarm = Callable[[History], str | None]


class Alarms:
    """Checks every record of a run. An alarm is raised once, and again only after it has cleared and cooled down.

    When a run is resumed, its earlier records must be checked first.

    Args:
        dtype, threads: As in `History`.
    """

    def __init__(self, dtype: str = "float32", threads: int = 1) -> None:
        self._history = History(dtype, threads)
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
            text = alarm(self._history)
            if text is None:
                self._raised.discard(alarm)
            elif alarm not in self._raised:
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


def missing_steps(history: History) -> str | None:
    """Check for an iteration without an optimizer step among the last five."""
    if not any(map(_is_idle, history.last(5) or [history.latest])):
        return None
    reason = "all rewards of each group were equal" if all_equal(history.latest) else "no trajectory was left to use"
    advice = (
        "Once in a while this is harmless. If it recurs, collect more tasks (collect.tasks) or replace groups with "
        "equal rewards (collect.equal_rounds)."
    )
    if all_equal(history.latest) and not history.solved:
        more = _more_demonstrations(history.warm_start)
        advice = f"No attempt has been solved yet. {more}, or use easier tasks (environment.options)."
    return f"no optimizer step was made ({reason}), so the weights did not change. {advice}"


def _is_idle(record: Record) -> bool | None:
    metrics = record.get("algorithm") or {}
    steps = number(metrics, "optimizer_steps")
    # While a critic warms up, the policy is not updated on purpose.
    return all_equal(record) if steps is None else steps == 0 and not number(metrics, "critic_steps")


def dead_groups(history: History) -> str | None:
    """Check the share of groups with equal rewards in the last five iterations, unless partial scores are common.

    A group of equal partial scores has neither solved nor failed its task, and what to do about it depends on the task.
    """
    records = history.last(5)
    if records is None or any(all_equal(record) is None for record in records):
        return None
    if mean([number(record, "partial") or 0.0 for record in records]) > 0.1:
        return None
    dead, groups = (sum(float(record[key]) for record in records) for key in ("dead_groups", "groups"))
    share = dead / groups
    if share <= 0.7:
        return None
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
    return (
        f"in {share:.0%} of the groups of the last 5 iterations all rewards were equal, at success {success:.2f}: "
        f"{advice}"
    )


def entropy(history: History) -> str | None:
    """Check that the entropy is above a tenth of its initial value; a policy that solves its tasks may have none."""
    entropy, first = number(history.latest, "entropy"), history.first_entropy
    success = float(history.latest["success"])
    if entropy is None or success >= 0.8 or entropy >= max(0.01, 0.1 * (first or 0.0)):
        return None
    initial = "" if first is None else f" (first 5 iterations: {first:.3f})"
    return (
        f"entropy is {entropy:.3f}{initial}, at success {success:.2f}: the policy is nearly deterministic and no "
        "longer explores. Start again with a lower optimizer.learning_rate, or add an entropy bonus "
        "(algorithm.entropy_coef, for example 0.001)."
    )


def success(history: History) -> str | None:
    """Check the success rate of the last 10 iterations relative to the best such rate."""
    recent, best = history.recent_success, history.best_success
    if recent is None or best < 0.05 or recent >= 0.5 * best:  # near 0, a ratio is noise
        return None
    return (
        f"success over the last 10 iterations is {recent:.2f}, {recent / best:.0%} of its best, {best:.2f}: the policy "
        "has collapsed. The best checkpoint is kept. Start again with a lower optimizer.learning_rate, or a penalty "
        "for leaving the reference policy (algorithm.kl_coef, for example 0.002)."
    )


def carry(history: History) -> str | None:
    """Check the largest M / A of the latest iteration."""
    largest = max(turn_values([history.latest], "carry_max"), default=0.0)
    if largest <= 10:
        return None
    return (
        f"the carried advantage M reached {largest:.3g} times A, more than 10: a few trajectories dominate the "
        "updates of the turns that are updated last. Lower optimizer.learning_rate, set algorithm.trust_region, or "
        'use algorithm.ratio = "length_normalized" if it is "product".'
    )


def clip_without_effect(history: History) -> str | None:
    """Check that the clip was active in the last 20 iterations."""
    fractions = turn_values(history.last(20) or (), "clip_fraction")
    if not fractions or max(fractions) > 0:
        return None
    return (
        "clip_fraction was 0 in every turn of the last 20 iterations: the clip has no effect, and only the step size "
        "limits an update. This is fine if success rises steadily or algorithm.clip is off. If success rises slowly, "
        "raise optimizer.learning_rate; if it is unstable, narrow algorithm.clip (length-normalized ratios stay close "
        "to 1: GSPO uses about 3e-4)."
    )


def clip_fraction(history: History) -> str | None:
    """Check the mean clip fraction of the last five iterations."""
    fractions = turn_values(history.last(5) or (), "clip_fraction")
    if not fractions or mean(fractions) <= 0.5:
        return None
    return (
        f"clip_fraction was {mean(fractions):.2f} on average over the last 5 iterations: more than half of the turns "
        "end outside the clip range, so steps are larger than it is meant to allow. Lower optimizer.learning_rate "
        "or widen algorithm.clip."
    )


def expected_gain(history: History) -> str | None:
    """Check the expected gain, in standard errors, of the turn where it is most significantly negative."""
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
    errors, turn, gain = min(scores, default=(0.0, 0, 0.0))
    if errors >= -3:
        return None
    return (
        f"the expected gain of turn {turn + 1} was {gain:.2g} per iteration over the last 5 iterations, {-errors:.1f} "
        "standard errors below 0: its updates lower the expected reward on the very trajectories that they are trained "
        "on. Lower optimizer.learning_rate, or shrink such steps (algorithm.trust_region, for example {kl = 0.01})."
    )


def gradient_norm(history: History) -> str | None:
    """Check that all gradient norms of the latest iteration are finite."""
    norms = turn_values([history.latest], "grad_norm")
    overall = number(history.latest.get("algorithm") or {}, "grad_norm")
    if all(map(math.isfinite, norms)) and (overall is None or math.isfinite(overall)):
        return None
    return (
        "a gradient norm is not finite: the weights can no longer be trusted. Start again with a lower "
        'optimizer.learning_rate, set optimizer.max_grad_norm, or use model.dtype = "float32".'
    )


def sampler_gap(history: History) -> str | None:
    """Check the gap between the log-probs of sampler and trainer."""
    gap = number(history.latest, "sampler_gap")
    if gap is None or gap <= history.gap_bound:
        return None
    correction = ""
    if history.dtype == "bfloat16":
        correction = ', and correct for the difference (mismatch.tis_cap, for example 2) or use model.dtype = "float32"'
    return (
        f"the sampler's log-probs differ from the trainer's by {gap:.2g} on average, more than the "
        f"{history.gap_bound:g} that rounding explains in {history.dtype}: updates are off-policy. Check that the "
        f"sampler has the latest weights{correction}."
    )


def failed_episodes(history: History) -> str | None:
    """Check the share of episodes with an infrastructure failure."""
    share = _per_episode(history, "failed_episodes")
    if share <= 0.05:
        return None
    return (
        f"infrastructure failures ended {share:.1%} of the episodes, more than 5%: the remaining tasks may be a biased "
        "selection. A note gives the last failure. Try fewer environment.workers, a lower agent.concurrency or a "
        "longer agent.episode_seconds, and run `seeupo envs check`."
    )


def truncated_responses(history: History) -> str | None:
    """Check the number of truncated responses per episode."""
    count = _per_episode(history, "truncated_responses")
    if count <= 0.2:
        return None
    return (
        f"{count:.2f} responses per episode were truncated at agent.max_tokens, more than 0.2: a truncated response is "
        "rarely a valid action. Raise agent.max_tokens; if responses do not end, train longer on demonstrations "
        "(warm_start.batches)."
    )


def _per_episode(history: History, key: str) -> float:
    count, episodes = number(history.latest, key) or 0.0, number(history.latest, "episodes")
    return count / max(1.0, episodes or count)


def slow_updates(history: History) -> str | None:
    """Check whether threads wait for busy cores: updates take three times as long as in the first iterations."""
    slowdown = history.slowdown
    if slowdown is None or slowdown < 3 or history.threads == 1:
        return None
    return (
        f"updates take {slowdown:.0f} times as long as in the first iterations. If other programs use the cores of "
        f"this machine, each of the {history.threads} threads waits for the slowest and keeps a core busy meanwhile. "
        "Stop and resume with the environment variable OMP_WAIT_POLICY=passive, which changes no result, or with "
        "--run.threads 1 --accept-changes, which changes the last digits."
    )


ALARMS: tuple[Alarm, ...] = (
    missing_steps,
    dead_groups,
    entropy,
    success,
    carry,
    clip_without_effect,
    clip_fraction,
    expected_gain,
    gradient_norm,
    sampler_gap,
    failed_episodes,
    truncated_responses,
    slow_updates,
)
