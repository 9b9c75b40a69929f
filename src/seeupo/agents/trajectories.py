"""Trajectories on disk: gzipped JSON lines, one trajectory a line behind a header line.

    {"format": "seeupo-trajectories", "version": 1, ...facts of whoever wrote it}
    {"id", "group", "task", "reward", "multiplicity", "stop", "status", "timings", "texts", "samples", "credit"}

`samples` is a list of turns: {"shared", "prompt", "action", "logprobs"}. A turn's prompt is the first `shared` tokens
of the turn before it (prompt and action), then `prompt`. `reward` is null if the trajectory failed; `credit` is null,
or {"advantage", "turns": [{"turn", "ratio", "carried_before", "carried_after", "clipped", "new_logprobs"}]}.

Files grow by whole gzip members, so that an interrupt can only cost the last one.
"""

from __future__ import annotations

import gzip
import json
import math
import warnings
import zlib
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

from seeupo.types import Credit, Sample, Status, StopReason, Trajectory, TurnCredit

FORMAT, VERSION = "seeupo-trajectories", 1


class TrajectoryFileError(Exception):
    """A file cannot be read as trajectories. The message says where and why."""


def write_trajectories(path: Path, trajectories: Iterable[Trajectory], *, facts: Mapping[str, Any]) -> None:
    """Append trajectories to a file; a new one begins with a header, which `facts` are put into."""
    lines = [json.dumps(to_json(trajectory), allow_nan=False) for trajectory in trajectories]
    if not path.exists():
        lines.insert(0, json.dumps({"format": FORMAT, "version": VERSION, **facts}))
    with path.open("ab") as file:
        file.write(gzip.compress("".join(f"{line}\n" for line in lines).encode(), mtime=0))


def read_trajectories(path: Path) -> Iterator[Trajectory]:
    """The trajectories of a file. What an interrupt has cut off is left out, with a warning."""
    lines = _lines(path)
    header = read_header(path)
    next(lines)
    if header["version"] > VERSION:
        raise TrajectoryFileError(f"{path} is of version {header['version']}; this program reads up to {VERSION}")
    for number, line in enumerate(lines, 2):
        try:
            yield from_json(json.loads(line))
        except (ValueError, KeyError, TypeError) as error:
            raise TrajectoryFileError(f"{path}, line {number}: {type(error).__name__}: {error}") from None


def read_header(path: Path) -> dict[str, Any]:
    """The facts in a file's header."""
    try:
        header = json.loads(next(_lines(path), ""))
        if header["format"] != FORMAT or not isinstance(header["version"], int):
            raise ValueError("another format")
    except (ValueError, KeyError, TypeError) as error:
        raise TrajectoryFileError(f"{path} is no file of trajectories: {error}") from None
    return dict(header)


def _lines(path: Path) -> Iterator[str]:
    with gzip.open(path, "rt", encoding="utf-8") as file:
        try:
            for line in file:
                if not line.endswith("\n"):
                    raise EOFError
                yield line
        except EOFError:
            warnings.warn(f"{path} ends in the middle of a record, which is left out", stacklevel=3)
        except (gzip.BadGzipFile, zlib.error, UnicodeDecodeError) as error:
            raise TrajectoryFileError(f"{path} is damaged: {error}") from None


def to_json(trajectory: Trajectory) -> dict[str, Any]:
    before: tuple[int, ...] = ()
    samples = []
    for sample in trajectory.samples:
        shared = _shared(before, sample.prompt_ids)
        samples.append(
            {
                "shared": shared,
                "prompt": sample.prompt_ids[shared:],
                "action": sample.action_ids,
                "logprobs": sample.behaviour_logprobs,
            }
        )
        before = sample.prompt_ids + sample.action_ids
    return {
        "id": trajectory.id,
        "group": trajectory.group,
        "task": trajectory.task,
        "reward": None if math.isnan(trajectory.reward) else trajectory.reward,
        "multiplicity": trajectory.multiplicity,
        "stop": trajectory.stop.value,
        "status": trajectory.status.value,
        "timings": dict(trajectory.timings),
        "texts": trajectory.texts,
        "samples": samples,
        "credit": None if trajectory.credit is None else _credit_to_json(trajectory.credit),
    }


def from_json(record: Mapping[str, Any]) -> Trajectory:
    before: tuple[int, ...] = ()
    samples = []
    for turn, entry in enumerate(record["samples"]):
        prompt = (*before[: entry["shared"]], *entry["prompt"])
        logprobs = None if entry["logprobs"] is None else tuple(entry["logprobs"])
        samples.append(Sample(record["id"], turn, prompt, tuple(entry["action"]), logprobs))
        before = prompt + samples[-1].action_ids
    return Trajectory(
        id=record["id"],
        group=record["group"],
        task=record["task"],
        samples=tuple(samples),
        reward=math.nan if record["reward"] is None else float(record["reward"]),
        multiplicity=float(record["multiplicity"]),
        stop=StopReason(record["stop"]),
        status=Status(record["status"]),
        timings=record["timings"],
        texts=tuple(record["texts"]),
        credit=None if record["credit"] is None else _credit_from_json(record["credit"]),
    )


def _credit_to_json(credit: Credit) -> dict[str, Any]:
    names = TurnCredit.__slots__
    return {
        "advantage": credit.advantage,
        "turns": [{name: getattr(turn, name) for name in names} for turn in credit.turns],
    }


def _credit_from_json(record: Mapping[str, Any]) -> Credit:
    turns = (TurnCredit(**{**turn, "new_logprobs": tuple(turn["new_logprobs"])}) for turn in record["turns"])
    return Credit(record["advantage"], tuple(turns))


def _shared(one: tuple[int, ...], other: tuple[int, ...]) -> int:
    return next((n for n, (a, b) in enumerate(zip(one, other, strict=False)) if a != b), min(len(one), len(other)))
