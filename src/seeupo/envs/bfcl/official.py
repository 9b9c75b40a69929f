"""Interface to `bfcl-eval`: its tasks and answers, prompts, backends and checker.

Importable only where `bfcl-eval` is installed. Its handlers and its executor of model text are not used.
"""

from __future__ import annotations

import copy
import functools
import importlib
import itertools
import json
import os
import tempfile
from collections.abc import Mapping, Sequence
from contextlib import nullcontext
from types import ModuleType
from typing import Any

from bfcl_eval.constants import default_prompts
from bfcl_eval.constants.executable_backend_config import CLASS_FILE_PATH_MAPPING, STATELESS_CLASSES
from bfcl_eval.eval_checker.multi_turn_eval import multi_turn_utils
from bfcl_eval.eval_checker.multi_turn_eval.func_source_code import long_context
from bfcl_eval.eval_checker.multi_turn_eval.multi_turn_checker import multi_turn_checker

Entry = Mapping[str, Any]
"""A task: id, question (messages per user turn), initial_config, involved_classes, function, missed_function."""

CATEGORIES = ("base", "miss_func", "miss_param", "long_context")
STEPS_PER_USER_TURN: int = default_prompts.MAXIMUM_STEP_LIMIT

# Shared by all travel backends by reference: a booking in one episode would change the balances of all others.
SHARED = (long_context.CREDIT_CARD_EXTENSION, long_context.BOOKING_RECORD_EXTENSION)
PRISTINE = copy.deepcopy(SHARED)

_names = itertools.count()


@functools.cache
def _utils() -> ModuleType:
    """Import the module that reads the data, without the result folders and file locks that it creates."""
    with tempfile.TemporaryDirectory() as folder:
        os.environ["BFCL_PROJECT_ROOT"] = folder
        utils = importlib.import_module("bfcl_eval.utils")
        del os.environ["BFCL_PROJECT_ROOT"]
    utils._get_file_lock = lambda _: nullcontext()  # type: ignore[attr-defined]  # an installed package is read-only
    return utils


@functools.cache
def _entries(category: str) -> Mapping[str, Entry]:
    utils = _utils()
    file = utils.PROMPT_PATH / utils.get_file_name_by_category(f"multi_turn_{category}")
    return {entry["id"]: entry for entry in utils.load_file(file)}


@functools.cache
def _answers(category: str) -> Mapping[str, list[list[str]]]:
    answers = _utils().load_ground_truth_entry(f"multi_turn_{category}")
    return {answer["id"]: answer["ground_truth"] for answer in answers}


def category_of(task: str) -> str:
    """Return the category in a task id such as "multi_turn_base_7"."""
    return task.removeprefix("multi_turn_").rpartition("_")[0]


def task_ids(category: str) -> list[str]:
    """Return the task ids of a category, in the official order."""
    return list(_entries(category))


def classes_of(task: str) -> list[str]:
    """Return the names of the backends that a task involves."""
    return list(_entries(category_of(task))[task]["involved_classes"])


def load_entry(task: str) -> Entry:
    """Return a copy of a task with the documentation of its functions, as the benchmark's handlers get it."""
    utils = _utils()
    entries = utils.populate_test_cases_with_predefined_functions([copy.deepcopy(_entries(category_of(task))[task])])
    (entry,) = utils.add_language_specific_hint_to_function_doc(entries)
    return dict(entry)


def ground_truth(task: str) -> list[list[str]]:
    """Return the reference calls of each user turn, as Python source."""
    return _answers(category_of(task))[task]


def system_prompt(functions: Sequence[Mapping[str, Any]]) -> str:
    """Return the benchmark's default system prompt for models without native function calling."""
    style = default_prompts.PROMPT_STYLE_TEMPLATES["classic"]
    how_to_call = style["tool_call_no_tag"].format(
        output_format=default_prompts.OUTPUT_FORMAT_MAPPING["python"],
        param_types=default_prompts.PARAM_TYPE_MAPPING["python"],
    )
    documentation = json.dumps(functions, indent=4)
    prompt: str = default_prompts.PROMPT_TEMPLATE_MAPPING["plaintext"].format(
        persona=style["persona"],
        task=style["task"],
        tool_call_format=how_to_call,
        multiturn_behavior=style["multiturn_behavior"],
        available_tools=style["available_tools"].format(format="json", functions=documentation),
    )
    return prompt


def announcement(documentation: str | None) -> str:
    """Return the user message that offers held-out functions; `documentation` is None if tools describe them."""
    if documentation is None:
        return str(default_prompts.DEFAULT_USER_PROMPT_FOR_ADDITIONAL_FUNCTION_FC)
    template: str = default_prompts.DEFAULT_USER_PROMPT_FOR_ADDITIONAL_FUNCTION_PROMPTING
    return template.format(functions=documentation)


def backends(entry: Entry) -> list[Any]:
    """Create the involved backends in the task's initial state."""
    instances = []
    for name in entry["involved_classes"]:
        backend = getattr(importlib.import_module(CLASS_FILE_PATH_MAPPING[name]), name)()
        if name not in STATELESS_CLASSES:
            config = copy.deepcopy(entry["initial_config"].get(name, {}))
            backend._load_scenario(config, long_context=category_of(entry["id"]) == "long_context")
        instances.append(copy.deepcopy(backend))  # including SHARED
    return instances


def check(entry: Entry, turns: Sequence[Sequence[Sequence[str]]]) -> str:
    """Return the official checker's verdict on the calls of each step of each user turn: "valid", or its error type.

    Given only the first user turns of a task, it judges these. The checker evaluates the strings, so they must be
    canonical calls or literals.
    """
    # The checker caches its instances under this name in a module's globals, so each check needs a new one.
    name = f"seeupo_{next(_names)}"
    try:
        reference = ground_truth(entry["id"])[: len(turns)]
        verdict = multi_turn_checker(turns, reference, entry, category_of(entry["id"]), name)
    finally:
        instances = vars(multi_turn_utils)
        for key in [key for key in instances if key.startswith(f"{name}_")]:
            del instances[key]
        for shared, pristine in zip(SHARED, PRISTINE, strict=True):
            shared.clear()
            shared.update(copy.deepcopy(pristine))
    return "valid" if verdict["valid"] else str(verdict["error_type"])
