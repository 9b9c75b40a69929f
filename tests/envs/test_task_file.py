import json

import pytest

from seeupo.envs.pool.pool import EnvPool
from seeupo.envs.task_file.task_file import TaskFileFactory
from seeupo.errors import EnvError


def write(path, rows):
    path.write_text("".join(json.dumps(row) + "\n\n" for row in rows))
    return str(path)


def test_tasks_have_the_fields_of_their_lines(tmp_path):
    rows = [{"id": "a", "kind": "easy", "split": "train", "question": "x"}, {"split": "test", "question": ["y"]}]
    with EnvPool("tasks", options={"path": write(tmp_path / "tasks.jsonl", rows)}) as pool:
        (train,), (test,) = pool.tasks("train"), pool.tasks("test")
    assert (train.id, train.kind, train.payload) == ("a", "easy", rows[0])
    assert (test.id, test.payload["question"]) == ("000003", ["y"])


def test_a_fifth_of_the_tasks_is_held_out_by_their_ids(tmp_path):
    ids = list(range(1000))
    factory = TaskFileFactory(path=write(tmp_path / "a.jsonl", [{"id": id_} for id_ in ids]))
    held_out = {task.id for task in factory.tasks("test")}
    assert 150 < len(held_out) < 250
    fewer = TaskFileFactory(path=write(tmp_path / "b.jsonl", [{"id": id_} for id_ in ids[:100][::-1]]))
    assert {task.id for task in fewer.tasks("test")} == held_out & set(map(str, ids[:100]))


@pytest.mark.parametrize(
    ("lines", "problem"),
    [
        ("[1]", "JSON array"),
        ("{bad", "not JSON"),
        ('{"id": true}', '"id" is True; expected a string or an integer'),
        ('{"id": 1}\n{"id": "1"}', "line 2: the id '1' is already used"),
        ('{"split": "dev"}', '"split" is \'dev\'; expected "train" or "test"'),
        ('{"kind": 5, "split": "test"}', '"kind" is 5; expected a string'),
        ('{"split": "train"}', 'no task is in the split "test"'),
    ],
)
def test_malformed_files_are_one_line(tmp_path, lines, problem):
    path = tmp_path / "tasks.jsonl"
    path.write_text(lines)
    with pytest.raises(EnvError) as refused:
        TaskFileFactory(path=str(path))
    assert problem in str(refused.value)


def test_tasks_without_a_program_say_what_to_name(tmp_path):
    path = write(tmp_path / "tasks.jsonl", [{"split": "train"}, {"split": "test"}])
    with EnvPool("tasks", options={"path": path}) as pool, pytest.raises(EnvError, match=r"agent\.program"):
        pool.try_task(pool.tasks("train")[0])
