"""The training loop: collect groups, update, evaluate, checkpoint, for any algorithm, engine and environment.

All randomness is derived from the seed and the progress of the run, so a run that was stopped at any moment resumes
from its last checkpoint as if it had never stopped.
"""

from __future__ import annotations

import gc
import math
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any

import torch

from seeupo.config.schema import Recipe
from seeupo.errors import CheckpointError, EngineLost, TrainingError, TrajectoryFileError, first_line
from seeupo.evaluation.policies import ModelPolicy
from seeupo.evaluation.results import Evaluation, EvaluationPlan, panel_of, planned_attempts
from seeupo.protocols import TrainableEngine
from seeupo.rollout.collector import Collected, Collector
from seeupo.runs.checkpoints import Checkpoint
from seeupo.runs.run_directory import RunDirectory
from seeupo.training.ahead import AheadCollector
from seeupo.training.alarms import Alarms
from seeupo.training.callbacks import TrainingCallback
from seeupo.training.metrics import iteration_record, sampler_gap, task_kinds
from seeupo.training.setup import Components
from seeupo.training.warm_start import Demonstrations, load_demonstrations, warm_start_optimizer
from seeupo.types import Trajectory, Update, turns_of
from seeupo.utils.seeds import derive_seed
from seeupo.utils.text import counted

WARM_START_RECORDS = 20
"""Number of metrics records that a warm start leaves."""
WARM_START_CHECKPOINT_SECONDS = 120.0
"""Seconds between checkpoints in a warm start."""
TRUNK_DEMONSTRATIONS = 16
"""Number of demonstrations whose frozen layers are computed together, so that progress is shown."""


class Interrupted(Exception):
    """The user asked to stop, at a point from which the run can be resumed."""


@dataclass
class Progress:
    """The state of the loop; a checkpoint consists of it and the engine's files.

    Attributes:
        warm_steps: Finished optimizer steps of the warm start.
        iteration: Last finished iteration.
        evaluated: Last iteration with an evaluation; -1 before the first.
        drawn: Number of tasks drawn so far.
        best, best_iteration: Best evaluation, the earliest of equal ones; `stale` counts the evaluations since.
        optimizer_steps: Number of optimizer steps in all iterations.
        seconds, tokens: Seconds by phase and tokens by kind so far.
    """

    warm_steps: int = 0
    iteration: int = 0
    evaluated: int = -1
    drawn: int = 0
    best: float = -1.0
    best_iteration: int = 0
    stale: int = 0
    optimizer_steps: int = 0
    seconds: dict[str, float] = field(default_factory=dict)
    tokens: dict[str, int] = field(default_factory=dict)

    def covers(self, record: Mapping[str, Any]) -> bool:
        """Return whether a metrics record was written before this state; later ones will be written again."""
        if record["kind"] == "warm_start":
            return bool(record["step"] <= self.warm_steps)
        return bool(record["iteration"] <= (self.evaluated if record["kind"] == "evaluation" else self.iteration))


@contextmanager
def _existing_objects_frozen() -> Iterator[None]:
    """Exclude all existing objects from garbage collections in this block; they took a fifth of a tiny run."""
    gc.collect()
    gc.freeze()
    try:
        yield
    finally:
        gc.unfreeze()


class Loop:
    """Trains a run from its current state to its end.

    Args:
        pause: Called wherever the run can be interrupted; raises `Interrupted` to do so.
    """

    def __init__(
        self,
        recipe: Recipe,
        components: Components,
        run_dir: RunDirectory,
        callback: TrainingCallback,
        pause: Callable[[], None],
    ) -> None:
        self.recipe, self.run_dir, self.callback, self.pause = recipe, run_dir, callback, pause
        self.components, self.engine, self.sampler = components, components.engine, components.sampler
        self.progress = Progress()
        self.checkpoints = run_dir.checkpoints(recipe.run.keep_checkpoints)
        self.alarms = Alarms(recipe.model.dtype)
        self.collector = Collector(
            components.runner,
            components.train_tasks,
            recipe.collect,
            seed=recipe.run.seed,
            on_progress=self._on_progress,
        )
        self.ahead = AheadCollector(self.collector)
        self._lap: dict[str, float] = {}

    def run(self) -> str:
        """Train until there is a reason to stop, and return that reason.

        If an engine loses its processes, training continues from the last checkpoint, as if it had been resumed.
        """
        lost: EngineLost | None = None
        while True:
            try:
                if lost is not None:
                    self.restore(replay=False)
                with _existing_objects_frozen():
                    return self._run()
            except EngineLost as error:
                lost = error
                if self.checkpoints.latest() is None:
                    raise
                self.callback.on_note(f"{lost}; training continues from the last checkpoint")

    def _run(self) -> str:
        try:
            self.warm_start()
            self.evaluate_if_due()
            self.checkpoint_if_due()
            while (reason := self.reason_to_stop()) is None:
                self.update(self.collect())
                self.evaluate_if_due()
                self.checkpoint_if_due()
                self.pause()
        except Interrupted:
            self.checkpoint()
            raise
        self.evaluate_if_due(last=True)
        self.checkpoint()
        return reason

    def restore(self, *, replay: bool = True) -> None:
        """Load the last checkpoint and discard everything that was written after it.

        `replay` reports the earlier records to the callback.
        """
        latest = self.checkpoints.latest()
        if latest is None and list(self.checkpoints.folder.glob("damaged-*")):
            raise TrainingError(
                f"{self.run_dir.path} has no intact checkpoint to resume from; start a new run in another directory, "
                "or restore a checkpoint from a backup"
            )
        if latest is not None:
            try:
                self._load(latest)
            except (EngineLost, TrainingError):
                raise
            except Exception as error:  # libraries raise many types for files that do not fit
                raise CheckpointError(
                    f"the checkpoint {latest.path} does not fit this run: {type(error).__name__}: {first_line(error)}. "
                    "Restore the files of this run, or start a new one."
                ) from error
        self.collector.drawn = self.progress.drawn
        self.run_dir.discard_after(self.progress.iteration, self.progress.covers)
        self.alarms = Alarms(self.recipe.model.dtype)
        for record in self.run_dir.metrics():
            self.alarms.check(record)
            if replay:
                self.callback.on_record(record)

    def _load(self, checkpoint: Checkpoint) -> None:
        self.progress = Progress(**checkpoint.state)
        if self.progress.iteration != checkpoint.iteration:
            raise ValueError(f"its state is of iteration {self.progress.iteration}")
        if self.recipe.warm_start is not None and not self._warm_started:
            self.engine.set_optimizer(warm_start_optimizer(self.recipe.warm_start))
        self.engine.load(checkpoint.path)
        self.ahead.load(checkpoint.path)
        self._sync_sampler(self._last_trajectories())

    def collect(self) -> Collected:
        """Sample the groups of the next iteration, unless they were sampled ahead."""
        if (ahead := self.ahead.take()) is not None:
            self._lap["collect"] = 0.0
            return ahead
        self.callback.on_phase("collecting", self.recipe.collect.tasks * self.recipe.collect.group_size)
        with self._clock("collect"):
            collected = self.collector.collect(self.progress.iteration + 1, policy_version=self.progress.iteration)
        if collected.failed_episodes:
            failed = counted(collected.failed_episodes, "episode")
            last = collected.failure.partition("\n")[0]
            self.callback.on_note(f"{failed} failed; the last failure: {last}")
        return collected

    def update(self, collected: Collected) -> None:
        """Run one iteration of the algorithm on the collected groups. It is never interrupted halfway."""
        self.callback.on_phase("updating")
        progress, iteration, tasks = self.progress, self.progress.iteration + 1, self.components.train_tasks
        if not self.recipe.collect.lag:
            self.sampler.release()  # until the sync below; with a lag it samples during the update
        self.engine.begin_iteration(iteration - 1)
        gap = self._sampler_gap(collected)
        bound = self.recipe.mismatch.recorded_gap
        recorded = self.recipe.collect.lag > 0 or (bound is not None and gap is not None and gap <= bound)
        behavior = self.recipe.mismatch.behavior(recorded=recorded)
        tokens_before = self.engine.tokens
        generator = torch.Generator().manual_seed(derive_seed(self.recipe.run.seed, f"update {iteration}"))
        with self._clock("update"), self._collecting_ahead():
            update = self.recipe.algorithm.update(
                self.engine, collected.trajectories, generator=generator, behavior=behavior
            )
        check_finite(update)
        progress.iteration, progress.drawn = iteration, self.collector.drawn
        self._sync_sampler(update.trajectories)

        kinds = task_kinds(collected.trajectories, tasks)
        record = iteration_record(
            iteration,
            collected,
            update,
            kinds,
            gap=gap,
            update_tokens=self.engine.tokens - tokens_before,
            learning_rate=self.engine.learning_rate(iteration - 1),
            timings={"collect": self._lap["collect"], "update": self._lap["update"]},
        )
        progress.optimizer_steps += int(record["algorithm"].get("optimizer_steps", 0))
        for name in ("action_tokens", "prompt_tokens", "update_tokens"):
            progress.tokens[name] = progress.tokens.get(name, 0) + record[name]
        with self._clock("write"):
            self.run_dir.write_trajectories(iteration, update.trajectories, {"iteration": iteration, "kinds": kinds})
            self._record(record)

    def _sync_sampler(self, last: Iterable[Trajectory]) -> None:
        """Give the sampler the current weights, and the last iteration's trajectories to draft from.

        It forgets everything else, an evaluation for example, so that a resumed run samples the same digits.
        """
        self.sampler.sync(self.engine, self.progress.iteration)
        self.sampler.draft_from(turns_of(sorted(last, key=lambda trajectory: trajectory.id)))

    def _last_trajectories(self) -> Iterator[Trajectory]:
        """Yield the trajectories of the last iteration as they were written, as far as they can be read."""
        try:
            yield from self.run_dir.read_trajectories(self.progress.iteration)
        except TrajectoryFileError as error:
            self.callback.on_note(f"{error}; sampled log-probs may differ from an uninterrupted run in the last digits")

    @contextmanager
    def _collecting_ahead(self) -> Iterator[None]:
        """With `collect.lag`, sample the iteration after the next one during the context, unless the run ends first."""
        following = self.progress.iteration + 2
        if not self.recipe.collect.lag or following > self.recipe.run.total_iterations:
            yield
            return
        with self.ahead.collecting(following, policy_version=self.progress.iteration):
            yield

    def _sampler_gap(self, collected: Collected) -> float | None:
        """Compare the log-probs of sampler and trainer; a gap above the limit stops training."""
        settings = self.recipe.mismatch
        if not settings.check_every or self.progress.iteration % settings.check_every or self.recipe.collect.lag:
            return None  # with a lag the weights differ, too
        gap = sampler_gap(self.engine, collected.trajectories)
        if settings.max_gap is not None and gap > settings.max_gap:
            raise TrainingError(
                f"the log-probs of sampler and trainer differ by {gap:.2g} per token on average; mismatch.max_gap is "
                f"{settings.max_gap:g}. Ratios between policies are then mostly ratios between two computations. Check "
                "that both use the same model, precision and temperature, or correct for it with mismatch.tis_cap"
            )
        return gap

    def evaluate_if_due(self, *, last: bool = False) -> None:
        """Evaluate on held-out tasks before training, every few iterations, and at the end; never twice."""
        iteration, settings = self.progress.iteration, self.recipe.evaluation
        due = settings.before if iteration == 0 else settings.every > 0 and iteration % settings.every == 0
        if not (due or last) or self.progress.evaluated == iteration:
            return
        self.callback.on_phase("evaluation", len(self.components.test_tasks) * settings.attempts)
        with self._clock("evaluate"):
            evaluation, trajectories = self._evaluate()
            self._sync_sampler(self._last_trajectories())
            header = {"iteration": iteration, "kinds": task_kinds(trajectories, self.components.test_tasks)}
            self.run_dir.write_trajectories(iteration, trajectories, header, of="evaluations")
            with self.run_dir.writing("evaluations"):
                evaluation.write(self.run_dir.evaluation_path(iteration))
        summary, progress = evaluation.summary(), self.progress
        score = summary[f"avg@{settings.k}"]["value"] if summary[f"avg@{settings.k}"] else 0.0
        progress.evaluated = iteration
        progress.stale += 1
        if score > progress.best:  # of equal scores the earliest is the best
            progress.best, progress.best_iteration, progress.stale = score, iteration, 0
        self._record(
            {"kind": "evaluation", "iteration": iteration, **summary, "timings": {"seconds": self._lap["evaluate"]}}
        )

    def _evaluate(self) -> tuple[Evaluation, list[Trajectory]]:
        """Attempt every held-out task with the current policy; the trajectories are sorted by id."""
        recipe, tasks = self.recipe, self.components.test_tasks
        plan = EvaluationPlan(
            policy=f"{self.run_dir.path.name}, iteration {self.progress.iteration}",
            environment=self.components.pool.name,
            split=recipe.environment.test_split,
            options=dict(recipe.environment.options),
            attempts=recipe.evaluation.attempts,
            k=recipe.evaluation.k,
            seed=recipe.run.seed,
            max_turns=recipe.agent.max_turns,
            sampling={
                "temperature": recipe.agent.temperature,
                "max_tokens": recipe.agent.max_tokens,
                "template": "reasoning" if recipe.agent.reasoning else "plain",
            },
            panel=panel_of(tasks),
        )
        evaluation, trajectories = Evaluation(plan, {}), list[Trajectory]()
        policy = ModelPolicy(self.components.runner, trajectories.append)
        for result in policy.run(planned_attempts(tasks, plan.attempts, plan.seed)):
            evaluation.add(result)
            self._on_progress(len(evaluation.results))
        return evaluation, sorted(trajectories, key=lambda trajectory: trajectory.id)

    def reason_to_stop(self) -> str | None:
        """Return why training should stop now, or None."""
        run, progress = self.recipe.run, self.progress
        if progress.iteration >= run.total_iterations:
            return f"{counted(run.total_iterations, 'iteration')} done"
        if run.target is not None and progress.best >= run.target:
            return f"the target of {run.target:g} is reached"
        if run.patience is not None and progress.stale >= run.patience:
            return f"no improvement in {counted(progress.stale, 'evaluation')}"
        if run.max_minutes is not None and sum(progress.seconds.values()) >= 60 * run.max_minutes:
            return f"the time limit of {run.max_minutes:g} minutes is reached"
        return None

    def warm_start(self) -> None:
        """Train on demonstrations, then start over with a fresh optimizer for reinforcement learning."""
        settings, engine = self.recipe.warm_start, self.engine
        if settings is None or self._warm_started:
            return
        self.callback.on_phase("demonstrations", settings.episodes if settings.file is None else None)
        with self._clock("demonstrations"):
            demonstrations = load_demonstrations(self.recipe, self.components, self._on_progress)
        if self.progress.warm_steps == 0:
            engine.set_optimizer(warm_start_optimizer(settings))
        self.sampler.release()
        if "trunk" in engine.capabilities:
            self._keep_trunk(engine, demonstrations)
        self.callback.on_phase("warm start", settings.batches)
        written = time.monotonic()
        for step in range(self.progress.warm_steps + 1, settings.batches + 1):
            engine.begin_iteration(step - 1)
            with self._clock("warm start"):
                loss = demonstrations.train_step(engine, step - 1)
            self.progress.warm_steps = step
            if step % max(1, settings.batches // WARM_START_RECORDS) == 0:
                self._record({"kind": "warm_start", "iteration": 0, "step": step, "loss": loss})
            self._on_progress(step, f"loss {loss:.3f}")
            if time.monotonic() - written > WARM_START_CHECKPOINT_SECONDS:
                self._write_checkpoint()
                written = time.monotonic()
        engine.copy_first_adapter()
        engine.set_optimizer(replace(self.recipe.optimizer, iterations=self.recipe.run.total_iterations))
        if "reference" in self.recipe.algorithm.needs:
            engine.snapshot_reference()
        engine.reset_critic()
        self._sync_sampler(())
        self.checkpoint()

    def _keep_trunk(self, engine: TrainableEngine, demonstrations: Demonstrations) -> None:
        """Compute the layers that the warm start does not change, once for all its passes over a demonstration."""
        repeated = demonstrations.repeated()
        self.callback.on_phase("frozen layers of the demonstrations", len(repeated))
        for first in range(0, len(repeated), TRUNK_DEMONSTRATIONS):
            chunk = repeated[first : first + TRUNK_DEMONSTRATIONS]
            with self._clock("warm start"):
                engine.keep_trunk([turn for demonstration in chunk for turn in demonstration])
            self._on_progress(first + len(chunk))

    def checkpoint_if_due(self) -> None:
        """Write a checkpoint every few iterations, and whenever an evaluation is the best so far."""
        if self._is_best or self.progress.iteration % self.recipe.run.checkpoint_every == 0:
            self.checkpoint()

    def checkpoint(self) -> None:
        """Write a checkpoint of the current state."""
        self.callback.on_phase("checkpoint")
        self._write_checkpoint()

    def _write_checkpoint(self) -> None:
        progress = self.progress
        with self._clock("checkpoint"):
            self.checkpoints.write(progress.iteration, asdict(progress), self._save, best=self._is_best)

    def _save(self, path: Path) -> None:
        self.engine.save(path)
        self.ahead.save(path)

    @property
    def _is_best(self) -> bool:
        """Whether the evaluation of the current policy is the best so far."""
        return self.progress.best_iteration == self.progress.iteration == self.progress.evaluated

    @property
    def _warm_started(self) -> bool:
        return self.recipe.warm_start is None or self.progress.warm_steps >= self.recipe.warm_start.batches

    def _record(self, record: dict[str, Any]) -> None:
        self.run_dir.append(record)
        self.callback.on_record(record)
        for alarm in self.alarms.check(record):
            self.callback.on_note(alarm)

    def _on_progress(self, done: int, text: str = "") -> None:
        if self.ahead.active:  # in another thread, while the display shows the update
            return
        self.callback.on_progress(done, text)
        self.pause()

    @contextmanager
    def _clock(self, phase: str) -> Iterator[None]:
        started = time.monotonic()
        try:
            yield
        finally:
            self._lap[phase] = time.monotonic() - started
            self.progress.seconds[phase] = self.progress.seconds.get(phase, 0.0) + self._lap[phase]


def check_finite(update: Update) -> None:
    """Raise if the updated policy has log-probs or ratios that are not finite: nothing can be sampled from it."""
    turns = [turn for each in update.trajectories if each.credit is not None for turn in each.credit.turns]
    if not all(math.isfinite(value) for turn in turns for value in (turn.ratio, *turn.new_logprobs)):
        raise FloatingPointError("log-probs after the update are not finite")
