"""Trajectory files: gzipped JSON lines, a header and then one trajectory per line.

    {"format": "seeupo-trajectories", "version": 3, ...other header fields}
    {"id", "group", "task", "score", "reward", "outcome", "multiplicity", "stop", "failure", "truncated_responses",
     "timings", "opening", "turns", "credit"}

`turns` is a list of {"shared", "prompt", "action", "logprobs", "policy_version", "reward", "state_key", "agent_role",
"response", "observation"}. A turn's prompt consists of the first `shared` tokens of the turn before it (prompt and
action), then `prompt`. `failure` is null or {"kind", "message"}. `credit` is null or {"advantage", "turns": [{"turn",
"ratio", "carried_before", "carried_after", "clipped", "new_logprobs"}]}.

`response` and `observation` are null for turns without text. Files grow by whole gzip members, so an interrupt can only
cost the last one. `seeupo.utils.json_lines` has the limits of size.
"""

from __future__ import annotations

import gzip
import json
import warnings
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import replace
from itertools import chain, islice, repeat
from pathlib import Path
from typing import Any

from seeupo.errors import TrajectoryFileError
from seeupo.types import Credit, Trajectory, Turn, TurnCredit, TurnText
from seeupo.utils.json_lines import TruncatedLines, UnreadableLines, read_lines
from seeupo.utils.records import read_record
from seeupo.utils.sequences import common_prefix_length

FORMAT, VERSION = "seeupo-trajectories", 3
MAX_LINES = 100_000
"""Lines of a file."""
MAX_TOKENS = 20_000_000
"""Tokens in all turns of a trajectory: shared prompts make a short line stand for many."""
MAX_FILE_TOKENS = 2**28
"""Tokens in all prompts of a file."""
MALFORMED = (ValueError, KeyError, TypeError, IndexError, AttributeError, OverflowError, RecursionError)
"""Exceptions of parsing a record that another program has written."""


def write_trajectories(path: Path, trajectories: Iterable[Trajectory], *, header: Mapping[str, Any]) -> None:
    """Append trajectories to a file; a new file starts with a header that contains `header`."""
    lines = [json.dumps(to_json(trajectory), allow_nan=False) for trajectory in trajectories]
    if not path.exists():
        lines.insert(0, json.dumps({"format": FORMAT, "version": VERSION, **header}))
    with path.open("ab") as file:
        file.write(gzip.compress("".join(f"{line}\n" for line in lines).encode(), mtime=0))


def read_trajectories(path: Path) -> Iterator[Trajectory]:
    """Yield the trajectories of a file. A record that an interrupt has cut off is skipped with a warning."""
    tokens = 0
    with _errors_for_users(path):
        try:
            for number, line in islice(enumerate(trajectory_lines(path), 1), 1, None):
                try:
                    trajectory = from_json(json.loads(line))
                except MALFORMED as error:
                    raise UnreadableLines(f"line {number}: {type(error).__name__}: {error}") from None
                tokens += sum(len(turn.prompt_ids) for turn in trajectory.turns)
                if tokens > MAX_FILE_TOKENS:
                    raise UnreadableLines(f"line {number}: the prompts have more than {MAX_FILE_TOKENS:,} tokens")
                yield trajectory
        except TruncatedLines:
            warnings.warn(f"{path} ends in the middle of a record, which is skipped", stacklevel=2)


def read_header(path: Path) -> dict[str, Any]:
    """Return the header of a file."""
    with _errors_for_users(path):
        return dict(json.loads(next(trajectory_lines(path))))


def trajectory_lines(path: Path) -> Iterator[bytes]:
    """Yield the lines of a file: its header, and then records.

    Raises:
        UnreadableLines: The file cannot be read, is too large or has no header that this version reads.
        TruncatedLines: It ends in the middle of a record.
    """
    lines = read_lines(path)
    try:
        first = next(lines, b"")
        header = json.loads(first)
        if (header["format"], header["version"]) != (FORMAT, VERSION):
            raise ValueError(
                f"format {header['format']!r}, version {header['version']!r}; expected {FORMAT}, {VERSION}"
            )
    except (TruncatedLines, *MALFORMED) as error:
        raise UnreadableLines(f"its first line is not the header of a trajectory file ({error})") from None
    yield first
    for number, line in enumerate(lines, 2):
        if not line.endswith(b"\n"):
            raise TruncatedLines(f"it ends in the middle of line {number}")
        if number > MAX_LINES:
            raise UnreadableLines(f"it has more lines than the limit of {MAX_LINES:,}")
        yield line


@contextmanager
def _errors_for_users(path: Path) -> Iterator[None]:
    try:
        yield
    except UnreadableLines as error:
        raise TrajectoryFileError(f"{path}: {error}; expected a trajectory file of a run") from None


def to_json(trajectory: Trajectory) -> dict[str, Any]:
    """Return a trajectory as a JSON record."""
    failure = trajectory.failure
    return {
        "id": trajectory.id,
        "group": trajectory.group,
        "task": trajectory.task,
        "score": trajectory.score,
        "reward": trajectory.reward,
        "outcome": trajectory.outcome,
        "multiplicity": trajectory.multiplicity,
        "stop": trajectory.stop.value,
        "failure": None if failure is None else {"kind": failure.kind.value, "message": failure.message},
        "truncated_responses": trajectory.truncated_responses,
        "timings": dict(trajectory.timings),
        "opening": trajectory.opening,
        "turns": list(_turns_to_json(trajectory)),
        "credit": None if trajectory.credit is None else _credit_to_json(trajectory.credit),
    }


def _turns_to_json(trajectory: Trajectory) -> Iterator[dict[str, Any]]:
    before: tuple[int, ...] = ()
    # Enumerated trajectories have no text, and a failure may leave the last turn without one.
    texts = chain(trajectory.turn_texts, repeat(None))
    for turn, text in zip(trajectory.turns, texts, strict=False):
        shared = common_prefix_length(before, turn.prompt_ids)
        yield {
            "shared": shared,
            "prompt": turn.prompt_ids[shared:],
            "action": turn.action_ids,
            "logprobs": turn.behavior_logprobs,
            "policy_version": turn.policy_version,
            "reward": turn.reward,
            "state_key": turn.state_key,
            "agent_role": turn.agent_role,
            "response": None if text is None else text.response,
            "observation": None if text is None else text.observation,
        }
        before = turn.prompt_ids + turn.action_ids


def from_json(record: Mapping[str, Any]) -> Trajectory:
    """Return the trajectory of a JSON record.

    Raises:
        Exception: One of `MALFORMED`.
    """
    before: tuple[int, ...] = ()
    turns = []
    texts = []
    tokens = 0
    for index, entry in enumerate(record["turns"]):
        shared = read_record(int, entry["shared"], "shared")
        if shared < 0:
            raise ValueError(f"turn {index} shares {shared} tokens; expected at least 0")
        prompt = (*before[:shared], *entry["prompt"])
        action = tuple(entry["action"])
        others = {**entry, "trajectory": record["id"], "index": index, "behavior_logprobs": entry["logprobs"]}
        others.setdefault("agent_role", "")  # files from before roles have none
        turn = read_record(Turn, {**others, "prompt_ids": [], "action_ids": []}, "turn")
        turns.append(replace(turn, prompt_ids=prompt, action_ids=action))
        if entry["response"] is not None:
            texts.append(read_record(TurnText, entry, "turn"))
        before = prompt + action
        tokens += len(before)
        if tokens > MAX_TOKENS:
            raise ValueError(f"its turns have more than {MAX_TOKENS:,} tokens")
        if not all(type(token) is int and token >= 0 for token in (*entry["prompt"], *entry["action"])):
            raise ValueError(f"turn {index} has tokens that are not integers of at least 0")
    without_turns: Trajectory = read_record(Trajectory, {**record, "turns": [], "turn_texts": []}, "trajectory")
    return replace(without_turns, turns=tuple(turns), turn_texts=tuple(texts))


def _credit_to_json(credit: Credit) -> dict[str, Any]:
    turns = [{name: getattr(turn, name) for name in TurnCredit.__slots__} for turn in credit.turns]
    return {"advantage": credit.advantage, "turns": turns}
