import json
import shutil
from dataclasses import replace
from pathlib import Path

import pytest
import torch

from envs.counting import CountingFactory
from rollout.worlds import EchoFactory
from seeupo.callbacks import Callback
from seeupo.config.loader import read_recipe, recipe_to_toml
from seeupo.config.model_settings import TinyConfig
from seeupo.envs.pool.pool import EnvPool
from seeupo.errors import EnvError, EvaluationError
from seeupo.evaluation import evaluate as module
from seeupo.evaluation.evaluate import evaluate, model_of, model_runner, one_episode, resolve_options, run_evaluation
from seeupo.evaluation.policies import TextPolicies
from seeupo.evaluation.results import Evaluation
from seeupo.models.loading import load_policy
from seeupo.models.saving import save_model
from seeupo.models.threads import num_threads
from seeupo.rollout.groups import group_attempts
from seeupo.rollout.template import REMINDER
from seeupo.runs.run_directory import POLICY, RECIPE

SHORT = {"max_tokens": 6, "plain": True}


@pytest.fixture(scope="module")
def model_folder(tmp_path_factory):
    """A small model as a Hugging Face folder."""
    folder = tmp_path_factory.mktemp("model")
    policy = load_policy("tiny", tiny=TinyConfig(width=32, layers=1, heads=2, context=512))
    save_model(policy.model, policy.tokenizer, folder)
    return folder


@pytest.fixture
def run_dir(tmp_path, model_folder):
    """The directory of a finished run, with settings that differ from the defaults."""
    recipe = read_recipe("tiny-pocket")
    recipe = replace(
        recipe,
        environment=replace(recipe.environment, test_split="train", options={"turns": [2, 2]}),
        agent=replace(
            recipe.agent,
            temperature=0.7,
            max_tokens=5,
            max_turns=3,
            reasoning=False,
            concurrency=7,
            max_observation_tokens=20,
            max_prompt_tokens=400,
        ),
    )
    path = tmp_path / "run"
    path.mkdir()
    (path / RECIPE).write_text(recipe_to_toml(recipe))
    shutil.copytree(model_folder, path / POLICY)
    return path


def test_expert_random_policy_and_model_are_evaluated(model_folder):
    found = {
        policy: evaluate(policy, "pocket", tasks=10, attempts=2, k=2, **SHORT).summary()
        for policy in ("expert", "random", model_folder)
    }
    assert found["expert"]["avg@2"]["value"] == 1.0
    assert found["random"]["avg@2"]["value"] < 0.2
    assert found[model_folder]["mean_action_tokens"] > 0
    assert all(summary["episodes"] == 20 for summary in found.values())


def test_evaluation_is_repeatable_and_depends_on_the_seed(model_folder):
    one, same, other = (
        evaluate(model_folder, "pocket", tasks=4, attempts=2, k=1, seed=seed, **SHORT).results for seed in (0, 0, 1)
    )
    assert one == same
    assert one != other


@pytest.mark.parametrize(("small_model", "threads"), [(10**7, 1), (1, 2)])
def test_threads_follow_the_size_of_the_model(small_model, threads, model_folder, monkeypatch):
    monkeypatch.setattr("seeupo.models.threads.SMALL_MODEL", small_model)
    options = resolve_options(policy=str(model_folder), **SHORT)
    with num_threads(2), EnvPool("pocket") as pool:
        with model_runner(options, pool):
            assert torch.get_num_threads() == threads
        assert torch.get_num_threads() == 2


def test_temperature_zero_is_greedy(model_folder):
    distinct = []
    for temperature in (0, 1.0):
        options = resolve_options(policy=str(model_folder), temperature=temperature, **SHORT)
        assert options.sampling["temperature"] == temperature
        with EnvPool("pocket") as pool:
            attempts = group_attempts(pool.tasks("test")[:1], 4, seed=0)
            with model_runner(options, pool) as runner:
                found = list(runner.run(attempts))
        distinct.append(len({tuple(turn.action_ids for turn in trajectory.turns) for trajectory in found}))
    assert distinct == [1, 4]


def test_custom_environment_is_evaluated(model_folder):
    found = evaluate("expert", CountingFactory(), split="easy", attempts=1, k=1)
    assert found.plan.environment == "envs.counting:CountingFactory"
    assert (found.plan.split, found.plan.options) == ("easy", {})
    assert found.summary()["avg@1"]["value"] == 1.0
    assert evaluate(model_folder, EchoFactory(), attempts=1, k=1, **SHORT).summary()["episodes"] == 8
    with pytest.raises(EnvError, match="options"):
        evaluate("expert", CountingFactory(), options={"a": 1})


def test_run_directory_supplies_the_settings(run_dir):
    options = resolve_options(policy=str(run_dir), temperature=None, max_turns=9)
    assert (options.environment, options.split, options.options) == ("pocket", "train", {"turns": [2, 2]})
    assert (options.temperature, options.max_tokens, options.max_turns) == (0.7, 5, 9)
    assert options.concurrency == 7
    assert (options.plain, options.max_observation_tokens, options.max_prompt_tokens) == (True, 20, 400)
    found = evaluate(run_dir, tasks=3, attempts=1, k=1)
    assert (found.plan.environment, found.plan.split, found.plan.max_turns) == ("pocket", "train", 3)
    assert found.plan.sampling == {"temperature": 0.7, "max_tokens": 5, "template": "plain"}
    assert len(found.results) == 3


def test_run_in_another_environment_keeps_agent_settings_only(run_dir):
    options = resolve_options(policy=str(run_dir), environment="bfcl")
    assert (options.environment, options.split, options.options) == ("bfcl", None, {})
    assert options.temperature == 0.7
    same = resolve_options(policy=str(run_dir), environment="pocket", options={"surface": "natural"})
    assert (same.split, same.options) == ("train", {"surface": "natural"})
    found = evaluate(run_dir, EchoFactory(), tasks=2, attempts=1, k=1)
    assert found.plan.options == {}


def test_unfinished_run_is_refused(run_dir):
    assert model_of(str(run_dir)) == str(run_dir / POLICY)
    assert model_of("tiny") == "tiny"
    shutil.rmtree(run_dir / POLICY)
    with pytest.raises(EvaluationError, match=r"no policy yet.*seeupo train --resume"):
        evaluate(run_dir, attempts=1, k=1)


class Progress(Callback):
    """Records the progress of an evaluation and its notes."""

    def __init__(self, action=lambda: None):
        self.action, self.done, self.totals, self.notes = action, [], [], []

    def on_phase(self, name, total=None):
        self.totals.append(total)

    def on_progress(self, done, text=""):
        self.done.append(done)
        self.action()

    def on_note(self, text):
        self.notes.append(text)


def run(out, *, policy="expert", resume=False, callback=None, **options):
    resolved = resolve_options(policy=policy, environment="pocket", tasks=5, **SHORT, **options)
    return run_evaluation(resolved, out=out, folder=Path("runs/eval"), resume=resume, callback=callback)


def test_result_file_is_written_and_never_overwritten(tmp_path, model_folder, monkeypatch):
    out = tmp_path / "new" / "r.json"
    progress = Progress()
    evaluation, path = run(out, policy=str(model_folder), callback=progress)
    assert path == out
    assert Evaluation.read(out).results == evaluation.results
    assert (progress.done, progress.totals) == (list(range(1, 21)), [20])
    with pytest.raises(EvaluationError, match=r"already exists; .*--resume"):
        run(out)
    monkeypatch.chdir(tmp_path)
    for options in ({}, {"temperature": 0.5}):
        _, path = run(None, **options)
    assert path == Path("runs/eval/expert-pocket-test-002.json")
    _, path = run(None, temperature=0.5, resume=True)
    assert path == Path("runs/eval/expert-pocket-test-002.json")


def test_resume_runs_missing_and_failed_attempts_only(tmp_path, model_folder):
    out = tmp_path / "r.json"
    complete, _ = run(out, policy=str(model_folder))
    record = json.loads(out.read_text())
    record["episodes"] = record["episodes"][:12]
    record["episodes"][3] |= {"score": None, "stop": "failure", "failure": "lost"}
    out.write_text(json.dumps(record))
    progress = Progress()
    again, _ = run(out, policy=str(model_folder), resume=True, callback=progress)
    assert (progress.done[-1], progress.totals) == (9, [9])
    assert again.results.keys() == complete.results.keys()
    assert again.summary()["failures"] == 0
    run(out, policy=str(model_folder), resume=True, callback=Progress(lambda: pytest.fail("nothing is missing")))
    more, _ = run(out, policy=str(model_folder), resume=True, attempts=5)
    assert len(more.results) == 25
    with pytest.raises(EvaluationError, match="seed was 0 and is now 1"):
        run(out, policy=str(model_folder), resume=True, seed=1)


@pytest.mark.parametrize("error", [KeyboardInterrupt, RuntimeError])
def test_interrupt_keeps_finished_attempts(tmp_path, monkeypatch, error):
    out, progress = tmp_path / "r.json", Progress()
    finish = TextPolicies.run

    def interrupted(self, attempts):
        for number, result in enumerate(finish(self, attempts)):
            if number == 7:
                raise error
            yield result

    with monkeypatch.context() as patch:
        patch.setattr(TextPolicies, "run", interrupted)
        with pytest.raises(error):
            run(out, callback=progress)
    assert len(Evaluation.read(out).results) == 7
    assert len(progress.notes) == 1
    assert str(out) in progress.notes[0]
    evaluation, _ = run(out, resume=True)
    assert evaluation.summary()["avg@4"]["value"] == 1.0
    assert evaluation.summary()["episodes"] == 20


def test_results_are_written_while_the_evaluation_runs(tmp_path, monkeypatch):
    monkeypatch.setattr(module, "SECONDS_BETWEEN_WRITES", 0.0)
    out = tmp_path / "r.json"
    on_disk = []
    run(out, callback=Progress(lambda: on_disk.append(len(Evaluation.read(out).results) if out.exists() else 0)))
    assert on_disk == list(range(20))


@pytest.mark.parametrize(
    ("options", "error", "message"),
    [
        ({"policy": "expert"}, EvaluationError, "--env"),
        ({"environment": "pocket"}, EvaluationError, "--endpoint"),
        ({"environment": "pocket", "policy": "expert", "endpoint": "http://x/v1"}, EvaluationError, "either"),
        ({"environment": "pocket", "endpoint": "http://127.0.0.1:9/v1"}, EvaluationError, "--model"),
        ({"environment": "pocket", "policy": "expert", "k": 5}, EvaluationError, "k = 5"),
        ({"environment": "pocket", "policy": "expert", "split": "none"}, EnvError, "'none'"),
        ({"environment": "pocket", "policy": "nothing-like-it"}, EvaluationError, "nothing-like-it does not exist"),
    ],
)
def test_invalid_options_are_user_errors_and_write_nothing(options, error, message, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    with pytest.raises(error, match=message):
        run_evaluation(resolve_options(**options), folder=Path("runs/eval"))
    assert list(tmp_path.iterdir()) == []


def episode(policy, environment, task_id=None, **options):
    return one_episode(resolve_options(policy=str(policy), environment=environment, **options), task_id)


def test_one_episode_returns_the_trajectory_and_its_chat_format(run_dir, model_folder):
    chat, trajectory = episode(model_folder, "pocket", max_turns=2, max_tokens=64)
    with EnvPool("pocket") as pool:
        tasks = pool.tasks(pool.splits[-1])
    assert trajectory.task == tasks[0].id
    assert len(trajectory.turns) <= 2
    assert REMINDER in chat.tokenizer.decode(trajectory.turns[0].prompt_ids)
    _, other = episode(model_folder, "pocket", tasks[3].id, plain=True, max_turns=2, max_tokens=64)
    assert other.task == tasks[3].id
    chat, of_run = episode(run_dir, None)
    assert REMINDER not in chat.tokenizer.decode(of_run.turns[0].prompt_ids)
    assert all(len(turn.action_ids) <= 5 for turn in of_run.turns)
    with pytest.raises(EvaluationError, match="no task 'nothing'"):
        episode(model_folder, "pocket", "nothing")
    with pytest.raises(EvaluationError, match="--env"):
        episode(model_folder, None)
