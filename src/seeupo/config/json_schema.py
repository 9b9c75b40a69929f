"""Build the JSON schema of a recipe, with which editors complete and check TOML files."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import MISSING, is_dataclass
from typing import Any, Literal, get_args, get_origin

from seeupo.config.keys import REGISTRIES, Key, alternatives, keys_of, takes_none
from seeupo.config.reference import attributes, summary
from seeupo.config.schema import Recipe

NAMES = {int: "integer", float: "number", bool: "boolean", str: "string"}


def recipe_schema() -> dict[str, Any]:
    """Return the schema; the checks of single options, such as a smallest value, are not part of it."""
    return {"$schema": "http://json-schema.org/draft-07/schema#", "title": "SeeUPO recipe", **_section(Recipe)}


def _section(section: Any) -> dict[str, Any]:
    meanings = attributes(section)
    keys = [key for key in keys_of(section).values() if key.set_by is None]
    return {
        "type": "object",
        "description": summary(section),
        "properties": {
            key.name: {**_key(key), **({"description": meanings[key.name]} if key.name in meanings else {})}
            for key in keys
        },
        "required": [key.name for key in keys if key.default is MISSING],
        "additionalProperties": False,
    }


def _key(key: Key) -> dict[str, Any]:
    if key.hint in REGISTRIES:
        return _selected(REGISTRIES[key.hint], key.default.name)
    if key.default is MISSING or is_dataclass(key.default):
        return _type(key.hint)
    return {**_type(key.hint), "default": "none" if key.default is None else key.default}


def _selected(registry: Mapping[str, type], default: str) -> dict[str, Any]:
    """Return one schema per registered class; only the default's `name` may be left out."""
    choices = []
    for name, entry in registry.items():
        schema = _section(entry)
        schema["properties"] = {"name": {"const": name}, **schema["properties"]}
        schema["required"] += [] if name == default else ["name"]
        choices.append(schema)
    return {"oneOf": choices}


def _type(hint: Any) -> dict[str, Any]:
    schemas = [_part(part) for part in alternatives(hint)]
    schemas += [{"const": "none"}] if takes_none(hint) else []
    return schemas[0] if len(schemas) == 1 else {"anyOf": schemas}


def _part(part: Any) -> dict[str, Any]:
    origin, arguments = get_origin(part), get_args(part)
    if is_dataclass(part):
        return _section(part)
    if origin is Literal:
        return {"enum": list(arguments)}
    if origin is tuple and arguments[-1] is Ellipsis:
        return {"type": "array", "items": _type(arguments[0])}
    if origin is tuple:
        length = len(arguments)
        return {"type": "array", "items": [*map(_type, arguments)], "minItems": length, "maxItems": length}
    if origin is Mapping:
        return {"type": "object", "additionalProperties": _type(arguments[1])}
    return {"type": NAMES[part]} if part in NAMES else {}
