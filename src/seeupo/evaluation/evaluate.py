"""Evaluate any policy: resolve its options, run the attempts without a score, and keep the result file up to date."""

from __future__ import annotations

import time
from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from seeupo.callbacks import Callback
from seeupo.config.loader import file_text, parse_file, recipe_from_table
from seeupo.config.schema import Recipe
from seeupo.envs.pool.pool import EnvPool
from seeupo.envs.registry import EnvSpec
from seeupo.envs.trust import NOTHING_ALLOWED, Permissions, strings_in
from seeupo.errors import EvaluationError
from seeupo.evaluation import policies
from seeupo.evaluation.endpoint import Endpoint
from seeupo.evaluation.policies import EvaluatedPolicy, ModelPolicy
from seeupo.evaluation.results import Evaluation, EvaluationPlan, panel_of
from seeupo.protocols import EnvFactory
from seeupo.rollout.gateway import load_program, open_rollouts
from seeupo.rollout.groups import group_attempts
from seeupo.rollout.template import Template
from seeupo.runs.run_directory import RECIPE, RunDirectory, refuse_links
from seeupo.types import Attempt, SamplingParameters, Trajectory
from seeupo.utils.output_paths import check_output

if TYPE_CHECKING:
    from seeupo.rollout.chat import ChatFormat
    from seeupo.rollout.runner import Runner

SECONDS_BETWEEN_WRITES = 5.0


@dataclass(frozen=True, kw_only=True)
class EvaluationOptions:
    """Options of an evaluation, all resolved. `docs/guides/evaluation.md` describes them."""

    policy: str | None = None
    checkpoint: int | None = None
    environment: EnvFactory | EnvSpec | str | None = None
    split: str | None = None
    options: Mapping[str, Any] = field(default_factory=dict)
    tasks: int | None = None
    attempts: int = 4
    k: int = 4
    temperature: float = 1.0
    max_tokens: int = 256
    max_turns: int = 10
    plain: bool = False
    max_observation_tokens: int = Template.max_observation_tokens
    max_prompt_tokens: int | None = Template.max_prompt_tokens
    seed: int = 0
    concurrency: int = 32
    endpoint: str | None = None
    model: str | None = None
    program: str | None = None
    permissions: Permissions = NOTHING_ALLOWED

    @property
    def name(self) -> str:
        checkpoint = "" if self.checkpoint is None else f", checkpoint {self.checkpoint}"
        return f"{self.policy}{checkpoint}" if self.policy else f"{self.model} at {self.endpoint}"

    @property
    def sampling(self) -> dict[str, Any]:
        """Sampling settings for the plan; empty for scripted policies."""
        if self.policy in policies.SCRIPTED:
            return {}
        template = "plain" if self.plain else "reasoning"
        return {"temperature": self.temperature, "max_tokens": self.max_tokens, "template": template}


def resolve_options(**options: Any) -> EvaluationOptions:
    """Return options completed by the settings of the run if the policy is one, then by defaults.

    The checkpoint "best" becomes the number of that checkpoint, which results are named after.
    """
    options = {name: value for name, value in options.items() if value is not None and value != {}}
    policy = options.get("policy", "")
    settings = run_settings(policy)
    if policy and not settings:
        policies.check_policy(policy)
    if "checkpoint" in options:
        if not settings:
            raise EvaluationError(f"checkpoint {options['checkpoint']}: only a run directory has checkpoints; name one")
        options["checkpoint"] = RunDirectory(Path(policy)).checkpoint_number(options["checkpoint"])
    environment = options.get("environment")
    if isinstance(environment, str) and environment != settings.get("environment"):
        # In another environment the split and the options of the run have no meaning.
        settings.pop("split", None)
    if environment is not None and environment != settings.get("environment"):
        settings.pop("options", None)
    return EvaluationOptions(**{**settings, **options})


def run_settings(policy: str) -> dict[str, Any]:
    """Return the environment and agent settings of a run directory; empty if `policy` is not one."""
    run = _run_at(policy)
    if run is None:
        return {}
    path = str(run.path / RECIPE)
    table = parse_file(file_text(path), path)
    table.pop("algorithm", None)  # an evaluation needs none, and its code may be missing here
    return recipe_settings(recipe_from_table(table))


def recipe_settings(recipe: Recipe) -> dict[str, Any]:
    """Return the environment and agent settings of a recipe, as options of an evaluation."""
    agent = recipe.agent
    names = ("temperature", "max_tokens", "max_turns", "max_observation_tokens", "max_prompt_tokens", "concurrency")
    return {
        "environment": recipe.environment.name,
        "options": recipe.environment.options,
        "split": recipe.environment.test_split,
        "plain": not agent.reasoning,
        "program": agent.program,
        **{name: getattr(agent, name) for name in names},
    }


def model_of(policy: str, checkpoint: int | None = None) -> str:
    """Return the model folder of a run directory, or `policy` itself if it is a model."""
    run = _run_at(policy)
    if run is None:
        return policy
    if checkpoint is not None:
        return str(run.checkpoints().find(checkpoint).path)
    if not run.policy_path.is_dir():
        raise EvaluationError(
            f"{run.path} has no policy yet; finish the run first (seeupo train --resume {run.path}), or choose a "
            "checkpoint: --checkpoint best"
        )
    return str(run.policy_path)


def _run_at(policy: str) -> RunDirectory | None:
    """Return the run at a path; None if there is none, as for the name of a model."""
    path = Path(policy)
    if not (path / RECIPE).is_file():
        return None
    refuse_links(path)
    return RunDirectory(path)


def evaluate(
    policy: Path | str | None = None,
    environment: EnvFactory | EnvSpec | str | None = None,
    *,
    split: str | None = None,
    options: Mapping[str, Any] | None = None,
    checkpoint: int | Literal["best"] | None = None,
    endpoint: str | None = None,
    model: str | None = None,
    trust: Collection[str] = (),
    unsandboxed: bool = False,
    tasks: int | None = None,
    attempts: int = 4,
    k: int = 4,
    temperature: float | None = None,
    max_tokens: int | None = None,
    max_turns: int | None = None,
    plain: bool | None = None,
    seed: int = 0,
    concurrency: int | None = None,
    out: Path | str | None = None,
    resume: bool = False,
    callback: Callback | None = None,
) -> Evaluation:
    """Evaluate a policy like `seeupo eval`: avg@k and pass@k over the tasks of a split.

    Settings that are not given are those of the run if the policy is a run directory, else the defaults of
    `seeupo eval`.

    Args:
        policy: Run directory, model folder or name, `expert` or `random`; None with an endpoint.
        environment: Name, "module:Factory", `EnvSpec` or factory object of the environment; a run directory has its
            own.
        split: Task split; the last one by default.
        options: Options of a named environment.
        checkpoint: Checkpoint of a run directory, by its number or "best"; the final policy by default.
        endpoint: OpenAI-compatible server, up to /v1, whose model is evaluated instead of `policy`.
        model: Name of the model at the endpoint.
        trust: Code that the settings of a run may name; other code is refused. What `environment` and `options` name
            is trusted.
        unsandboxed: Run environment workers without a sandbox.
        tasks: Maximum number of tasks; all by default.
        attempts: Number of attempts per task.
        k: k in avg@k and pass@k.
        temperature: Sampling temperature; 0 means greedy.
        max_tokens: Maximum response length.
        max_turns: Maximum number of turns.
        plain: Use the plain template, without reasoning.
        seed: Random seed.
        concurrency: Number of concurrent episodes.
        out: Result file, kept up to date during the evaluation; none by default.
        resume: Complete an existing result file: run what is missing or has failed.
        callback: Observes progress and trajectories.

    Returns:
        The evaluation: its plan, the result of every attempt, and `summary()` with the estimates.
    """
    named = environment if isinstance(environment, str) else None
    resolved = resolve_options(
        policy=None if policy is None else str(policy),
        checkpoint=checkpoint,
        environment=environment,
        endpoint=endpoint,
        model=model,
        split=split,
        options=dict(options or {}),
        permissions=Permissions((*trust, *strings_in([named, options])), unsandboxed),
        tasks=tasks,
        attempts=attempts,
        k=k,
        temperature=temperature,
        max_tokens=max_tokens,
        max_turns=max_turns,
        plain=plain,
        seed=seed,
        concurrency=concurrency,
    )
    return run_evaluation(resolved, out=None if out is None else Path(out), resume=resume, callback=callback)[0]


def run_evaluation(
    options: EvaluationOptions,
    *,
    out: Path | None = None,
    folder: Path | None = None,
    resume: bool = False,
    callback: Callback | None = None,
) -> tuple[Evaluation, Path | None]:
    """Run every attempt that has no score yet; return the evaluation, and its result file if there is one.

    An error or interrupt keeps the finished attempts in the result file, and a note to the callback says so.

    Args:
        out: Result file.
        folder: Folder of a numbered result file, if `out` is not given.
        resume: Complete an existing result file; in the folder the newest one.
    """
    callback = callback or Callback()
    if (options.policy is None) == (options.endpoint is None):
        raise EvaluationError("expected either a policy, or --endpoint URL with --model NAME")
    if options.endpoint is not None and options.model is None:
        raise EvaluationError("--endpoint needs the name of a model: add --model NAME")
    with open_pool(options) as pool:
        plan, attempts = evaluation_plan(options, pool)
        if out is None and folder is not None:
            out = plan.result_file(folder, existing=resume)
        evaluation = Evaluation(plan, {})
        if out is not None and check_output(out).exists():
            if not resume:
                raise EvaluationError(
                    f"{out} already exists; continue it with --resume, or name another file with --out"
                )
            evaluation = Evaluation.read(out)
            evaluation.check_continues(plan)
        if missing := evaluation.missing(attempts):
            if options.program is None:
                pool.try_task(attempts[0].task)
            callback.on_phase("evaluation", len(missing))
            try:
                with policy_for(options, pool, callback) as policy:
                    run_attempts(evaluation, policy, missing, callback, out=out)
            except BaseException:
                if evaluation.results and out is not None:
                    evaluation.write(out)
                    callback.on_note(
                        f"{len(evaluation.results)} finished attempts are kept in {out}; continue with --resume"
                    )
                raise
        if out is not None:
            evaluation.write(out)
    return evaluation, out


def run_attempts(
    evaluation: Evaluation,
    policy: EvaluatedPolicy,
    attempts: Sequence[Attempt],
    callback: Callback,
    *,
    out: Path | None = None,
) -> None:
    """Run attempts and add their results to the evaluation, writing its result file every few seconds."""
    written = time.monotonic()
    scores = list[float]()
    for done, result in enumerate(policy.run(attempts), 1):
        evaluation.add(result)
        scores += [] if result.score is None else [result.score]
        callback.on_progress(done, f"score {sum(scores) / len(scores):.3f}" if scores else "")
        if out is not None and time.monotonic() - written > SECONDS_BETWEEN_WRITES:
            evaluation.write(out)
            written = time.monotonic()


def open_pool(options: EvaluationOptions, workers: int | None = None) -> EnvPool:
    """Start the environment of an evaluation."""
    if options.environment is None:
        raise EvaluationError(
            "no environment: name one with --env (`seeupo envs list` shows them), or pass a factory in Python"
        )
    return EnvPool(
        options.environment,
        options=options.options,
        workers=workers,
        trust=options.permissions.trust,
        unsandboxed=options.permissions.unsandboxed,
    )


def evaluation_plan(options: EvaluationOptions, pool: EnvPool) -> tuple[EvaluationPlan, list[Attempt]]:
    """Return the plan of an evaluation in an open environment, and all of its attempts."""
    split = options.split or pool.splits[-1]
    tasks = pool.first_tasks(split, options.tasks)
    plan = EvaluationPlan(
        policy=options.name,
        environment=pool.name,
        split=split,
        options=dict(options.options),
        attempts=options.attempts,
        k=options.k,
        seed=options.seed,
        max_turns=options.max_turns,
        sampling=options.sampling,
        panel=panel_of(tasks),
    )
    return plan, group_attempts(tasks, options.attempts, options.seed)


@contextmanager
def policy_for(options: EvaluationOptions, pool: EnvPool, callback: Callback) -> Iterator[EvaluatedPolicy]:
    """Provide the policy to evaluate."""
    if options.policy == "expert":
        yield policies.expert_policy(pool, options.max_turns)
    elif options.policy == "random":
        yield policies.random_policy(pool, options.max_turns)
    elif options.endpoint is not None:
        endpoint = Endpoint(
            url=options.endpoint,
            model=options.model or "",
            temperature=options.temperature,
            max_tokens=options.max_tokens,
        )
        with policies.endpoint_policy(
            pool, endpoint, options.max_turns, reasoning=not options.plain, concurrency=options.concurrency
        ) as policy:
            yield policy
    else:
        program = load_program(options.program, options.permissions.trust)
        with model_runner(options, pool) as runner, open_rollouts(runner, program) as rollouts:
            yield ModelPolicy(rollouts, callback)


@contextmanager
def model_runner(options: EvaluationOptions, pool: EnvPool) -> Iterator[Runner]:
    """Load the policy's model and provide a runner for it, with the number of threads for its size."""
    from seeupo.models.loading import load_policy
    from seeupo.models.threads import default_threads, num_threads
    from seeupo.rollout.runner import Runner

    greedy = options.temperature == 0
    parameters = SamplingParameters(
        max_tokens=options.max_tokens, temperature=1.0 if greedy else options.temperature, top_k=1 if greedy else 0
    )
    policy = load_policy(model_of(options.policy or "", options.checkpoint))
    with num_threads(default_threads(policy.model)):
        yield Runner(
            policy,
            pool,
            parameters=parameters,
            max_turns=options.max_turns,
            concurrency=options.concurrency,
            reasoning=not options.plain,
            max_observation_tokens=options.max_observation_tokens,
            max_prompt_tokens=options.max_prompt_tokens,
            training=False,
        )


def one_episode(options: EvaluationOptions, task_id: str | None) -> tuple[ChatFormat, Trajectory]:
    """Run one episode of a model in the last split; return it with the chat format of its prompts.

    Args:
        task_id: Task; the first one if None.
    """
    with open_pool(options, workers=1) as pool:
        split = pool.splits[-1]
        task = next((task for task in pool.first_tasks(split, None) if task_id in (None, task.id)), None)
        if task is None:
            raise EvaluationError(f"split {split!r} of {options.environment} has no task {task_id!r}")
        program = load_program(options.program, options.permissions.trust)
        if program is None:
            pool.try_task(task)
        with (
            model_runner(replace(options, concurrency=1), pool) as runner,
            open_rollouts(runner, program) as rollouts,
        ):
            (trajectory,) = rollouts.run([Attempt("episode", "episode", task, seed=0)])
    return runner.chat, trajectory
