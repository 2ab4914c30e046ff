"""What of JSON Schema the compiler would leave out without a word: such schemas are refused, not half kept. Pure.

What the compiler warns of it says itself, see `compiling`.
"""

from __future__ import annotations

import math
import re
import sys
from collections.abc import Callable, Iterator
from typing import Any

# Nothing of an answer depends on them.
_NOTES = {"title", "description", "default", "examples", "deprecated", "readOnly", "writeOnly", "$comment", "$schema"}
_NOTES |= {"$id", "$defs", "definitions", "format", "$anchor", "contentMediaType", "contentEncoding"}
_NOTES |= {"discriminator", "example", "externalDocs", "xml"}  # OpenAPI's
_UNKEPT = (
    "not",
    "uniqueItems",
    "contains",
    "if",
    "dependentRequired",
    "dependentSchemas",
    "dependencies",
    "$dynamicRef",
)
_BRANCHES = ("anyOf", "oneOf", "allOf", "$ref")  # the compiler looks at nothing beside one of these
_MAPS = ("properties", "patternProperties", "$defs", "definitions")
_SINGLE = (
    "items",
    "additionalProperties",
    "unevaluatedProperties",
    "propertyNames",
    "additionalItems",
    "unevaluatedItems",
)
# Conditions that the compiler looks at where it knows of which type the value is.
_OF_TYPES = {"minLength", "maxLength", "pattern", "minimum", "maximum", "exclusiveMinimum", "exclusiveMaximum"}
_OF_TYPES |= {"multipleOf", "minItems", "maxItems", "minProperties", "maxProperties", "patternProperties"}
_OF_TYPES |= {"propertyNames", "required"}
# These say so themselves: the compiler writes no value of another type beside them.
_TELL_TYPES = {
    "properties",
    "additionalProperties",
    "unevaluatedProperties",
    "items",
    "prefixItems",
    "unevaluatedItems",
}
_PIECES = re.compile(r"\[(?:\\.|[^\\\]])*\]|\\u\{[0-9a-fA-F]+\}|\\u[0-9a-fA-F]{4}|\\x[0-9a-fA-F]{2}|\\.|.", re.DOTALL)
_CODE = re.compile(r"\\[ux](?:\{([0-9a-fA-F]+)\}|([0-9a-fA-F]+))")
_TYPES: dict[str, Callable[[Any], bool]] = {
    "null": lambda value: value is None,
    "boolean": lambda value: isinstance(value, bool),
    "integer": lambda value: _number(value) and value == int(value),
    "number": lambda value: _number(value),
    "string": lambda value: isinstance(value, str),
    "array": lambda value: isinstance(value, list),
    "object": lambda value: isinstance(value, dict),
}


def unkept(schema: Any) -> str | None:
    """What of this schema no answer would be held to, in one sentence; None when all of it is kept."""
    return next((f"{where or '#'}: {what}" for where, what in _find(schema)), None)


def parts_of(form: Any, *, schemas: bool = True) -> Iterator[dict[str, Any]]:
    """The objects inside a schema or a structural tag. schemas: those inside the schemas of a tag as well."""
    waiting = [form]
    while waiting:
        match waiting.pop():
            case dict() as part:
                yield part
                waiting += [value for name, value in part.items() if schemas or name != "json_schema"]
            case list() as parts:
                waiting += parts


def expressions_of(tag: Any) -> list[dict[str, Any]]:
    """The parts of a structural tag that are regular expressions, by themselves and not of a schema."""
    parts = parts_of(tag, schemas=False)
    return [part for part in parts if part.get("type") == "regex" and isinstance(part.get("pattern"), str)]


def grammars_of(tag: Any) -> Iterator[str]:
    """The grammars of a structural tag."""
    for part in parts_of(tag, schemas=False):
        if part.get("type") == "grammar" and isinstance(part.get("grammar"), str):
            yield part["grammar"]


def patterns_of(form: Any) -> Iterator[str]:
    """The regular expressions of a schema or a structural tag."""
    for part in parts_of(form):
        if isinstance(part.get("pattern"), str):
            yield part["pattern"]
        if isinstance(part.get("patternProperties"), dict):
            yield from part["patternProperties"]


def schemas_of(tag: Any) -> Iterator[Any]:
    """The schemas inside a structural tag."""
    for part in parts_of(tag, schemas=False):
        if "json_schema" in part:
            yield part["json_schema"]


def _find(root: Any) -> Iterator[tuple[str, str]]:
    waiting: list[tuple[str, Any]] = [("", root)]
    while waiting:
        where, schema = waiting.pop()
        if not isinstance(schema, dict):
            continue
        yield from ((where, f"{name} is not supported") for name in _UNKEPT if schema.get(name) not in (None, False))
        yield from ((where, problem) for check in _CHECKS for problem in check(schema))
        declared = schema.get("properties")
        if isinstance(schema.get("required"), list):
            known = declared if isinstance(declared, dict) else {}
            for name in schema["required"]:
                if name not in known:
                    yield where, f"required names {name!r}, which properties do not"
        waiting += _inside(where, schema)


def _beside(schema: dict[str, Any]) -> Iterator[str]:
    """Conditions beside a keyword that the compiler takes for the whole."""
    for name in _BRANCHES:
        if name not in schema:
            continue
        rest = set(schema) - _NOTES - {name}
        branches = schema[name] if isinstance(schema[name], list) else []
        if "type" in rest and all(isinstance(one, dict) and one.get("type") == schema["type"] for one in branches):
            rest -= {"type"} if branches else set()
        if rest:
            yield f"{', '.join(sorted(rest))} beside {name} is not supported"
        return


def _listed(schema: dict[str, Any]) -> Iterator[str]:
    """Conditions beside the values themselves: the compiler writes every value that is listed."""
    for name in ("const", "enum"):
        if name not in schema:
            continue
        rest = sorted(set(schema) & (_OF_TYPES | _TELL_TYPES | {"const", "enum"}) - {name})
        if rest:
            yield f"{', '.join(rest)} beside {name} is not supported"
        values = schema[name] if name == "enum" and isinstance(schema[name], list) else [schema[name]]
        types = schema.get("type", [])
        kinds = [_TYPES[each] for each in ([types] if isinstance(types, str) else types) if each in _TYPES]
        if kinds and not all(any(kind(value) for kind in kinds) for value in values):
            yield f"{name} has a value that is not of its type"
        return


def _untyped(schema: dict[str, Any]) -> Iterator[str]:
    if schema.get("type") or not _TELL_TYPES.isdisjoint(schema) or not {"const", "enum", *_BRANCHES}.isdisjoint(schema):
        return
    rest = sorted(set(schema) & _OF_TYPES)
    if rest:
        yield f"{', '.join(rest)} without type is not supported"


def _escaped(schema: dict[str, Any]) -> Iterator[str]:
    """Characters that JSON has to escape: the compiler writes those of an expression as they are. Among others in a
    class it leaves them out."""
    names = schema.get("patternProperties")
    for pattern in (schema.get("pattern"), *(names if isinstance(names, dict) else ())):
        for piece in _PIECES.findall(pattern) if isinstance(pattern, str) else ():
            inside = _PIECES.findall(piece[1:-1]) if piece[0] == "[" else [piece]
            if len(inside) == 1 and (_character(inside[0]) < " " or _character(inside[0]) in '"\\'):
                yield f"pattern with {inside[0][:10]!r}, which JSON escapes, is not supported"


def _character(piece: str) -> str:
    """The one that a piece of an expression is; the last letter of one that is a class or something else."""
    code = _CODE.fullmatch(piece)
    if code is not None:
        return chr(min(int(code[1] or code[2], 16), sys.maxunicode))
    return "\n" if len(piece) > 1 and piece[1] in "nrtfv0c" else piece[-1]


def _named(schema: dict[str, Any]) -> Iterator[str]:
    """The compiler takes all keys that fit their names, whatever else is said of them."""
    for name in ("additionalProperties", "unevaluatedProperties"):
        if "propertyNames" in schema and schema.get(name, True) is not True:
            yield f"{name} beside propertyNames is not supported"


_CHECKS = (_beside, _listed, _untyped, _escaped, _named)


def _number(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool) and math.isfinite(value)


def _inside(where: str, schema: dict[str, Any]) -> Iterator[tuple[str, Any]]:
    for name in _MAPS:
        if isinstance(schema.get(name), dict):
            yield from ((f"{where}/{name}/{key}", each) for key, each in schema[name].items())
    for name in ("anyOf", "oneOf", "allOf", "prefixItems"):
        if isinstance(schema.get(name), list):
            yield from ((f"{where}/{name}/{place}", each) for place, each in enumerate(schema[name]))
    yield from ((f"{where}/{name}", schema[name]) for name in _SINGLE if name in schema)
