"""Whole runs: what they write, and that stopping and resuming them changes nothing."""

import gc
import gzip
import json
import os
import random
import shutil
import signal
import subprocess
import sys
import time
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from transformers import AutoModelForCausalLM, AutoTokenizer

from envs.counting import CountingFactory
from seeupo.algorithms import PPO, SeeUPO
from seeupo.callbacks import Callback
from seeupo.config.loader import read_recipe, recipe_to_toml
from seeupo.config.model_settings import LoraSettings, TinySettings
from seeupo.errors import RunError, TrainingError, UserError
from seeupo.evaluation.results import Evaluation
from seeupo.models.loading import load_policy
from seeupo.models.logprobs import padded_logprobs
from seeupo.models.threads import num_threads
from seeupo.report.write import write_report
from seeupo.runs.trajectory_files import read_header, read_trajectories, write_trajectories
from seeupo.training.interrupts import Interrupted
from seeupo.training.loop import Loop
from seeupo.training.run import resume, train
from seeupo.training.setup import build
from seeupo.types import Message, StepResult, Trajectory, Turn
from training.small_runs import small


class Notes(Callback):
    """Records the notes of a run."""

    def __init__(self):
        self.texts = []

    def on_note(self, text):
        self.texts.append(text)


def metrics(folder):
    """Return the metrics of a run without timings."""
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
    """An undisturbed run."""
    folder = tmp_path_factory.mktemp("whole") / "run"
    return train(small(), run_dir=folder)


def test_a_run_directory_is_complete(whole):
    folder = whole.run_dir
    assert whole.reason == "3 iterations done"
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
    info = json.loads((folder / "env_info.json").read_text())
    assert info["versions"]["torch"] == torch.__version__
    summary = json.loads((folder / "summary.json").read_text())
    assert summary["iterations"] == 3
    assert set(summary["before"]) == set(summary["after"])
    assert summary["seconds"].keys() >= {"warm start", "collect", "update", "evaluate", "checkpoint"}


def test_held_out_trajectories_are_kept_with_their_evaluation(whole):
    for path in sorted((whole.run_dir / "evaluations").glob("*.json")):
        evaluation = Evaluation.read(path)
        file = path.with_suffix(".jsonl.gz")
        assert {(t.task, t.score) for t in read_trajectories(file)} == {
            (result.task, result.score) for result in evaluation.results.values()
        }
        assert read_header(file)["kinds"] == {result.task: result.kind for result in evaluation.results.values()}


def test_trajectories_carry_their_credit(whole):
    for path in sorted((whole.run_dir / "trajectories").iterdir()):
        found = list(read_trajectories(path))
        assert len(found) == 16
        assert all(trajectory.credit is not None for trajectory in found)


def test_the_policy_loads_in_plain_transformers_with_equal_logprobs(whole):
    model = AutoModelForCausalLM.from_pretrained(whole.policy, dtype=torch.float32)
    AutoTokenizer.from_pretrained(whole.policy)
    mine = load_policy(str(whole.run_dir / "checkpoints" / "00003")).model
    (*_, last) = read_trajectories(whole.run_dir / "trajectories" / "00003.jsonl.gz")
    with torch.no_grad():
        theirs, ours = (padded_logprobs(each, last.turns).logprobs for each in (model, mine))
    torch.testing.assert_close(theirs, ours, rtol=0, atol=1e-5)
    card = (whole.policy / "README.md").read_text()
    assert "| before | 0." in card
    assert recipe_to_toml(small()).rstrip() in card


def test_the_same_recipe_gives_the_same_run(whole, tmp_path):
    again = train(small(), run_dir=tmp_path / "again")
    assert weights(again.run_dir) == weights(whole.run_dir)
    assert metrics(again.run_dir) == metrics(whole.run_dir)
    assert trajectories(again.run_dir) == trajectories(whole.run_dir)


def test_another_seed_gives_another_run(whole, tmp_path):
    other = train(small(run={"seed": 4}), run_dir=tmp_path / "other")
    assert weights(other.run_dir) != weights(whole.run_dir)


class InterruptAt(Callback):
    """Interrupts a run at the n-th moment at which that is possible."""

    def __init__(self, moment):
        self.left = moment

    def on_progress(self, done, text=""):
        self.left -= 1
        if self.left == 0:
            raise Interrupted

    def on_iteration(self, iteration):
        self.on_progress(0)


@pytest.mark.parametrize("moment", [1, 33, 57, 75, 95, 120])
def test_a_run_interrupted_at_any_moment_resumes_exactly(whole, tmp_path, moment):
    with pytest.raises(Interrupted):
        train(small(), run_dir=tmp_path / "run", callback=InterruptAt(moment))
    assert resume(tmp_path / "run").reason == whole.reason
    assert weights(tmp_path / "run") == weights(whole.run_dir)
    assert metrics(tmp_path / "run") == metrics(whole.run_dir)
    assert trajectories(tmp_path / "run") == trajectories(whole.run_dir)


@pytest.mark.parametrize(
    ("model", "critic"),
    [({}, {}), ({"lora": LoraSettings(rank=2, alpha=4)}, {}), ({}, {"backbone": "policy"})],
    ids=["own", "lora", "head"],
)
def test_a_critic_resumes_exactly(tmp_path, model, critic):
    recipe = small(algorithm=PPO(), model=model, critic=critic)
    undisturbed = train(recipe, run_dir=tmp_path / "whole").run_dir
    with pytest.raises(Interrupted):
        train(recipe, run_dir=tmp_path / "run", callback=InterruptAt(75))
    resume(tmp_path / "run")
    assert weights(tmp_path / "run") == weights(undisturbed)
    assert metrics(tmp_path / "run") == metrics(undisturbed)
    last = Path("checkpoints") / "00003" / "state" / "state.safetensors"
    assert (tmp_path / "run" / last).read_bytes() == (undisturbed / last).read_bytes()


@pytest.mark.parametrize(
    ("model", "stored"),
    [
        ({"reference_dtype": "bfloat16"}, torch.float32),
        ({"lora": LoraSettings(rank=2, alpha=4)}, torch.bfloat16),
    ],
    ids=["full", "lora"],
)
def test_a_run_in_mixed_precision_resumes_exactly(tmp_path, model, stored):
    recipe = small(algorithm=SeeUPO(kl_coef=0.01), model={"dtype": "bfloat16", **model})
    undisturbed = train(recipe, run_dir=tmp_path / "whole").run_dir
    with pytest.raises(Interrupted):
        train(recipe, run_dir=tmp_path / "run", callback=InterruptAt(75))
    resume(tmp_path / "run")
    assert weights(tmp_path / "run") == weights(undisturbed)
    assert metrics(tmp_path / "run") == metrics(undisturbed)
    assert AutoModelForCausalLM.from_pretrained(undisturbed / "policy").dtype == stored
    gaps = [record["sampler_gap"] for record in metrics(undisturbed) if record["kind"] == "iteration"]
    assert all(1e-6 < gap < 0.05 for gap in gaps)


def test_a_run_does_not_belong_to_a_device(tmp_path):
    """A run that chose a GPU by itself can be resumed on a machine without one."""
    found = train(small(run={"iterations": 1}), run_dir=tmp_path / "run")
    assert read_recipe(str(found.run_dir / "recipe.toml")).model.device == "auto"


KILL_AND_RESUME = """
import os, signal, sys
from pathlib import Path
import torch
from seeupo.training.run import resume, train

recipe, run_dir, first, step = sys.argv[1], Path(sys.argv[2]).absolute(), int(sys.argv[3]), int(sys.argv[4])
OPERATIONS = {"open", "os.mkdir", "os.rename", "os.remove", "os.rmdir"}
main, count, deadly = os.getpid(), 0, 0

def hook(event, arguments):
    global count
    if event in OPERATIONS and deadly and os.getpid() != main and str(arguments[0]).startswith(str(run_dir)):
        count += 1
        if count == deadly:
            os.kill(os.getpid(), signal.SIGKILL)

sys.addaudithook(hook)
for attempt in range(1000):
    deadly = first + step * attempt
    child = os.fork()
    if child == 0:
        torch.set_num_threads(1 + attempt % 3)  # run.threads decides
        try:
            resume(run_dir) if (run_dir / "recipe.toml").exists() else train(recipe, run_dir=run_dir)
        except BaseException as error:
            print(repr(error), flush=True)
            os._exit(1)
        os._exit(0)
    status = os.waitpid(child, 0)[1]
    if status == 0:
        break
    assert status == signal.SIGKILL, status
print(attempt)
"""


def kill_and_resume(recipe, run_dir, *, first, step):
    """Kill a run at its file operation `first`, resume it up to operation `first + step`, and so on until it is done.

    Returns the number of kills. One process forks the others, because importing PyTorch takes longer than a run.
    """
    file = run_dir.with_suffix(".toml")
    file.write_text(recipe_to_toml(recipe))
    command = [sys.executable, "-c", KILL_AND_RESUME, str(file), str(run_dir), str(first), str(step)]
    done = subprocess.run(
        command, env={**os.environ, "OMP_NUM_THREADS": "2"}, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return int(done.stdout)


def test_a_killed_run_resumes_exactly(whole, tmp_path):
    assert kill_and_resume(small(), tmp_path / "run", first=20, step=20) >= 3
    assert weights(tmp_path / "run") == weights(whole.run_dir)
    assert metrics(tmp_path / "run") == metrics(whole.run_dir)
    assert trajectories(tmp_path / "run") == trajectories(whole.run_dir)


SCRIPT = """
import sys
from seeupo.training.run import resume, train
if sys.argv[1] == "train":
    train(sys.argv[2], run_dir=sys.argv[3])
else:
    resume(sys.argv[3])
"""


@pytest.mark.nightly
def test_a_run_killed_at_random_moments_resumes_exactly(tmp_path):
    recipe, folder, generator, kills = small(run={"iterations": 60}), tmp_path / "run", random.Random(0), 0
    undisturbed = train(recipe, run_dir=tmp_path / "whole").run_dir
    file = tmp_path / "small.toml"
    file.write_text(recipe_to_toml(recipe))
    for attempt in range(21):
        command = "resume" if (folder / "recipe.toml").exists() else "train"
        process = subprocess.Popen(
            [sys.executable, "-c", SCRIPT, command, str(file), str(folder)],
            env={**os.environ, "OMP_NUM_THREADS": str(1 + attempt % 3)},  # run.threads decides
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )
        if attempt < 20:
            wait_for_work(process, folder)
            time.sleep(generator.uniform(0.0, 1.0))
            if process.poll() is None:
                os.kill(process.pid, signal.SIGKILL)
                kills += 1
        output, _ = process.communicate()
        if process.returncode == 0:
            break
        assert process.returncode == -signal.SIGKILL, output
    assert process.returncode == 0, output
    assert kills > 0
    assert weights(folder) == weights(undisturbed)
    assert metrics(folder) == metrics(undisturbed)
    assert trajectories(folder) == trajectories(undisturbed)


def wait_for_work(process, folder):
    """Wait until the process has written to the run directory: importing libraries is not what is tested."""

    def modified():
        return max((path.stat().st_mtime_ns for path in (folder, *folder.glob("*")) if path.exists()), default=0)

    before = modified()
    while process.poll() is None and modified() == before:
        time.sleep(0.02)


def test_a_stopped_run_has_a_report_that_says_how_to_resume_it(whole, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    with pytest.raises(Interrupted):
        train(small(), run_dir="run", callback=InterruptAt(95))
    written = Path("run/report.html").read_bytes()
    summary = write_report("run", "again.html")
    assert Path("again.html").read_bytes() == written
    done = len([record for record in metrics(Path("run")) if record["kind"] == "iteration"])
    assert f"Stopped by you after iteration {done} of 3; resume with seeupo train --resume run" in summary.sentences[0]
    assert not any("summary.json" in text for text in summary.missing[0])
    assert summary.missing == ((),)
    resume("run")
    assert "Stopped" not in write_report("run", "again.html").sentences[0]
    assert not Path("run/stopped.json").exists()


def test_a_second_process_is_refused(whole, tmp_path):
    class Second(Callback):
        def on_phase(self, name, total=None):
            if name == "collecting":
                with pytest.raises(RunError, match="is in use by process"):
                    resume(tmp_path / "run")
                self.tried = True

    second = Second()
    train(small(), run_dir=tmp_path / "run", callback=second)
    assert second.tried


def test_the_report_of_a_run_stopped_in_its_warm_start_calls_nothing_missing(tmp_path):
    with pytest.raises(Interrupted):
        train(small(), run_dir=tmp_path / "run", callback=InterruptAt(1))
    summary = write_report(tmp_path / "run", tmp_path / "again.html")
    assert "Stopped by you before the first iteration" in summary.sentences[0]
    assert summary.missing == ((),)


def test_a_damaged_checkpoint_is_skipped_with_a_note(whole, tmp_path):
    with pytest.raises(Interrupted):
        train(small(), run_dir=tmp_path / "run", callback=InterruptAt(90))
    *_, newest = sorted(path for path in (tmp_path / "run" / "checkpoints").iterdir() if path.is_dir())
    file = newest / "model.safetensors"
    file.write_bytes(file.read_bytes()[:-10])
    notes = Notes()
    resume(tmp_path / "run", callback=notes)
    assert any("is damaged" in note and "used instead" in note for note in notes.texts)
    assert weights(tmp_path / "run") == weights(whole.run_dir)
    assert metrics(tmp_path / "run") == metrics(whole.run_dir)


def test_a_finished_run_can_be_extended(whole, tmp_path):
    longer = train(small(run={"iterations": 2}), run_dir=tmp_path / "run")
    assert longer.reason == "2 iterations done"
    again = resume(tmp_path / "run", changes={"run.iterations": 3})
    assert again.summary["iterations"] == 3
    assert weights(again.run_dir) == weights(whole.run_dir)


def test_a_run_stops_at_target_patience_and_time_limit(tmp_path):
    by_target = train(small(run={"target": 0.0}), run_dir=tmp_path / "target")
    assert by_target.reason == "the target of 0 is reached"
    by_patience = train(
        small(run={"patience": 1, "iterations": 30}, evaluation={"every": 1}, optimizer={"learning_rate": 0.0}),
        run_dir=tmp_path / "patience",
    )
    assert by_patience.reason == "no improvement in 1 evaluation"
    assert by_patience.summary["iterations"] < 30
    by_time = train(small(run={"max_minutes": 1e-6}), run_dir=tmp_path / "time")
    assert "time limit" in by_time.reason


def test_equal_rewards_are_reported_and_training_continues(tmp_path):
    notes = Notes()
    recipe = small(warm_start=None, run={"iterations": 12, "checkpoint_every": 12}, evaluation={"every": 0})
    result = train(recipe, run_dir=tmp_path / "run", callback=notes)
    assert result.summary["iterations"] == 12
    assert any("all rewards" in note.lower() or "equal" in note for note in notes.texts), notes


def test_a_tiny_model_learns_its_tokens_from_the_texts_of_experts(tmp_path):
    text, sizes = "call get_account(name='fay')", {}
    for vocabulary in (0, 300):
        tiny = TinySettings(width=32, layers=1, heads=2, context=1024, vocabulary=vocabulary)
        options = {"surface": "natural", "turns": [2, 2], "train_tasks": 8, "test_tasks": 4}
        recipe = small(
            run={"iterations": 1},
            model={"tiny": tiny},
            environment={"options": options},
            agent={"max_tokens": 4},
            warm_start=None,
        )
        done = train(recipe, run_dir=tmp_path / str(vocabulary))
        tokenizer = AutoTokenizer.from_pretrained(done.policy)
        assert tokenizer.decode(tokenizer.encode(text)) == text
        sizes[vocabulary] = len(tokenizer), len(tokenizer.encode(text))
    assert sizes[0] == (259, len(text))
    assert sizes[300][0] == 300
    assert sizes[300][1] < len(text)


def test_the_exported_policy_has_lora_merged(tmp_path):
    recipe = small(model={"lora": LoraSettings(rank=2)}, algorithm=SeeUPO(kl_coef=0.01))
    with pytest.raises(Interrupted):
        train(recipe, run_dir=tmp_path / "run", callback=InterruptAt(75))
    resumed = resume(tmp_path / "run")
    undisturbed = train(recipe, run_dir=tmp_path / "other")
    assert weights(resumed.run_dir) == weights(undisturbed.run_dir)
    model = AutoModelForCausalLM.from_pretrained(resumed.policy)
    assert not any("lora" in name for name, _ in model.named_parameters())


def of_counting(**sections):
    changes = {
        "model": {"tiny": TinySettings(width=32, layers=1, heads=2, context=256, words=False)},
        "environment": {"train_split": "easy", "test_split": "odd"},
        "warm_start": {"noisy": 0.0},
    }
    return small(**{**changes, **sections})


def test_a_custom_environment_trains_and_resumes(tmp_path):
    result = train(of_counting(), run_dir=tmp_path / "run", environment=CountingFactory())
    assert result.summary["environment"] == "envs.counting:CountingFactory"
    with pytest.raises(UserError, match=r"--trust envs\.counting:CountingFactory"):
        resume(tmp_path / "run")
    assert resume(tmp_path / "run", environment=CountingFactory()).summary["after"] == result.summary["after"]


def test_resuming_with_other_tasks_is_refused(tmp_path):
    train(of_counting(), run_dir=tmp_path / "run", environment=CountingFactory())

    class Other(CountingFactory):
        def tasks(self, split):
            return super().tasks(split)[:1]

    with pytest.raises(TrainingError, match="Resume with the environment and options that the run was started with"):
        resume(tmp_path / "run", environment=Other())


def test_a_warm_start_without_an_expert_is_refused(tmp_path):
    silent = CountingFactory(help_wanted=False)
    with pytest.raises(TrainingError, match=r"no expert for task easy-.*warm_start.file"):
        train(of_counting(), run_dir=tmp_path / "one", environment=silent)
    assert (
        train(of_counting(warm_start=None), run_dir=tmp_path / "other", environment=silent).summary["iterations"] == 3
    )


class Broken(CountingFactory):
    """An environment whose every step raises."""

    def make(self):
        env = super().make()
        env.step = lambda text: 1 / 0 if text else StepResult(())  # an empty action is tried before training
        return env


def test_an_environment_that_always_crashes_ends_the_run_with_its_error(tmp_path):
    with pytest.raises(
        TrainingError, match=r"every group of iteration 1 had a failed episode, in 3 rounds.*division by zero"
    ):
        train(of_counting(warm_start=None), run_dir=tmp_path / "run", environment=Broken())


def test_an_existing_directory_is_refused(whole):
    with pytest.raises(RunError, match="already exists"):
        train(small(), run_dir=whole.run_dir)


def test_trajectories_of_a_run_can_warm_start_another(whole, tmp_path):
    file = Path(whole.run_dir / "trajectories" / "00001.jsonl.gz")
    result = train(small(warm_start={"file": str(file)}), run_dir=tmp_path / "run")
    assert result.summary["iterations"] == 3


FULL_DISK = """
import resource, sys
from seeupo.cli import main
resource.setrlimit(resource.RLIMIT_FSIZE, (100_000, 100_000))
main(sys.argv[1:])
"""


def test_a_full_disk_ends_the_run_with_one_message_and_keeps_the_checkpoints(whole, tmp_path):
    """A limit on the size of files looks like a full disk to a program."""
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
    assert weights(folder) == weights(whole.run_dir)


RUN_COMMANDS = """
import json, sys
from click.testing import CliRunner
from seeupo.cli import main
results = [CliRunner().invoke(main, arguments) for arguments in json.loads(sys.argv[1])]
print(json.dumps([(result.exit_code, result.output) for result in results]))
"""


@pytest.mark.skipif(shutil.which("bwrap") is None, reason="a read-only file system is made with bubblewrap")
def test_a_read_only_directory_is_refused_with_one_message(whole, tmp_path):
    (tmp_path / "small.toml").write_text(recipe_to_toml(small()))
    shutil.copytree(whole.run_dir, tmp_path / "run")
    before = {path: path.read_bytes() for path in tmp_path.rglob("*") if path.is_file()}
    commands = [
        ["train", "small.toml", "--out", "new"],
        ["train", "--resume", "run", "--run.iterations", "9"],
        ["report", "run"],
    ]
    ended = subprocess.run(
        ["bwrap", "--dev-bind", "/", "/", "--ro-bind", str(tmp_path), str(tmp_path),
         sys.executable, "-c", RUN_COMMANDS, json.dumps(commands)],
        cwd=tmp_path, capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert ended.returncode == 0, ended.stderr
    for exit_code, output in json.loads(ended.stdout):
        assert exit_code == 1
        assert "Read-only file system" in output
        assert output.count("Error:") == 1
        assert "Traceback" not in output
    assert before == {path: path.read_bytes() for path in tmp_path.rglob("*") if path.is_file()}


def test_a_model_that_only_ends_its_turn_is_reported(tmp_path):
    """Warm-start on trajectories that contain nothing but the end of the turn."""
    with build(small()) as components:
        end = components.runner.chat.tokenizer.eos_token_id
        opening = components.runner.chat.opening([Message("user", "say on which day tea is now")], ())
    silent = [Trajectory(f"t{n}", "g", "x", (Turn(f"t{n}", 0, opening, (end,)),), 1.0) for n in range(8)]
    write_trajectories(tmp_path / "silent.jsonl.gz", silent, header={})
    recipe = small(warm_start={"file": str(tmp_path / "silent.jsonl.gz"), "batches": 60}, run={"iterations": 12})
    notes = Notes()
    result = train(recipe, run_dir=tmp_path / "run", callback=notes)
    assert result.summary["iterations"] == 12
    found = [t for path in (tmp_path / "run" / "trajectories").iterdir() for t in read_trajectories(path)]
    assert sum(len(s.action_ids) == 1 for t in found for s in t.turns) > 0.9 * sum(len(t.turns) for t in found)
    assert any("gives no learning signal" in text for text in notes.texts), notes.texts


def test_a_run_with_only_damaged_checkpoints_is_left_unchanged(tmp_path):
    with pytest.raises(Interrupted):
        train(small(), run_dir=tmp_path / "run", callback=InterruptAt(75))
    before = metrics(tmp_path / "run")
    for file in (tmp_path / "run" / "checkpoints").glob("*/model.safetensors"):
        file.write_bytes(b"")
    with pytest.raises(TrainingError, match="no intact checkpoint"):
        resume(tmp_path / "run")
    assert metrics(tmp_path / "run") == before


@pytest.mark.parametrize(
    ("sections", "message"),
    [
        ({"optimizer": {"trainable": ("nothing",)}}, "cannot be trained with these settings: .*matches no parameter"),
        ({"model": {"tiny": TinySettings(width=32, layers=1, heads=2, context=24)}}, "the longest demonstration has"),
        ({"warm_start": {"file": "nowhere.gz"}}, r"warm_start.file: nowhere.gz cannot be read"),
        ({"warm_start": {"mistakes": {"no_such": 0.1}}}, "no_such"),
        ({"model": {"name": "no/such/folder"}}, "there is no folder"),
        ({"environment": {"options": {"no_such_option": 1}}}, "no_such_option"),
        ({"environment": {"train_split": "no-such-split"}}, "no-such-split"),
        ({"environment": {"name": "dataset", "options": {"file": "nowhere.jsonl"}}}, "nowhere.jsonl"),
    ],
)
def test_impossible_settings_are_user_errors_and_leave_nothing_behind(tmp_path, sections, message):
    with pytest.raises(UserError, match=message):
        train(small(**sections), run_dir=tmp_path / "new" / "run")
    assert list(tmp_path.iterdir()) == []


def test_a_run_that_diverges_is_a_training_error_and_keeps_its_checkpoints(tmp_path):
    with pytest.raises(TrainingError, match=r"resume .*run with a lower optimizer.learning_rate, and --accept"):
        train(small(optimizer={"learning_rate": 1e30}), run_dir=tmp_path / "run")
    assert list((tmp_path / "run" / "checkpoints").glob("[0-9]*"))


def test_environments_that_cannot_start_leave_nothing_behind(tmp_path):
    class WithoutTasks(CountingFactory):
        def tasks(self, split):
            raise RuntimeError("the server is down")

    class WithoutExpert(CountingFactory):
        def expert(self, task):
            raise RuntimeError("the server is down")

    for factory in (WithoutTasks(), WithoutExpert()):
        with pytest.raises(Exception, match="the server is down"):
            train(of_counting(), run_dir=tmp_path / "run", environment=factory)
        assert list(tmp_path.iterdir()) == []


def test_a_run_that_was_interrupted_before_its_first_step_can_be_resumed(tmp_path):
    with pytest.raises(Interrupted):
        train(small(), run_dir=tmp_path / "run", callback=InterruptAt(1))
    assert resume(tmp_path / "run").summary["iterations"] == 3


def test_an_extended_run_stays_extended(tmp_path):
    train(small(run={"iterations": 1}), run_dir=tmp_path / "run")
    with pytest.raises(Interrupted):
        resume(tmp_path / "run", changes={"run.iterations": 3}, callback=InterruptAt(20))
    assert resume(tmp_path / "run").summary["iterations"] == 3


class Threads(Callback):
    def __init__(self):
        self.used = set()

    def on_phase(self, name, total=None):
        self.used.add(torch.get_num_threads())


def one_iteration(**run):
    # Several threads on busy cores are slow, so this run is short.
    return small(run={"iterations": 1, **run}, warm_start=None, collect={"tasks": 1}, evaluation={"tasks": 1})


@pytest.mark.parametrize(("asked", "small_model", "used"), [(None, 10**7, 1), (None, 1, 2), (3, 10**7, 3)])
def test_threads_follow_the_size_of_the_model_unless_they_are_set(asked, small_model, used, tmp_path, monkeypatch):
    monkeypatch.setattr("seeupo.models.threads.SMALL_MODEL", small_model)
    threads = Threads()
    with num_threads(2):
        run = train(one_iteration(threads=asked), run_dir=tmp_path / "run", callback=threads).run_dir
        assert torch.get_num_threads() == 2
    assert threads.used == {used}
    assert read_recipe(str(run / "recipe.toml")).run.threads == used
    assert json.loads((run / "env_info.json").read_text())["threads"] == used


def test_a_resumed_run_keeps_its_number_of_threads(tmp_path, monkeypatch):
    monkeypatch.setattr("seeupo.models.threads.SMALL_MODEL", 1)
    with num_threads(2):
        train(one_iteration(threads=None), run_dir=tmp_path / "run")
    monkeypatch.undo()
    threads = Threads()
    with num_threads(3):
        resume(tmp_path / "run", changes={"run.threads": None}, callback=threads)
    assert threads.used == {2}
    assert read_recipe(str(tmp_path / "run" / "recipe.toml")).run.threads == 2


def with_scores(monkeypatch, scores):
    """Let the evaluations after each iteration have these scores."""
    original = Loop._evaluate

    def evaluate(loop):
        evaluation, trajectories = original(loop)
        for key, result in evaluation.results.items():
            evaluation.results[key] = replace(result, score=scores[loop.progress.iteration])
        return evaluation, trajectories

    monkeypatch.setattr(Loop, "_evaluate", evaluate)


@pytest.mark.parametrize(
    ("scores", "best"),
    [
        ([0.5, 0.2, 0.5, 0.1, 0.4], 0),  # before training; of equal scores the earliest
        ([0.1, 0.2, 0.9, 0.5, 0.9], 2),
        ([0.1, 0.2, 0.3, 0.4, 0.5], 4),
        ([0.0, 0.0, 0.0, 0.0, 0.0], 0),
    ],
)
@pytest.mark.parametrize("warm", [True, False])
def test_the_best_checkpoint_is_always_kept_and_named(tmp_path, monkeypatch, scores, best, warm):
    with_scores(monkeypatch, scores)
    recipe = small(
        run={"iterations": 4, "checkpoint_every": 10, "keep_checkpoints": 1},
        evaluation={"every": 1},
        **({} if warm else {"warm_start": None}),
    )
    result = train(recipe, run_dir=tmp_path / "run")
    checkpoints = tmp_path / "run" / "checkpoints"
    assert {path.name for path in checkpoints.iterdir() if path.is_dir()} == {f"{best:05d}", "00004"}
    expected = {"iteration": best, "avg": scores[best], "checkpoint": f"checkpoints/{best:05d}"}
    assert result.summary["best"] == expected
    extended = resume(tmp_path / "run", changes={"run.iterations": 4})
    assert extended.summary["best"] == expected


def test_the_best_checkpoint_survives_an_interrupt_in_its_evaluation(tmp_path, monkeypatch):
    with_scores(monkeypatch, [0.1, 0.9, 0.2, 0.2])
    recipe = small(run={"checkpoint_every": 10, "keep_checkpoints": 1}, evaluation={"every": 1}, warm_start=None)
    original = Loop._evaluate

    def interrupted(loop):
        if loop.progress.iteration == 1:
            raise Interrupted
        return original(loop)

    with monkeypatch.context() as patch:
        patch.setattr(Loop, "_evaluate", interrupted)
        with pytest.raises(Interrupted):
            train(recipe, run_dir=tmp_path / "run")
    assert resume(tmp_path / "run").summary["best"]["checkpoint"] == "checkpoints/00001"
    assert (tmp_path / "run" / "checkpoints" / "00001").is_dir()


def test_epochs_are_resolved_to_iterations_and_recorded(tmp_path):
    collect = {"tasks": 30, "group_size": 2}
    recipe = small(run={"iterations": None, "epochs": 2}, collect=collect, warm_start=None)
    result = train(recipe, run_dir=tmp_path / "run")
    assert result.reason == "5 iterations done"  # 2 x 64 tasks, 30 at a time
    recorded = read_recipe(str(tmp_path / "run" / "recipe.toml")).run
    assert (recorded.iterations, recorded.epochs) == (5, None)
    records = [record for record in metrics(tmp_path / "run") if record["kind"] == "iteration"]
    assert len(records) == 5


class FrozenObjects(Callback):
    """Records how many objects garbage collections leave out, at each record of a run."""

    def __init__(self):
        self.counts = []

    def on_record(self, record):
        self.counts.append(gc.get_freeze_count())


def test_existing_objects_are_frozen_during_training_only(tmp_path):
    frozen = FrozenObjects()
    train(small(run={"iterations": 1}), run_dir=tmp_path / "run", callback=frozen)
    assert min(frozen.counts) > 0
    assert gc.get_freeze_count() == 0


def test_a_damaged_trajectory_file_does_not_prevent_resuming(tmp_path):
    notes = Notes()
    train(small(run={"iterations": 1}), run_dir=tmp_path / "run")
    (tmp_path / "run" / "trajectories" / "00001.jsonl.gz").write_bytes(b"no gzip")
    resume(tmp_path / "run", changes={"run.iterations": 2}, callback=notes)
    assert any("00001.jsonl.gz" in note and "last digits" in note for note in notes.texts)
