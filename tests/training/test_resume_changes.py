"""Settings that change between stop and resume are noticed, refused or accepted, and recorded."""

import json
import shutil

import pytest
from click.testing import CliRunner
from safetensors.torch import load_file, save_file

from seeupo.callbacks import Callback
from seeupo.cli import main
from seeupo.config.loader import read_recipe
from seeupo.errors import CheckpointError, ConfigError, RunError, TrainingError
from seeupo.report.overview import run_overview
from seeupo.report.selection import Selection
from seeupo.runs.checkpoints import Checkpoints
from seeupo.runs.reader import read_run
from seeupo.training.run import resume, train
from training.small_runs import small


class Notes(Callback):
    def __init__(self):
        self.texts = []

    def on_note(self, text):
        self.texts.append(text)


@pytest.fixture(scope="module")
def stopped(tmp_path_factory):
    """A run of one iteration."""
    run_dir = tmp_path_factory.mktemp("stopped") / "run"
    return train(small(run={"iterations": 1}), run_dir=run_dir).run_dir


@pytest.fixture
def run(stopped, tmp_path):
    return shutil.copytree(stopped, tmp_path / "run")


def edit(run, old, new):
    path = run / "recipe.toml"
    text = path.read_text()
    assert old in text
    path.write_text(text.replace(old, new, 1))


def contents(run):
    return {path: path.read_bytes() for path in sorted(run.rglob("*")) if path.is_file()}


def env_info(run):
    return json.loads((run / "env_info.json").read_text())


def cli(*arguments):
    return CliRunner().invoke(main, [str(argument) for argument in arguments], env={"COLUMNS": "500"})


def test_an_edited_recipe_is_refused_with_the_changed_keys(run):
    edit(run, "learning_rate = 0.001", "learning_rate = 0.0005")
    edit(run, "group_size = 4", "group_size = 6")
    before = contents(run)
    result = cli("train", "--resume", run, "--run.iterations", "2")
    assert result.exit_code == 1
    (message,) = result.output.strip().splitlines()
    assert "collect.group_size: the run used 4, you asked for 6 (edited in recipe.toml)" in message
    assert "optimizer.learning_rate: the run used 0.001, you asked for 0.0005 (edited in recipe.toml)" in message
    assert "--accept-changes" in message
    assert "run.iterations" not in message
    with pytest.raises(TrainingError, match=r"optimizer.learning_rate: the run used 0.001, you asked for 0.0005"):
        resume(run)
    assert contents(run) == before


def test_accepted_edits_are_used_recorded_and_shown(run):
    edit(run, "learning_rate = 0.001", "learning_rate = 0.0005")
    result = cli("train", "--resume", run, "--accept-changes", "--run.iterations", "2")
    assert result.exit_code == 0, result.output
    assert (
        "Changed after iteration 1: run.iterations = 2 instead of 1, optimizer.learning_rate = 0.0005" in result.output
    )
    records = [json.loads(line) for line in (run / "metrics.jsonl").read_text().splitlines()]
    rates = [each["learning_rate"] for each in records if each["kind"] == "iteration"]
    assert rates == [0.001, 0.0005]
    changes = [
        {"iteration": 1, "key": "run.iterations", "old": 1, "new": 2},
        {"iteration": 1, "key": "optimizer.learning_rate", "old": 0.001, "new": 0.0005},
    ]
    assert env_info(run)["changes"] == json.loads((run / "summary.json").read_text())["changes"] == changes
    assert "learning_rate = 0.0005 instead of 0.001" in (run / "policy" / "README.md").read_text()
    assert env_info(run)["recipe"]["optimizer"]["learning_rate"] == 0.0005
    # From now on these are the settings of the run: nothing has changed at the next resumption.
    notes = Notes()
    resume(run, callback=notes)
    assert env_info(run)["changes"] == changes
    assert not [text for text in notes.texts if "Changed" in text]


def test_the_optimizer_can_be_changed_by_options_and_from_python(run, tmp_path):
    again = shutil.copytree(run, tmp_path / "again")
    options = ["--run.iterations", "2", "--optimizer.learning_rate", "5e-5", "--optimizer.weight_decay", "0.5"]
    refused = cli("train", "--resume", run, *options)
    assert refused.exit_code == 1
    assert "optimizer.learning_rate: the run used 0.001, you asked for 5e-05" in refused.output
    assert "edited" not in refused.output
    assert cli("train", "--resume", run, *options, "--accept-changes").exit_code == 0
    changes = {"run.iterations": 2, "optimizer.learning_rate": 5e-5, "optimizer.weight_decay": 0.5}
    result = resume(again, changes=changes, accept_changes=True)
    assert {(each["key"], each["new"]) for each in result.summary["changes"]} == set(changes.items())
    assert read_recipe(str(again / "recipe.toml")).optimizer.weight_decay == 0.5
    for folder in (run, again):
        records = [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]
        assert [record["learning_rate"] for record in records if "learning_rate" in record] == [1e-3, 5e-5]
    assert (run / "policy" / "model.safetensors").read_bytes() == (again / "policy" / "model.safetensors").read_bytes()


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"run.seed": 4}, "run.seed: the run used 3, you asked for 4. This cannot change"),
        ({"model.tiny.width": 64}, "model.tiny.width: the run used 32, you asked for 64. This cannot change"),
        ({"environment.options.turns": [2, 4]}, r"options.turns: the run used \[2, 3\], you asked for \[2, 4\]"),
        ({"agent.max_turns": 5}, "agent.max_turns: the run used 4, you asked for 5"),
        ({"algorithm.name": "grpo"}, 'algorithm.name: the run used "seeupo", you asked for "grpo"'),
        ({"algorithm.kl_coef": 0.1}, r"kl_coef: the run used 0.0, you asked for 0.1.*depend on the reference"),
        ({"optimizer.moments": "per_agent"}, "optimizer.moments"),
        ({"warm_start.batches": 5}, "warm_start"),
    ],
)
def test_changes_that_the_run_depends_on_are_refused_even_if_accepted(run, changes, message):
    before = contents(run)
    with pytest.raises(TrainingError, match=message):
        resume(run, changes=changes, accept_changes=True)
    assert contents(run) == before


def test_changes_of_the_format_of_the_recipe_are_no_changes(run):
    text = (run / "recipe.toml").read_text()
    (run / "recipe.toml").write_text("# a comment\n" + text.replace("learning_rate = 0.001", "learning_rate = 1.0e-3"))
    assert resume(run).summary["changes"] == []


def test_invalid_changes_are_user_errors(run):
    for changes in ({"run.iterations": -1}, {"run.iteration": 3}, {"optimizer.learning_rate": "fast"}):
        with pytest.raises(ConfigError, match=next(iter(changes))):
            resume(run, changes=changes)
    assert cli("train", "--accept-changes").exit_code == 2


def test_a_record_that_is_no_recipe_is_refused(run):
    for recipe, message in (([], "recipe is not a table"), ({"model": {"nam": "x"}}, "model.nam")):
        (run / "env_info.json").write_text(json.dumps({**env_info(run), "recipe": recipe}))
        with pytest.raises((RunError, ConfigError), match=message):
            resume(run)


def test_the_report_shows_changes(run):
    resume(run, changes={"run.iterations": 2, "optimizer.learning_rate": 5e-5}, accept_changes=True)
    details = dict(run_overview(read_run(run), "run", Selection())["details"])
    assert details["Changed on resume"].endswith("optimizer.learning_rate = 5e-05 instead of 0.001")


def rewrite_checkpoint(run, change):
    """Change the files of a checkpoint and its manifest, as a stranger would."""
    checkpoints = Checkpoints(run / "checkpoints", keep=5)
    latest = checkpoints.latest()
    files = run / "files"
    shutil.copytree(latest.path, files)
    state = change(files) or latest.state
    for name in ("manifest.json", "state.json"):
        (files / name).unlink()
    checkpoints.write(latest.iteration, state, lambda path: shutil.copytree(files, path, dirs_exist_ok=True))
    shutil.rmtree(files)


def cut(files):
    path = files / "model.safetensors"
    path.write_bytes(path.read_bytes()[:-10])


def other_vocabulary(files):
    weights = load_file(files / "model.safetensors")
    weights["model.embed_tokens.weight"] = weights["model.embed_tokens.weight"][:-1].clone()
    save_file(weights, files / "model.safetensors")


def cut_state(files):
    path = files / "state" / "state.safetensors"
    path.write_bytes(path.read_bytes()[:-10])


def other_moments(files):
    path = files / "state" / "state.safetensors"
    state = load_file(path)
    name = next(name for name in state if name.endswith("exp_avg_sq"))
    save_file({**state, name: state[name][:1].clone()}, path)


def other_state(files):
    return {"iteration": 1, "no_such_key": 2}


def other_iteration(files):
    return {"iteration": 7}


@pytest.mark.parametrize("change", [cut, other_vocabulary, cut_state, other_moments, other_state, other_iteration])
def test_checkpoints_that_do_not_fit_are_one_line(run, change):
    rewrite_checkpoint(run, change)
    result = cli("train", "--resume", run, "--run.iterations", "2")
    assert result.exit_code == 1, result.output
    assert isinstance(result.exception, SystemExit)
    assert "00001 does not fit this run" in result.output.splitlines()[-1]
    with pytest.raises(CheckpointError, match="does not fit this run"):
        resume(run)


def kinds_of(run):
    records = [json.loads(line) for line in (run / "metrics.jsonl").read_text().splitlines()]
    return [(record["kind"], record["iteration"]) for record in records if record["kind"] != "warm_start"]


@pytest.mark.parametrize(
    ("kept", "lost"),
    [
        (None, "the warm start, and of iteration 1, and of the evaluations 0, 1"),
        (lambda record: False, "the warm start, and of iteration 1, and of the evaluations 0, 1"),
        (lambda record: record["kind"] != "iteration", "iteration 1"),
        (lambda record: (record["kind"], record["iteration"]) != ("evaluation", 0), "the evaluation 0"),
    ],
    ids=["deleted", "empty", "without iterations", "without an evaluation"],
)
def test_lost_metrics_are_refused_or_accepted_and_recorded_once(run, kept, lost):
    metrics = run / "metrics.jsonl"
    lines = metrics.read_text().splitlines(keepends=True)
    metrics.unlink() if kept is None else metrics.write_text("".join(li for li in lines if kept(json.loads(li))))
    before = contents(run)
    refused = cli("train", "--resume", run, "--run.iterations", "2")
    assert refused.exit_code == 1
    (message,) = [line for line in refused.output.splitlines() if line.startswith("Error: ")]
    assert f"metrics.jsonl has no record of {lost}, which the last checkpoint includes" in message
    assert "--accept-changes" in message
    assert contents(run) == before

    accepted = cli("train", "--resume", run, "--run.iterations", "2", "--accept-changes")
    assert accepted.exit_code == 0, accepted.output
    change = {"iteration": 1, "key": "metrics.jsonl", "old": lost, "new": "lost"}
    assert change in env_info(run)["changes"]
    assert change in json.loads((run / "summary.json").read_text())["changes"]
    assert ("iteration", 2) in kinds_of(run)
    assert cli("train", "--resume", run, "--run.iterations", "3").exit_code == 0  # it is asked about once
    # A later loss is another one.
    metrics.write_text("")
    with pytest.raises(TrainingError, match="no record of iterations 2, 3"):
        resume(run, changes={"run.iterations": 4})
