"""Held-out scores of runs on BFCL from one warm start, and why episodes fail: their first wrong user turn.

    python studies/bfcl_results.py runs/warm-start runs/seeupo runs/grpo --json results.json

Prints a table with a column for the warm start and one for the last evaluation of each run. Episodes are replayed, and
their first wrong user turn is compared with the reference. The share of right user turns of an episode counts those
before the first wrong one.
"""

from __future__ import annotations

import argparse
import json
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from seeupo.config.loader import read_recipe
from seeupo.core.statistics import Estimate, avg_at_k, format_estimate, paired_difference
from seeupo.envs.bfcl.calls import PARSERS, ActionFormat, DecodeError
from seeupo.envs.pool.pool import EnvPool
from seeupo.evaluation.results import Evaluation, compare
from seeupo.rollout.reasoning import action_of
from seeupo.runs.trajectory_files import read_trajectories
from seeupo.types import StepResult, Task, Trajectory
from seeupo.utils.atomic_files import write_text
from seeupo.utils.output_paths import check_output

NOTHING = StepResult(())
SCORES = ("avg@4", "pass@4")
RIGHT = "right user turns"
CAUSES = {
    "solved": "solved",
    "unfinished": "stopped at the limit of turns",
    "format": "calls that cannot be parsed",
    "no call": "ended the user turn without a call",
    "function": "another function",
    "too few": "only a part of the calls",
    "too many": "more calls than needed",
    "arguments": "the right functions with wrong arguments",
}


def calls_of(text: str, action_format: ActionFormat) -> list[str] | None:
    """Return the names of the called functions; None if the text cannot be parsed."""
    try:
        return [call.name for call in PARSERS[action_format](text)]
    except DecodeError:
        return None


def user_turns(actions: Sequence[str], action_format: ActionFormat) -> Iterator[list[str]]:
    """Yield the actions of each user turn; the last one of a turn has no calls."""
    turn: list[str] = []
    for action in actions:
        turn.append(action)
        if not calls_of(action, action_format):
            yield turn
            turn = []


def cause_of(wrong: Sequence[str], reference: Sequence[str], action_format: ActionFormat) -> str:
    """Return what is wrong with the actions of a user turn, compared with those of the expert."""
    made, needed = (
        Counter(n for text in turn for n in calls_of(text, action_format) or ()) for turn in (wrong, reference)
    )
    if not made and needed:
        return "format" if "(" in wrong[-1] else "no call"
    if made == needed:
        return "arguments"
    if made < needed:
        return "too few"
    return "too many" if made > needed else "function"


def cause(pool: EnvPool, task: Task, trajectory: Trajectory, action_format: ActionFormat) -> tuple[str, int, int]:
    """Return why an episode failed, its number of right user turns, and that of all user turns."""
    env, actions = pool.env(), [action_of(text.response) for text in trajectory.turn_texts]
    result = env.reset(task, seed=0)
    total = int(result.info["user_turns"])
    for action in actions:
        result = env.step(action)
    env.close()
    right = int(result.info.get("right_user_turns", 0))
    if result.info.get("verdict") == "valid":
        return "solved", right, total
    turns = list(user_turns(actions, action_format))
    if right >= len(turns):
        return "unfinished", right, total
    expert = pool.expert(task)
    assert expert is not None
    reference = user_turns(list(iter_expert(expert, total, action_format)), action_format)
    return cause_of(turns[right], list(reference)[right], action_format), right, total


def iter_expert(expert: object, turns: int, action_format: ActionFormat) -> Iterator[str]:
    """Yield the actions of an expert that needs no observations."""
    assert callable(expert)
    while turns:
        action = str(expert(NOTHING))
        turns -= not calls_of(action, action_format)
        yield action


Shares = dict[str, list[float]]
"""The share of right user turns of each episode, by task."""


def stage(run: Path, iteration: int) -> tuple[Evaluation, Shares, dict[str, Any]]:
    """Return the held-out scores of a run after an iteration, its right user turns, and why it fails."""
    recipe = read_recipe(str(run / "recipe.toml"))
    action_format: ActionFormat = recipe.environment.options.get("action_format", "python")
    evaluation = Evaluation.read(run / f"evaluations/{iteration:05d}.json")
    shares: Shares = {}
    causes = list[str]()
    with EnvPool(recipe.environment.name, options=recipe.environment.options) as pool:
        tasks = {task.id: task for task in pool.tasks(recipe.environment.test_split)}
        for trajectory in read_trajectories(run / f"evaluations/{iteration:05d}.jsonl.gz"):
            why, right, total = cause(pool, tasks[trajectory.task], trajectory, action_format)
            shares.setdefault(trajectory.task, []).append(right / total)
            causes.append(why)
    count = Counter(causes)
    figures = {
        "scores": {name: evaluation.summary()[name] for name in SCORES}
        | {RIGHT: as_json(avg_at_k([shares[task] for task in sorted(shares)], evaluation.plan.k))},
        "tasks": evaluation.summary()["tasks"],
        "causes": {name: count[name] / len(causes) for name in CAUSES},
    }
    return evaluation, shares, figures


def difference(before: tuple[Evaluation, Shares], after: tuple[Evaluation, Shares]) -> dict[str, Any]:
    """Return the differences of two stages, paired over tasks."""
    names = sorted(before[1])
    shares = paired_difference([after[1][name] for name in names], [before[1][name] for name in names])
    scores = compare(before[0], after[0])
    return {name: scores[name] for name in SCORES} | {RIGHT: as_json(shares)}


def as_json(estimate: Estimate) -> dict[str, float]:
    return {"value": estimate.value, "low": estimate.low, "high": estimate.high}


def last_iteration(run: Path) -> int:
    return max(int(path.stem) for path in (run / "evaluations").glob("*.json"))


def table(stages: Mapping[str, Mapping[str, Any]]) -> Iterator[str]:
    """Yield the lines of a Markdown table with one column per stage."""
    yield "| | " + " | ".join(stages) + " |"
    yield "|---|" + "---|" * len(stages)
    for name in (*SCORES, RIGHT):
        yield row(name, [format_estimate(figures["scores"][name]) for figures in stages.values()])
        compared = [figures for figures in stages.values() if "difference" in figures]
        differences = [format_estimate(figures["difference"][name], signed=True) for figures in compared]
        yield row(f"{name}, difference to the warm start", ["", *differences])
    for name, label in CAUSES.items():
        yield row(label, [f"{figures['causes'][name]:.1%}" for figures in stages.values()])


def row(label: str, cells: Sequence[str]) -> str:
    return f"| {label} | {' | '.join(cells)} |"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("warm_start", type=Path, help="run whose first evaluation is that of the warm start")
    parser.add_argument("runs", type=Path, nargs="+", help="runs from this warm start; their last evaluations are used")
    parser.add_argument("--json", type=Path, help="file for the results")
    options = parser.parse_args()
    if options.json:
        check_output(options.json)
    stages = dict[str, dict[str, Any]]()
    evaluation, shares, stages["warm start"] = stage(options.warm_start, 0)
    for run in options.runs:
        last_evaluation, last_shares, figures = stage(run, last_iteration(run))
        stages[run.name] = {**figures, "difference": difference((evaluation, shares), (last_evaluation, last_shares))}
    print("\n".join(table(stages)))
    if options.json:
        write_text(options.json, json.dumps(stages, indent=1) + "\n")


if __name__ == "__main__":
    main()
