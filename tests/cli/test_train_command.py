"""`seeupo train` on the command line."""

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
from seeupo.cli.train_command import show_result
from seeupo.config.loader import recipe_to_toml
from seeupo.training.loop import Loop
from seeupo.training.run import TrainingResult
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


def test_the_result_shows_scores_paths_and_next_commands(finished):
    folder, result = finished
    assert result.exit_code == 0, result.output
    best = json.loads((folder / "summary.json").read_text())["best"]
    where = "best      the policy above" if best["iteration"] == 3 else f"best      {folder / best['checkpoint']}"
    commands = ("seeupo eval", f"seeupo export {folder} OUT", "seeupo train --resume")
    for words in ("avg@2", "before", "after", str(folder / "policy"), where, *commands):
        assert words in result.output.replace("\n", ""), words
    assert "\x1b" not in result.output
    assert json.loads((folder / "summary.json").read_text())["iterations"] == 3
    assert "seed = 5" in (folder / "recipe.toml").read_text()


def test_eval_uses_the_settings_of_the_run(finished, tmp_path):
    folder, _ = finished
    result = run("eval", folder, "--tasks", 2, "--attempts", 2, "-k", 2, "--out", tmp_path / "e.json", "--json")
    assert result.exit_code == 0, result.output
    plan = json.loads(result.stdout)["plan"]
    assert plan["environment"] == "pocket"
    assert plan["options"]["deceptive"] == 0.5
    assert (plan["max_turns"], plan["sampling"]["max_tokens"], plan["sampling"]["template"]) == (4, 6, "plain")


def test_eval_of_an_unfinished_run_is_an_error(finished, tmp_path):
    folder, _ = finished
    (tmp_path / "recipe.toml").write_text((folder / "recipe.toml").read_text())
    result = run("eval", tmp_path, "--out", tmp_path / "e.json")
    assert result.exit_code == 1
    assert "no policy" in result.output
    assert "seeupo train --resume" in result.output


def test_a_dry_run_trains_nothing(recipe, tmp_path):
    result = run("train", recipe, "--out", tmp_path / "run", "--dry-run", "--collect.group_size", "6")
    assert result.exit_code == 0, result.output
    assert "group_size = 6" in result.output
    assert "3 iterations of 4 tasks x 6 attempts" in result.output
    assert not (tmp_path / "run").exists()


@pytest.mark.parametrize(
    ("arguments", "messages"),
    [
        (["tiny-poket"], ["did you mean 'tiny-pocket'?"]),
        (["--run.sed", "1"], ["run.sed: ", "did you mean run.seed?"]),
        (
            ["--run.iterations", "-1", "--agent.max_turns", "many", "--algorithm.order", "sideways"],
            ["run.iterations = -1: ", 'agent.max_turns = "many": expected an integer', "sideways"],
        ),
        (["--run.seed"], ["--run.seed needs a value"]),
        (["--fast"], ["'--fast' is not an option"]),
        (["--environment.name", "poket"], ["did you mean 'pocket'?"]),
        (["--environment.options.surfce", "natural"], ["did you mean 'surface'?"]),
        (["--model.name", "smolm2-135m"], ["did you mean 'smollm2-135m'?"]),
        (["--environment.test_split", "tset"], ["'tset'", "did you mean 'test'?"]),
        (["--warm_start.mistakes.wrong_wrd", "0.5"], ["'wrong_wrd'", "did you mean 'wrong_word'?"]),
        (["--out", "/proc/nope"], ["/proc/nope"]),
        (["--resume", "nowhere"], ["nowhere"]),
    ],
)
def test_user_errors_print_no_traceback(recipe, tmp_path, monkeypatch, arguments, messages):
    monkeypatch.chdir(tmp_path)
    named = arguments[0] in ("tiny-poket", "--resume")
    result = run("train", *([] if named else [recipe]), *arguments)
    assert result.exit_code == 1
    assert "Traceback" not in result.output
    for message in messages:
        assert message in result.output
    assert not (tmp_path / "runs").exists() or not list((tmp_path / "runs").glob("*/policy"))


def test_a_section_can_be_disabled(recipe, tmp_path):
    result = run("train", recipe, "--warm_start", "none", "--dry-run")
    assert result.exit_code == 0, result.output
    assert "warm start" not in result.output


def test_agents_show_uses_the_settings_of_the_run(finished):
    folder, _ = finished
    result = run("agents", "show", "--model", folder)
    assert result.exit_code == 0, result.output
    assert "turn 1" in result.output


def test_a_warning_is_followed_by_the_command_to_look_at_the_policy(finished, capsys):
    folder, _ = finished
    summary = json.loads((folder / "summary.json").read_text())
    look = f"look      seeupo agents show --model {folder} --trust my_env:Factory"
    recipe = small(run={"iterations": 3}, environment={"name": "my_env:Factory", "options": {}})
    for warnings, expected in (([], 0), (["no optimizer step was made"], 1)):
        result = TrainingResult(run_dir=folder, reason="", summary={**summary, "warnings": warnings})
        show_result(result, recipe)
        assert capsys.readouterr().out.count(look) == expected


def test_suggested_commands_trust_only_the_code_that_they_run(finished, capsys):
    folder, _ = finished
    summary = json.loads((folder / "summary.json").read_text())
    recipe = small(run={"iterations": 3}, collect={"reward": "rewards.py:short"})
    show_result(TrainingResult(run_dir=folder, reason="", summary=summary), recipe)
    output = capsys.readouterr().out
    assert f"seeupo eval {folder}  (" in output
    assert f"seeupo train --resume {folder} --run.iterations 6 --trust rewards.py:short" in output


def test_models_check_of_a_run_names_its_policy(finished):
    folder, _ = finished
    result = run("models", "check", folder)
    assert result.exit_code == 1
    assert f"The policy of this run is in {folder / 'policy'}" in result.output.replace("\n", " ")


def test_resume_refuses_another_recipe(finished):
    folder, _ = finished
    assert "leave out RECIPE" in run("train", "tiny-pocket", "--resume", folder).output


def start(recipe, folder, **options):
    command = [sys.executable, "-m", "seeupo", "train", str(recipe), "--out", str(folder), "--run.iterations", "1000"]
    return subprocess.Popen(command, text=True, stdout=subprocess.PIPE, stderr=subprocess.PIPE, **options)


def wait_for(path, process):
    while not path.exists() and process.poll() is None:
        time.sleep(0.05)


def test_ctrl_c_saves_and_prints_how_to_resume(recipe, tmp_path):
    process = start(recipe, tmp_path / "run")
    wait_for(tmp_path / "run" / "trajectories" / "00002.jsonl.gz", process)
    process.send_signal(signal.SIGINT)
    _, errors = process.communicate(timeout=600)
    assert process.returncode == 130, errors
    assert "Stopping after the current step" in errors
    assert f"seeupo train --resume {tmp_path / 'run'}" in errors.replace("\n", "")
    assert "Traceback" not in errors
    result = run("train", "--resume", tmp_path / "run", "--run.iterations", "3")
    assert result.exit_code == 0, result.output


def test_ctrl_c_before_the_run_directory_exists_names_nothing_to_resume(recipe, tmp_path, monkeypatch):
    def interrupted(*_):
        raise KeyboardInterrupt

    monkeypatch.setattr("seeupo.training.run.check_model", interrupted)
    result = run("train", recipe, "--out", tmp_path / "run")
    assert result.exit_code == 130, result.output
    assert "nothing was written" in result.output
    assert "--resume" not in result.output
    assert not (tmp_path / "run").exists()


def test_sigterm_saves_like_ctrl_c(recipe, tmp_path, monkeypatch):
    update = Loop.update

    def update_and_terminate(loop, collected):
        update(loop, collected)
        os.kill(os.getpid(), signal.SIGTERM)

    monkeypatch.setattr(Loop, "update", update_and_terminate)
    result = run("train", recipe, "--out", tmp_path / "run")
    assert result.exit_code == 130, result.output
    assert (tmp_path / "run" / "checkpoints" / "00001").is_dir()
    assert "seeupo train --resume" in result.output


def test_a_terminal_gets_a_live_display(recipe, tmp_path):
    """Run on a pseudo-terminal of 100 columns."""
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
    assert process.wait(timeout=600) == 0
    reader.join()
    os.close(parent)
    text = b"".join(seen).decode(errors="replace")
    for words in ("iteration 3 of 3", "held out", "avg@2", "held-out tasks"):
        assert words in text
