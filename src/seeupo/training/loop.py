"""The training loop: collect groups, update, evaluate, checkpoint, for any algorithm, engine and environment.

All randomness is derived from the seed and the progress of the run, so a run that was stopped at any moment resumes
from its last checkpoint as if it had never stopped.
"""

from __future__ import annotations

import math
import time
from collections.abc import Iterable, Iterator
from contextlib import AbstractContextManager, nullcontext
from dataclasses import asdict
from pathlib import Path
from typing import Any

import torch

from seeupo.callbacks import Callback, CallbackList
from seeupo.config.changes import Change, recorded_changes
from seeupo.errors import CheckpointError, EngineLost, TrainingError, TrajectoryFileError, first_line
from seeupo.evaluation.evaluate import EvaluationOptions, evaluation_plan, recipe_settings, run_attempts
from seeupo.evaluation.policies import ModelPolicy
from seeupo.evaluation.results import Evaluation
from seeupo.protocols import TrainableEngine
from seeupo.rollout.collector import Collected, Collector
from seeupo.runs.checkpoints import Checkpoint
from seeupo.runs.run_directory import METRICS, RunDirectory
from seeupo.training.ahead import AheadCollector
from seeupo.training.interrupts import Interrupted
from seeupo.training.metrics import iteration_record, sampler_gap, task_kinds
from seeupo.training.progress import Progress
from seeupo.training.setup import Components, optimizer_settings
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


class Loop:
    """Trains a run from its current state to its end. `run` is the whole of it; the other methods are its steps.

    Attributes:
        progress: The state of the loop; a checkpoint consists of it and the engine's files.
        collector: Samples the groups of an iteration; `ahead` samples the next one during an update.
    """

    def __init__(self, components: Components, run_dir: RunDirectory, callback: Callback | None = None) -> None:
        recipe = components.recipe
        self.recipe = recipe
        self.components = components
        self.run_dir = run_dir
        self.callback = callback or Callback()
        self.algorithm = recipe.algorithm.build()
        self.engine = components.engine
        self.sampler = components.sampler
        self.progress = Progress()
        self.checkpoints = run_dir.checkpoints(recipe.run.keep_checkpoints)
        self.collector = Collector(
            components.rollouts, components.train_tasks, recipe.collect, seed=recipe.run.seed, reward=components.reward
        )
        self.ahead = AheadCollector(self.collector)

    def run(self) -> str:
        """Train until there is a reason to stop, and return that reason."""
        try:
            self.warm_start()
            self.evaluate_if_due()
            self.checkpoint_if_due()
            while (reason := self.progress.reason_to_stop(self.recipe.run)) is None:
                groups = self.collect()
                self.update(groups)
                self.evaluate_if_due()
                self.checkpoint_if_due()
                self.callback.on_iteration(self.progress.iteration)
        except Interrupted:
            self.checkpoint()
            raise
        self.evaluate_if_due(last=True)
        self.checkpoint()
        return reason

    def warm_start(self) -> None:
        """Imitate demonstrations, then start over with a fresh optimizer for reinforcement learning."""
        settings = self.recipe.warm_start
        engine = self.engine
        progress = self.progress
        if settings is None or self._warm_started:
            return
        self.callback.on_phase("demonstrations", settings.episodes if settings.file is None else None)
        with progress.clock("demonstrations"):
            demonstrations = load_demonstrations(self.components, self.callback)
        if progress.warm_steps == 0:
            engine.set_optimizer(warm_start_optimizer(settings))
        self.sampler.release()
        if "trunk" in engine.capabilities:
            self._keep_trunk(engine, demonstrations)
        self.callback.on_phase("warm start", settings.batches)
        written = time.monotonic()
        for step in range(progress.warm_steps + 1, settings.batches + 1):
            with progress.clock("warm start"):
                loss = demonstrations.train_step(engine, step - 1)
            progress.warm_steps = step
            if step % warm_start_interval(settings.batches) == 0:
                self._record({"kind": "warm_start", "iteration": 0, "step": step, "loss": loss})
            self.callback.on_progress(step, f"loss {loss:.3f}")
            if time.monotonic() - written > WARM_START_CHECKPOINT_SECONDS:
                self._write_checkpoint()
                written = time.monotonic()
        engine.copy_first_adapter()
        engine.set_optimizer(optimizer_settings(self.recipe))
        if "reference" in self.recipe.algorithm.needs:
            engine.snapshot_reference()
        engine.reset_critic()
        self._sync_sampler(())
        self.checkpoint()

    def collect(self) -> Collected:
        """Sample the groups of the next iteration, unless they were sampled ahead."""
        progress = self.progress
        if (ahead := self.ahead.take()) is not None:
            progress.laps["collect"] = 0.0
            for trajectory in ahead.trajectories:
                self.callback.on_trajectory(trajectory)
            return ahead
        self.callback.on_phase("collecting", self.recipe.collect.tasks * self.recipe.collect.group_size)
        with progress.clock("collect"):
            collected = self.collector.collect(
                progress.iteration + 1, policy_version=progress.iteration, callback=self.callback
            )
        if collected.failed_episodes:
            failed = counted(collected.failed_episodes, "episode")
            last = collected.failure.partition("\n")[0]
            self.callback.on_note(f"{failed} failed; the last failure: {last}")
        return collected

    def update(self, collected: Collected) -> None:
        """Run one iteration of the algorithm on the collected groups. It is never interrupted halfway."""
        self.callback.on_phase("updating")
        progress, iteration = self.progress, self.progress.iteration + 1
        if not self.recipe.collect.lag:
            self.sampler.release()  # until the sync below; with a lag it samples during the update
        self.engine.begin_iteration(iteration - 1)
        gap = self._sampler_gap(collected)
        bound = self.recipe.mismatch.recorded_gap
        recorded = self.recipe.collect.lag > 0 or (bound is not None and gap is not None and gap <= bound)
        behavior = self.recipe.mismatch.behavior(recorded=recorded)
        tokens_before = self.engine.tokens
        generator = torch.Generator().manual_seed(derive_seed(self.recipe.run.seed, f"update {iteration}"))
        with progress.clock("update"), self._collecting_ahead():
            update = self.algorithm.update(self.engine, collected.trajectories, generator=generator, behavior=behavior)
        check_finite(update)
        progress.iteration = iteration
        progress.drawn = self.collector.drawn
        self._sync_sampler(update.trajectories)

        kinds = task_kinds(collected.trajectories, self.components.train_tasks)
        record = iteration_record(
            iteration,
            collected,
            update,
            kinds,
            gap=gap,
            update_tokens=self.engine.tokens - tokens_before,
            learning_rate=self.engine.learning_rate(iteration - 1),
            timings={phase: progress.laps[phase] for phase in ("collect", "update")},
        )
        progress.add_iteration(record)
        with progress.clock("write"):
            self.run_dir.write_trajectories(iteration, update.trajectories, {"iteration": iteration, "kinds": kinds})
            self._record(record)

    def evaluate_if_due(self, *, last: bool = False) -> None:
        """Evaluate on held-out tasks before training, every few iterations, and at the end; never twice."""
        iteration, settings = self.progress.iteration, self.recipe.evaluation
        due = settings.before if iteration == 0 else settings.every > 0 and iteration % settings.every == 0
        if not (due or last) or self.progress.evaluated == iteration:
            return
        self.callback.on_phase("evaluation", len(self.components.test_tasks) * settings.attempts)
        with self.progress.clock("evaluate"):
            evaluation, trajectories = self._evaluate()
            self._sync_sampler(self._last_trajectories())
            header = {"iteration": iteration, "kinds": task_kinds(trajectories, self.components.test_tasks)}
            self.run_dir.write_trajectories(iteration, trajectories, header, of="evaluations")
            with self.run_dir.writing("evaluations"):
                evaluation.write(self.run_dir.evaluation_path(iteration))
        summary = evaluation.summary()
        average = summary[f"avg@{settings.k}"]
        self.progress.add_evaluation(average["value"] if average else 0.0)
        timings = {"seconds": self.progress.laps["evaluate"]}
        self._record({"kind": "evaluation", "iteration": iteration, **summary, "timings": timings})

    def checkpoint_if_due(self) -> None:
        """Write a checkpoint every few iterations, and whenever an evaluation is the best so far."""
        if self.progress.is_best or self.progress.iteration % self.recipe.run.checkpoint_every == 0:
            self.checkpoint()

    def checkpoint(self) -> None:
        """Write a checkpoint of the current state."""
        self.callback.on_phase("checkpoint")
        self._write_checkpoint()

    def restore(self, *, accept_lost_records: bool = False) -> list[Change]:
        """Load the last checkpoint, and discard everything that was written after it.

        Returns:
            The loss of metrics records that the checkpoint includes, if it is accepted; otherwise it is an error.
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
        losses = self._lost_records()
        if losses and not accept_lost_records:
            raise TrainingError(
                f"{self.run_dir.path / METRICS} has no record of {losses[0].old}, which the last checkpoint includes. "
                "Restore the file from a backup, or resume without these records: --accept-changes (in Python: "
                "accept_changes=True)"
            )
        self.collector.drawn = self.progress.drawn
        self.run_dir.discard_after(self.progress.iteration, self.progress.covers)
        self.callback.on_resume(self.run_dir.metrics())
        return losses

    def _lost_records(self) -> list[Change]:
        """Return the loss of metrics records of finished work as a change, unless it was accepted before."""
        run = self.run_dir
        accepted = [
            iteration for iteration, change in recorded_changes(run.env_info().get("changes")) if change.key == METRICS
        ]
        settings = self.recipe.warm_start
        steps = 0 if settings is None else self.progress.warm_steps // warm_start_interval(settings.batches)
        lost = self.progress.unrecorded(
            run.metrics(), run.evaluations(), after=max(accepted, default=-1), warm_start=steps > 0
        )
        return [] if lost is None else [Change(METRICS, lost, "lost")]

    def _load(self, checkpoint: Checkpoint) -> None:
        self.progress = Progress(**checkpoint.state)
        if self.progress.iteration != checkpoint.iteration:
            raise ValueError(f"its state is of iteration {self.progress.iteration}")
        if self.recipe.warm_start is not None and not self._warm_started:
            self.engine.set_optimizer(warm_start_optimizer(self.recipe.warm_start))
        self.engine.load(checkpoint.path)
        self.ahead.load(checkpoint.path)
        self._sync_sampler(self._last_trajectories())

    @property
    def _warm_started(self) -> bool:
        return self.recipe.warm_start is None or self.progress.warm_steps >= self.recipe.warm_start.batches

    def _keep_trunk(self, engine: TrainableEngine, demonstrations: Demonstrations) -> None:
        """Compute the layers that the warm start does not change, once for all its passes over a demonstration."""
        repeated = demonstrations.repeated()
        self.callback.on_phase("frozen layers of the demonstrations", len(repeated))
        for first in range(0, len(repeated), TRUNK_DEMONSTRATIONS):
            chunk = repeated[first : first + TRUNK_DEMONSTRATIONS]
            with self.progress.clock("warm start"):
                engine.keep_trunk([turn for demonstration in chunk for turn in demonstration])
            self.callback.on_progress(first + len(chunk))

    def _collecting_ahead(self) -> AbstractContextManager[None]:
        """With `collect.lag`, sample the iteration after the next one during the context, unless the run ends first."""
        following = self.progress.iteration + 2
        if not self.recipe.collect.lag or following > self.recipe.run.total_iterations:
            return nullcontext()
        return self.ahead.collecting(following, policy_version=self.progress.iteration)

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

    def _evaluate(self) -> tuple[Evaluation, list[Trajectory]]:
        """Attempt every held-out task with the current policy; the trajectories are sorted by id."""
        settings = self.recipe.evaluation
        options = EvaluationOptions(
            policy=f"{self.run_dir.path.name}, iteration {self.progress.iteration}",
            tasks=settings.tasks,
            attempts=settings.attempts,
            k=settings.k,
            seed=self.recipe.run.seed,
            **recipe_settings(self.recipe),
        )
        plan, attempts = evaluation_plan(options, self.components.pool)
        evaluation = Evaluation(plan, {})
        kept = KeptTrajectories()
        policy = ModelPolicy(self.components.rollouts, CallbackList([kept, self.callback]))
        run_attempts(evaluation, policy, attempts, self.callback)
        return evaluation, sorted(kept.trajectories, key=lambda trajectory: trajectory.id)

    def _write_checkpoint(self) -> None:
        progress = self.progress
        with progress.clock("checkpoint"):
            path = self.checkpoints.write(progress.iteration, asdict(progress), self._save, best=progress.is_best)
        self.callback.on_checkpoint(path)

    def _save(self, path: Path) -> None:
        self.engine.save(path)
        self.ahead.save(path)

    def _record(self, record: dict[str, Any]) -> None:
        self.run_dir.append(record)
        self.callback.on_record(record)


class KeptTrajectories(Callback):
    """Keeps the trajectories of an evaluation."""

    def __init__(self) -> None:
        self.trajectories: list[Trajectory] = []

    def on_trajectory(self, trajectory: Trajectory) -> None:
        self.trajectories.append(trajectory)


def warm_start_interval(batches: int) -> int:
    """Return the number of optimizer steps between two records of a warm start."""
    return max(1, batches // WARM_START_RECORDS)


def check_finite(update: Update) -> None:
    """Raise if the updated policy has log-probs or ratios that are not finite: nothing can be sampled from it."""
    credits = [trajectory.credit for trajectory in update.trajectories if trajectory.credit is not None]
    turns = [turn for credit in credits for turn in credit.turns]
    if not all(math.isfinite(value) for turn in turns for value in (turn.ratio, *turn.new_logprobs)):
        raise FloatingPointError("log-probs after the update are not finite")
