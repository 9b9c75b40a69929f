"""Runs from beginning to end: what they leave, and that stopping them changes nothing."""

import gzip
import json
import os
import random
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
import torch
from transformers import AutoModelForCausalLM, AutoTokenizer

from envs.counting import CountingFactory
from seeupo.algorithms import PPO
from seeupo.config.loader import read_recipe, recipe_to_toml
from seeupo.config.schema import TinySettings
from seeupo.engines.local import LoraSettings
from seeupo.errors import RunError, TrainingError
from seeupo.models.loading import load_policy
from seeupo.models.logprobs import padded_logprobs
from seeupo.runs.evaluations import Evaluation
from seeupo.runs.trajectory_files import read_header, read_trajectories, write_trajectories
from seeupo.training.callbacks import NullCallback
from seeupo.training.loop import Interrupted
from seeupo.training.setup import assemble
from seeupo.training.train import resume, train
from seeupo.types import Message, Trajectory, Turn
from training.small_runs import small


class Notes(NullCallback):
    """Writes down what a person would be told."""

    def __init__(self):
        self.texts = []

    def on_note(self, text):
        self.texts.append(text)


def metrics(folder):
    """The records of a run without what a clock has measured."""
    records = [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]
    for record in records:
        record.pop("timings", None)
    return records


def weights(folder):
    return (folder / "policy" / "model.safetensors").read_bytes()


def trajectories(folder):
    found = {}
    for path in sorted(folder.glob("*/*.jsonl.gz")):
        lines = gzip.decompress(path.read_bytes()).decode().splitlines()
        found[f"{path.parent.name}/{path.name}"] = [
            {k: v for k, v in json.loads(line).items() if k != "timings"} for line in lines
        ]
    return found


@pytest.fixture(scope="module")
def whole(tmp_path_factory):
    """A run that nobody disturbed."""
    folder = tmp_path_factory.mktemp("whole") / "run"
    return train(small(), run_dir=folder)


def test_a_run_leaves_everything_that_is_needed_to_look_at_it_and_repeat_it(whole):
    folder = whole.folder
    assert whole.reason == "all 3 iterations are done"
    kinds = [(record["kind"], record["iteration"]) for record in metrics(folder) if record["kind"] != "warm_start"]
    assert kinds == [
        ("evaluation", 0),
        ("iteration", 1),
        ("iteration", 2),
        ("evaluation", 2),
        ("iteration", 3),
        ("evaluation", 3),
    ]
    assert read_recipe(str(folder / "recipe.toml")) == small()
    assert sorted(path.name for path in (folder / "checkpoints").iterdir() if path.is_dir())[-2:] == ["00002", "00003"]
    facts = json.loads((folder / "facts.json").read_text())
    assert facts["versions"]["torch"] == torch.__version__
    summary = json.loads((folder / "summary.json").read_text())
    assert summary["iterations"] == 3
    assert set(summary["before"]) == set(summary["after"])
    assert summary["seconds"].keys() >= {"warm start", "collect", "update", "evaluate", "checkpoint"}


def test_held_out_episodes_are_kept_with_their_evaluation(whole):
    for path in sorted((whole.folder / "evaluations").glob("*.json")):
        evaluation = Evaluation.read(path)
        file = path.with_suffix(".jsonl.gz")
        assert {(t.task, t.reward) for t in read_trajectories(file)} == {
            (episode.task, episode.score) for episode in evaluation.episodes.values()
        }
        assert read_header(file)["kinds"] == {e.task: e.kind for e in evaluation.episodes.values()}


def test_trajectories_carry_their_credit(whole):
    for path in sorted((whole.folder / "trajectories").iterdir()):
        found = list(read_trajectories(path))
        assert len(found) == 16
        assert all(trajectory.credit is not None for trajectory in found)


def test_the_policy_loads_in_plain_transformers_and_says_the_same(whole):
    model = AutoModelForCausalLM.from_pretrained(whole.policy, dtype=torch.float32)
    AutoTokenizer.from_pretrained(whole.policy)
    mine = load_policy(str(whole.folder / "checkpoints" / "00003")).model
    (*_, last) = read_trajectories(whole.folder / "trajectories" / "00003.jsonl.gz")
    with torch.no_grad():
        theirs, ours = (padded_logprobs(each, last.turns).logprobs for each in (model, mine))
    torch.testing.assert_close(theirs, ours, rtol=0, atol=1e-5)
    card = (whole.policy / "README.md").read_text()
    assert "| before | 0." in card
    assert recipe_to_toml(small()).rstrip() in card


def test_the_same_recipe_gives_the_same_run(whole, tmp_path):
    again = train(small(), run_dir=tmp_path / "again")
    assert weights(again.folder) == weights(whole.folder)
    assert metrics(again.folder) == metrics(whole.folder)
    assert trajectories(again.folder) == trajectories(whole.folder)


def test_another_seed_gives_another_run(whole, tmp_path):
    other = train(small(run={"seed": 4}), run_dir=tmp_path / "other")
    assert weights(other.folder) != weights(whole.folder)


class Impatient:
    """Asks to stop at the n-th moment at which that is possible."""

    def __init__(self, moment):
        self.left = moment

    def __call__(self):
        self.left -= 1
        if self.left == 0:
            raise Interrupted


@pytest.mark.parametrize("moment", [1, 33, 50, 57, 75, 95, 120])
def test_an_interrupt_at_any_moment_costs_nothing(whole, tmp_path, moment):
    with pytest.raises(Interrupted):
        train(small(), run_dir=tmp_path / "run", pause=Impatient(moment))
    assert resume(tmp_path / "run").reason == whole.reason
    assert weights(tmp_path / "run") == weights(whole.folder)
    assert metrics(tmp_path / "run") == metrics(whole.folder)
    assert trajectories(tmp_path / "run") == trajectories(whole.folder)


@pytest.mark.parametrize(
    ("model", "critic"),
    [({}, {}), ({"lora": LoraSettings(rank=2, alpha=4)}, {}), ({}, {"backbone": "policy"})],
    ids=["own", "lora", "head"],
)
def test_a_critic_goes_on_as_if_nothing_had_happened(tmp_path, model, critic):
    recipe = small(algorithm=PPO(), model=model, critic=critic)
    undisturbed = train(recipe, run_dir=tmp_path / "whole").folder
    with pytest.raises(Interrupted):
        train(recipe, run_dir=tmp_path / "run", pause=Impatient(75))
    resume(tmp_path / "run")
    assert weights(tmp_path / "run") == weights(undisturbed)
    assert metrics(tmp_path / "run") == metrics(undisturbed)
    last = Path("checkpoints") / "00003" / "critic" / "critic.safetensors"
    assert (tmp_path / "run" / last).read_bytes() == (undisturbed / last).read_bytes()


SCRIPT = """
import sys
from seeupo.training.train import resume, train
if sys.argv[1] == "train":
    train(sys.argv[2], run_dir=sys.argv[3])
else:
    resume(sys.argv[3])
"""


def killed_and_resumed(recipe, folder, *, within):
    """Kill a run up to 20 times, at random moments `within` so many seconds, then leave it alone; how often it was."""
    file, draw, kills = folder.with_suffix(".toml"), random.Random(0), 0
    file.write_text(recipe_to_toml(recipe))
    for attempt in range(21):
        how = "resume" if (folder / "recipe.toml").exists() else "train"
        process = subprocess.Popen(
            [sys.executable, "-c", SCRIPT, how, str(file), str(folder)],
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )
        if attempt < 20:
            wait_for_work(process, folder)
            time.sleep(draw.uniform(0.0, within))
            if process.poll() is None:
                os.kill(process.pid, signal.SIGKILL)
                kills += 1
        said, _ = process.communicate()
        if process.returncode == 0:
            break
        assert process.returncode == -signal.SIGKILL, said
    assert process.returncode == 0, said
    return kills


def test_kill_nine_at_random_moments_costs_nothing(whole, tmp_path):
    folder = tmp_path / "run"
    assert killed_and_resumed(small(), folder, within=0.6) >= 3
    assert weights(folder) == weights(whole.folder)
    assert metrics(folder) == metrics(whole.folder)
    assert trajectories(folder) == trajectories(whole.folder)


@pytest.mark.study
def test_twenty_kills_cost_nothing(tmp_path):
    recipe, folder = small(run={"iterations": 60}), tmp_path / "run"
    undisturbed = train(recipe, run_dir=tmp_path / "whole").folder
    assert killed_and_resumed(recipe, folder, within=1.0) == 20
    assert weights(folder) == weights(undisturbed)
    assert metrics(folder) == metrics(undisturbed)
    assert trajectories(folder) == trajectories(undisturbed)


def wait_for_work(process, folder):
    """Until the process has begun to do something in the folder: loading libraries is not what is tested."""

    def touched():
        return max((path.stat().st_mtime_ns for path in (folder, *folder.glob("*")) if path.exists()), default=0)

    before = touched()
    while process.poll() is None and touched() == before:
        time.sleep(0.02)


def test_a_second_process_is_refused(whole, tmp_path):
    class Second(NullCallback):
        def on_phase(self, name, total=None):
            if name == "collecting":
                with pytest.raises(RunError, match="is being worked on by process"):
                    resume(tmp_path / "run")
                self.tried = True

    second = Second()
    train(small(), run_dir=tmp_path / "run", callback=second)
    assert second.tried


def test_a_damaged_checkpoint_is_passed_over_with_a_note(whole, tmp_path):
    with pytest.raises(Interrupted):
        train(small(), run_dir=tmp_path / "run", pause=Impatient(90))
    *_, newest = sorted(path for path in (tmp_path / "run" / "checkpoints").iterdir() if path.is_dir())
    file = newest / "model.safetensors"
    file.write_bytes(file.read_bytes()[:-10])
    notes = Notes()
    resume(tmp_path / "run", callback=notes)
    assert any("is damaged" in note and "used instead" in note for note in notes.texts)
    assert weights(tmp_path / "run") == weights(whole.folder)
    assert metrics(tmp_path / "run") == metrics(whole.folder)


def test_a_finished_run_can_go_on_longer(whole, tmp_path):
    longer = train(small(run={"iterations": 2}), run_dir=tmp_path / "run")
    assert longer.reason == "all 2 iterations are done"
    recipe = small()
    again = resume(tmp_path / "run", settings=recipe.run)
    assert again.summary["iterations"] == 3
    assert weights(again.folder) == weights(whole.folder)


def test_a_run_stops_at_its_target_by_patience_and_by_time(tmp_path):
    by_target = train(small(run={"target": 0.0}), run_dir=tmp_path / "target")
    assert by_target.reason == "the target of 0 is reached"
    by_patience = train(
        small(run={"patience": 1, "iterations": 30}, evaluation={"every": 1}, optimizer={"learning_rate": 0.0}),
        run_dir=tmp_path / "patience",
    )
    assert by_patience.reason == "the last 1 evaluations brought nothing better"
    assert by_patience.summary["iterations"] < 30
    by_time = train(small(run={"max_minutes": 1e-6}), run_dir=tmp_path / "time")
    assert "time limit" in by_time.reason


def test_a_model_that_says_nothing_and_rewards_that_are_all_equal_go_on_and_are_told(tmp_path):
    notes = Notes()
    recipe = small(warm_start=None, run={"iterations": 12, "checkpoint_every": 12}, evaluation={"every": 0})
    result = train(recipe, run_dir=tmp_path / "run", callback=notes)
    assert result.summary["iterations"] == 12
    assert any("all rewards" in note.lower() or "equal" in note for note in notes.texts), notes


@pytest.mark.parametrize("kl_coef", [0.0, 0.01])
def test_lora_is_merged_into_a_policy_that_stands_alone(tmp_path, kl_coef):
    from seeupo.algorithms import SeeUPO

    recipe = small(model={"lora": LoraSettings(rank=2)}, algorithm=SeeUPO(kl_coef=kl_coef))
    with pytest.raises(Interrupted):
        train(recipe, run_dir=tmp_path / "run", pause=Impatient(75))
    resumed = resume(tmp_path / "run")
    undisturbed = train(recipe, run_dir=tmp_path / "other")
    assert weights(resumed.folder) == weights(undisturbed.folder)
    model = AutoModelForCausalLM.from_pretrained(resumed.policy)
    assert not any("lora" in name for name, _ in model.named_parameters())


def of_counting(**sections):
    changes = {
        "model": {"tiny": TinySettings(width=32, layers=1, heads=2, context=256, words=False)},
        "environment": {"train_split": "easy", "test_split": "odd"},
        "warm_start": {"noisy": 0.0},
    }
    return small(**{**changes, **sections})


def test_an_environment_of_ones_own(tmp_path):
    result = train(of_counting(), run_dir=tmp_path / "run", environment=CountingFactory())
    assert result.summary["environment"] == "CountingFactory"
    with pytest.raises(TrainingError, match=r"CountingFactory; go on from Python: seeupo.resume"):
        resume(tmp_path / "run")
    assert resume(tmp_path / "run", environment=CountingFactory()).summary["after"] == result.summary["after"]


def test_a_run_goes_on_with_the_tasks_that_it_was_begun_with(tmp_path):
    train(of_counting(), run_dir=tmp_path / "run", environment=CountingFactory())

    class Other(CountingFactory):
        def tasks(self, split):
            return super().tasks(split)[:1]

    with pytest.raises(TrainingError, match="go on with the environment that it was begun with"):
        resume(tmp_path / "run", environment=Other())


def test_an_environment_without_an_expert_needs_none_or_says_so(tmp_path):
    silent = CountingFactory(help_wanted=False)
    with pytest.raises(TrainingError, match=r"nobody knows how to solve task easy-.*give warm_start.file"):
        train(of_counting(), run_dir=tmp_path / "one", environment=silent)
    assert (
        train(of_counting(warm_start=None), run_dir=tmp_path / "other", environment=silent).summary["iterations"] == 3
    )


class Broken(CountingFactory):
    """Every action breaks it."""

    def make(self):
        env = super().make()
        env.step = lambda text: 1 / 0
        return env


def test_an_environment_that_always_crashes_ends_the_run_with_its_own_words(tmp_path):
    with pytest.raises(TrainingError, match=r"no group of iteration 1 came out whole, in 3 rounds.*division by zero"):
        train(of_counting(warm_start=None), run_dir=tmp_path / "run", environment=Broken())


def test_a_folder_that_holds_something_is_refused_before_anything_is_done(whole):
    with pytest.raises(RunError, match="holds something already"):
        train(small(), run_dir=whole.folder)


def test_trajectories_of_a_run_can_start_another(whole, tmp_path):
    file = Path(whole.folder / "trajectories" / "00001.jsonl.gz")
    result = train(small(warm_start={"file": str(file)}), run_dir=tmp_path / "run")
    assert result.summary["iterations"] == 3


FULL_DISK = """
import resource, sys
from seeupo.cli import main
resource.setrlimit(resource.RLIMIT_FSIZE, (100_000, 100_000))
main(sys.argv[1:])
"""


def test_a_full_disk_ends_the_run_in_one_line_and_what_was_saved_is_kept(whole, tmp_path):
    """No file may grow beyond a limit: to a program that is what a full disk looks like."""
    recipe = tmp_path / "small.toml"
    recipe.write_text(recipe_to_toml(small()))
    folder = tmp_path / "run"
    ended = subprocess.run(
        [sys.executable, "-c", FULL_DISK, "train", str(recipe), "--out", str(folder)],
        capture_output=True,
        text=True,
        check=False,
    )
    assert ended.returncode == 1
    assert "could not be written" in ended.stderr
    assert "Traceback" not in ended.stderr
    assert resume(folder).summary["iterations"] == 3
    assert weights(folder) == weights(whole.folder)


@pytest.mark.skipif(shutil.which("bwrap") is None, reason="a read-only file system is made with bubblewrap")
def test_a_read_only_folder_is_refused_in_one_line(whole, tmp_path):
    (tmp_path / "small.toml").write_text(recipe_to_toml(small()))
    shutil.copytree(whole.folder, tmp_path / "run")
    before = {path: path.read_bytes() for path in tmp_path.rglob("*") if path.is_file()}
    for arguments, said in (
        (["train", "small.toml", "--out", "new"], "the run new cannot be made: Read-only file system; name a folder"),
        (["train", "--resume", "run", "--run.iterations", "9"], "cannot be written: Read-only file system; mend that"),
        (["report", "run"], "cannot be written: Read-only file system; name a file"),
    ):
        ended = subprocess.run(
            ["bwrap", "--dev-bind", "/", "/", "--ro-bind", str(tmp_path), str(tmp_path),
             sys.executable, "-m", "seeupo", *arguments],
            cwd=tmp_path, capture_output=True, text=True, check=False,
        )  # fmt: skip
        assert ended.returncode == 1
        assert said in ended.stderr
        assert "Traceback" not in ended.stderr
    assert before == {path: path.read_bytes() for path in tmp_path.rglob("*") if path.is_file()}


def test_a_model_that_only_ends_its_turn_goes_on_and_is_told(tmp_path):
    """Learned from trajectories in which nothing else is said."""
    with assemble(small()) as parts:
        end = parts.policy.tokenizer.eos_token_id
        opening = parts.runner.chat.opening([Message("user", "say on which day tea is now")], ())
    silent = [Trajectory(f"t{n}", "g", "x", (Turn(f"t{n}", 0, opening, (end,)),), 1.0) for n in range(8)]
    write_trajectories(tmp_path / "silent.jsonl.gz", silent, facts={})
    recipe = small(warm_start={"file": str(tmp_path / "silent.jsonl.gz"), "batches": 60}, run={"iterations": 12})
    notes = Notes()
    result = train(recipe, run_dir=tmp_path / "run", callback=notes)
    assert result.summary["iterations"] == 12
    found = [t for path in (tmp_path / "run" / "trajectories").iterdir() for t in read_trajectories(path)]
    assert sum(len(s.action_ids) == 1 for t in found for s in t.turns) > 0.9 * sum(len(t.turns) for t in found)
    assert any("training cannot progress" in text for text in notes.texts), notes.texts


def test_a_run_whose_checkpoints_are_all_damaged_is_left_as_it_is(tmp_path):
    with pytest.raises(Interrupted):
        train(small(), run_dir=tmp_path / "run", pause=Impatient(75))
    before = metrics(tmp_path / "run")
    for file in (tmp_path / "run" / "checkpoints").glob("*/model.safetensors"):
        file.write_bytes(b"")
    with pytest.raises(TrainingError, match="no whole checkpoint to go on from"):
        resume(tmp_path / "run")
    assert metrics(tmp_path / "run") == before


@pytest.mark.parametrize(
    ("sections", "message"),
    [
        ({"optimizer": {"trainable": ("nothing",)}}, "cannot be trained as asked: .*matches no parameter"),
        ({"model": {"tiny": TinySettings(width=32, layers=1, heads=2, context=24)}}, "the longest demonstration has"),
        ({"optimizer": {"learning_rate": 1e30}}, r"begin again with a lower optimizer.learning_rate"),
        ({"warm_start": {"file": "nowhere.gz"}}, "warm_start.file cannot be read: .*name a file"),
    ],
)
def test_what_cannot_be_trained_is_said(tmp_path, sections, message):
    with pytest.raises(TrainingError, match=message):
        train(small(**sections), run_dir=tmp_path / "run")


def test_a_run_that_was_made_longer_stays_longer(tmp_path):
    train(small(run={"iterations": 1}), run_dir=tmp_path / "run")
    with pytest.raises(Interrupted):
        resume(tmp_path / "run", settings=small().run, pause=Impatient(20))
    assert resume(tmp_path / "run").summary["iterations"] == 3
