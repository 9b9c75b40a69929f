"""An agent program: answer questions about a small warehouse with a tool, through the OpenAI client.

    seeupo train --agent-program examples/agent_openai.py:solve --tasks examples/agent_tasks.jsonl

Compared with the same agent at an API, three lines are different: the decorator, the client, which comes as an
argument, and the score, which is returned.
"""

from __future__ import annotations

import json
from typing import Any

from openai import AsyncOpenAI

from seeupo import Task, agent_program

STOCK = {"lamp": "north", "desk": "south", "chair": "south", "shelf": "north"}
TOOL: Any = {
    "type": "function",
    "function": {
        "name": "find_item",
        "description": "Find the warehouse that an item is in.",
        "parameters": {"type": "object", "properties": {"item": {"type": "string"}}, "required": ["item"]},
    },
}


@agent_program
async def solve(task: Task, client: AsyncOpenAI) -> float:
    """Ask the model until it answers without a call of the tool; the score is 1 for the right warehouse."""
    item = task.payload["item"]
    messages: list[Any] = [
        {"role": "system", "content": "Answer with the name of the warehouse alone."},
        {"role": "user", "content": f"Which warehouse has the {item}?"},
    ]
    while True:
        completion = await client.chat.completions.create(model="policy", messages=messages, tools=[TOOL])
        message = completion.choices[0].message
        messages.append(message.model_dump(exclude_none=True))
        if not message.tool_calls:
            return float((message.content or "").strip().lower() == STOCK[item])
        for call in message.tool_calls:
            place = STOCK.get(json.loads(call.function.arguments).get("item", ""), "unknown")
            messages.append({"role": "tool", "tool_call_id": call.id, "content": place})
