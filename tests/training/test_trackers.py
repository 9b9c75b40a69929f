import glob
import json
import shlex
import sys

import pytest

from seeupo.callbacks import Callback, CallbackList
from seeupo.config.schema import Recipe, TrackerSettings
from seeupo.errors import TrackerError
from seeupo.training.trackers import make_trackers, scalars


def iteration(number: int, success: float = 0.5) -> dict:
    return {
        "kind": "iteration", "iteration": number, "reward_mean": success, "success": success, "episodes": 128,
        "stops": {"goal": 64}, "kinds": {"bill": 0.3}, "algorithm": {"optimizer_steps": 6.0},
        "turns": [{"turn": 3, "clip_fraction": 0.25}, {"turn": 0, "clip_fraction": 0.5}],
        "timings": {"total": 1.0}, "entropy": None, "resumed": True,
    }  # fmt: skip


def evaluation(number: int) -> dict:
    estimate = {"value": 0.4, "low": 0.3, "high": 0.5}
    return {
        "kind": "evaluation", "iteration": number, "avg@4": estimate, "kinds": {"bill": {"avg@4": estimate}},
        "timings": {"seconds": 2.0},
    }  # fmt: skip


def tensorboard_of(folder):
    pytest.importorskip("tensorboard")
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    found = EventAccumulator(str(folder))
    found.Reload()
    return {tag: [(e.step, round(e.value, 6)) for e in found.Scalars(tag)] for tag in found.Tags()["scalars"]}


def test_scalars_have_flat_names():
    assert scalars(iteration(7)) == {
        "iteration/reward_mean": 0.5, "iteration/success": 0.5, "iteration/episodes": 128.0,
        "iteration/stops/goal": 64.0, "iteration/kinds/bill": 0.3, "iteration/timings/total": 1.0,
        "algorithm/optimizer_steps": 6.0, "turns/clip_fraction/t4": 0.25, "turns/clip_fraction/t1": 0.5,
    }  # fmt: skip
    assert scalars(evaluation(10)) == {
        "evaluation/avg@4": 0.4, "evaluation/avg@4/low": 0.3, "evaluation/avg@4/high": 0.5,
        "evaluation/kinds/bill/avg@4": 0.4, "evaluation/kinds/bill/avg@4/low": 0.3,
        "evaluation/kinds/bill/avg@4/high": 0.5, "evaluation/timings/seconds": 2.0,
    }  # fmt: skip
    assert scalars({"kind": "evaluation", "iteration": 0, "avg@4": None}) == {}


def test_trackers_are_off_by_default(tmp_path):
    assert make_trackers(Recipe(), tmp_path, print) == []
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("extra", ["tensorboard", "wandb"])
def test_a_missing_package_names_its_extra(extra, tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, extra, None)
    settings = TrackerSettings(tensorboard=True) if extra == "tensorboard" else TrackerSettings(wandb="p")
    with pytest.raises(TrackerError, match=rf"pip install 'seeupo\[{extra}\]'"):
        make_trackers(Recipe(trackers=settings), tmp_path, print)


def test_tensorboard_has_every_scalar_at_its_iteration(tmp_path):
    pytest.importorskip("tensorboard")
    (tracker,) = make_trackers(Recipe(trackers=TrackerSettings(tensorboard=True)), tmp_path, print)
    tracker.on_record({"kind": "warm_start", "iteration": 0, "step": 50, "loss": 1.5, "timings": {}})
    tracker.on_record(evaluation(0))
    tracker.on_record(iteration(1))
    # Records are flushed at once, not at the end of the run.
    assert tensorboard_of(tmp_path / "tensorboard")["iteration/success"] == [(1, 0.5)]
    tracker.on_end()
    found = tensorboard_of(tmp_path / "tensorboard")
    assert found["evaluation/avg@4"] == [(0, 0.4)]
    assert found["turns/clip_fraction/t4"] == [(1, 0.25)]
    assert set(found) == {*scalars(iteration(1)), *scalars(evaluation(0))}
    assert tensorboard_of(tmp_path / "tensorboard" / "warm_start")["warm_start/loss"] == [(50, 1.5)]


def test_a_new_tracker_of_a_resumed_run_writes_the_earlier_records(tmp_path):
    pytest.importorskip("tensorboard")
    (tracker,) = make_trackers(Recipe(trackers=TrackerSettings(tensorboard=True)), tmp_path, print)
    tracker.on_resume([iteration(1)])
    tracker.on_phase("collecting")
    tracker.on_record(iteration(2))
    tracker.on_end()
    assert tensorboard_of(tmp_path / "tensorboard")["iteration/success"] == [(1, 0.5), (2, 0.5)]


def test_tensorboard_resumes_with_the_run(tmp_path):
    pytest.importorskip("tensorboard")
    for first, last, success in ((1, 5, 0.25), (4, 6, 0.75)):
        (tracker,) = make_trackers(Recipe(trackers=TrackerSettings(tensorboard=True)), tmp_path, print)
        tracker.on_resume([iteration(number, 0.0) for number in range(1, first)])
        tracker.on_phase("collecting")
        if first == 1:
            tracker.on_record({"kind": "warm_start", "iteration": 0, "step": 50, "loss": 1.5, "timings": {}})
        for number in range(first, last + 1):
            tracker.on_record(iteration(number, success))
        tracker.on_end()
    # Iterations 4 and 5 of the first part came after the checkpoint; the warm start came before it.
    expected = [(1, 0.25), (2, 0.25), (3, 0.25), (4, 0.75), (5, 0.75), (6, 0.75)]
    assert tensorboard_of(tmp_path / "tensorboard")["iteration/success"] == expected
    assert tensorboard_of(tmp_path / "tensorboard" / "warm_start")["warm_start/loss"] == [(50, 1.5)]


def test_offline_wandb_stays_in_the_run_directory_and_resumes_with_its_id(tmp_path):
    wandb = pytest.importorskip("wandb")
    settings = TrackerSettings(wandb="project", wandb_mode="offline")
    notes = []
    for number in (1, 2):
        (tracker,) = make_trackers(Recipe(trackers=settings), tmp_path, notes.append)
        tracker.on_resume([iteration(earlier) for earlier in range(1, number)])
        tracker.on_phase("collecting")
        tracker.on_record(iteration(number))
        tracker.on_end()
    wandb.teardown()
    identity = (tmp_path / "wandb" / "run-id").read_text().strip()
    files = sorted((tmp_path / "wandb").glob(f"offline-run-*-{identity}*/*.wandb"))
    assert [logged(path, "iteration/success") for path in files] == [[(1, 0.5)], [(2, 0.5)]]
    command = notes[-1].partition("upload them with: wandb sync ")[2]
    assert sorted(glob.glob(*shlex.split(command))) == [str(path.parent) for path in files]  # noqa: PTH207


def logged(path, name: str) -> list[tuple[int, float]]:
    """Return the (iteration, value) pairs in a W&B file."""
    from wandb.proto import wandb_internal_pb2
    from wandb.sdk.internal.datastore import DataStore

    store, found = DataStore(), []
    store.open_for_scan(str(path))
    while (data := store.scan_data()) is not None:
        message = wandb_internal_pb2.Record()
        message.ParseFromString(data)
        if message.WhichOneof("record_type") == "history":
            items = {(item.key or "/".join(item.nested_key)): item.value_json for item in message.history.item}
            found.append((json.loads(items["iteration"]), json.loads(items[name])))
    store.close()
    return found


class Broken(Callback):
    def on_record(self, record) -> None:
        raise OSError("disk full")

    def on_end(self) -> None:
        raise OSError("still full")


class Recording(Callback):
    def __init__(self) -> None:
        self.events = []

    def on_record(self, record) -> None:
        self.events.append(record)

    def on_note(self, text) -> None:
        self.events.append(text)

    def on_end(self) -> None:
        self.events.append("closed")


@pytest.mark.parametrize("broken_first", [True, False])
def test_a_callback_that_raises_is_removed_and_reported_once(broken_first):
    recording = Recording()
    both = CallbackList([Broken(), recording] if broken_first else [recording, Broken()])
    both.on_record({"iteration": 1})
    both.on_record({"iteration": 2})
    both.on_end()
    notes = [item for item in recording.events if isinstance(item, str)]
    assert len(notes) == 2
    assert "Broken" in notes[0]
    assert "disk full" in notes[0]
    assert notes[1] == "closed"
    assert [item for item in recording.events if isinstance(item, dict)] == [{"iteration": 1}, {"iteration": 2}]


def test_a_failure_to_close_is_reported():
    recording = Recording()
    CallbackList([recording, Broken()]).on_end()
    assert "still full" in recording.events[0]
    assert recording.events[1] == "closed"


def test_an_interrupt_in_a_callback_is_not_suppressed():
    class Interrupted(Callback):
        def on_progress(self, done, text="") -> None:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        CallbackList([Interrupted()]).on_progress(1)
