"""What `seeupo eval` does: put a player together, play, keep the result file up to date, and show it."""

from __future__ import annotations

import json
import re
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rich.console import Console
from rich.markup import escape
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn
from rich.table import Table

from seeupo.envs.pool import EnvPool
from seeupo.training.evaluation import (
    Attempt,
    Evaluation,
    EvaluationError,
    Plan,
    Player,
    attempts,
    compare,
    panel_of,
    shown,
)
from seeupo.training.players import tasks_of

if TYPE_CHECKING:
    from seeupo.agents.chat import ChatFormat
    from seeupo.agents.runner import Runner, RunnerSettings
    from seeupo.types import EnvFactory, Trajectory

SECONDS_BETWEEN_WRITES = 5.0


@dataclass(frozen=True, kw_only=True)
class Asked:
    """The options of the command."""

    policy: str | None
    environment: str | None
    split: str | None
    options: Mapping[str, Any]
    tasks: int | None
    samples: int
    k: int
    temperature: float
    max_tokens: int
    max_turns: int
    plain: bool
    seed: int
    concurrency: int
    endpoint: str | None
    model: str | None
    out: Path | None
    resume: bool

    @property
    def name(self) -> str:
        return self.policy or f"{self.model} at {self.endpoint}"


USUAL = {"temperature": 1.0, "max_tokens": 256, "max_turns": 10, "plain": False, "concurrency": 32}
"""What is taken where nobody says otherwise."""


def asked_for(**given: Any) -> Asked:
    """What was given, then what a run was trained with if the policy is one, then what is usual."""
    of_run = _settings_of_run(given["policy"]) if given["policy"] is not None else {}
    chosen = {name: value for name, value in given.items() if value is not None and value != {}}
    return Asked(**{**given, **USUAL, **of_run, **chosen})


def _settings_of_run(policy: str) -> dict[str, Any]:
    """How the policy of a run was trained to be asked; nothing if it is no run."""
    from seeupo.training.configuration import read_recipe
    from seeupo.training.run_folder import RECIPE

    if not (Path(policy) / RECIPE).is_file():
        return {}
    recipe = read_recipe(str(Path(policy) / RECIPE))
    return {
        "environment": recipe.environment.name,
        "options": recipe.environment.options,
        "split": recipe.environment.test_split,
        "temperature": recipe.agent.temperature,
        "max_tokens": recipe.agent.max_tokens,
        "max_turns": recipe.agent.max_turns,
        "plain": not recipe.agent.reasoning,
        "concurrency": recipe.agent.concurrency,
    }


def model_of(policy: str) -> str:
    """The model that is meant: a run's policy, or what was named."""
    run = Path(policy)
    if not (run / "recipe.toml").is_file():
        return policy
    if not (run / "policy").is_dir():
        raise EvaluationError(f"{run} has no policy yet; end the run first: seeupo train --resume {run}")
    return str(run / "policy")


def run_evaluation(**options: Any) -> tuple[Evaluation, Path]:
    """Play all that is missing; an interrupt or an error keeps what has been played."""
    asked = asked_for(**options)
    if asked.environment is None:
        raise EvaluationError("which environment? name it with --env; seeupo envs list shows them")
    if (asked.policy is None) == (asked.endpoint is None):
        raise EvaluationError("name a policy, or an endpoint with --endpoint URL --model NAME, and not both")
    if asked.endpoint is not None and asked.model is None:
        raise EvaluationError("an endpoint needs the model's name: --model NAME")
    with EnvPool(asked.environment, options=asked.options) as pool:
        plan, wanted = plan_for(asked, pool)
        path = asked.out or Path("runs/eval") / f"{_slug(asked.name)}-{pool.name}-{plan.split}.json"
        evaluation = _begin(plan, path, resume=asked.resume)
        if missing := evaluation.missing(wanted):
            with player_for(asked, pool) as player:
                _play(evaluation, player, missing, path)
        evaluation.write(path)
    return evaluation, path


def evaluate(
    policy: Path | str,
    environment: EnvFactory | str | None = None,
    *,
    split: str | None = None,
    options: Mapping[str, Any] | None = None,
    tasks: int | None = None,
    samples: int = 4,
    k: int = 4,
    temperature: float | None = None,
    max_tokens: int | None = None,
    max_turns: int | None = None,
    plain: bool | None = None,
    seed: int = 0,
) -> Evaluation:
    """Evaluate a run, a model's folder or name, `expert` or `random`, as `seeupo eval` does, and write nothing.

    Args:
        environment: a name or a factory of your own; a run knows its own.
        options: of an environment that is named.

    What is not given is as it was trained with, if the policy is a run.
    """
    asked = asked_for(
        policy=str(policy),
        environment=environment if isinstance(environment, str) else None,
        split=split,
        options=dict(options or {}),
        tasks=tasks,
        samples=samples,
        k=k,
        temperature=temperature,
        max_tokens=max_tokens,
        max_turns=max_turns,
        plain=plain,
        seed=seed,
        concurrency=None,
        endpoint=None,
        model=None,
        out=None,
        resume=False,
    )
    own = None if isinstance(environment, str) else environment
    place = own or asked.environment
    if place is None:
        raise EvaluationError("which environment? name it, or give a factory")
    with EnvPool(place, options=None if own else asked.options) as pool:
        plan, wanted = plan_for(asked, pool)
        evaluation = Evaluation(plan, {})
        with player_for(asked, pool) as player:
            for episode in player.play(wanted):
                evaluation.add(episode)
    return evaluation


def plan_for(asked: Asked, pool: EnvPool) -> tuple[Plan, list[Attempt]]:
    """What is asked for, in an environment that is open, and all attempts that it takes."""
    split = asked.split or pool.splits[-1]
    tasks = tasks_of(pool, split, asked.tasks)
    plan = Plan(
        policy=asked.name,
        environment=pool.name,
        split=split,
        options=dict(asked.options),
        samples=asked.samples,
        k=asked.k,
        seed=asked.seed,
        max_turns=asked.max_turns,
        sampling=_sampling(asked),
        panel=panel_of(tasks),
    )
    return plan, attempts(tasks, asked.samples, asked.seed)


def _sampling(asked: Asked) -> dict[str, Any]:
    if asked.policy in ("expert", "random"):
        return {}
    template = "plain" if asked.plain else "reasoning"
    return {"temperature": asked.temperature, "max_tokens": asked.max_tokens, "template": template}


def _begin(plan: Plan, path: Path, *, resume: bool) -> Evaluation:
    if not path.exists():
        return Evaluation(plan, {})
    if not resume:
        raise EvaluationError(f"{path} is there already; go on with it by --resume, or name another file with --out")
    evaluation = Evaluation.read(path)
    evaluation.check_continues(plan)
    return evaluation


def _play(evaluation: Evaluation, player: Player, wanted: list[Any], path: Path) -> None:
    console = Console(stderr=True)
    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn())
    written, total, count = time.monotonic(), 0.0, 0
    try:
        with Progress(*columns, console=console, transient=True) as progress:
            bar = progress.add_task("score   -", total=len(wanted))
            for episode in player.play(wanted):
                evaluation.add(episode)
                if episode.score is not None:
                    total, count = total + episode.score, count + 1
                progress.update(bar, advance=1, description=f"score {total / max(1, count):.3f}")
                if time.monotonic() - written > SECONDS_BETWEEN_WRITES:
                    evaluation.write(path)
                    written = time.monotonic()
    except BaseException:
        if evaluation.episodes:
            evaluation.write(path)
            console.print(f"{len(evaluation.episodes)} episodes are kept in {path}; go on with --resume")
        raise


@contextmanager
def player_for(asked: Asked, pool: EnvPool) -> Iterator[Player]:
    """Whoever was asked for."""
    from seeupo.training import players

    if asked.policy == "expert":
        yield players.expert_player(pool, asked.max_turns)
    elif asked.policy == "random":
        yield players.random_player(pool, asked.max_turns)
    elif asked.endpoint is not None:
        with _endpoint_player(asked, pool) as player:
            yield player
    else:
        yield _model_player(asked, pool)


@contextmanager
def _endpoint_player(asked: Asked, pool: EnvPool) -> Iterator[Player]:
    from seeupo.agents.template import Template
    from seeupo.training.endpoint import Endpoint
    from seeupo.training.players import endpoint_player

    assert asked.endpoint is not None
    assert asked.model is not None
    endpoint = Endpoint(
        url=asked.endpoint, model=asked.model, temperature=asked.temperature, max_tokens=asked.max_tokens
    )
    template = Template(reasoning=not asked.plain)
    player, executor = endpoint_player(pool, endpoint, template, asked.max_turns, concurrency=asked.concurrency)
    try:
        yield player
    finally:
        executor.shutdown(wait=False, cancel_futures=True)


def _model_player(asked: Asked, pool: EnvPool) -> Player:
    from seeupo.agents.runner import RunnerSettings
    from seeupo.training.players import PolicyPlayer
    from seeupo.types import SamplingParameters

    assert asked.policy is not None
    greedy = asked.temperature == 0
    parameters = SamplingParameters(
        max_tokens=asked.max_tokens, temperature=1.0 if greedy else asked.temperature, top_k=1 if greedy else 0
    )
    settings = RunnerSettings(
        parameters=parameters, max_turns=asked.max_turns, concurrency=asked.concurrency, deterministic=True
    )
    return PolicyPlayer(model_runner(model_of(asked.policy), pool, settings, plain=asked.plain))


def model_runner(model: str, pool: EnvPool, settings: RunnerSettings, *, plain: bool) -> Runner:
    """A model of this process, ready to play."""
    from seeupo.agents.chat import chat_format
    from seeupo.agents.runner import Runner
    from seeupo.agents.template import Template
    from seeupo.engines.plain_sampler import local_sampler
    from seeupo.models.loading import load_policy

    loaded = load_policy(model)
    sampler = local_sampler(loaded, training=False, max_rows=settings.concurrency)
    chat, template = chat_format(loaded.tokenizer), Template(reasoning=not plain)
    return Runner(sampler, pool, chat, template, settings, context_length=loaded.context_length)


def one_episode(
    model: str, environment: str | None, options: Mapping[str, Any], *, wanted: str | None, **given: Any
) -> tuple[ChatFormat, Trajectory]:
    """One episode of a model, with the format that its prompts were made in; what is not given is as a run has it."""
    from seeupo.agents.runner import Attempt, RunnerSettings
    from seeupo.types import SamplingParameters

    chosen = {name: value for name, value in given.items() if value is not None}
    of_run = _settings_of_run(model)
    how = {"max_tokens": 64, "max_turns": 4, "plain": False, "temperature": 1.0, **of_run, **chosen}
    environment, options = environment or of_run.get("environment"), options or of_run.get("options", {})
    if environment is None:
        raise EvaluationError("which environment? name it with --env; seeupo envs list shows them")
    parameters = SamplingParameters(max_tokens=how["max_tokens"], temperature=how["temperature"])
    settings = RunnerSettings(parameters=parameters, max_turns=how["max_turns"], concurrency=1)
    with EnvPool(environment, options=options, workers=1) as pool:
        tasks = tasks_of(pool, pool.splits[-1], None)
        task = next((task for task in tasks if wanted in (None, task.id)), None)
        if task is None:
            raise EvaluationError(f"split {pool.splits[-1]!r} of {environment} has no task {wanted!r}")
        runner = model_runner(model_of(model), pool, settings, plain=how["plain"])
        (trajectory,) = runner.run([Attempt("episode", "episode", task, seed=0)])
    return runner.chat, trajectory


def show_summary(result: tuple[Evaluation, Path], *, as_json: bool) -> None:
    evaluation, path = result
    summary, plan = evaluation.summary(), evaluation.plan
    if as_json:
        print(json.dumps({"file": str(path), "plan": plan.__dict__, "summary": summary}, indent=1))
        return
    console = Console()
    table = Table(box=None, pad_edge=False)
    for column in ("", "tasks", f"avg@{plan.k}", f"pass@{plan.k}"):
        table.add_column(column)
    for kind, part in [("all", summary), *summary["kinds"].items()]:
        table.add_row(kind, str(part["tasks"]), *(escape(shown(part[f"{name}@{plan.k}"])) for name in ("avg", "pass")))
    how = "".join(f", {name.replace('_', ' ')} {value}" for name, value in plan.sampling.items())
    console.print(f"{plan.policy} on {plan.environment}, split {plan.split}, {plan.samples} attempts at each task{how}")
    console.print(table)
    stops = ", ".join(f"{name} {count}" for name, count in summary["stops"].items())
    console.print(f"{summary['episodes']} episodes: {stops}; {summary['cut_responses']} responses cut at their limit")
    if summary["mean_action_tokens"] is not None:
        tokens = f", {summary['mean_action_tokens']:.0f} tokens sampled, {summary['mean_prompt_tokens']:.0f} of prompts"
    else:
        tokens = ""
    console.print(f"per episode: {summary['mean_turns']:.1f} turns{tokens}")
    if summary["failures"]:
        console.print(f"{summary['failures']} episodes failed and are not scored; --resume plays them again")
    console.print(f"written: {path}")


def show_comparison(one: Path, other: Path, *, as_json: bool) -> None:
    found = compare(Evaluation.read(one), Evaluation.read(other))
    if as_json:
        print(json.dumps(found, indent=1))
        return
    console = Console()
    console.print(f"{other} minus {one}, paired over {found['tasks']} tasks")
    for name, estimate in found.items():
        if name != "tasks":
            console.print(f"{name}: {escape(shown(estimate, signed=True))}")


def _slug(name: str) -> str:
    return re.sub(r"[^A-Za-z0-9._-]+", "-", name).strip("-")[-60:]
