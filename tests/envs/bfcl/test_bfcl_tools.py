"""Tools, signatures and the short prompt, on made-up functions."""

import json

from seeupo.envs.bfcl.tools import as_tools, short_prompt, signatures

FETCH = {
    "name": "fetch",
    "description": "Fetch lines of a file.",
    "parameters": {
        "type": "dict",
        "properties": {
            "file": {"type": "string", "description": "Its name."},
            "lines": {"type": "array", "items": {"type": "float"}, "description": "Which."},
            "limit": {"type": "integer", "description": "At most.", "default": 10},
            "user": {"type": "string", "description": "For whom.", "default": "None"},
            "mode": {"type": "dict", "description": "How.", "properties": {"raw": {"type": "boolean"}}},
        },
        "required": ["file", "lines", "mode"],
    },
    "response": {"type": "dict", "properties": {"text": {"type": "string", "description": "The lines."}}},
}
STOP = {
    "name": "stop",
    "description": "Stop.",
    "parameters": {"type": "dict", "properties": {}, "required": []},
    "response": {"type": "dict", "properties": {}},
}


def test_signatures() -> None:
    assert signatures([FETCH, STOP]) == (
        "fetch(file: str, lines: list[float], limit: int = 10, user: str = None, mode: {raw: bool})\nstop()"
    )


def test_tools_have_json_schemas() -> None:
    fetch, stop = as_tools([FETCH, STOP])
    assert fetch.name == "fetch"
    assert fetch.parameters["type"] == "object"
    assert fetch.parameters["properties"]["lines"] == {
        "type": "array",
        "items": {"type": "number"},
        "description": "Which.",
    }
    assert fetch.parameters["properties"]["mode"]["type"] == "object"
    assert fetch.parameters["required"] == ["file", "lines", "mode"]
    assert stop.parameters == {"type": "object", "properties": {}, "required": []}
    assert FETCH["parameters"]["type"] == "dict", "the documentation itself is left as it is"


def test_tools_describe_return_values() -> None:
    (fetch,) = as_tools([FETCH])
    assert fetch.description == f"Fetch lines of a file. Returns: {json.dumps(FETCH['response'])}"


def test_the_short_prompt_explains_how_to_call() -> None:
    assert "[first(" in short_prompt([STOP], "python")
    assert "<tool_call>" in short_prompt([STOP], "tool_call")
    assert short_prompt([STOP], "python").endswith("stop()")
