"""Payloads for the page, written by hand: a run with every edge case, several runs, an empty one and a large one."""

from __future__ import annotations

import gzip
import json
import math
from collections.abc import Sequence
from typing import Any

Chunks = dict[str, bytes]

HOSTILE = "</script><script>window.hacked = 1</script><img src=x onerror='window.hacked = 2'>"
HOSTILE_NAME = "<b onmouseover=alert(1)>&amp;\"'`</b>"
BIDI = "safe\u202egnp.exe\u202c and \u0000 nul, \u200b nothing, \ufffd lost"
NON_LATIN = "搜索 “天気” ثم اكتب النتيجة, затем สวัสดี 👩‍🚀 e\u0301"
LONG_LINE = "x" * 5000
KINDS = ["search", "count & <sort>", ""]
STOPS = ["goal", "turn_limit", "failure"]
STATUSES = ["ok", "failed"]
COLUMNS = ("run", "phase", "iteration", "id", "group", "task", "kind", "stop", "status")
COLUMNS += ("score", "reward", "advantage", "turns")
COLUMNS += ("chunk", "offset")


def packed(value: Any) -> bytes:
    return gzip.compress(json.dumps(value).encode(), mtime=0)


def turn(
    *tokens: tuple[str, float | None],
    thoughts: Sequence[tuple[int, int]] = (),
    observation: str = "ok",
    credit: tuple[int, float, float | None, float | None, bool] | None = None,
    weight: float | None = None,
) -> dict[str, Any]:
    names = ("position", "ratio", "before", "after", "clipped")
    known = [change for _, change in tokens if change is not None]
    together = {"position": None, "before": None, "after": None, "weight": weight, "ratio": 0.9, "clipped": False}
    return {
        "tokens": [list(token) for token in tokens],
        "thoughts": [list(part) for part in thoughts],
        "observation": observation,
        "prompt_tokens": 100,
        "action_tokens": len(tokens),
        "logprob_before": -3.5 if known else None,
        "logprob_after": -3.5 + math.fsum(known) if known else None,
        "credit": together if weight is not None else None if credit is None else dict(zip(names, credit, strict=True)),
    }


def body(
    turns: list[dict[str, Any]], rewards: Sequence[float | None], opening: str, failure: str | None = None
) -> dict[str, Any]:
    known = [reward for reward in rewards if reward is not None]
    return {
        "group_mean": sum(known) / len(known) if known else None,
        "group_size": len(rewards),
        "group_rewards": list(rewards),
        "opening": opening,
        "failure": failure,
        "turns": turns,
    }


class Payload:
    """Collects trajectories and returns the chunks of a page."""

    def __init__(self, *runs: dict[str, Any], chunk_size: int = 3) -> None:
        self.runs = list(runs)
        self.chunk_size = chunk_size
        self.tasks: list[str] = []
        self.bodies: list[dict[str, Any]] = []
        self.columns: dict[str, list[Any]] = {name: [] for name in COLUMNS}

    def add(
        self,
        name: str,
        content: dict[str, Any],
        *,
        reward: float | None,
        score: float | None = None,
        advantage: float | None = None,
        run: int = 0,
        phase: int = 0,
        iteration: int = 1,
        task: str = "task-1",
        kind: int = 0,
        stop: int = 0,
    ) -> None:
        if task not in self.tasks:
            self.tasks.append(task)
        row = len(self.bodies)
        values = (run, phase, iteration, name, f"{iteration}/{task}", self.tasks.index(task), kind, stop)
        values += (int(reward is None), reward if score is None else score, reward, advantage, len(content["turns"]))
        values += (row // self.chunk_size, row % self.chunk_size)
        for column, value in zip(self.columns.values(), values, strict=True):
            column.append(value)
        self.bodies.append(content)

    def chunks(self) -> Chunks:
        for number, run in enumerate(self.runs):
            kept = self.columns["run"].count(number)
            run["trajectories"] = {"total": kept, "kept": kept, "note": f"All {kept} trajectories are inside."}
        overview = {"format": "seeupo-report", "version": 1, "written_by": "seeupo 0.1.0", "runs": self.runs}
        lists = {"tasks": self.tasks, "kinds": KINDS, "stops": STOPS, "statuses": STATUSES}
        index = {"rows": len(self.bodies), "lists": lists, "columns": self.columns}
        size = self.chunk_size
        parts = [self.bodies[start : start + size] for start in range(0, len(self.bodies), size)]
        bodies = {f"bodies-{number}": packed(part) for number, part in enumerate(parts)}
        return {"overview": packed(overview), "index": packed(index), **bodies}


def estimate(value: float, reach: float) -> dict[str, float]:
    return {"value": value, "low": value - reach, "high": value + reach}


def run_overview(name: str, *, iterations: int = 12, turns: int = 5, rise: float = 0.6) -> dict[str, Any]:
    """Return a plausible overview of a run."""
    steps = range(1, iterations + 1)

    def noise(n: int) -> float:
        return math.sin(12.9898 * n) * 0.5

    def success(n: int) -> float:
        return 0.2 + rise * (1 - math.exp(-3 * n / iterations)) + 0.05 * noise(n)

    every = max(1, iterations // 4)
    held_out = [[n, success(n), success(n) - 0.08, success(n) + 0.08] for n in range(0, iterations + 1, every)]
    curves = [
        curve(
            "success", "Success", "share", training=[[n, success(n), success(n) - 0.1, success(n) + 0.1] for n in steps]
        )
        | {"help": "Share of attempts with the full score."},
        curve(
            "entropy", "Entropy", "number", training=[[n, 0.9 - 0.02 * n + 0.02 * noise(n), None, None] for n in steps]
        ),
        curve("kl", "KL", "log", training=[[n, 1e-4 * (1.5 + noise(n)), None, None] for n in steps]),
        curve("tokens", "Tokens", "tokens", sampled=[[n, 20000 + 900 * noise(n), None, None] for n in steps]),
        curve(
            "time",
            "Time",
            "seconds",
            collect=[[n, 6 + noise(n), None, None] for n in steps],
            update=[[n, 9 + noise(n + 5), None, None] for n in steps],
            evaluate=[[n, 20 + noise(n), None, None] for n in range(0, iterations + 1, every)],
        ),
        curve("gap", "Sampler gap", "number", training=[[n, None if n % 3 else 2e-6, None, None] for n in steps]),
        curve("nothing", "Nothing known", "number", training=[[n, None, None, None] for n in steps]),
    ]
    curves[0]["series"].append({"name": "held out avg@4", "points": held_out})
    cells = [(n, t, turns + 1 - t) for n in steps for t in range(1, turns + 1) if not (n == 2 and t == turns)]
    return {
        "name": name,
        "model": "tiny",
        "environment": "pocket",
        "algorithm": "seeupo",
        "command": f"seeupo train tiny-pocket --out {name} --run.seed 0 --collect.tasks 32 --optimizer.lr 3e-4",
        "verdict": "improved",
        "verdict_label": "Improved",
        "sentence": "tiny on pocket solves 0.82 of held-out attempts after training, 0.22 before "
        "(difference +0.60, 95% interval +0.52 to +0.68, 64 tasks).",
        "k": 4,
        "scores": [
            {
                "name": "avg@4",
                "before": estimate(0.22, 0.06),
                "after": estimate(0.82, 0.05),
                "difference": estimate(0.6, 0.08),
            },
            {"name": "pass@4", "before": estimate(0.45, 0.1), "after": estimate(0.93, 0.04), "difference": None},
        ],
        "details": [["Iterations", str(iterations)], ["Seed", "0"], ["Algorithm", "seeupo"], ["Platform", "Linux"]],
        "missing": [],
        "warnings": [],
        "curves": curves,
        "turn_maps": [
            turn_map("ratio", "Ratio", "diverging", 1.0, [[n, t, 1 + 0.03 * noise(n * t), p] for n, t, p in cells]),
            turn_map(
                "clip", "Clip fraction", "sequential", None, [[n, t, 0.1 + 0.1 * noise(n + t), p] for n, t, p in cells]
            ),
            turn_map("spread", "Spread of M", "sequential", None, [[n, t, 0.05 * (p - 1), p] for n, t, p in cells]),
            turn_map("live", "Live turns", "sequential", None, [[n, t, 64 - 8 * t, p] for n, t, p in cells]),
        ],
        "trajectories": {},
    }


def curve(key: str, title: str, unit: str, **series: list[list[float | None]]) -> dict[str, Any]:
    named = [{"name": name, "points": points} for name, points in series.items()]
    return {"key": key, "title": title, "help": f"Explanation of {title}.", "unit": unit, "series": named}


def turn_map(key: str, title: str, scale: str, center: float | None, cells: list[list[float]]) -> dict[str, Any]:
    return {
        "key": key,
        "title": title,
        "help": f"Explanation of {title}.",
        "scale": scale,
        "center": center,
        "cells": cells,
    }


def search_turn(
    results: int, wanted: str, position: int, ratio: float, carried: float, *, clipped: bool = False
) -> dict[str, Any]:
    """Return a turn with a thought and a call, whose tokens changed in both directions."""
    return turn(
        ("<think>", 0.01),
        ("Let me look for ", -0.02),
        (wanted, 0.2),
        ("</think>", 0.0),
        ("search(", 0.08),
        (f'"{wanted}"', -0.3),
        (")", None),
        thoughts=[(0, 4)],
        observation=f"{results} results for {wanted}",
        credit=(position, ratio, carried, carried * ratio, clipped),
    )


def odd_chunks() -> Chunks:
    """Return one run with every edge case; the ids of the trajectories name them."""
    run = run_overview("odd-run")
    run["missing"] = ["The run was killed: there is no summary."]
    run["warnings"] = [{"iteration": n, "text": f"Dead groups {n}: use harder tasks. {HOSTILE}"} for n in range(1, 8)]
    run["details"].append([HOSTILE_NAME, HOSTILE])
    payload = Payload(run)
    opening = "You are an agent. Find the color of the box.\n" + "Rules apply. " * 120
    rewards = [1.0, 0.0, 0.5, 0.0]
    for number, (reward, advantage) in enumerate(zip(rewards, [1.5, -0.9, 0.3, -0.9], strict=True)):
        words = ["box", "box", "bag", "bird"]
        second = 1.02 * advantage
        turns = [
            search_turn(3, words[number], 2, 0.97, second, clipped=number == 1),
            turn(
                ("say(" if number == 3 else "answer(", 0.1),
                ("red" if number == 0 else "blue", 0.4),
                (")", 0.0),
                credit=(1, 1.02, advantage, second, False),
                observation="",
            ),
        ]
        payload.add(
            f"a-{number}",
            body(turns, rewards, opening),
            reward=reward,
            advantage=advantage,
            task="find-box",
            stop=number % 2,
        )
    failed = [None, None]
    payload.add(
        "failed", body([turn(("call()", None))], failed, "Go.", "worker lost"), reward=None, task="broken", stop=2
    )
    payload.add("no-turns", body([], failed, "Go.", "reset failed"), reward=None, task="broken", stop=2)
    empty = [turn(credit=(1, 1.0, 0.0, 0.0, False), observation="You said nothing.")]
    payload.add(
        "empty-turn", body(empty, [0.0, 0.0], ""), reward=0.0, advantage=0.0, iteration=2, task="silent", kind=2
    )
    dead = body([turn(("go", None))], [1.0, 1.0], "Go.")
    payload.add("dead-group", dead, reward=1.0, advantage=0.0, iteration=2, task="silent", kind=2)
    plain = [
        turn(("go", 0.1), weight=0.7),
        turn(("stop", -0.1), weight=0.7),
    ]
    payload.add(
        "no-carry", body(plain, [0.0, 1.0], "Go."), reward=1.0, advantage=1.0, iteration=2, task="plain", kind=1
    )
    payload.add(
        "no-credit",
        body([turn(("go", None))], [0.0, 1.0], "Go."),
        reward=0.0,
        iteration=2,
        task="plain",
        kind=1,
        stop=1,
    )
    ten = [search_turn(n, f"thing {n}", 11 - n, 1 + 0.01 * (n - 5), -0.5 * 1.01**n) for n in range(1, 11)]
    payload.add(
        "ten-turns", body(ten, [0.0, 1.0], "Go."), reward=0.0, advantage=-0.5, iteration=3, task="long-way", stop=1
    )
    hostile = [
        turn((HOSTILE, 0.5), (BIDI, -0.5), observation=HOSTILE, credit=(3, 1.2, 1.0, 1.2, True)),
        turn((NON_LATIN, 0.25), observation=NON_LATIN, credit=(2, 1e-9, 1.0, 1e-9, False)),
        turn((LONG_LINE, 0.25), observation=LONG_LINE, credit=(1, 1e9, 1.0, 1e9, True)),
    ]
    name = f"{HOSTILE_NAME}#&=%20+/\u202e"
    payload.add(
        name, body(hostile, [1.0, 0.0], HOSTILE), reward=1.0, advantage=1.0, iteration=4, task=HOSTILE_NAME, kind=1
    )
    for phase, scores in ((1, [0.0, 0.0]), (2, [1.0, 0.0])):
        for number, reward in enumerate(scores):
            text = "answer(blue)" if phase == 1 else f"answer(red{number})"
            turns = [turn(("look()", None), observation="a red box"), turn((text, None), observation="")]
            moment = 0 if phase == 1 else 12
            payload.add(
                f"held-{number}",
                body(turns, scores, "Find it."),
                reward=reward,
                phase=phase,
                iteration=moment,
                task="held-box",
            )
            payload.add(
                f"other-{number}",
                body(turns, scores, "Find it."),
                reward=0.0,
                phase=phase,
                iteration=moment,
                task="held-other",
                kind=1,
            )
    return payload.chunks()


def several_runs() -> Chunks:
    second = run_overview("second", rise=0.1)
    second |= {"verdict": "no_change", "sentence": "The interval contains 0."}
    third = run_overview("third", iterations=3) | {
        "verdict": "inconclusive",
        "scores": [],
        "turn_maps": [],
        "details": [],
    }
    third |= {
        "sentence": "There is only one evaluation.",
        "missing": ["There is no evaluation after training."],
    }
    payload = Payload(run_overview("first"), second, third)
    for run in range(3):
        for number in range(2):
            turns = [search_turn(1, f"run {run}", 1, 1.1, 0.5)]
            payload.add(
                f"t-{number}", body(turns, [1.0, 0.0], "Go."), reward=1.0 - number, advantage=0.5 - number, run=run
            )
    return payload.chunks()


def one_iteration() -> Chunks:
    payload = Payload(run_overview("one", iterations=1, turns=1))
    payload.add("t", body([search_turn(1, "it", 1, 1.0, 0.5)], [1.0], "Go."), reward=1.0, advantage=0.5)
    return payload.chunks()


def empty_page() -> Chunks:
    run = run_overview("empty")
    run |= {
        "verdict": "inconclusive",
        "sentence": "There is no evaluation.",
        "scores": [],
        "curves": [],
        "turn_maps": [],
        "details": [],
    }
    return Payload(run | {"command": "", "missing": ["metrics.jsonl is empty."]}).chunks()


def large_chunks(*, iterations: int = 200, per_iteration: int = 100, filler: int = 2800) -> Chunks:
    """Return 20,000 trajectories in 25 MB, with texts that do not compress well."""
    payload = Payload(run_overview("large", iterations=iterations, turns=10), chunk_size=200)
    state = 12345
    for iteration in range(1, iterations + 1):
        for number in range(per_iteration):
            state = (1103515245 * state + 12345) % 2**31
            text = bytes((state >> shift) % 90 + 33 for shift in range(8)).decode() + f"{state:x}"
            blob = "".join(f"{(state * factor) % 2**61:x}" for factor in range(3, 3 + filler // 15))
            content = body([search_turn(number, text, 5 - t, 1.01, 0.5) for t in range(5)], [1.0, 0.0], "Go.")
            content["turns"][0]["observation"] = blob
            task = f"task-{(iteration * 13 + number // 8) % 700}"
            payload.add(
                f"{iteration}-{number}",
                content,
                reward=float(number % 2),
                advantage=0.5 - number % 2,
                iteration=iteration,
                task=task,
            )
    return payload.chunks()
