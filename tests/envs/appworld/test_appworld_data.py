import json

import pytest

from seeupo.envs.appworld.factory import AppWorldFactory
from seeupo.envs.appworld.task_data import IN_SANDBOX, mounts
from seeupo.errors import EnvError

ANSWER = "the answer is 42"


@pytest.fixture
def folder(tmp_path, monkeypatch):
    """A folder with the layout of AppWorld's data and none of its content."""
    monkeypatch.setenv("SEEUPO_CACHE", str(tmp_path / "cache"))
    folder = tmp_path / "cache" / "appworld" / "data"
    files = {
        "api_docs/standard/notes.json": "{}",
        "base_dbs/notes.db": "",
        "datasets/train.txt": "abc1234_2\nabc1234_1:tag\n\n",
        "datasets/dev.txt": "def1234_1",
        "tasks/abc1234_1/specs.json": "{}",
        "tasks/abc1234_1/dbs/notes.jsonl": "[]",
        "tasks/abc1234_1/ground_truth/answer.json": ANSWER,
        "tasks/abc1234_1/ground_truth/metadata.json": json.dumps({"difficulty": 3}),
        "tasks/abc1234_2/specs.json": "{}",
        "tasks/abc1234_2/dbs/notes.jsonl": "[]",
        "tasks/abc1234_2/ground_truth/evaluation.py": ANSWER,
        "tasks/abc1234_2/ground_truth/compiled_solution.py": "def solution(apis, requester): ...",
    }
    for name, text in files.items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text(text)
    return folder


def test_missing_data_names_the_download_command(tmp_path, monkeypatch):
    monkeypatch.setenv("SEEUPO_CACHE", str(tmp_path))
    with pytest.raises(EnvError, match=rf"/appworld download data --root {tmp_path}/appworld$"):
        AppWorldFactory()
    with pytest.raises(EnvError, match=rf"not in {tmp_path}/elsewhere/data.*--root {tmp_path}/elsewhere$"):
        mounts({"data": f"{tmp_path}/elsewhere/data"}, role="run")


def test_splits_and_tasks_follow_appworlds_lists(folder):
    factory = AppWorldFactory()
    assert factory.splits == ["train", "dev"]
    assert [(task.id, task.split, task.kind) for task in factory.tasks("train")] == [
        ("abc1234_2", "train", ""),
        ("abc1234_1", "train", "difficulty 3"),
    ]


def test_the_expert_runs_the_solution_if_there_is_one(folder):
    factory = AppWorldFactory()
    solved, unsolved = factory.tasks("train")
    expert = factory.expert(solved)
    assert expert is not None
    assert "def solution(apis, requester)" in expert(None)
    assert factory.expert(unsolved) is None


def test_workers_that_run_model_code_see_no_ground_truth(folder):
    ((inside, outside),) = mounts({}, role="run").items()
    assert inside == IN_SANDBOX
    names = {str(path.relative_to(outside)) for path in outside.rglob("*") if path.is_file()}
    assert names == {str(path.relative_to(folder)) for path in folder.rglob("*") if path.is_file()} - {
        "tasks/abc1234_1/ground_truth/answer.json",
        "tasks/abc1234_1/ground_truth/metadata.json",
        "tasks/abc1234_2/ground_truth/evaluation.py",
        "tasks/abc1234_2/ground_truth/compiled_solution.py",
    }
    assert not any(ANSWER in path.read_text() for path in outside.rglob("*") if path.is_file())
    assert mounts({}, role="judge") == {IN_SANDBOX: folder}


def test_the_copy_without_answers_is_renewed_when_the_data_changes(folder):
    first = mounts({}, role="run")[IN_SANDBOX]
    assert mounts({}, role="run")[IN_SANDBOX] == first
    (folder / "tasks" / "new1234_1" / "dbs").mkdir(parents=True)
    (folder / "tasks" / "new1234_1" / "specs.json").write_text("{}")
    second = mounts({}, role="run")[IN_SANDBOX]
    assert second != first
    assert (second / "tasks" / "new1234_1" / "specs.json").is_file()
