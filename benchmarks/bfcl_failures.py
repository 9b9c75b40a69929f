"""Why held-out episodes of a run on BFCL fail: their first wrong user turn, compared with the reference.

    python benchmarks/bfcl_failures.py runs/smollm2-bfcl-001 --json failures.json

Prints a table of the evaluations of the run: before the first iteration, and after the last one.
"""

from __future__ import annotations

import argparse
import json
from collections import Counter
from collections.abc import Iterator, Sequence
from pathlib import Path

from seeupo.agents.reasoning import action_of
from seeupo.config.loader import read_recipe
from seeupo.envs.bfcl.calls import PARSERS, ActionFormat, DecodeError
from seeupo.envs.pool.pool import EnvPool
from seeupo.runs.trajectory_files import read_trajectories
from seeupo.types import StepResult, Task, Trajectory

NOTHING = StepResult(())
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


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("run", type=Path)
    parser.add_argument("--json", type=Path)
    options = parser.parse_args()
    recipe = read_recipe(str(options.run / "recipe.toml"))
    action_format: ActionFormat = recipe.environment.options.get("action_format", "python")
    found: dict[str, dict[str, float]] = {}
    with EnvPool(recipe.environment.name, options=recipe.environment.options) as pool:
        tasks = {task.id: task for task in pool.tasks(recipe.environment.test_split)}
        for path in sorted((options.run / "evaluations").glob("*.jsonl.gz")):
            episodes = [cause(pool, tasks[each.task], each, action_format) for each in read_trajectories(path)]
            count = Counter(why for why, _, _ in episodes)
            found[path.name.partition(".")[0]] = {
                **{name: count[name] / len(episodes) for name in CAUSES},
                "right user turns": sum(right for _, right, _ in episodes) / sum(total for _, _, total in episodes),
            }
    print("| | " + " | ".join(f"iteration {int(name)}" for name in found) + " |")
    print("|---|" + "---|" * len(found))
    for name, label in [*CAUSES.items(), ("right user turns", "user turns before the first wrong one")]:
        print(f"| {label} | " + " | ".join(f"{shares[name]:.1%}" for shares in found.values()) + " |")
    if options.json:
        options.json.write_text(json.dumps(found, indent=2) + "\n")


if __name__ == "__main__":
    main()
