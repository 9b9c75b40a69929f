"""`seeupo train` as a person uses it."""

import json
import os
import pty
import signal
import subprocess
import sys
import threading
import time

import pytest
from click.testing import CliRunner

from seeupo.cli import main
from seeupo.config.loader import recipe_to_toml
from training.small_runs import small


def run(*arguments):
    return CliRunner().invoke(main, [str(argument) for argument in arguments])


@pytest.fixture
def recipe(tmp_path):
    path = tmp_path / "small.toml"
    path.write_text(recipe_to_toml(small()))
    return path


@pytest.fixture(scope="module")
def finished(tmp_path_factory):
    folder = tmp_path_factory.mktemp("finished")
    (folder / "small.toml").write_text(recipe_to_toml(small()))
    return folder / "run", run("train", folder / "small.toml", "--out", folder / "run", "--run.seed", "5")


def test_a_run_says_what_improved_where_everything_is_and_what_to_do_next(finished):
    folder, result = finished
    assert result.exit_code == 0, result.output
    for words in ("avg@2", "before", "after", str(folder / "policy"), "seeupo eval", "seeupo train --resume"):
        assert words.replace("\n", "") in result.output.replace("\n", ""), words
    assert "\x1b" not in result.output
    assert json.loads((folder / "summary.json").read_text())["iterations"] == 3
    assert "seed = 5" in (folder / "recipe.toml").read_text()


def test_a_run_can_be_evaluated_as_it_was_trained(finished, tmp_path):
    folder, _ = finished
    result = run("eval", folder, "--tasks", 2, "--samples", 2, "-k", 2, "--out", tmp_path / "e.json", "--json")
    assert result.exit_code == 0, result.output
    plan = json.loads(result.stdout)["plan"]
    assert plan["environment"] == "pocket"
    assert plan["options"]["deceptive"] == 0.5
    assert (plan["max_turns"], plan["sampling"]["max_tokens"], plan["sampling"]["template"]) == (4, 6, "plain")


def test_a_run_without_a_policy_says_how_to_get_one(finished, tmp_path):
    folder, _ = finished
    (tmp_path / "recipe.toml").write_text((folder / "recipe.toml").read_text())
    result = run("eval", tmp_path, "--out", tmp_path / "e.json")
    assert result.exit_code == 1
    assert "has no policy yet; end the run first" in result.output


def test_a_dry_run_trains_nothing(recipe, tmp_path):
    result = run("train", recipe, "--out", tmp_path / "run", "--dry-run", "--collect.group_size", "6")
    assert result.exit_code == 0, result.output
    assert "group_size = 6" in result.output
    assert "3 iterations of 4 tasks x 6 attempts" in result.output
    assert "Nothing was trained." in result.output
    assert not (tmp_path / "run").exists()


@pytest.mark.parametrize(
    ("arguments", "messages"),
    [
        (["tiny-poket"], ["did you mean 'tiny-pocket'?"]),
        (["--run.sed", "1"], ["run.sed: ", "did you mean run.seed?"]),
        (
            ["--run.iterations", "0", "--agent.max_turns", "many", "--algorithm.order", "sideways"],
            ["run.iterations = 0: ", 'agent.max_turns = "many": expected a whole number', "sideways"],
        ),
        (["--run.seed"], ["--run.seed needs a value"]),
        (["--fast"], ["'--fast' is no option"]),
        (["--environment.name", "poket"], ["did you mean 'pocket'?"]),
        (["--environment.options.surfce", "natural"], ["did you mean 'surface'?"]),
        (["--model.name", "smolm2-135m"], ["did you mean 'smollm2-135m'?"]),
        (["--environment.test_split", "tset"], ["has no split 'tset'; did you mean 'test'?"]),
        (["--warm_start.mistakes.wrong_wrd", "0.5"], ["there is no mistake 'wrong_wrd'; did you mean 'wrong_word'?"]),
        (["--out", "/proc/nope"], ["the run /proc/nope cannot be made"]),
        (["--resume", "nowhere"], ["nowhere is not there; name the folder of a run"]),
    ],
)
def test_mistakes_are_lines_for_people(recipe, tmp_path, monkeypatch, arguments, messages):
    monkeypatch.chdir(tmp_path)
    named = arguments[0] in ("tiny-poket", "--resume")
    result = run("train", *([] if named else [recipe]), *arguments)
    assert result.exit_code == 1
    assert "Traceback" not in result.output
    for message in messages:
        assert message in result.output
    assert not (tmp_path / "runs").exists() or not list((tmp_path / "runs").glob("*/policy"))


def test_a_section_can_be_switched_off(recipe, tmp_path):
    result = run("train", recipe, "--warm_start", "none", "--dry-run")
    assert result.exit_code == 0, result.output
    assert "warm start" not in result.output


def test_an_episode_of_a_run_is_shown_as_it_was_trained(finished):
    folder, _ = finished
    result = run("agents", "show", "--model", folder)
    assert result.exit_code == 0, result.output
    assert "turn 1" in result.output


def test_going_on_keeps_to_what_was_begun(finished):
    folder, _ = finished
    assert "only keys of [run] can change" in run("train", "--resume", folder, "--algorithm.order", "natural").output
    assert "leave the others out" in run("train", "tiny-pocket", "--resume", folder).output


def start(recipe, folder, **options):
    command = [sys.executable, "-m", "seeupo", "train", str(recipe), "--out", str(folder), "--run.iterations", "1000"]
    return subprocess.Popen(command, text=True, stdout=subprocess.PIPE, stderr=subprocess.PIPE, **options)


def wait_for(path, process):
    while not path.exists() and process.poll() is None:
        time.sleep(0.05)


def test_ctrl_c_finishes_the_step_saves_and_says_how_to_go_on(recipe, tmp_path):
    process = start(recipe, tmp_path / "run")
    wait_for(tmp_path / "run" / "trajectories" / "00002.jsonl.gz", process)
    process.send_signal(signal.SIGINT)
    _, said = process.communicate(timeout=120)
    assert process.returncode == 130, said
    assert "the step under way is finished and saved" in said
    assert f"seeupo train --resume {tmp_path / 'run'}" in said.replace("\n", "")
    assert "Traceback" not in said
    result = run("train", "--resume", tmp_path / "run", "--run.iterations", "3")
    assert result.exit_code == 0, result.output


def test_a_scheduler_that_ends_the_process_is_heard_too(recipe, tmp_path):
    process = start(recipe, tmp_path / "run")
    wait_for(tmp_path / "run" / "trajectories" / "00001.jsonl.gz", process)
    process.terminate()
    process.communicate(timeout=120)
    assert process.returncode == 130


def test_on_a_terminal_there_is_a_live_display(recipe, tmp_path):
    """A pseudo-terminal of 100 columns: what is drawn has the parts that a person looks for."""
    parent, child = pty.openpty()
    environment = {**os.environ, "COLUMNS": "100", "TERM": "xterm-256color"}
    command = [sys.executable, "-m", "seeupo", "train", str(recipe), "--out", str(tmp_path / "run")]
    process = subprocess.Popen(command, stdin=child, stdout=child, stderr=child, env=environment)
    os.close(child)
    seen = []

    def read():
        while True:
            try:
                data = os.read(parent, 65536)
            except OSError:  # the other end is gone
                return
            if not data:
                return
            seen.append(data)

    reader = threading.Thread(target=read)
    reader.start()
    assert process.wait(timeout=120) == 0
    reader.join()
    os.close(parent)
    text = b"".join(seen).decode(errors="replace")
    for words in ("iteration 3 of 3", "held out", "avg@2", "held-out tasks"):
        assert words in text
