"""Run folders made by hand: an ordinary one of any size, and one with every odd case."""

import gzip
import json
import math
import random
from functools import cache
from pathlib import Path

from seeupo.models.tiny import TinyConfig, tiny_tokenizer
from seeupo.runs.evaluations import Episode, Evaluation, Plan
from seeupo.runs.run_directory import RunDirectory
from seeupo.runs.trajectory_files import to_json, write_trajectories
from seeupo.types import Credit, Status, StopReason, Trajectory, Turn, TurnCredit

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
FACTS = {"versions": {"seeupo": "0.1.0", "torch": "2.13.0"}, "threads": 1, "git": None, "custom_environment": None}
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
    """Of single bytes and what the corpus has, so that many characters need several tokens."""
    return tiny_tokenizer(TinyConfig(vocabulary=320, corpus=CORPUS)).backend_tokenizer


def write_tokenizer(folder: Path) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    tokenizer().save(str(folder / "tokenizer.json"))


def trajectory(
    name, group, responses, reward, *, advantage=None, opening="say on which day tea is", draw=None, **changes
):
    """A trajectory that said these responses; with an advantage it has been trained on, last turn first."""
    draw = draw or random.Random(name)
    samples, texts, history = [], [opening], tuple(tokenizer().encode(_encodable(opening)).ids)
    for turn, response in enumerate(responses):
        ids = tuple(tokenizer().encode(_encodable(response)).ids)
        samples.append(Turn(name, turn, history, ids, tuple(-draw.random() for _ in ids)))
        texts += [response, f"answer {turn}"]
        history += ids + tuple(tokenizer().encode(f"answer {turn}").ids)
    credit = None if advantage is None else _credit(samples, advantage, draw)
    fields = {
        "task": f"task-{group[-3:]}",
        "stop": StopReason.GOAL if reward == 1 else StopReason.ENVIRONMENT,
        "texts": tuple(texts),
        "credit": credit,
    }
    return Trajectory(id=name, group=group, turns=tuple(samples), reward=reward, **{**fields, **changes})


def _encodable(text):
    return text.encode(errors="replace").decode()


def _credit(samples, advantage, draw):
    carried, turns = advantage, []
    for sample in reversed(samples) if advantage else ():
        new = tuple(logprob + draw.gauss(0, 0.1) for logprob in sample.behavior_logprobs)
        moved = math.fsum(new) - math.fsum(sample.behavior_logprobs)
        ratio = math.exp(moved / max(1, len(new)))
        turns.append(TurnCredit(sample.index, ratio, carried, carried * ratio, abs(ratio - 1) > 0.2, new))
        carried *= ratio
    return Credit(advantage, tuple(turns))


def group_of(iteration, number, *, size=2, turns=3, words=3, draw):
    """A group as an iteration leaves it: rewards, advantages and credit belong together."""
    group = f"{iteration:05d}-{number:03d}"
    rewards = [float(draw.random() < 0.5) for _ in range(size)]
    mean = sum(rewards) / size
    said = " ".join(CORPUS).split()
    return [
        trajectory(
            f"{group}-{member}", group, [" ".join(draw.choices(said, k=words)) for _ in range(turns)], reward,
            advantage=reward - mean, draw=draw,
        )
        for member, reward in enumerate(rewards)
    ]  # fmt: skip


def record_of(iteration, trajectories, turns):
    """The record of an iteration, as training writes it."""
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
        "action_tokens": sum(len(sample.action_ids) for each in trajectories for sample in each.turns),
        "truncated_responses": 0,
        "entropy": 0.5,
        "sampler_gap": 1e-7,
        "algorithm": {"optimizer_steps": float(turns)},
        "turns": [
            {
                "turn": turn, "live_samples": 4.0 + turn, "ratio_mean": 1 + 0.01 * turn, "clip_fraction": 0.1,
                "carry_sd": 0.1 * place, "carry_max": 1.5, "kl": 1e-4 * (turn + 1), "grad_norm": 0.5 + turn,
            }
            for place, turn in enumerate(reversed(range(turns)))
        ],
        "timings": {"collect": 2.0, "update": 1.0, "tokens_per_second": 50.0},
    }  # fmt: skip


def evaluation_of(solved, tasks=4, samples=2, panel="panel"):
    """An evaluation in which a share of the attempts was solved."""
    plan = Plan(
        policy="made", environment="pocket", split="test", options={}, turns=samples, k=2, seed=0, max_turns=4,
        sampling={}, panel=panel,
    )  # fmt: skip
    attempts = [(f"test-{task}", sample) for sample in range(samples) for task in range(tasks)]
    scores = [float(place < solved * len(attempts)) for place in range(len(attempts))]
    episodes = [
        Episode(task=task, kind="owed", sample=sample, score=score, stop="goal", turns=2)
        for (task, sample), score in zip(attempts, scores, strict=True)
    ]
    return Evaluation(plan, {episode.key: episode for episode in episodes})


def add_evaluation(folder: Path, iteration, solved, *, trajectories=True, **options):
    """An evaluation with its record, and its episodes unless an older version has written it."""
    run = RunDirectory.open(folder)
    evaluation = evaluation_of(solved, **options)
    evaluation.write(run.evaluation_path(iteration))
    run.append({"kind": "evaluation", "iteration": iteration, **evaluation.summary(), "timings": {"seconds": 3.0}})
    if trajectories:
        played = [
            trajectory(f"{task}#{sample}", task, ["read mail", "done"], episode.score, task=task)
            for (task, sample), episode in sorted(evaluation.episodes.items())
        ]
        kinds = {episode.task: episode.kind for episode in evaluation.episodes.values()}
        write_trajectories(run.evaluation_path(iteration).with_suffix(".jsonl.gz"), played, facts={"kinds": kinds})


def made_run(folder: Path, *, iterations=3, groups=3, size=2, turns=3, words=3, before=0.25, after=1.0, seed=0) -> Path:
    """A whole run, with two evaluations and everything in it."""
    draw = random.Random(seed)
    run = RunDirectory.create(folder, RECIPE.format(iterations=iterations, groups=groups, size=size), FACTS)
    write_tokenizer(run.policy_path)
    add_evaluation(folder, 0, before, tasks=12)
    for iteration in range(1, iterations + 1):
        members = [
            each
            for number in range(groups)
            for each in group_of(iteration, number, size=size, turns=turns, words=words, draw=draw)
        ]
        kinds = {each.task: "settle" for each in members}
        run.write_trajectories(iteration, members, {"iteration": iteration, "kinds": kinds})
        run.append(record_of(iteration, members, turns))
    add_evaluation(folder, iterations, after, tasks=12)
    run.write_summary({"reason": f"all {iterations} iterations are done", "seconds": {"collect": 60.0, "update": 30.0}})
    return folder


def odd_trajectories(iteration=1):
    """Groups of everything that is rare: failures, no turns, empty actions, ten turns, hostile text, no credit."""
    name = f"{iteration:05d}-{{}}".format
    failed = {"stop": StopReason.FAILURE, "status": Status.FAILED}
    ten = [f"turn {turn} {HOSTILE[turn % len(HOSTILE)][:60]}" for turn in range(10)]
    return [
        trajectory(name("900-0"), name("900"), ["read mail"], math.nan, **failed),
        trajectory(name("900-1"), name("900"), [], math.nan, texts=("[failed: the worker was lost]",), **failed),
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


def odd_run(folder: Path) -> Path:
    """One iteration with every odd case, and an evaluation in which attempts failed."""
    run = RunDirectory.create(folder, RECIPE.format(iterations=1, groups=5, size=2), FACTS)
    write_tokenizer(run.policy_path)
    add_evaluation(folder, 0, 0.5)
    members = odd_trajectories()
    kinds = {each.task: HOSTILE[n % len(HOSTILE)][:60] for n, each in enumerate(members)}
    run.write_trajectories(1, members, {"iteration": 1, "kinds": kinds})
    record = record_of(1, [each for each in members if each.status is Status.OK], 10)
    run.append({**record, "failed_episodes": 2, "sampler_gap": 0.5, "entropy": None})
    add_evaluation(folder, 1, 0.5)
    last = evaluation_of(0.5)
    for key in list(last.episodes)[:2]:
        del last.episodes[key]
        last.add(Episode(task=key[0], kind="owed", sample=key[1], score=None, stop="failure", turns=0, failure="lost"))
    last.write(run.evaluation_path(1))
    run.write_summary({"reason": "the target is reached", "seconds": {"collect": 2.0}})
    return folder


def write_lines(path: Path, trajectories, header=None) -> None:
    """A file of trajectories as plain dictionaries may change it."""
    lines = [header or {"format": "seeupo-trajectories", "version": 1}]
    lines += [each if isinstance(each, dict) else to_json(each) for each in trajectories]
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(gzip.compress("".join(json.dumps(line) + "\n" for line in lines).encode(), mtime=0))


def cut(path: Path, share=0.5) -> None:
    """What is left of a file when a machine stops while it is copied."""
    content = path.read_bytes()
    path.write_bytes(content[: int(len(content) * share)])
