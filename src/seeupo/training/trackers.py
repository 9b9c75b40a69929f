"""Trackers: callbacks that copy a run's metrics to TensorBoard or Weights & Biases."""

from __future__ import annotations

import importlib
import json
import os
import secrets
import shlex
import shutil
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from types import SimpleNamespace
from typing import Any

from seeupo.callbacks import Callback
from seeupo.config.loader import recipe_to_table
from seeupo.config.schema import Recipe
from seeupo.errors import TrackerError
from seeupo.utils.atomic_files import write_text


def make_trackers(recipe: Recipe, run_dir: Path, notify: Callable[[str], None]) -> list[Callback]:
    """Return the trackers that the recipe enables. They write into the run directory and resume with the run.

    `notify` is called with messages for the user.
    """
    settings = recipe.trackers
    config = recipe_to_table(recipe)
    trackers: list[Callback] = []
    if settings.tensorboard:
        trackers.append(TensorBoard(run_dir / "tensorboard", config))
    if settings.wandb is not None:
        trackers.append(WeightsAndBiases(settings.wandb, settings.wandb_mode, run_dir, config, notify))
    return trackers


def scalars(record: Mapping[str, Any]) -> dict[str, float]:
    """Return a record's numbers under flat names: "iteration/success", "evaluation/avg@4", "turns/clip_fraction/t3"."""
    rest = {key: value for key, value in record.items() if key not in ("kind", "iteration", "algorithm", "turns")}
    flat = dict(_flatten(str(record["kind"]), rest))
    flat.update(_flatten("algorithm", record.get("algorithm") or {}))
    for turn in record.get("turns") or ():
        # People read these names: turns count from 1, as in the display.
        values = {f"{key}/t{turn['turn'] + 1}": value for key, value in turn.items() if key != "turn"}
        flat.update(_flatten("turns", values))
    return flat


def _flatten(prefix: str, values: Mapping[str, Any]) -> Iterator[tuple[str, float]]:
    for key, value in values.items():
        # An estimate is named like its key, its bounds are nested below it.
        name = prefix if key == "value" else f"{prefix}/{key}"
        if isinstance(value, Mapping):
            yield from _flatten(name, value)
        elif isinstance(value, int | float) and not isinstance(value, bool):
            yield name, float(value)


class Tracker(Callback, ABC):
    """Writes records. A tracker that is new in a resumed run writes the earlier ones, too."""

    def __init__(self, *, existing: bool) -> None:
        self._existing = existing

    def on_resume(self, records: Sequence[Mapping[str, Any]]) -> None:
        if not self._existing:
            for record in records:
                self.on_record(record)

    def on_phase(self, name: str, total: int | None = None) -> None:
        self._existing = True

    @abstractmethod
    def on_record(self, record: Mapping[str, Any]) -> None:
        """Write a record."""


class TensorBoard(Tracker):
    """Writes TensorBoard event files with the iteration as the step."""

    def __init__(self, folder: Path, config: Mapping[str, Any]) -> None:
        super().__init__(existing=folder.exists())
        _package("tensorboard")
        self._make_writer = importlib.import_module("torch.utils.tensorboard").SummaryWriter
        self._folder = folder
        self._config = config
        self._writers: dict[Path, Any] = {}

    def on_record(self, record: Mapping[str, Any]) -> None:
        if record["kind"] == "warm_start":
            # In one directory with the iterations, purging from iteration 11 on would hide warm-start steps after 10.
            folder, step = self._folder / "warm_start", int(record["step"])
        else:
            folder, step = self._folder, int(record["iteration"])
        writer = self._writer(folder, step)
        for name, value in scalars(record).items():
            writer.add_scalar(name, value, step)
        writer.flush()

    def _writer(self, folder: Path, step: int) -> Any:
        """Return the writer of a directory. It hides what a resumed run had written from `step` on."""
        if folder not in self._writers:
            with _nameless_host():
                self._writers[folder] = self._make_writer(str(folder), purge_step=step)
            text = json.dumps(self._config, indent=1)
            self._writers[folder].add_text("recipe", f"<pre>{text}</pre>", step)
        return self._writers[folder]

    def on_end(self) -> None:
        for writer in self._writers.values():
            writer.close()


@contextmanager
def _nameless_host() -> Iterator[None]:
    """Keep the name of this machine out of the names of TensorBoard's files, which have no setting for it."""
    module: Any = importlib.import_module("tensorboard.summary.writer.event_file_writer")
    original, module.socket = module.socket, SimpleNamespace(gethostname=lambda: "host")
    try:
        yield
    finally:
        module.socket = original


class WeightsAndBiases(Tracker):
    """Logs to a project of Weights & Biases, or into files that `wandb sync` uploads later.

    The iteration is the x-axis, because W&B's own step cannot go back to a checkpoint.
    """

    def __init__(
        self, project: str, mode: str, run_dir: Path, config: Mapping[str, Any], notify: Callable[[str], None]
    ) -> None:
        self._folder = run_dir / "wandb"
        id_file = self._folder / "run-id"
        super().__init__(existing=id_file.exists())
        offline = mode == "offline"
        self._is_offline = offline
        self._notify = notify
        if offline:
            # Nothing leaves the machine offline, W&B's error reports included.
            os.environ.setdefault("WANDB_ERROR_REPORTING", "false")
        wandb = _package("wandb")
        self._run = wandb.init(
            project=project,
            name=run_dir.name,
            id=_wandb_id(id_file),
            dir=str(run_dir),
            mode=mode,
            # Offline, the parts of a resumed run are joined by their id when they are uploaded.
            resume=None if offline else "allow",
            config=dict(config),
            settings=wandb.Settings(
                console="off",  # the display draws on the terminal itself
                silent=offline,  # online, it may ask for a key and prints the address of the run
                host="",
                symlink=False,
                # The run directory has all that is needed to repeat the run; who ran it where stays private.
                disable_git=True,
                disable_code=True,
                disable_job_creation=True,
                x_disable_meta=True,
                x_disable_machine_info=True,
                x_save_requirements=False,
            ),
        )
        self._run.define_metric("iteration", hidden=True)
        self._run.define_metric("*", step_metric="iteration")
        self._run.define_metric("warm_start/*", step_metric="warm_start/step")

    def on_record(self, record: Mapping[str, Any]) -> None:
        self._run.log({**scalars(record), "iteration": record["iteration"]})

    def on_end(self) -> None:
        self._run.finish()
        if self._is_offline:
            self._notify(
                f"the metrics for Weights & Biases are in {self._folder} and are not uploaded; upload them with: "
                f"wandb sync {shlex.quote(str(self._folder))}/offline-run-*"
            )
        for logs in self._folder.glob("*run-*/logs"):  # W&B's own, with paths of this machine
            shutil.rmtree(logs, ignore_errors=True)


def _wandb_id(path: Path) -> str:
    """Return the W&B id of this run, which is kept in a file so that a resumed run uses it again."""
    if not path.exists():
        path.parent.mkdir(parents=True, exist_ok=True)
        write_text(path, secrets.token_hex(4) + "\n")
    return path.read_text(encoding="utf-8").strip()


def _package(name: str) -> Any:
    try:
        return importlib.import_module(name)
    except ImportError as error:
        raise TrackerError(
            f"trackers.{name} needs a package that is not installed ({error}). "
            f"Run pip install 'seeupo[{name}]', or remove trackers.{name} from the recipe."
        ) from None
