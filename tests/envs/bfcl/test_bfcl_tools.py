"""The three levels of documentation, on made-up functions."""

import json

from seeupo.envs.bfcl.tools import as_tools, compact, short_prompt, signatures

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


def test_compact_is_the_documentation_without_white_space_and_results() -> None:
    text = compact([FETCH, STOP])
    assert json.loads(text) == [
        {key: function[key] for key in ("name", "description", "parameters")} for function in (FETCH, STOP)
    ]
    assert ": " not in text
    assert "\n" not in text


def test_tools_have_json_schemas() -> None:
    fetch, stop = as_tools([FETCH, STOP], returns=False)
    assert (fetch.name, fetch.description) == ("fetch", "Fetch lines of a file.")
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


def test_tools_can_describe_return_values() -> None:
    (fetch,) = as_tools([FETCH], returns=True)
    assert json.dumps(FETCH["response"]) in fetch.description


def test_the_short_prompt_explains_how_to_call() -> None:
    assert "[first(" in short_prompt([STOP], "python")
    assert "<tool_call>" in short_prompt([STOP], "tool_call")
    assert short_prompt([STOP], "python").endswith("stop()")
