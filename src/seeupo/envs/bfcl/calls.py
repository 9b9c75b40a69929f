"""Parse a model's text into function calls, and write calls as text. Text is never evaluated.

An action with any malformed part executes nothing.
"""

from __future__ import annotations

import ast
import json
import keyword
import math
import warnings
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

from seeupo.errors import first_line

ActionFormat = Literal["python", "tool_call"]

Value = Any
"""A literal: a string, number, bool or None, or lists, tuples and dictionaries of these."""

MAX_CHARACTERS = 65_536
MAX_CALLS = 100  # the longest official turn has 34
MAX_DEPTH = 10  # of nested lists, tuples and dictionaries
MAX_INTEGER = 2**63

OPENING, CLOSING = "<tool_call>", "</tool_call>"


class DecodeError(ValueError):
    """The text is not a list of function calls; the message says why."""


@dataclass(frozen=True, slots=True)
class Call:
    """A call of a function by its plain name. `Backends.named` converts positional arguments to named ones."""

    name: str
    arguments: Mapping[str, Value]
    positional: tuple[Value, ...] = ()


def parse_python(text: str) -> list[Call]:
    """Parse the official form `[f(a=1), g()]`; as officially, backticks are stripped and brackets are optional."""
    _check_size(text)
    source = text.strip("` \t\r\n")
    source = source if source.startswith("[") else "[" + source
    source = source if source.endswith("]") else source + "]"
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # about invalid escapes in the model's text
            body = ast.parse(source, mode="eval").body
    except (SyntaxError, ValueError, RecursionError, MemoryError) as error:
        raise DecodeError(f"not a list of calls: {first_line(error)}") from None
    if not isinstance(body, ast.List):
        raise DecodeError("not a list of calls")
    _check_count(body.elts)
    return [_python_call(element) for element in body.elts]


def parse_tool_calls(text: str) -> list[Call]:
    """Parse `<tool_call>{"name": "f", "arguments": {"a": 1}}</tool_call>`; text around calls is ignored."""
    _check_size(text)
    rest, blocks = text, []
    while OPENING in rest:
        block, closing, rest = rest.partition(OPENING)[2].partition(CLOSING)
        if not closing:
            raise DecodeError(f"a {OPENING} is never closed")
        blocks.append(block)
    _check_count(blocks)
    return [_json_call(block) for block in blocks]


PARSERS: Mapping[ActionFormat, Callable[[str], list[Call]]] = {"python": parse_python, "tool_call": parse_tool_calls}


def canonical(call: Call) -> str:
    """Return the call as Python source that contains only a name and literals."""
    if call.positional:
        raise ValueError(f"the positional arguments of {call.name} have no names yet")
    return f"{call.name}({', '.join(f'{name}={value!r}' for name, value in call.arguments.items())})"


def write_action(calls: Iterable[Call], action_format: ActionFormat) -> str:
    """Return the calls as a model would write them; without any, a text that ends the user turn."""
    if action_format == "python":
        return f"[{', '.join(canonical(call) for call in calls)}]"
    blocks = [json.dumps({"name": call.name, "arguments": dict(call.arguments)}) for call in calls]
    return "\n".join(f"{OPENING}\n{block}\n{CLOSING}" for block in blocks) or "Done."


def _check_size(text: str) -> None:
    if len(text) > MAX_CHARACTERS:
        raise DecodeError(f"{len(text)} characters are more than the {MAX_CHARACTERS} that are read")


def _check_count(calls: Sequence[object]) -> None:
    if len(calls) > MAX_CALLS:
        raise DecodeError(f"{len(calls)} calls are more than the {MAX_CALLS} that one action may make")


def _python_call(node: ast.expr) -> Call:
    if not (isinstance(node, ast.Call) and isinstance(node.func, ast.Name)):
        raise DecodeError("only calls of functions by their plain names can be made")
    arguments: dict[str, Value] = {}
    for argument in node.keywords:
        if argument.arg is None:
            raise DecodeError("arguments cannot be unpacked with **")
        if argument.arg in arguments:
            raise DecodeError(f"argument {argument.arg} is given twice")
        arguments[_identifier(argument.arg)] = _literal(argument.value)
    return Call(_identifier(node.func.id), arguments, tuple(map(_literal, node.args)))


def _literal(node: ast.expr) -> Value:
    try:
        value = ast.literal_eval(node)
    except (ValueError, TypeError, RecursionError, MemoryError):
        raise DecodeError(f"an argument must be a literal value, not {type(node).__name__}") from None
    return _checked(value)


def _json_call(block: str) -> Call:
    try:
        call = json.loads(block, object_pairs_hook=_object)
    except DecodeError:
        raise
    except (ValueError, RecursionError) as error:
        raise DecodeError(f"a tool call is not JSON: {first_line(error)}") from None
    if not (isinstance(call, dict) and call.keys() == {"name", "arguments"}):
        raise DecodeError('a tool call must be an object with "name" and "arguments" and nothing else')
    name, arguments = call["name"], call["arguments"]
    if not (isinstance(name, str) and isinstance(arguments, dict)):
        raise DecodeError("a tool call's name must be a text and its arguments an object")
    return Call(_identifier(name), {_identifier(argument): _checked(value) for argument, value in arguments.items()})


def _object(pairs: list[tuple[str, Value]]) -> dict[str, Value]:
    """Return an object with unique keys; Python's default is to keep the last of two equal keys."""
    result = dict(pairs)
    if len(result) < len(pairs):
        raise DecodeError("a key of an object is given twice")
    return result


def _checked(value: Value, depth: int = 0) -> Value:
    """Return the value if it consists of harmless scalars in lists, tuples and dictionaries."""
    if depth > MAX_DEPTH:
        raise DecodeError(f"values are nested more than {MAX_DEPTH} deep")
    if isinstance(value, list | tuple):
        return type(value)(_checked(item, depth + 1) for item in value)
    if isinstance(value, dict):
        return {_scalar(key): _checked(item, depth + 1) for key, item in value.items()}
    return _scalar(value)


def _scalar(value: Value) -> Value:
    """Return the value if it is a string, number, bool or None of harmless size."""
    if isinstance(value, str):
        try:
            value.encode()
        except UnicodeEncodeError:
            raise DecodeError("a text holds half a character (a lone surrogate)") from None
    elif isinstance(value, int):
        if not -MAX_INTEGER <= value < MAX_INTEGER:
            raise DecodeError("an integer has more than 64 bits")
    elif isinstance(value, float):
        if not math.isfinite(value):
            raise DecodeError("a number is not finite")
    elif value is not None:
        raise DecodeError(f"an argument must be a literal value, not {type(value).__name__}")
    return value


def _identifier(name: str) -> str:
    if not (name.isascii() and name.isidentifier() and len(name) <= 100) or keyword.iskeyword(name):
        raise DecodeError(f"{name[:100]!r} is not a name")
    return name
