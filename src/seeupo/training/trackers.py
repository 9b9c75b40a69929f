"""TensorBoard and Weights & Biases, for those who want a run's metrics there too."""

from __future__ import annotations

import importlib
import json
import os
import secrets
from abc import ABC, abstractmethod
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from seeupo.config.schema import TrackerSettings
from seeupo.errors import TrackerError
from seeupo.training.callbacks import NullCallback, TrainingCallback
from seeupo.utils.atomic_files import write_text


def make_trackers(
    settings: TrackerSettings, folder: Path, *, name: str, config: Mapping[str, Any]
) -> list[TrainingCallback]:
    """The trackers that are asked for; they write into the run's folder, and go on there if the run does.

    Args:
        name: of the run.
        config: its recipe, as JSON has it.
    """
    made: list[TrainingCallback] = []
    if settings.tensorboard:
        made.append(TensorBoard(folder / "tensorboard", config))
    if settings.wandb is not None:
        made.append(WeightsAndBiases(settings.wandb, settings.wandb_mode, folder, name, config))
    return made


def scalars(record: Mapping[str, Any]) -> dict[str, float]:
    """A record's numbers under flat names: "iteration/success", "evaluation/avg@4", "turns/clip_fraction/t3"."""
    rest = {key: value for key, value in record.items() if key not in ("kind", "iteration", "algorithm", "turns")}
    found = dict(_flat(str(record["kind"]), rest))
    found.update(_flat("algorithm", record.get("algorithm") or {}))
    for turn in record.get("turns") or ():
        found.update(_flat("turns", {f"{key}/t{turn['turn']}": value for key, value in turn.items() if key != "turn"}))
    return found


def _flat(prefix: str, values: Mapping[str, Any]) -> Iterator[tuple[str, float]]:
    for key, value in values.items():
        # An estimate stands under its own name, its bounds below it.
        name = prefix if key == "value" else f"{prefix}/{key}"
        if isinstance(value, Mapping):
            yield from _flat(name, value)
        elif isinstance(value, int | float) and not isinstance(value, bool):
            yield name, float(value)


class Tracker(NullCallback, ABC):
    """Takes each record once: what is heard again when a run goes on is left out if it has been taken before."""

    def __init__(self, *, goes_on: bool) -> None:
        self._has_it = goes_on

    def on_phase(self, name: str, total: int | None = None) -> None:
        self._has_it = False

    def on_record(self, record: Mapping[str, Any]) -> None:
        if not self._has_it:
            self._take(record)

    @abstractmethod
    def _take(self, record: Mapping[str, Any]) -> None:
        """Write a record that has not been taken before."""


class TensorBoard(Tracker):
    """Writes event files. The step is the iteration."""

    def __init__(self, folder: Path, config: Mapping[str, Any]) -> None:
        super().__init__(goes_on=folder.exists())
        _package("tensorboard")
        self._make_writer = _package("torch.utils.tensorboard", extra="tensorboard").SummaryWriter
        self._folder, self._config = folder, config
        self._writers: dict[Path, Any] = {}

    def _take(self, record: Mapping[str, Any]) -> None:
        if record["kind"] == "warm_start":
            # Its steps are no iterations: in one place with them, going on at iteration 11 would hide those after 10.
            folder, step = self._folder / "warm_start", int(record["step"])
        else:
            folder, step = self._folder, int(record["iteration"])
        writer = self._writer(folder, step)
        for name, value in scalars(record).items():
            writer.add_scalar(name, value, step)
        writer.flush()

    def _writer(self, folder: Path, step: int) -> Any:
        """Opened by its first record, as that says where a run goes on: what was written beyond it is hidden."""
        if folder not in self._writers:
            self._writers[folder] = self._make_writer(str(folder), purge_step=step)
            text = json.dumps(self._config, indent=1)
            self._writers[folder].add_text("recipe", f"<pre>{text}</pre>", step)
        return self._writers[folder]

    def close(self) -> None:
        for writer in self._writers.values():
            writer.close()


class WeightsAndBiases(Tracker):
    """Logs to a project of Weights & Biases, or into files that `wandb sync` uploads later.

    Plots are drawn over the iteration, not over W&B's own step, which cannot go back to a checkpoint.
    """

    def __init__(self, project: str, mode: str, folder: Path, name: str, config: Mapping[str, Any]) -> None:
        identity_file = folder / "wandb" / "run-id"
        super().__init__(goes_on=identity_file.exists())
        offline = mode == "offline"
        if offline:
            # Nothing leaves the machine then, reports of W&B's own errors included.
            os.environ.setdefault("WANDB_ERROR_REPORTING", "false")
        wandb = _package("wandb")
        self._run = wandb.init(
            project=project,
            name=name,
            id=_identity(identity_file),
            dir=str(folder),
            mode=mode,
            # Offline, parts of a run are joined by their id when they are uploaded.
            resume=None if offline else "allow",
            config=dict(config),
            settings=wandb.Settings(
                console="off",  # the display draws on the terminal itself
                silent=offline,  # online, it may have to ask for a key and says where the run is to be seen
                # The run's own folder says what is needed to repeat it, and nothing about who ran it where.
                disable_git=True,
                disable_code=True,
                disable_job_creation=True,
                x_disable_meta=True,
                x_disable_machine_info=True,
            ),
        )
        self._run.define_metric("iteration", hidden=True)
        self._run.define_metric("*", step_metric="iteration")
        self._run.define_metric("warm_start/*", step_metric="warm_start/step")

    def _take(self, record: Mapping[str, Any]) -> None:
        self._run.log({**scalars(record), "iteration": record["iteration"]})

    def close(self) -> None:
        self._run.finish()


def _identity(path: Path) -> str:
    """The id that W&B knows this run by: kept in its folder, to be found when the run goes on."""
    if not path.exists():
        path.parent.mkdir(parents=True, exist_ok=True)
        write_text(path, secrets.token_hex(4) + "\n")
    return path.read_text(encoding="utf-8").strip()


def _package(name: str, *, extra: str | None = None) -> Any:
    try:
        return importlib.import_module(name)
    except ImportError as error:
        extra = extra or name
        raise TrackerError(
            f"trackers.{extra} needs a package that is not installed ({error}); pip install 'seeupo[{extra}]', or "
            f"leave trackers.{extra} out of the recipe"
        ) from None
