"""The parts of `bfcl-eval` that are used: its tasks and answers, its prompts, its backends and its checker.

Importable only where `bfcl-eval` is. Its handlers and its executor of model text are not used.
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
from bfcl_eval.constants.executable_backend_config import (
    CLASS_FILE_PATH_MAPPING,
    STATELESS_CLASSES,
)
from bfcl_eval.eval_checker.multi_turn_eval import multi_turn_utils
from bfcl_eval.eval_checker.multi_turn_eval.func_source_code import long_context
from bfcl_eval.eval_checker.multi_turn_eval.multi_turn_checker import (
    multi_turn_checker,
)

Entry = Mapping[str, Any]
"""A task: id, question (messages per user turn), initial_config, involved_classes, function, missed_function."""

CATEGORIES = ("base", "miss_func", "miss_param", "long_context")
STEPS_PER_USER_TURN: int = default_prompts.MAXIMUM_STEP_LIMIT

# Loaded into each travel backend by reference: a booking in one episode would change the balances of all others.
SHARED = (long_context.CREDIT_CARD_EXTENSION, long_context.BOOKING_RECORD_EXTENSION)
PRISTINE = copy.deepcopy(SHARED)

_names = itertools.count()


@functools.cache
def _utils() -> ModuleType:
    """The module that reads the data. On import it makes folders for results, of which we want none, nor its locks."""
    before = os.environ.get("BFCL_PROJECT_ROOT")
    with tempfile.TemporaryDirectory() as folder:
        os.environ["BFCL_PROJECT_ROOT"] = folder
        try:
            utils = importlib.import_module("bfcl_eval.utils")
        finally:
            del os.environ["BFCL_PROJECT_ROOT"]
            if before is not None:
                os.environ["BFCL_PROJECT_ROOT"] = before
    utils._get_file_lock = lambda _: nullcontext()  # type: ignore[attr-defined]  # nobody writes to an installed package
    return utils


@functools.cache
def _entries(category: str) -> Mapping[str, Entry]:
    utils = _utils()
    file = utils.PROMPT_PATH / utils.get_file_name_by_category(f"multi_turn_{category}")
    return {entry["id"]: entry for entry in utils.load_file(file)}


@functools.cache
def _answers(category: str) -> Mapping[str, list[list[str]]]:
    return {
        answer["id"]: answer["ground_truth"] for answer in _utils().load_ground_truth_entry(f"multi_turn_{category}")
    }


def category_of(task: str) -> str:
    """The category of a task's id, "multi_turn_base_7"."""
    return task.removeprefix("multi_turn_").rpartition("_")[0]


def task_ids(category: str) -> list[str]:
    """In the official order."""
    return list(_entries(category))


def classes_of(task: str) -> list[str]:
    """The backends that a task involves."""
    return list(_entries(category_of(task))[task]["involved_classes"])


def load_entry(task: str) -> Entry:
    """A task with the documentation of its functions, as the benchmark's handlers get it. The caller's own copy."""
    utils = _utils()
    entries = utils.populate_test_cases_with_predefined_functions([copy.deepcopy(_entries(category_of(task))[task])])
    (entry,) = utils.add_language_specific_hint_to_function_doc(entries)
    return dict(entry)


def ground_truth(task: str) -> list[list[str]]:
    """The calls of each user turn, as Python source."""
    return _answers(category_of(task))[task]


def system_prompt(documentation: str) -> str:
    """The benchmark's default prompt for models that are told about functions in words."""
    style = default_prompts.PROMPT_STYLE_TEMPLATES["classic"]
    how_to_call = style["tool_call_no_tag"].format(
        output_format=default_prompts.OUTPUT_FORMAT_MAPPING["python"],
        param_types=default_prompts.PARAM_TYPE_MAPPING["python"],
    )
    prompt: str = default_prompts.PROMPT_TEMPLATE_MAPPING["plaintext"].format(
        persona=style["persona"],
        task=style["task"],
        tool_call_format=how_to_call,
        multiturn_behavior=style["multiturn_behavior"],
        available_tools=style["available_tools"].format(format="json", functions=documentation),
    )
    return prompt


def documentation(functions: Sequence[Mapping[str, Any]]) -> str:
    """The functions as they stand in the default prompt."""
    return json.dumps(functions, indent=4)


def announcement(documentation: str | None) -> str:
    """The user's message when functions that were held out are offered; without documentation, if tools show them."""
    if documentation is None:
        return str(default_prompts.DEFAULT_USER_PROMPT_FOR_ADDITIONAL_FUNCTION_FC)
    template: str = default_prompts.DEFAULT_USER_PROMPT_FOR_ADDITIONAL_FUNCTION_PROMPTING
    return template.format(functions=documentation)


def backends(entry: Entry) -> list[Any]:
    """Fresh instances of the involved classes, in the task's initial state."""
    made = []
    for name in entry["involved_classes"]:
        backend = getattr(importlib.import_module(CLASS_FILE_PATH_MAPPING[name]), name)()
        if name not in STATELESS_CLASSES:
            config = copy.deepcopy(entry["initial_config"].get(name, {}))
            backend._load_scenario(config, long_context=category_of(entry["id"]) == "long_context")
        made.append(copy.deepcopy(backend))  # of what is SHARED, too
    return made


def check(entry: Entry, turns: Sequence[Sequence[Sequence[str]]]) -> str:
    """The official checker's verdict on the calls of each step of each user turn: "valid", or its type of error.

    The checker evaluates these strings. They must be canonical calls, or literals.
    """
    # The checker keeps its instances in a module's globals under this name, and would find them again under the same.
    name = f"seeupo_{next(_names)}"
    try:
        verdict = multi_turn_checker(turns, ground_truth(entry["id"]), entry, category_of(entry["id"]), name)
    finally:
        instances = vars(multi_turn_utils)
        for key in [key for key in instances if key.startswith(f"{name}_")]:
            del instances[key]
        for shared, pristine in zip(SHARED, PRISTINE, strict=True):
            shared.clear()
            shared.update(copy.deepcopy(pristine))
    return "valid" if verdict["valid"] else str(verdict["error_type"])
