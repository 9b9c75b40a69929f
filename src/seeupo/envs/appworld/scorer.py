"""Score a saved state with AppWorld's own evaluation, in a process that never runs model code.

The state is a list of SQL statements, which are not trusted. Before AppWorld applies them, they run on a copy of
the databases under an authorizer that only allows changes of rows in the apps' own tables.
"""

from __future__ import annotations

import json
import multiprocessing
import os
import re
import shutil
import sqlite3
import tempfile
import time
from collections.abc import Iterable, Mapping, Sequence
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

EXPERIMENT = "scoring"
DRY_RUN_SECONDS = 20.0
LARGEST_VALUE = 8 * 2**20
CHANGE = re.compile(r'(?:INSERT INTO|UPDATE|DELETE FROM) "?(\w+)"? ')
ROWS = (
    sqlite3.SQLITE_DELETE,
    sqlite3.SQLITE_INSERT,
    sqlite3.SQLITE_READ,
    sqlite3.SQLITE_SELECT,
    sqlite3.SQLITE_TRANSACTION,
    sqlite3.SQLITE_UPDATE,
)

Statement = tuple[str, Any, bool]
"""A line of AppWorld's saved state: SQL, its parameters, and whether these are a list of parameter sets."""


class Forged(Exception):
    """The state cannot come from an episode unless it was tampered with."""


class Scorer:
    """Evaluates saved states, one after another."""

    def __init__(self, data: Path) -> None:
        self.data = data
        self.root = Path(tempfile.mkdtemp(prefix="appworld-scoring-"))
        (self.root / "data").symlink_to(data)
        # AppWorld reads these when it is imported and whenever it opens a file.
        os.environ["APPWORLD_ROOT"] = str(self.root)
        os.environ["APPWORLD_CACHE"] = str(self.root / "cache")
        load()

    def score(self, task: str, saved: Any) -> float:
        """Return 1.0 if all of the task's tests pass in the saved state, else 0.0; a forged state passes none."""
        try:
            self._write(task, check_shape(saved))
        except Forged:
            return 0.0
        success = self._evaluate(task)
        if success is None:
            # Tests that cannot run count as failed if the state is the cause, so try them on the initial state.
            self._write(task, {})
            if self._evaluate(task) is None:
                raise RuntimeError(f"AppWorld's tests of task {task} cannot be run; see above")
        return float(success or False)

    def _evaluate(self, task: str) -> bool | None:
        """Return whether all tests pass; None if they cannot be run.

        Runs in a fork, because AppWorld freezes the clock and caches state.
        """
        context = multiprocessing.get_context("fork")
        receiver, sender = context.Pipe(duplex=False)
        with receiver, sender:
            process = context.Process(target=send_success, args=(task, sender))
            process.start()
            process.join()
            success: bool | None = receiver.recv() if receiver.poll() else None
        return success

    def _write(self, task: str, changes: Mapping[str, list[Statement]]) -> None:
        """Write the state to where AppWorld reads it, after the changes that set up the task."""
        from appworld.apps import get_all_apps
        from appworld.common.utils import import_models_module

        start = self.data / "tasks" / task / "dbs"
        target = self.root / "experiments" / "outputs" / EXPERIMENT / "tasks" / task / "dbs"
        shutil.rmtree(target, ignore_errors=True)
        target.mkdir(parents=True)
        hashes = json.loads(text) if (text := read_if_there(start / "model_hashes.json")) else {}
        for app in get_all_apps():
            setup = read_if_there(start / f"{app}.jsonl")
            added = changes.get(app, [])
            changed = dry_run(self.data / "base_dbs" / f"{app}.db", parse(setup.splitlines()), added)
            lines = "".join(json.dumps(statement) + "\n" for statement in added)
            (target / f"{app}.jsonl").write_text(setup + lines, encoding="utf-8")
            # AppWorld compares only tables whose counter has changed. The episode's own counters cannot be trusted.
            for name, model in import_models_module(app).SQLModel.name_to_model().items():
                if model.__tablename__ in changed:
                    counters = hashes.setdefault(app, {})
                    counters[name] = counters.get(name, 0) + 1
        (target / "model_hashes.json").write_text(json.dumps(hashes), encoding="utf-8")


def send_success(task: str, sender: Connection) -> None:
    from appworld.evaluator import evaluate_task

    sender.send(bool(evaluate_task(task, EXPERIMENT, suppress_errors=True, save_report=False).success))


def read_if_there(path: Path) -> str:
    return path.read_text(encoding="utf-8") if path.is_file() else ""


def load() -> None:
    """Initialize what every evaluation needs, before forking."""
    import appworld.evaluator  # noqa: F401 needed by the forks
    import freezegun
    from appworld.apps import get_all_apps
    from appworld.common.utils import import_apis_module, import_models_module

    for app in get_all_apps():
        import_models_module(app)
        import_apis_module(app)
    # The first freeze searches all modules for clocks and caches them.
    with freezegun.freeze_time("2023-01-01"):
        pass


def check_shape(saved: Any) -> dict[str, list[Statement]]:
    """Return the statements of each app; raise `Forged` for anything that `AppWorldEnv.save` cannot return."""
    from appworld.apps import get_all_apps

    if not isinstance(saved, dict) or not saved.keys() <= set(get_all_apps()):
        raise Forged("the state is not a list of changes for each app")
    for lines in saved.values():
        if not isinstance(lines, list) or not all(isinstance(line, str) for line in lines):
            raise Forged("changes are not lines")
    return {app: parse(lines) for app, lines in saved.items()}


def parse(lines: Iterable[str]) -> list[Statement]:
    """Return the statements of saved lines."""
    statements: list[Statement] = []
    for line in lines:
        try:
            sql, parameters, many = json.loads(line)
        except (ValueError, TypeError, RecursionError):
            raise Forged("a change is not SQL with parameters") from None
        sets = parameters if many is True and isinstance(parameters, list) else [parameters]
        if not isinstance(sql, str) or not isinstance(many, bool) or not all(is_plain(values) for values in sets):
            raise Forged("a change is not SQL with parameters")
        statements.append((sql, parameters, many))
    return statements


def is_plain(values: Any) -> bool:
    """Return whether this is a list or a dict of values that SQLite can store."""
    if not isinstance(values, list | dict):
        return False
    items = values if isinstance(values, list) else values.values()
    return all(item is None or isinstance(item, str | int | float) for item in items)


def dry_run(base: Path, setup: Iterable[Statement], added: Sequence[Statement]) -> set[str]:
    """Apply an app's changes to a copy in memory and return the tables that the added ones change.

    The changes that set up the task are trusted. An added change that is not allowed, or fails, raises `Forged`.
    """
    if not added:
        return set()
    original = sqlite3.connect(f"file:{base}?mode=ro", uri=True)
    copy = sqlite3.connect(":memory:")
    try:
        original.backup(copy)
        apply(copy, setup)
        tables = changeable_tables(copy)
        changed = {match[1] if (match := CHANGE.match(sql)) else "" for sql, _, _ in added}
        if not changed <= tables:
            raise Forged(f"not tables that may be changed: {', '.join(sorted(changed - tables))}")
        deadline = time.monotonic() + DRY_RUN_SECONDS
        copy.set_progress_handler(lambda: time.monotonic() > deadline, 10_000)
        copy.setlimit(sqlite3.SQLITE_LIMIT_LENGTH, LARGEST_VALUE)
        copy.set_authorizer(authorize)
        apply(copy, added)
    except (sqlite3.Error, sqlite3.Warning, OverflowError, UnicodeError, ValueError, TypeError) as error:
        raise Forged(f"a change cannot be applied: {error}") from None
    finally:
        original.close()
        copy.close()
    return changed


def changeable_tables(connection: sqlite3.Connection) -> set[str]:
    """Return an app's tables, without SQLite's own and the internal tables of full-text indexes."""
    tables = connection.execute("SELECT name, sql FROM sqlite_master WHERE type = 'table'").fetchall()
    indexes = [name for name, sql in tables if sql.upper().startswith("CREATE VIRTUAL TABLE")]
    for index in indexes:
        # The first use of an index initializes it with operations that are denied later.
        connection.execute(f'SELECT count(*) FROM "{index}"').fetchone()
    hidden = ("sqlite_", *(f"{index}_" for index in indexes))
    return {name for name, _ in tables if not name.startswith(hidden)}


def authorize(action: int, name: str | None, *_: str | None) -> int:
    """Allow reading and changing rows; deny functions, recursion, other files and settings (except reading one)."""
    if action in ROWS or (action == sqlite3.SQLITE_PRAGMA and name == "data_version"):
        return sqlite3.SQLITE_OK
    return sqlite3.SQLITE_DENY


def apply(connection: sqlite3.Connection, statements: Iterable[Statement]) -> None:
    for sql, parameters, many in statements:
        if many:
            connection.executemany(sql, parameters)
        else:
            connection.execute(sql, parameters)
    connection.commit()
