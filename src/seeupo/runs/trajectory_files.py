"""Trajectory files: gzipped JSON lines, a header and then one trajectory per line.

    {"format": "seeupo-trajectories", "version": 3, ...other header fields}
    {"id", "group", "task", "score", "reward", "outcome", "multiplicity", "stop", "failure", "truncated_responses",
     "timings", "opening", "turns", "credit"}

`turns` is a list of {"shared", "prompt", "action", "logprobs", "policy_version", "reward", "state_key", "response",
"observation"}. A turn's prompt consists of the first `shared` tokens of the turn before it (prompt and action), then
`prompt`. `failure` is null or {"kind", "message"}. `credit` is null or {"advantage", "turns": [{"turn", "ratio",
"carried_before", "carried_after", "clipped", "new_logprobs"}]}.

`response` and `observation` are null for turns without text. Version 2 had no outcome, and no reward and state of a
turn. Files grow by whole gzip members, so an interrupt can only
cost the last one. `seeupo.runs.gzip_lines` has the limits of size.
"""

from __future__ import annotations

import gzip
import json
import warnings
import zlib
from collections.abc import Iterable, Iterator, Mapping
from itertools import chain, islice, repeat
from pathlib import Path
from typing import Any

from seeupo.errors import TrajectoryFileError
from seeupo.runs.gzip_lines import LimitExceeded, read_gzip_lines
from seeupo.types import Credit, Failure, FailureKind, StopReason, Trajectory, Turn, TurnCredit, TurnText
from seeupo.utils.numbers import finite_number
from seeupo.utils.sequences import common_prefix_length

FORMAT, VERSION = "seeupo-trajectories", 3
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
    read_header(path)
    tokens = 0
    for number, line in enumerate(islice(_lines(path), 1, None), 2):
        try:
            trajectory = from_json(json.loads(line))
        except MALFORMED as error:
            raise TrajectoryFileError(f"{path}, line {number}: {type(error).__name__}: {error}") from None
        tokens += sum(len(turn.prompt_ids) for turn in trajectory.turns)
        if tokens > MAX_FILE_TOKENS:
            raise TrajectoryFileError(f"{path}, line {number}: the prompts have more than {MAX_FILE_TOKENS:,} tokens")
        yield trajectory


def read_header(path: Path) -> dict[str, Any]:
    """Return the header of a file."""
    try:
        return parse_header(next(_lines(path), ""))
    except MALFORMED as error:
        raise TrajectoryFileError(f"{path} is not a readable trajectory file: {error}") from None


def parse_header(line: str | bytes) -> dict[str, Any]:
    """Return the header in the first line of a file.

    Raises:
        ValueError, KeyError, TypeError, RecursionError: The line is not a header that this version reads.
    """
    header = json.loads(line)
    if header["format"] != FORMAT:
        raise ValueError(f"format {header['format']!r}; expected {FORMAT!r}")
    if not 2 <= header["version"] <= VERSION:
        raise ValueError(f"format version {header['version']}; this version of seeupo reads 2 to {VERSION}")
    return dict(header)


def _lines(path: Path) -> Iterator[str]:
    try:
        yield from map(bytes.decode, read_gzip_lines(path))
    except EOFError:
        warnings.warn(f"{path} ends in the middle of a record, which is skipped", stacklevel=3)
    except (gzip.BadGzipFile, zlib.error, UnicodeDecodeError) as error:
        raise TrajectoryFileError(f"{path} is damaged: {error}") from None
    except LimitExceeded as error:
        raise TrajectoryFileError(f"{path} is too large: {error}. Expected a trajectory file of a run.") from None
    except OSError as error:
        raise TrajectoryFileError(f"{path} cannot be read: {error.strerror or error}") from None


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
    turns, texts, tokens = [], [], 0
    for index, entry in enumerate(record["turns"]):
        prompt = (*before[: _count(entry["shared"], "shared")], *entry["prompt"])
        action = tuple(entry["action"])
        logprobs = None if entry["logprobs"] is None else _numbers(entry["logprobs"], "logprobs")
        version = None if entry["policy_version"] is None else _count(entry["policy_version"], "policy_version")
        reward, state = _number(entry.get("reward", 0.0), "reward"), _text(entry.get("state_key", ""), "state_key")
        turns.append(Turn(_text(record["id"], "id"), index, prompt, action, logprobs, version, reward, state))
        if entry["response"] is not None:
            texts.append(TurnText(_text(entry["response"], "response"), _text(entry["observation"], "observation")))
        before = prompt + action
        tokens += len(before)
        if tokens > MAX_TOKENS:
            raise ValueError(f"its turns have more than {MAX_TOKENS:,} tokens")
        if not all(type(token) is int and token >= 0 for token in (*entry["prompt"], *entry["action"])):
            raise ValueError(f"turn {index} has tokens that are not integers of at least 0")
    failure = record["failure"]
    return Trajectory(
        id=_text(record["id"], "id"),
        group=_text(record["group"], "group"),
        task=_text(record["task"], "task"),
        turns=tuple(turns),
        reward=_number(record["reward"], "reward"),
        score=None if record["score"] is None else _number(record["score"], "score"),
        outcome=None if record.get("outcome") is None else _number(record["outcome"], "outcome"),
        multiplicity=_number(record["multiplicity"], "multiplicity"),
        stop=StopReason(record["stop"]),
        failure=None if failure is None else _failure_from_json(failure),
        truncated_responses=_count(record["truncated_responses"], "truncated_responses"),
        timings={name: _number(seconds, "timings") for name, seconds in record["timings"].items()},
        opening=_text(record["opening"], "opening"),
        turn_texts=tuple(texts),
        credit=None if record["credit"] is None else _credit_from_json(record["credit"]),
    )


def _text(value: object, name: str) -> str:
    if not isinstance(value, str):
        raise TypeError(f"{name} is {type(value).__name__}; expected text")
    return value


def _count(value: object, name: str) -> int:
    if type(value) is not int or value < 0:
        raise TypeError(f"{name} is {type(value).__name__}; expected an integer of at least 0")
    return value


def _number(value: object, name: str) -> float:
    if (number := finite_number(value)) is None:
        raise TypeError(f"{name} is {type(value).__name__}; expected a finite number")
    return float(number)


def _numbers(values: Iterable[object], name: str) -> tuple[float, ...]:
    return tuple(_number(value, name) for value in values)


def _failure_from_json(record: Mapping[str, Any]) -> Failure:
    return Failure(FailureKind(record["kind"]), _text(record["message"], "failure"))


def _credit_to_json(credit: Credit) -> dict[str, Any]:
    turns = [{name: getattr(turn, name) for name in TurnCredit.__slots__} for turn in credit.turns]
    return {"advantage": credit.advantage, "turns": turns}


def _credit_from_json(record: Mapping[str, Any]) -> Credit:
    turns = (
        TurnCredit(
            turn=_count(turn["turn"], "turn"),
            ratio=_number(turn["ratio"], "ratio"),
            carried_before=_number(turn["carried_before"], "carried_before"),
            carried_after=None if turn["carried_after"] is None else _number(turn["carried_after"], "carried_after"),
            clipped=bool(turn["clipped"]),
            new_logprobs=_numbers(turn["new_logprobs"], "new_logprobs"),
        )
        for turn in record["turns"]
    )
    return Credit(_number(record["advantage"], "advantage"), tuple(turns))
