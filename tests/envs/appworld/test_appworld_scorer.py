"""Saved states are not trusted: only changes of rows are applied."""

import json
import sqlite3

import pytest
from hypothesis import given
from hypothesis import strategies as st

from seeupo.envs.appworld.scorer import Forged, dry_run, parse

INSERT = "INSERT INTO notes (title) VALUES (?)"


@pytest.fixture
def base(tmp_path):
    """A database of the kind that AppWorld's apps have: rows, a full-text index, a trigger between them."""
    path = tmp_path / "notes.db"
    with sqlite3.connect(path) as connection:
        connection.executescript(
            """
            CREATE TABLE notes (id INTEGER PRIMARY KEY AUTOINCREMENT, title TEXT, "order" INTEGER);
            CREATE TABLE users (id INTEGER PRIMARY KEY, name TEXT);
            CREATE VIRTUAL TABLE notes_fts USING fts5(id, saved_search_text, tokenize = 'porter');
            CREATE TRIGGER sync AFTER DELETE ON notes BEGIN DELETE FROM notes_fts WHERE id = old.id; END;
            INSERT INTO notes (title) VALUES ('one'), ('two');
            INSERT INTO notes_fts VALUES (1, 'one'), (2, 'two');
            """
        )
    connection.close()
    return path


def test_changes_of_rows_are_accepted(base):
    own = [("INSERT INTO users (name) VALUES (?)", ["Ada"], False)]
    added = [
        (INSERT, ["three"], False),
        ("INSERT INTO notes_fts (id, saved_search_text) VALUES (?, ?)", [3, "three"], False),
        ("UPDATE notes_fts SET saved_search_text = ? WHERE id = ?", ["uno", 1], False),
        ('UPDATE notes SET title=?, "order"=? WHERE notes.id = ?', ["uno", 4, 1], False),
        ("DELETE FROM notes WHERE notes.id = ?", [[1], [2]], True),
    ]
    assert dry_run(base, own, added) == {"notes", "notes_fts"}
    assert dry_run(base, own, []) == set()


@pytest.mark.parametrize(
    ("sql", "parameters"),
    [
        ("ATTACH DATABASE '{outside}' AS other", []),
        ("DETACH DATABASE main", []),
        ("VACUUM INTO '{outside}'", []),
        ("PRAGMA writable_schema = 1", []),
        ("PRAGMA journal_mode = DELETE", []),
        ("DROP TABLE notes", []),
        ("CREATE TABLE more (id)", []),
        ("CREATE TRIGGER t AFTER UPDATE ON notes BEGIN DELETE FROM users; END", []),
        ("ALTER TABLE notes RENAME TO other", []),
        ("BEGIN", []),
        ("SELECT 1", []),
        ("REINDEX", []),
        ("EXPLAIN DELETE FROM notes", []),
        ("REPLACE INTO notes (id, title) VALUES (1, 'x')", []),
        ("WITH x AS (SELECT 1) DELETE FROM notes", []),
        ("UPDATE sqlite_master SET sql = 'x'", []),
        ("UPDATE sqlite_sequence SET seq = 9", []),
        ("DELETE FROM notes_fts_data WHERE id = 1", []),
        ("UPDATE notes_fts_config SET v = 9", []),
        ("UPDATE unknown SET title = 'x'", []),
        ("UPDATE notes SET unknown = 'x'", []),
        ("UPDATE notes SET title = load_extension('{outside}')", []),
        ("UPDATE notes SET title = hex(zeroblob(1000000000))", []),
        ("UPDATE notes SET title = (SELECT randomblob(10))", []),
        ("INSERT INTO notes (title) WITH RECURSIVE n(x) AS (SELECT 1 UNION ALL SELECT x FROM n) SELECT x FROM n", []),
        ("INSERT INTO notes (title) SELECT sql FROM pragma_table_info('notes')", []),
        ("INSERT INTO notes (title) VALUES (?); DROP TABLE notes", ["x"]),
        ("INSERT INTO notes (title) VALUES (?)", []),
        ("INSERT INTO notes (title) VALUES (?)", ["x", "y"]),
        ("INSERT INTO notes (title) VALUES (?)", [2**80]),
        ("INSERT INTO notes (title) VALUES (?)", ["\udcff"]),
        ("INSERT INTO notes (id) VALUES (?)", [1]),
        ("INSERT INTO notes_fts (notes_fts) VALUES ('delete-all')", []),
        ("", []),
        ("\0", []),
    ],
)
def test_other_statements_are_forged(base, tmp_path, sql, parameters):
    outside = tmp_path / "outside"
    with pytest.raises(Forged):
        dry_run(base, [], [(INSERT, ["honest"], False), (sql.format(outside=outside), parameters, False)])
    assert not outside.exists()
    with sqlite3.connect(base) as connection:
        assert connection.execute("SELECT title FROM notes").fetchall() == [("one",), ("two",)]
    connection.close()


@pytest.mark.parametrize(
    "line",
    [
        "",
        "null",
        "1",
        "[]",
        '["DELETE FROM notes"]',
        '["DELETE FROM notes",[],0]',
        '["DELETE FROM notes",null,false]',
        '["DELETE FROM notes","x",false]',
        '["DELETE FROM notes",[[1]],false]',
        '["DELETE FROM notes",[1],true]',
        '["DELETE FROM notes",[{"a":[]}],true]',
        '[["DELETE FROM notes"],[],false]',
        '{"a":1,"b":2,"c":3}',
        "[" * 100_000,
        '["DELETE FROM notes",' + "[" * 100_000,
    ],
)
def test_malformed_lines_are_forged(line):
    with pytest.raises(Forged):
        parse([line])


values = st.none() | st.booleans() | st.integers() | st.floats() | st.text()
json_values = st.recursive(values, lambda inner: st.lists(inner) | st.dictionaries(st.text(), inner), max_leaves=20)


@given(st.text() | json_values.map(json.dumps) | st.tuples(st.text(), json_values, st.booleans()).map(json.dumps))
def test_any_line_is_a_statement_or_forged(line):
    try:
        ((sql, parameters, many),) = parse([line])
    except Forged:
        return
    assert isinstance(sql, str)
    assert isinstance(parameters, list | dict)
    assert isinstance(many, bool)
