"""Describe the functions of a task to a model: in full, or by one line for each, for small contexts."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any, Literal

from seeupo.envs.bfcl.calls import ActionFormat
from seeupo.types import Tool

Documentation = Literal["official", "signatures"]
"""The benchmark's own documentation, or lines such as `cd(folder: str)`: a fifteenth of the size."""

Function = Mapping[str, Any]
"""Official documentation of one function: name, description, parameters, response."""

PYTHON_TYPES = {"array": "list", "boolean": "bool", "integer": "int", "string": "str"}
JSON_TYPES = {"dict": "object", "float": "number"}

ROLE = (
    "You help a user by calling functions. Each of your replies is either calls or words. After calls you see what "
    "they returned and go on. Words, without any call, hand over to the user: use them when the request is done or "
    "cannot be done."
)
HOW_TO_CALL: Mapping[ActionFormat, str] = {
    "python": "A reply with calls is one list and nothing else: [first(name='value', count=2), second()]",
    "tool_call": 'Write each call as <tool_call>\n{"name": "first", "arguments": {"name": "value"}}\n</tool_call>',
}


def short_prompt(functions: Sequence[Function], action_format: ActionFormat) -> str:
    """Return a system prompt for small contexts, with the signatures of the functions."""
    return f"{ROLE}\n{HOW_TO_CALL[action_format]}\n\nFunctions:\n{signatures(functions)}"


def signatures(functions: Sequence[Function]) -> str:
    """Return one line per function."""
    return "\n".join(_signature(function) for function in functions)


def as_tools(functions: Sequence[Function]) -> tuple[Tool, ...]:
    """Return the functions as tools for chat templates; as officially, descriptions include the return values."""
    return tuple(
        Tool(
            name=function["name"],
            description=f"{function['description']} Returns: {json.dumps(function['response'])}",
            parameters=_schema(function["parameters"]),
        )
        for function in functions
    )


def _signature(function: Function) -> str:
    required = function["parameters"]["required"]
    parameters = []
    for name, schema in function["parameters"]["properties"].items():
        default = schema.get("default")
        default = None if default == "None" else default  # the documentation writes None as a string
        parameters.append(f"{name}: {_python_type(schema)}" + ("" if name in required else f" = {default!r}"))
    return f"{function['name']}({', '.join(parameters)})"


def _python_type(schema: Mapping[str, Any]) -> str:
    if "properties" in schema:
        return "{" + ", ".join(f"{name}: {_python_type(field)}" for name, field in schema["properties"].items()) + "}"
    name = PYTHON_TYPES.get(schema["type"], schema["type"])
    return f"{name}[{_python_type(schema['items'])}]" if "items" in schema else name


def _schema(parameters: Mapping[str, Any]) -> dict[str, Any]:
    """Return a standard JSON schema for the official one, which uses nonstandard types."""
    schema = dict(parameters, type=JSON_TYPES.get(parameters["type"], parameters["type"]))
    if "properties" in schema:
        schema["properties"] = {name: _schema(value) for name, value in schema["properties"].items()}
    if "items" in schema:
        schema["items"] = _schema(schema["items"])
    return schema
