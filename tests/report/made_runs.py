"""Synthetic run directories: an ordinary one of any size, and one with every edge case."""

import gzip
import json
import math
import random
from functools import cache
from pathlib import Path

from seeupo.config.model_settings import TinyConfig
from seeupo.evaluation.results import AttemptResult, Evaluation, EvaluationPlan
from seeupo.models.tiny import tiny_tokenizer
from seeupo.runs.run_directory import RunDirectory
from seeupo.runs.trajectory_files import to_json, write_trajectories
from seeupo.types import Credit, Failure, FailureKind, StopReason, Trajectory, Turn, TurnCredit, TurnText

RECIPE = """[run]
seed = 0
iterations = {iterations}
[model]
name = "tiny"
[environment]
name = "pocket"
[collect]
tasks = {groups}
group_size = {size}
shape = "none"
[algorithm]
name = "seeupo"
order = "reverse"
[optimizer]
learning_rate = 0.001
[evaluation]
k = 2
"""
ENV_INFO = {"versions": {"seeupo": "0.1.0", "torch": "2.13.0"}, "threads": 1, "git": None, "custom_environment": None}
CORPUS = ("read the mail, pay the bill and say done", "<think>who wants what now?</think>", "the mail says 7")
HOSTILE = (
    "<script>alert(1)</script>",
    "</script><img src=x onerror=alert(2)>",
    "&lt;b&gt; ${alert(3)} {{alert(4)}} ]]> --><!--",
    "日本語の文 العربية \u202eright to left\u202c हिन्दी 🙂👩‍👩‍👧 e\u0301",
    "NUL \x00 bell \x07 escape \x1b[31m",
    "half a character \ud83d alone",
    "a very long line " * 400,
)


@cache
def tokenizer():
    """Return a tokenizer of single bytes and the corpus, so that many characters need several tokens."""
    return tiny_tokenizer(TinyConfig(vocabulary=320, corpus=CORPUS)).backend_tokenizer


def write_tokenizer(directory: Path) -> None:
    directory.mkdir(parents=True, exist_ok=True)
    tokenizer().save(str(directory / "tokenizer.json"))


def trajectory(
    name, group, responses, reward, *, advantage=None, opening="say on which day tea is", rng=None, **changes
):
    """Return a trajectory with these responses; with an advantage, it has been trained on, last turn first."""
    rng = rng or random.Random(name)
    turns, texts, history = [], [], tuple(tokenizer().encode(_encodable(opening)).ids)
    for index, response in enumerate(responses):
        ids = tuple(tokenizer().encode(_encodable(response)).ids)
        turns.append(Turn(name, index, history, ids, tuple(-rng.random() for _ in ids)))
        texts.append(TurnText(response, f"answer {index}"))
        history += ids + tuple(tokenizer().encode(f"answer {index}").ids)
    fields = {
        "task": f"task-{group[-3:]}",
        "score": reward,
        "stop": StopReason.GOAL if reward == 1 else StopReason.ENVIRONMENT,
        "opening": opening,
        "turn_texts": tuple(texts),
        "credit": None if advantage is None else _credit(turns, advantage, rng),
    }
    return Trajectory(id=name, group=group, turns=tuple(turns), reward=reward, **{**fields, **changes})


def failed_trajectory(name, group, responses, message="the worker was lost", **changes):
    """Return a trajectory that ended in an infrastructure failure."""
    failure = {"score": None, "stop": StopReason.FAILURE, "failure": Failure(FailureKind.WORKER_LOST, message)}
    return trajectory(name, group, responses, 0.0, **{**failure, **changes})


def _encodable(text):
    return text.encode(errors="replace").decode()


def _credit(turns, advantage, rng):
    carried, credits = advantage, []
    for turn in reversed(turns) if advantage else ():
        new = tuple(logprob + rng.gauss(0, 0.1) for logprob in turn.behavior_logprobs)
        change = math.fsum(new) - math.fsum(turn.behavior_logprobs)
        ratio = math.exp(change / max(1, len(new)))
        credits.append(TurnCredit(turn.index, ratio, carried, carried * ratio, abs(ratio - 1) > 0.2, new))
        carried *= ratio
    return Credit(advantage, tuple(credits))


def group_of(iteration, number, *, size=2, turns=3, words=3, rng):
    """Return a group with consistent rewards, advantages and credit."""
    group = f"{iteration:05d}-{number:03d}"
    rewards = [float(rng.random() < 0.5) for _ in range(size)]
    mean = sum(rewards) / size
    vocabulary = " ".join(CORPUS).split()
    return [
        trajectory(
            f"{group}-{member}", group, [" ".join(rng.choices(vocabulary, k=words)) for _ in range(turns)], reward,
            advantage=reward - mean, rng=rng,
        )
        for member, reward in enumerate(rewards)
    ]  # fmt: skip


def record_of(iteration, trajectories, turns):
    """Return the record of an iteration as training writes it."""
    rewards = [each.reward for each in trajectories]
    groups = {}
    for each in trajectories:
        groups.setdefault(each.group, set()).add(each.reward)
    return {
        "kind": "iteration",
        "iteration": iteration,
        "reward_mean": sum(rewards) / len(rewards),
        "success": sum(reward == 1 for reward in rewards) / len(rewards),
        "episodes": len(trajectories),
        "groups": len(groups),
        "dead_groups": sum(len(found) == 1 for found in groups.values()),
        "failed_episodes": 0,
        "action_tokens": sum(len(turn.action_ids) for each in trajectories for turn in each.turns),
        "truncated_responses": 0,
        "entropy": 0.5,
        "sampler_gap": 1e-7,
        "draft_acceptance": 0.75,
        "algorithm": {"optimizer_steps": float(turns)},
        "turns": [
            {
                "turn": turn, "live_turns": 4.0 + turn, "ratio_mean": 1 + 0.01 * turn, "clip_fraction": 0.1,
                "carry_sd": 0.1 * position, "carry_max": 1.5, "kl": 1e-4 * (turn + 1), "grad_norm": 0.5 + turn,
            }
            for position, turn in enumerate(reversed(range(turns)))
        ],
        "timings": {"collect": 2.0, "update": 1.0, "tokens_per_second": 50.0},
    }  # fmt: skip


def evaluation_of(solved, tasks=4, attempts=2, panel="panel"):
    """Return an evaluation in which a fraction of the attempts was solved."""
    plan = EvaluationPlan(
        policy="made", environment="pocket", split="test", options={}, attempts=attempts, k=2, seed=0, max_turns=4,
        sampling={}, panel=panel,
    )  # fmt: skip
    keys = [(f"test-{task}", attempt) for attempt in range(attempts) for task in range(tasks)]
    scores = [float(number < solved * len(keys)) for number in range(len(keys))]
    results = [
        AttemptResult(task=task, kind="owed", attempt=attempt, score=score, stop="goal", turns=2)
        for (task, attempt), score in zip(keys, scores, strict=True)
    ]
    return Evaluation(plan, {result.key: result for result in results})


def add_evaluation(run_dir: Path, iteration, solved, *, trajectories=True, **options):
    """Write an evaluation with its record, and with its trajectories unless an older version wrote it."""
    run = RunDirectory.open(run_dir)
    evaluation = evaluation_of(solved, **options)
    evaluation.write(run.evaluation_path(iteration))
    run.append({"kind": "evaluation", "iteration": iteration, **evaluation.summary(), "timings": {"seconds": 3.0}})
    if trajectories:
        attempts = [
            trajectory(f"{task}#{attempt}", task, ["read mail", "done"], result.score, task=task)
            for (task, attempt), result in sorted(evaluation.results.items())
        ]
        kinds = {result.task: result.kind for result in evaluation.results.values()}
        write_trajectories(run.evaluation_path(iteration).with_suffix(".jsonl.gz"), attempts, header={"kinds": kinds})


def made_run(
    run_dir: Path, *, iterations=3, groups=3, size=2, turns=3, words=3, before=0.25, after=1.0, seed=0
) -> Path:
    """Write a complete run with two evaluations."""
    rng = random.Random(seed)
    run = RunDirectory.create(run_dir, RECIPE.format(iterations=iterations, groups=groups, size=size), ENV_INFO)
    write_tokenizer(run.policy_path)
    add_evaluation(run_dir, 0, before, tasks=12)
    for iteration in range(1, iterations + 1):
        members = [
            each
            for number in range(groups)
            for each in group_of(iteration, number, size=size, turns=turns, words=words, rng=rng)
        ]
        kinds = {each.task: "settle" for each in members}
        run.write_trajectories(iteration, members, {"iteration": iteration, "kinds": kinds})
        run.append(record_of(iteration, members, turns))
    add_evaluation(run_dir, iterations, after, tasks=12)
    run.write_summary({"reason": f"{iterations} iterations done", "seconds": {"collect": 60.0, "update": 30.0}})
    return run_dir


def odd_trajectories(iteration=1):
    """Return groups with edge cases: failures, no turns, empty actions, ten turns, hostile text, no credit."""
    name = f"{iteration:05d}-{{}}".format
    ten = [f"turn {turn} {HOSTILE[turn % len(HOSTILE)][:60]}" for turn in range(10)]
    return [
        failed_trajectory(name("900-0"), name("900"), ["read mail"]),
        failed_trajectory(name("900-1"), name("900"), [], opening=""),
        trajectory(name("901-0"), name("901"), [], 0.0, advantage=-0.5, stop=StopReason.CONTEXT_LIMIT),
        trajectory(name("901-1"), name("901"), ["", "done", ""], 1.0, advantage=0.5),
        trajectory(name("902-0"), name("902"), ten, 1.0, advantage=1.25, stop=StopReason.TURN_LIMIT),
        trajectory(name("902-1"), name("902"), ten[:2], 0.0, advantage=-1.25, stop=StopReason.FORCED),
        *(
            trajectory(
                name(f"903-{n}"), name("903"), [text, f"<think>{text}</think>done"], float(n % 2), opening=text,
                advantage=0.7 if n % 2 else -0.7, task=text[:200],
            )
            for n, text in enumerate(HOSTILE)
        ),
        trajectory(name("904-0"), name("904"), ["never trained on"], 0.5),
        trajectory(name("904-1"), name("904"), ["<think>never closed"], 0.5),
    ]  # fmt: skip


def odd_run(run_dir: Path) -> Path:
    """Write a run of one iteration with every edge case, and with an evaluation in which attempts failed."""
    run = RunDirectory.create(run_dir, RECIPE.format(iterations=1, groups=5, size=2), ENV_INFO)
    write_tokenizer(run.policy_path)
    add_evaluation(run_dir, 0, 0.5)
    members = odd_trajectories()
    kinds = {each.task: HOSTILE[n % len(HOSTILE)][:60] for n, each in enumerate(members)}
    run.write_trajectories(1, members, {"iteration": 1, "kinds": kinds})
    record = record_of(1, [each for each in members if each.failure is None], 10)
    run.append({**record, "failed_episodes": 2, "sampler_gap": 0.5, "entropy": None})
    add_evaluation(run_dir, 1, 0.5)
    last = evaluation_of(0.5)
    for task, attempt in list(last.results)[:2]:
        lost = {"score": None, "stop": "failure", "turns": 0, "failure": "lost"}
        last.add(AttemptResult(task=task, kind="owed", attempt=attempt, **lost))
    last.write(run.evaluation_path(1))
    run.write_summary({"reason": "the target is reached", "seconds": {"collect": 2.0}})
    return run_dir


def write_lines(path: Path, trajectories, header=None) -> None:
    """Write a trajectory file from trajectories or from records."""
    lines = [header or {"format": "seeupo-trajectories", "version": 3}]
    lines += [each if isinstance(each, dict) else to_json(each) for each in trajectories]
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(gzip.compress("".join(json.dumps(line) + "\n" for line in lines).encode(), mtime=0))


def cut(path: Path, share=0.5) -> None:
    """Truncate a file, as a machine does that stops while copying it."""
    content = path.read_bytes()
    path.write_bytes(content[: int(len(content) * share)])
