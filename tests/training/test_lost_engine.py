"""An engine that loses its processes: the loop restores it, also if it is lost again meanwhile."""

import json

import pytest

from seeupo.callbacks import Callback
from seeupo.engines.local import LocalEngine
from seeupo.errors import EngineLost, TrainingError
from seeupo.training.ahead import AheadCollector
from seeupo.training.run import train
from training.small_runs import small


class Notes(Callback):
    def __init__(self):
        self.texts = []

    def on_note(self, text):
        self.texts.append(text)


def learned(run_dir):
    """Return the metrics of all iterations without their timings."""
    records = [json.loads(line) for line in (run_dir / "metrics.jsonl").read_text().splitlines()]
    return [{key: value for key, value in record.items() if key != "timings"} for record in records]


def lose(monkeypatch, *errors):
    """Have the next log-probs of the second iteration, and then the next attempts to load, raise errors."""
    waiting, originals = list(errors), {name: getattr(LocalEngine, name) for name in ("logprobs", "load")}

    def replaced(name):
        def method(engine, *arguments, **options):
            first = len(waiting) == len(errors)
            if waiting and engine.iteration == 1 and (name == "logprobs") == first:
                raise waiting.pop(0)
            return originals[name](engine, *arguments, **options)

        return method

    for name in originals:
        monkeypatch.setattr(LocalEngine, name, replaced(name))
    return waiting


def test_an_engine_lost_again_while_it_is_restored_is_restored_again(tmp_path, monkeypatch):
    recipe, notes = small(run={"iterations": 2}, warm_start=None), Notes()
    train(recipe, run_dir=tmp_path / "plain")
    waiting = lose(monkeypatch, EngineLost("lost in an update"), EngineLost("lost while loading"))
    train(recipe, run_dir=tmp_path / "lost", callback=notes)
    assert not waiting
    found = [text for text in notes.texts if "training continues" in text]
    assert [text.partition(";")[0] for text in found] == ["lost in an update", "lost while loading"]
    assert learned(tmp_path / "lost") == learned(tmp_path / "plain")


def test_an_engine_that_cannot_be_restored_says_why(tmp_path, monkeypatch):
    lose(monkeypatch, EngineLost("lost in an update"), TrainingError("the cluster is too small"))
    with pytest.raises(TrainingError, match=r"^the cluster is too small$"):
        train(small(run={"iterations": 2}, warm_start=None), run_dir=tmp_path / "run")


class Samplers:
    """A collector whose samplers fail, or do not."""

    def __init__(self, error=None):
        self.error = error

    def collect(self, iteration, *, policy_version):
        if self.error is not None:
            raise self.error
        return iteration


@pytest.mark.parametrize(
    ("error", "expected"), [(None, "a rank was lost"), (TrainingError("all samplers were lost"), "all samplers")]
)
def test_an_engine_lost_with_all_samplers_is_not_restored(error, expected):
    ahead = AheadCollector(Samplers(error))
    with pytest.raises((EngineLost, TrainingError), match=expected), ahead.collecting(2, policy_version=0):
        raise EngineLost("a rank was lost")
    assert ahead.take() is None
