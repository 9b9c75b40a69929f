"""JSON of another program as dataclasses."""

from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum
from typing import Any, Literal

import pytest

from seeupo.utils.records import read_record


class Color(StrEnum):
    RED = "red"


@dataclass(frozen=True)
class Inner:
    number: float


@dataclass(frozen=True)
class Outer:
    name: str
    color: Color
    kind: Literal["a", "b"]
    inner: Inner | None
    parts: tuple[Inner, ...]
    table: Mapping[str, float]
    other: Any = None


RECORD = {
    "name": "x", "color": "red", "kind": "b", "inner": None, "parts": [{"number": 1}], "table": {"k": 2}, "other": [1],
}  # fmt: skip


def test_records_become_dataclasses():
    expected = Outer("x", Color.RED, "b", None, (Inner(1.0),), {"k": 2.0}, [1])
    assert read_record(Outer, {**RECORD, "unknown": 1}, "record") == expected


@pytest.mark.parametrize(
    ("changes", "problem"),
    [
        ({"name": 1}, "record.name is int; expected str"),
        ({"name": None}, "record.name is NoneType; expected str"),
        ({"color": "blue"}, "record.color is 'blue'; expected one of red"),
        ({"kind": ["a"]}, "record.kind is .*; expected one of a, b"),
        ({"inner": 3}, "record.inner is int; expected dict"),
        ({"parts": [{}]}, "record.parts has no number; expected all fields of Inner"),
        ({"parts": [{"number": True}]}, "record.parts.number is bool; expected a finite number"),
        ({"parts": [{"number": float("nan")}]}, "expected a finite number"),
        ({"parts": {"number": 1}}, "record.parts is dict; expected list"),
        ({"table": {"k": "1"}}, "record.table is str; expected a finite number"),
    ],
)
def test_other_types_are_errors_with_the_name_of_the_field(changes, problem):
    with pytest.raises(TypeError, match=problem):
        read_record(Outer, {**RECORD, **changes}, "record")
