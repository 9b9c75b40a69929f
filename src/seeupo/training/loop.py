"""The training loop: collect groups, update, evaluate, checkpoint. It knows no algorithm, engine or environment.

Whatever is drawn depends on the seed and on how far the run has come, so that a run which was stopped at any moment
goes on from its last checkpoint as if it had never stopped.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field, replace
from typing import Any

import torch

from seeupo.training.alarms import Alarms
from seeupo.training.collecting import Collected, Collector, shaped
from seeupo.training.failures import TrainingError
from seeupo.training.held_out import evaluate
from seeupo.training.listeners import Listener
from seeupo.training.measures import iteration_record, kinds_of, sampler_gap
from seeupo.training.parts import Parts, needs_reference
from seeupo.training.recipe import Recipe
from seeupo.training.run_folder import RunFolder
from seeupo.training.seeds import seed_of
from seeupo.training.warm_start import lessons_for, optimizer_of

WARM_START_RECORDS = 20
"""How many records a warm start leaves."""
SECONDS_BETWEEN_CHECKPOINTS = 120.0
"""In a warm start."""


class Interrupted(Exception):
    """Somebody asked to stop, at a moment from which the run can go on."""


@dataclass
class Progress:
    """How far a run has come: with the engine's files, all that a checkpoint holds.

    Attributes:
        warm_steps: optimizer steps of the warm start that are done.
        iteration: that has been finished last.
        evaluated: the last iteration with an evaluation; -1 before the first.
        drawn: tasks drawn so far.
        best, best_iteration: of the evaluations; `stale` counts those since.
        optimizer_steps: of all iterations.
        seconds, tokens: spent so far, by phase and by kind.
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
        """Whether a record was written before this point; later ones will be written again."""
        if record["kind"] == "warm_start":
            return bool(record["step"] <= self.warm_steps)
        return bool(record["iteration"] <= (self.evaluated if record["kind"] == "evaluation" else self.iteration))


class Loop:
    """One run, from wherever it stands to its end.

    Args:
        pause: called wherever the run can be left; raises `Interrupted` to leave it.
    """

    def __init__(
        self, recipe: Recipe, parts: Parts, folder: RunFolder, listener: Listener, pause: Callable[[], None]
    ) -> None:
        self.recipe, self.parts, self.folder, self.listener, self.pause = recipe, parts, folder, listener, pause
        self.progress = Progress()
        self.checkpoints = folder.checkpoints(recipe.run.keep_checkpoints)
        self.alarms = Alarms()
        self.collector = Collector(
            parts.runner, parts.train_tasks, recipe.collect, seed=recipe.run.seed, heard=self._heard
        )
        self._lap: dict[str, float] = {}

    def run(self) -> str:
        """Train until there is a reason to stop, and return it."""
        try:
            self.warm_start()
            self.evaluate_if_due()
            while (reason := self.reason_to_stop()) is None:
                collected = self.collect()
                self.update(collected)
                self.evaluate_if_due()
                self.checkpoint_if_due()
                self.pause()
        except Interrupted:
            self.checkpoint()
            raise
        self.evaluate_if_due(last=True)
        self.checkpoint()
        return reason

    def go_on(self) -> None:
        """Take up the last checkpoint, and forget whatever came after it."""
        latest = self.checkpoints.latest()
        if latest is None and list(self.checkpoints.folder.glob("damaged-*")):
            raise TrainingError(
                f"{self.folder.path} has no whole checkpoint to go on from; begin anew in another folder, "
                "or bring a checkpoint back from a copy"
            )
        if latest is not None:
            self.progress = Progress(**latest.state)
            if not self._warm and self.recipe.warm_start is not None:
                self.parts.engine.use_optimizer(optimizer_of(self.recipe.warm_start))
            self.parts.engine.load(latest.path)
            self.parts.sampler.load_weights((), version=self.progress.iteration)
        self.collector.drawn = self.progress.drawn
        self.folder.forget_after(self.progress.iteration, self.progress.covers)
        for record in self.folder.metrics():
            self.alarms.hear(record)
            self.listener.record(record)

    def collect(self) -> Collected:
        """Sample the groups of the next iteration."""
        self.listener.phase("collecting", self.recipe.collect.tasks * self.recipe.collect.group_size)
        with self._clock("collect"):
            collected = self.collector.collect(self.progress.iteration + 1)
        if collected.failed_episodes:
            self.listener.note(f"{collected.failed_episodes} episodes failed, the last one so: {collected.failure}")
        return collected

    def update(self, collected: Collected) -> None:
        """One iteration of the algorithm on what was collected. It is never left half done."""
        self.listener.phase("updating")
        progress, engine, iteration = self.progress, self.parts.engine, self.progress.iteration + 1
        engine.start_iteration(iteration - 1)
        gap = sampler_gap(engine, collected.trajectories)
        generator = torch.Generator().manual_seed(seed_of(self.recipe.run.seed, f"update {iteration}"))
        with self._clock("update"):
            trained_on = [shaped(trajectory, self.recipe.collect.shape) for trajectory in collected.trajectories]
            update = self.recipe.algorithm.update(engine, trained_on, generator=generator)
        self.parts.sampler.load_weights((), version=iteration)

        progress.iteration, progress.drawn = iteration, self.collector.drawn
        record = iteration_record(
            iteration,
            collected,
            update,
            kinds_of(collected.trajectories, self.parts.train_tasks),
            gap=gap,
            learning_rate=engine.settings.rate_at(iteration - 1),
            timings={"collect": self._lap["collect"], "update": self._lap["update"]},
        )
        progress.optimizer_steps += int(record["algorithm"].get("optimizer_steps", 0))
        for name in ("action_tokens", "prompt_tokens"):
            progress.tokens[name] = progress.tokens.get(name, 0) + record[name]
        with self._clock("write"):
            facts = {"iteration": iteration, "kinds": kinds_of(update.trajectories, self.parts.train_tasks)}
            self.folder.write_trajectories(iteration, update.trajectories, facts)
            self._record(record)

    def evaluate_if_due(self, *, last: bool = False) -> None:
        """Play the held-out tasks before the first iteration, every so many, and at the end; never twice."""
        iteration, every = self.progress.iteration, self.recipe.evaluation.every
        due = last or iteration == 0 or (every > 0 and iteration % every == 0)
        if not due or self.progress.evaluated == iteration:
            return
        settings = self.recipe.evaluation
        self.listener.phase("evaluation", len(self.parts.test_tasks) * settings.samples)
        with self._clock("evaluate"):
            name = f"{self.folder.path.name}, iteration {iteration}"
            evaluation, trajectories = evaluate(self.recipe, self.parts, name, self._heard)
            facts = {"iteration": iteration, "kinds": kinds_of(trajectories, self.parts.test_tasks)}
            self.folder.write_trajectories(iteration, trajectories, facts, of="evaluations")
            with self.folder.writing("evaluations"):
                evaluation.write(self.folder.evaluation_path(iteration))
        found = evaluation.summary()
        score = found[f"avg@{settings.k}"]["value"] if found[f"avg@{settings.k}"] else 0.0
        progress = self.progress
        progress.evaluated = iteration
        progress.stale += 1
        if score > progress.best:
            progress.best, progress.best_iteration, progress.stale = score, iteration, 0
        self._record(
            {"kind": "evaluation", "iteration": iteration, **found, "timings": {"seconds": self._lap["evaluate"]}}
        )

    def reason_to_stop(self) -> str | None:
        run, progress = self.recipe.run, self.progress
        if progress.iteration >= run.iterations:
            return f"all {run.iterations} iterations are done"
        if run.target is not None and progress.best >= run.target:
            return f"the target of {run.target:g} is reached"
        if run.patience is not None and progress.stale >= run.patience:
            return f"the last {progress.stale} evaluations brought nothing better"
        if run.max_minutes is not None and sum(progress.seconds.values()) >= 60 * run.max_minutes:
            return f"the time limit of {run.max_minutes:g} minutes is reached"
        return None

    def warm_start(self) -> None:
        """Supervised learning on demonstrations, then a fresh optimizer for everything that follows."""
        settings, engine = self.recipe.warm_start, self.parts.engine
        if settings is None or self._warm:
            return
        self.listener.phase("demonstrations", settings.episodes)
        with self._clock("demonstrations"):
            lessons = lessons_for(self.recipe, self.parts, self._heard)
        if self.progress.warm_steps == 0:
            engine.use_optimizer(optimizer_of(settings))
        self.listener.phase("warm start", settings.batches)
        written = time.monotonic()
        for step in range(self.progress.warm_steps + 1, settings.batches + 1):
            engine.start_iteration(step - 1)
            with self._clock("warm start"):
                loss = lessons.teach(engine, step - 1)
            self.progress.warm_steps = step
            if step % max(1, settings.batches // WARM_START_RECORDS) == 0:
                self._record({"kind": "warm_start", "iteration": 0, "step": step, "loss": loss})
            self._heard(step, f"loss {loss:.3f}")
            if time.monotonic() - written > SECONDS_BETWEEN_CHECKPOINTS:
                self.checkpoint()
                self.listener.phase("warm start", settings.batches)
                written = time.monotonic()
        engine.use_optimizer(replace(self.recipe.optimizer, iterations=self.recipe.run.iterations))
        if needs_reference(self.recipe):
            engine.keep_reference()
        engine.renew_critic()
        self.parts.sampler.load_weights((), version=0)
        self.checkpoint()

    def checkpoint_if_due(self) -> None:
        if self.progress.iteration % self.recipe.run.checkpoint_every == 0:
            self.checkpoint()

    def checkpoint(self) -> None:
        """Save the run as it is now."""
        self.listener.phase("checkpoint")
        progress = self.progress
        with self._clock("checkpoint"):
            best = progress.best_iteration == progress.iteration == progress.evaluated
            self.checkpoints.write(progress.iteration, asdict(progress), self.parts.engine.save, best=best)

    @property
    def _warm(self) -> bool:
        return self.recipe.warm_start is None or self.progress.warm_steps >= self.recipe.warm_start.batches

    def _record(self, record: dict[str, Any]) -> None:
        self.folder.append(record)
        self.listener.record(record)
        for alarm in self.alarms.hear(record):
            self.listener.note(alarm)

    def _heard(self, done: int, text: str = "") -> None:
        self.listener.progress(done, text)
        self.pause()

    @contextmanager
    def _clock(self, phase: str) -> Iterator[None]:
        started = time.monotonic()
        try:
            yield
        finally:
            self._lap[phase] = time.monotonic() - started
            self.progress.seconds[phase] = self.progress.seconds.get(phase, 0.0) + self._lap[phase]
