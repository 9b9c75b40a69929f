"""Create a small data folder for the real AppWorld engine: `python make_tasks.py ROOT`, in AppWorld's interpreter.

Three made-up tasks on one user's notes: a question, a note to write and a note to delete. The databases and the API
documentation come from the installed engine. ROOT/data then has the layout of the download.
"""

import json
import re
import sys
from pathlib import Path

from appworld import update_root
from appworld.apps import get_all_apps
from appworld.apps.api_lib import set_local_date_and_time
from appworld.collections.api_docs import ApiDocCollection
from appworld.collections.models import ModelCollection
from appworld.common.constants import CANARY_STRING, DB_VERSION
from appworld.common.datetime import DateTime

ROOT = Path(sys.argv[1]).resolve()
DATA = ROOT / "data"
NOW = "2023-05-18T12:00:00"
PASSWORD = "pebble-42"
PERSON = {
    "first_name": "Ada",
    "last_name": "Quill",
    "email": "ada.quill@mail.example",
    "phone_number": "5550100",
}
METADATA = {"mode": "full", "difficulty": 1, "num_apps": 1, "num_apis": 3, "num_solution_code_lines": 4}
NOTES = [
    ("Groceries", "oats, plums, salt", ["home"]),
    ("Ferry times", "07:40, 12:15, 18:05", ["travel"]),
    ("Old shed", "measure the door", ["home"]),
]

CHECK_UNCHANGED = """
    with test("Nothing but {what} has changed."):
        changed = models.changed_model_names()
        assert changed == {expected}, changed
"""

TASKS = {
    "quest01_1": {
        "split": "train",
        "instruction": "How many of my Simple Note notes have the tag home?",
        "answer": 2,
        "evaluation": """
def evaluate(test, public_data, private_data, main_user, models, ground_truth_answer):
    with test("The answer is the number of notes."):
        task = models.end.supervisor.Task.first()
        assert json.loads(task.answer) == ground_truth_answer
"""
        + CHECK_UNCHANGED.format(what="the answer", expected="set()"),
        "solution": """
def solution(apis, requester):
    token = apis.simple_note.login(username="ada.quill@mail.example", password="pebble-42")["access_token"]
    notes = apis.simple_note.search_notes(access_token=token, page_limit=20)
    apis.supervisor.complete_task(answer=sum("home" in note["tags"] for note in notes))
""",
    },
    "write02_1": {
        "split": "train",
        "instruction": "Write a Simple Note note titled Harbour whose content is the last of my ferry times.",
        "answer": None,
        "evaluation": """
def evaluate(test, public_data, private_data, main_user, models, ground_truth_answer):
    with test("The note is there, once."):
        added, updated, removed = models.changed_records("simple_note.Note")
        assert [(note.title, note.content) for note in added] == [("Harbour", "18:05")]
        assert not updated and not removed
"""
        + CHECK_UNCHANGED.format(what="the notes", expected='{"simple_note.Note"}'),
        "solution": """
def solution(apis, requester):
    token = apis.simple_note.login(username="ada.quill@mail.example", password="pebble-42")["access_token"]
    apis.simple_note.create_note(access_token=token, title="Harbour", content="18:05")
    apis.supervisor.complete_task()
""",
    },
    "erase03_1": {
        "split": "dev",
        "instruction": "Delete my Simple Note note about the old shed.",
        "answer": None,
        "evaluation": """
def evaluate(test, public_data, private_data, main_user, models, ground_truth_answer):
    with test("The note about the shed is gone."):
        added, updated, removed = models.changed_records("simple_note.Note")
        assert [note.title for note in removed] == ["Old shed"]
        assert not updated and not added
"""
        + CHECK_UNCHANGED.format(what="the notes", expected='{"simple_note.Note"}'),
        "solution": """
def solution(apis, requester):
    token = apis.simple_note.login(username="ada.quill@mail.example", password="pebble-42")["access_token"]
    note = apis.simple_note.search_notes(access_token=token, query="old shed")[0]
    apis.simple_note.delete_note(access_token=token, note_id=note["note_id"])
    apis.supervisor.complete_task()
""",
    },
}


def write(path: Path, text: str) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text, encoding="utf-8")


def make_api_docs() -> None:
    """Write the documentation files that the engine reads, from the engine's own code."""
    for app, docs in ApiDocCollection.build(load_apps=tuple(get_all_apps(skip_admin=True))).items():
        entries = {name: {**doc, "canary_string": CANARY_STRING} for name, doc in docs.items()}
        write(DATA / "api_docs" / "standard" / f"{app}.json", json.dumps(entries))


def make_databases() -> None:
    """Write the base databases with one user, and each task's changes to them."""
    apps = get_all_apps()
    world = ModelCollection.load(":memory:test", load_apps=apps, create_db=True)
    world.admin.MainUser.create_save(**PERSON, birthday="1990-02-03", sex="female")
    user = world.simple_note.User.create_save(
        first_name=PERSON["first_name"],
        last_name=PERSON["last_name"],
        email=PERSON["email"],
        password=PASSWORD,
        verified=True,
    )
    for title, content, tags in NOTES:
        world.simple_note.Note.create_save(user_id=user.id, title=title, content=content, tags=tags)
    supervisor = world.supervisor.Supervisor.create_save(**PERSON, birthday="1990-02-03", sex="female")
    world.supervisor.AccountPassword.create_save(
        supervisor_id=supervisor.id, account_name="simple_note", password=PASSWORD
    )
    world.save(str(DATA / "base_dbs"), format="full", app_names=list(apps))
    for name, task in TASKS.items():
        world.restart_db_tracker()
        active = world.supervisor.Task.create_save(supervisor_id=supervisor.id, instruction=task["instruction"])
        folder = DATA / "tasks" / name / "dbs"
        world.save(str(folder), format="changes", app_names=list(apps), save_model_hashes=True)
        active.delete()


def make_task_files() -> None:
    """Write each task's specification, and its answers where AppWorld keeps them."""
    splits: dict[str, list[str]] = {}
    for name, task in TASKS.items():
        splits.setdefault(task["split"], []).append(name)
        folder = DATA / "tasks" / name
        specs = {"instruction": task["instruction"], "supervisor": PERSON, "datetime": NOW, "db_version": DB_VERSION}
        write(folder / "specs.json", json.dumps(specs))
        truth = folder / "ground_truth"
        write(truth / "metadata.json", json.dumps(METADATA))
        write(truth / "public_data.json", "{}")
        write(truth / "private_data.json", "{}")
        write(truth / "answer.json", json.dumps(task["answer"]))
        requirements = re.findall(r'with test\("(.*)"\)', task["evaluation"])
        tests = [{"requirement": requirement, "label": "no_op_fail"} for requirement in requirements]
        write(truth / "test_data.json", json.dumps(tests))
        write(truth / "evaluation.py", f"import json\n\n{task['evaluation']}")
        write(truth / "compiled_solution.py", task["solution"])
    for split, names in splits.items():
        write(DATA / "datasets" / f"{split}.txt", "\n".join(names) + "\n")


if __name__ == "__main__":
    update_root(str(ROOT))
    freezer = set_local_date_and_time(DateTime.fromisoformat(NOW))
    make_databases()
    freezer.stop()
    make_task_files()
    make_api_docs()
