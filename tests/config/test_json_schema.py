import json
from typing import Any

import pytest
from click.testing import CliRunner

from seeupo.algorithms import ALGORITHMS
from seeupo.cli import main
from seeupo.config.loader import read_recipe, recipe_names, recipe_to_table
from seeupo.config.reference import recipe_schema
from seeupo.config.schema import Recipe

TYPES = {"object": dict, "array": list, "integer": int, "number": (int, float), "boolean": bool, "string": str}
KNOWN = {
    "$schema", "title", "description", "default", "type", "properties", "required", "additionalProperties", "oneOf",
    "anyOf", "const", "enum", "items", "minItems", "maxItems", "minimum", "maximum",
    "exclusiveMinimum", "exclusiveMaximum",
}  # fmt: skip


def fits(schema: Any, value: Any) -> bool:
    """Return whether a value satisfies a schema that uses the keywords above, and no others."""
    if isinstance(schema, bool):
        return schema
    assert set(schema) <= KNOWN
    kind = schema.get("type")
    checks = [
        kind is None or (isinstance(value, TYPES[kind]) and isinstance(value, bool) <= (kind == "boolean")),
        "const" not in schema or value == schema["const"],
        "enum" not in schema or value in schema["enum"],
        "anyOf" not in schema or any(fits(choice, value) for choice in schema["anyOf"]),
        "oneOf" not in schema or sum(fits(choice, value) for choice in schema["oneOf"]) == 1,
    ]
    if kind in ("integer", "number") and checks[0]:
        checks += [
            value >= schema.get("minimum", value),
            value <= schema.get("maximum", value),
            "exclusiveMinimum" not in schema or value > schema["exclusiveMinimum"],
            "exclusiveMaximum" not in schema or value < schema["exclusiveMaximum"],
        ]
    if isinstance(value, dict):
        properties, others = schema.get("properties", {}), schema.get("additionalProperties", True)
        checks += [fits(properties.get(name, others), inner) for name, inner in value.items()]
        checks.append(set(schema.get("required", ())) <= set(value))
    if isinstance(value, list) and "items" in schema:
        items = schema["items"] if isinstance(schema["items"], list) else [schema["items"]] * len(value)
        checks.append(schema.get("minItems", 0) <= len(value) <= schema.get("maxItems", len(value)))
        checks += [fits(item, inner) for item, inner in zip(items, value, strict=False)]
    return all(checks)


def test_schema_accepts_complete_recipes():
    schema = recipe_schema()
    assert fits(schema, {})
    assert fits(schema, recipe_to_table(Recipe()))
    for name in recipe_names():
        assert fits(schema, recipe_to_table(read_recipe(name)))
    for name, algorithm in ALGORITHMS.items():
        assert fits(schema, recipe_to_table(Recipe(algorithm=algorithm())))
        assert fits(schema, {"algorithm": {"name": name}})


@pytest.mark.parametrize(
    "table",
    [
        {"agnet": {}},
        {"agent": {"max_turn": 6}},
        {"agent": {"max_turns": "six"}},
        {"agent": {"max_turns": "none"}},
        {"agent": {"max_turns": 0}},
        {"algorithm": {"clip": [0.1, -0.1]}},
        {"agent": {"reasoning": 1}},
        {"collect": {"reward": 1}},
        {"optimizer": {"iterations": 3}},
        {"optimizer": {"trainable": [1]}},
        {"algorithm": {"clip": [0.1]}},
        {"algorithm": {"name": "seupo"}},
        {"algorithm": {"name": "grpo", "order": "natural"}},
        {"algorithm": {"deviation_term": True}},
        {"warm_start": {"mistakes": {"slip": "x"}}},
        {"evaluation": {"samples": 4}},
    ],
)
def test_schema_rejects_mistakes(table):
    assert not fits(recipe_schema(), table)


def test_every_option_has_a_description():
    def check(schema: dict[str, Any], path: str) -> None:
        for name, inner in schema.get("properties", {}).items():
            assert name == "name" or inner.get("description"), f"{path}.{name}"
            check(inner, f"{path}.{name}")
        for choice in (*schema.get("anyOf", ()), *schema.get("oneOf", ())):
            check(choice, path)

    check(recipe_schema(), "")


def test_command_prints_the_schema():
    result = CliRunner().invoke(main, ["recipes", "schema"])
    assert result.exit_code == 0
    assert json.loads(result.output) == json.loads(json.dumps(recipe_schema()))
