"""An environment with tools: move stock between two warehouses, with `find_item` and `move_item`.

    seeupo envs check examples/environment_with_tools.py:WarehouseFactory
    seeupo agents show --model tiny --env examples/environment_with_tools.py:WarehouseFactory
    seeupo train one-gpu-lora --environment.name examples/environment_with_tools.py:WarehouseFactory

`reset` returns the tools as JSON schemas. They are shown to the model by its chat template, or in the system message
if the template has no place for tools. `step` gets the model's text as it is, and reads the call in it.
"""

from __future__ import annotations

import json
import random
from collections.abc import Sequence
from typing import Any

from seeupo import Expert, Message, StepResult, Task, Tool

ITEMS = ("lamp", "desk", "chair", "shelf")
PLACES = ("north", "south")
ITEM = {"type": "string", "enum": list(ITEMS)}
TOOLS = (
    Tool(
        "find_item",
        "Find the warehouse that an item is in.",
        {"type": "object", "properties": {"item": ITEM}, "required": ["item"]},
    ),
    Tool(
        "move_item",
        "Move an item to a warehouse, and end the task.",
        {
            "type": "object",
            "properties": {"item": ITEM, "to": {"type": "string", "enum": list(PLACES)}},
            "required": ["item", "to"],
        },
    ),
)
RULES = 'Call one tool per turn: <tool_call>{"name": "find_item", "arguments": {"item": "lamp"}}</tool_call>'
MAX_CALLS = 6


def call_in(text: str) -> tuple[str, dict[str, Any]]:
    """Return name and arguments of the first call in a text; `ValueError` if there is none. The text is untrusted."""
    _, found, rest = text[:10_000].partition("<tool_call>")
    if not found:
        raise ValueError("no tool call")
    try:
        call = json.loads(rest.partition("</tool_call>")[0])
    except (ValueError, RecursionError):
        raise ValueError("the tool call is not JSON") from None
    if not isinstance(call, dict) or not isinstance(call.get("arguments"), dict):
        raise ValueError("expected a name and arguments")
    return str(call.get("name")), call["arguments"]


class Warehouse:
    """One episode at a time; it implements the protocol `seeupo.Env`."""

    def reset(self, task: Task, *, seed: int) -> StepResult:
        chance = random.Random(task.seed)
        self.places = {item: chance.choice(PLACES) for item in ITEMS}
        self.wanted, self.calls, self.solved = chance.choice(ITEMS), 0, False
        request = f"Move the {self.wanted} to the other warehouse."
        return StepResult((Message("system", RULES), Message("user", request)), tools=TOOLS)

    def step(self, text: str) -> StepResult:
        self.calls += 1
        over = self.calls >= MAX_CALLS
        try:
            name, arguments = call_in(text)
            item, place = arguments.get("item"), arguments.get("to")
            if item not in ITEMS:
                raise ValueError(f"item: expected one of {', '.join(ITEMS)}")
            if name == "find_item":
                answer = Message("tool", json.dumps({"item": item, "warehouse": self.places[item]}))
                return StepResult((answer,), truncated=over)
            if name != "move_item" or place not in PLACES:
                raise ValueError("expected find_item, or move_item to north or south")
        except ValueError as error:  # an error of the model is an observation
            return StepResult((Message("tool", f"Error: {error}"),), truncated=over)
        self.solved = item == self.wanted and place != self.places[item]
        return StepResult((), terminated=True)

    def score(self) -> float:
        return float(self.solved)

    def close(self) -> None: ...


class WarehouseFactory:
    """The tasks, their environment and the expert; it implements the protocol `seeupo.EnvFactory`."""

    splits = ("train", "test")
    make = Warehouse

    def tasks(self, split: str) -> Sequence[Task]:
        first = 1000 * self.splits.index(split)
        return [Task(f"{split}-{number}", split, seed=first + number) for number in range(200)]

    def expert(self, task: Task) -> Expert:
        item = ""

        def act(result: StepResult) -> str:
            nonlocal item
            name, arguments = "find_item", {}
            if result.tools is not None:  # the first result
                item = result.messages[-1].content.split()[2]
            else:
                here = json.loads(result.messages[-1].content)["warehouse"]
                name, arguments = "move_item", {"to": PLACES[1 - PLACES.index(here)]}
            call = {"name": name, "arguments": {"item": item, **arguments}}
            return f"<tool_call>{json.dumps(call)}</tool_call>"

        return act
