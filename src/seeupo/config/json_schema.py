"""Convert sections to JSON schemas and back.

Editors complete and check TOML files with the schema of a recipe; the options of the shipped algorithms are stored as
schemas, so that reading a recipe imports no algorithm.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import MISSING, field, is_dataclass, make_dataclass
from functools import reduce
from operator import or_
from types import GenericAlias
from typing import Annotated, Any, Literal, get_args, get_origin

from seeupo.config.keys import Key, attributes, settable_keys, summary
from seeupo.config.option_types import Range, alternatives, split_range, takes_none

NAMES = {int: "integer", float: "number", bool: "boolean", str: "string"}
TYPES = {name: kind for kind, name in NAMES.items()}


def section_schema(section: Any, **replaced: Any) -> dict[str, Any]:
    """Return the schema of a dataclass; `replaced` are schemas of keys that are not described by their types."""
    meanings, keys = attributes(section), settable_keys(section)
    properties = {}
    for key in keys:
        description = {"description": meanings[key.name]} if key.name in meanings else {}
        properties[key.name] = {**(replaced.get(key.name) or _key_schema(key)), **description}
    return {
        "type": "object",
        "description": summary(section),
        "properties": properties,
        "required": [key.name for key in keys if key.default is MISSING],
        "additionalProperties": False,
    }


def _key_schema(key: Key) -> dict[str, Any]:
    if key.default is MISSING or is_dataclass(key.default):
        return _type_schema(key.hint)
    return {**_type_schema(key.hint), "default": "none" if key.default is None else key.default}


def _type_schema(hint: Any) -> dict[str, Any]:
    if hint is Any:
        return {}
    schemas = [_part_schema(part) for part in alternatives(hint)]
    schemas += [{"const": "none"}] if takes_none(hint) else []
    return schemas[0] if len(schemas) == 1 else {"anyOf": schemas}


def _part_schema(part: Any) -> dict[str, Any]:
    part, limits = split_range(part)
    origin, arguments = get_origin(part), get_args(part)
    if is_dataclass(part):
        return section_schema(part)
    if origin is Literal:
        return {"enum": list(arguments)}
    if origin is tuple and arguments[-1] is Ellipsis:
        return {"type": "array", "items": _type_schema(arguments[0])}
    if origin is tuple:
        items = [*map(_type_schema, arguments)]
        return {"type": "array", "items": items, "minItems": len(items), "maxItems": len(items)}
    if origin is Mapping:
        return {"type": "object", "additionalProperties": _type_schema(arguments[1])}
    return {"type": NAMES[part], **({} if limits is None else _range_schema(limits))}


def _range_schema(limits: Range) -> dict[str, float]:
    low = {"exclusiveMinimum" if limits.exclude_low else "minimum": limits.low}
    high = {"exclusiveMaximum" if limits.exclude_high else "maximum": limits.high}
    return low if limits.high == math.inf else {**low, **high}


def section_from_schema(name: str, schema: Mapping[str, Any]) -> type:
    """Return a dataclass whose `section_schema` is this one."""
    options: list[tuple[str, Any, Any]] = []
    for key, described in schema["properties"].items():
        hint, default = _type_from_schema(key, described), described.get("default", MISSING)
        default = tuple(default) if isinstance(default, list) else default
        options.append((key, hint, field(default=None if takes_none(hint) and default == "none" else default)))
    lines = [f"    {key}: {described['description']}" for key, described in schema["properties"].items()]
    docstring = "\n".join([schema["description"], "", "Attributes:", *lines])
    return make_dataclass(name, options, frozen=True, kw_only=True, namespace={"__doc__": docstring})


def _type_from_schema(name: str, schema: Mapping[str, Any]) -> Any:
    if "anyOf" in schema:
        return reduce(or_, [None if "const" in part else _type_from_schema(name, part) for part in schema["anyOf"]])
    if "enum" in schema:
        return Literal[tuple(schema["enum"])]
    if "properties" in schema:
        return section_from_schema(name, schema)
    if "items" in schema:
        items = schema["items"]
        elements = [_type_from_schema(name, item) for item in (items if isinstance(items, list) else [items])]
        return GenericAlias(tuple, (*elements,) if isinstance(items, list) else (*elements, ...))
    kind = TYPES[schema["type"]]
    low = schema.get("minimum", schema.get("exclusiveMinimum"))
    if low is None:
        return kind
    high = schema.get("maximum", schema.get("exclusiveMaximum", math.inf))
    return Annotated[kind, Range(low, high, "exclusiveMinimum" in schema, "exclusiveMaximum" in schema)]
