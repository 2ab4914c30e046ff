"""Finds parts of a JSON schema that the compiler would ignore silently: such schemas are refused.

Parts that the compiler warns about are refused in `compiling`. Pure.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Iterator, Sequence
from typing import Any
from urllib.parse import unquote

from verify_service.grammars.expressions import MOST_COUNT

# Annotations: no answer depends on them.
NOTES = {
    "title",
    "description",
    "default",
    "examples",
    "deprecated",
    "readOnly",
    "writeOnly",
    "$comment",
    "$schema",
}
NOTES |= {"$id", "$defs", "definitions", "format", "$anchor", "contentMediaType", "contentEncoding"}
NOTES |= {"discriminator", "example", "externalDocs", "xml"}  # OpenAPI's
_UNKEPT = (
    "not",
    "uniqueItems",
    "contains",
    "if",
    "dependentRequired",
    "dependentSchemas",
    "dependencies",
    "$dynamicRef",
    "$recursiveRef",
)
BRANCHES = ("anyOf", "oneOf", "allOf", "$ref")  # the compiler ignores keywords beside these
_MAPS = ("properties", "patternProperties", "$defs", "definitions")
_SINGLE = (
    "items",
    "additionalProperties",
    "unevaluatedProperties",
    "propertyNames",
    "additionalItems",
    "unevaluatedItems",
)
# Conditions that the compiler applies only if it knows the type of the value.
_OF_TYPES = {
    "minLength",
    "maxLength",
    "pattern",
    "minimum",
    "maximum",
    "exclusiveMinimum",
    "exclusiveMaximum",
}
_OF_TYPES |= {
    "multipleOf",
    "minItems",
    "maxItems",
    "minProperties",
    "maxProperties",
    "patternProperties",
}
_OF_TYPES |= {"propertyNames", "required"}
# Keywords that imply a type: the compiler allows no other type beside them.
_TELL_TYPES = {
    "properties",
    "additionalProperties",
    "unevaluatedProperties",
    "items",
    "prefixItems",
    "unevaluatedItems",
}
FORMATTED = {"pattern", "minLength", "maxLength"}  # unsupported beside a format
FORMATS = {
    "date",
    "time",
    "date-time",
    "duration",
    "email",
    "hostname",
    "ipv4",
    "ipv6",
    "uuid",
    "uri",
    "uri-reference",
}
FORMATS |= {"uri-template", "json-pointer", "relative-json-pointer"}
_OTHER_FORMATS = {"idn-email", "idn-hostname", "iri", "iri-reference", "regex"}  # others are notes
_SHAPES: dict[type, tuple[str, tuple[str, ...]]] = {
    dict: ("an object", ("properties", "patternProperties", "$defs", "definitions")),
    list: ("a list", ("required", "enum", "anyOf", "oneOf", "allOf", "prefixItems")),
}
_LARGEST = 2**63 - 1
_LONGEST = 80  # characters of a path in a message
_CONDITIONS = {"type", "const", "enum", *_OF_TYPES, *_TELL_TYPES, *_UNKEPT, *BRANCHES}
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
    """The first part of this schema that the compiler would ignore, in one sentence; None if there
    is none."""
    found = next(_find(schema), None)
    if found is None:
        return None
    where, what = found
    return f"{where or '#'}: {what}" if len(where) <= _LONGEST else f"{where[:_LONGEST]}...: {what}"


def parts_of(form: Any, *, schemas: bool = True) -> Iterator[dict[str, Any]]:
    """All objects inside a schema or a structural tag. schemas: also those inside the schemas of a
    tag."""
    waiting = [form]
    while waiting:
        match waiting.pop():
            case dict() as part:
                yield part
                waiting += [
                    value for name, value in part.items() if schemas or name != "json_schema"
                ]
            case list() as parts:
                waiting += parts


def walk(root: Any) -> Iterator[tuple[str, dict[str, Any]]]:
    """Yields (path, schema) of a schema, its subschemas and those it refers to. Each may be changed
    before the next is taken."""
    waiting: list[tuple[str, Any]] = [("", root)]
    seen = dict[int, Any]()
    while waiting:
        where, schema = waiting.pop()
        if isinstance(schema, dict) and id(schema) not in seen:
            seen[id(schema)] = schema
            yield where, schema
            waiting += _inside(where, schema)
            if isinstance(schema.get("$ref"), str):
                waiting.append((schema["$ref"].removeprefix("#"), pointed(root, schema["$ref"])))


def pointed(root: Any, reference: str) -> Any:
    """The part that a reference names; None if there is none."""
    first, *steps = unquote(reference).split("/")
    found = root if first == "#" else None
    for step in steps:
        match found:
            case dict():
                found = found.get(step.replace("~1", "/").replace("~0", "~"))
            case list() if step.isdecimal() and int(step) < len(found):
                found = found[int(step)]
            case _:
                return None
    return found


def types_of(schema: dict[str, Any]) -> Sequence[str]:
    """The type names that a schema allows; empty without `type`."""
    types = schema.get("type", [])
    return [types] if isinstance(types, str) else [each for each in types if isinstance(each, str)]


def misshapen(root: Any) -> str | None:
    """The first keyword with a value of wrong type or range, in one sentence; None without one."""
    for where, schema in walk(root):
        for kind, (said, names) in _SHAPES.items():
            for name in names:
                if not isinstance(schema.get(name, kind()), kind):
                    return f"{where or '#'}: {name} must be {said}"
        for name in ("pattern", "format"):
            if not isinstance(schema.get(name, ""), str):
                return f"{where or '#'}: {name} must be a text"
        if not isinstance(schema.get("type", ""), str | list):
            return f"{where or '#'}: type must be a name or a list of them"
        if not all(isinstance(name, str) for name in schema.get("required", ())):
            return f"{where or '#'}: required must be a list of names"
        for name in ("Length", "Items", "Properties"):
            bounds = [
                schema.get(f"{end}{name}", usual) for end, usual in (("min", 0), ("max", _LARGEST))
            ]
            if any(type(bound) is not int or not 0 <= bound <= _LARGEST for bound in bounds):
                return f"{where or '#'}: min{name} and max{name} must be whole numbers from 0 on"
            if bounds[0] > MOST_COUNT:
                return f"{where or '#'}: min{name} above {MOST_COUNT} is not supported"
            if bounds[0] > bounds[1]:
                return f"{where or '#'}: min{name} is above max{name}"
        for name in ("minimum", "maximum", "exclusiveMinimum", "exclusiveMaximum", "multipleOf"):
            bound = schema.get(name, 0)
            if type(bound) not in (int, float) or not -_LARGEST <= bound <= _LARGEST:
                return f"{where or '#'}: {name} must be a number within {_LARGEST}"
    return None


def _find(root: Any) -> Iterator[tuple[str, str]]:
    for where, schema in walk(root):
        for name in _UNKEPT:
            if schema.get(name) is not None and not (
                name == "uniqueItems" and schema[name] is False
            ):
                yield where, f"{name} is not supported"
        if schema.get("nullable"):
            yield where, "nullable without type is not supported"
        if "oneOf" in schema:
            yield (
                where,
                "oneOf is supported where types differ, or values that a required property lists",
            )
        if len(schema.get("allOf", ())) > 1:
            yield (
                where,
                "allOf of several parts is supported where these are objects that take further "
                "keys",
            )
        yield from ((where, problem) for check in _CHECKS for problem in check(schema))
        if where and "$id" in schema and any("$ref" in part for _, part in walk(schema)):
            yield where, "$id around a $ref is not supported"
        for name in schema.get("required", ()):
            if name not in schema.get("properties", {}):
                yield where, f"required names {name!r}, which properties do not"


def _beside(schema: dict[str, Any]) -> Iterator[str]:
    """Conditions beside a keyword that makes the compiler ignore them."""
    for name in BRANCHES:
        if name not in schema:
            continue
        if rest := sorted(set(schema) & _CONDITIONS - {name}):
            yield f"{', '.join(rest)} beside {name} is not supported"
        return


def of_type(branch: dict[str, Any], schema: dict[str, Any]) -> bool:
    """Whether the schema's type adds nothing to the branch."""
    if "type" in branch:
        return bool(branch["type"] == schema.get("type"))
    return _typed(values_of(branch), schema)


def values_of(schema: dict[str, Any]) -> Sequence[Any]:
    """The values that a schema lists by `const` or `enum`."""
    return [schema["const"]] if "const" in schema else schema.get("enum", [])


def _typed(values: Sequence[Any], schema: dict[str, Any]) -> bool:
    """Whether there are values, all of types that the schema allows."""
    kinds = [_TYPES[each] for each in types_of(schema) if each in _TYPES]
    return bool(values) and (
        not kinds or all(any(kind(value) for kind in kinds) for value in values)
    )


def _listed(schema: dict[str, Any]) -> Iterator[str]:
    """Conditions beside listed values, as the compiler allows every listed value."""
    for name in ("const", "enum"):
        if name not in schema:
            continue
        rest = sorted(set(schema) & (_OF_TYPES | _TELL_TYPES | {"const", "enum"}) - {name})
        if rest:
            yield f"{', '.join(rest)} beside {name} is not supported"
        if any(not -_LARGEST <= number <= _LARGEST for number in _integers(values_of(schema))):
            yield f"{name} has a number beyond {_LARGEST}"
        if values_of(schema) and not _typed(values_of(schema), schema):
            yield f"{name} has a value that is not of its type"
        return


def _untyped(schema: dict[str, Any]) -> Iterator[str]:
    if (
        schema.get("type")
        or not _TELL_TYPES.isdisjoint(schema)
        or not {"const", "enum", *BRANCHES}.isdisjoint(schema)
    ):
        return
    rest = sorted(set(schema) & _OF_TYPES)
    if rest:
        yield f"{', '.join(rest)} without type is not supported"


def _integers(value: Any) -> Iterator[int]:
    waiting = [value]
    while waiting:
        match waiting.pop():
            case int() as number:
                yield number
            case dict() as part:
                waiting += part.values()
            case list() as parts:
                waiting += parts


def _formatted(schema: dict[str, Any]) -> Iterator[str]:
    said = schema.get("format")
    if said in _OTHER_FORMATS:
        yield f"format {said!r} is not supported"
    if said in FORMATS:
        rest = sorted(set(schema) & FORMATTED)
        if rest:
            yield f"{', '.join(rest)} beside format is not supported"
        if not types_of(schema) and {"const", "enum"}.isdisjoint(schema):
            yield "format without type is not supported"


def _empty(schema: dict[str, Any]) -> Iterator[str]:
    """Parts that no value satisfies, for which the compiler allows an empty one."""
    yield from (
        f"{name} must not be empty" for name in ("type", *BRANCHES) if schema.get(name) == []
    )
    if "number" in types_of(schema):
        low, high = [
            [schema[name] for name in names if _number(schema.get(name))]
            for names in (("minimum", "exclusiveMinimum"), ("maximum", "exclusiveMaximum"))
        ]
        if low and high and math.ceil(max(low) * 10**6) > math.floor(min(high) * 10**6):
            yield "no number of six decimals is within its bounds"


def _named(schema: dict[str, Any]) -> Iterator[str]:
    """Conditions on keys that the compiler ignores if the key matches by name or pattern."""
    for name in (
        "additionalProperties",
        "unevaluatedProperties",
        "properties",
        "patternProperties",
    ):
        if "propertyNames" in schema and schema.get(name, True) is not True:
            yield f"{name} beside propertyNames is not supported"
    if schema.get("minProperties", 0) > 1 and (
        schema.get("patternProperties") or schema.get("additionalProperties", False) is not False
    ):
        yield (
            "minProperties above 1 beside keys that are not named is not supported: one of "
            "these may come twice"
        )
    names = schema.get("propertyNames")
    if isinstance(names, dict) and names.get("type", "string") != "string":
        yield "propertyNames of another type than string are not supported"
    patterns = schema.get("patternProperties", {})
    values = [
        *patterns.values(),
        *([rest] if (rest := schema.get("additionalProperties", False)) is not False else []),
    ]
    if patterns and any(value != values[0] for value in values):
        yield (
            "patternProperties of several kinds, or beside additionalProperties, are not supported"
        )
    for name in schema.get("properties", {}):
        if any(re.search(pattern, name) for pattern in patterns):
            yield (
                f"a pattern of patternProperties that fits {name!r}, one of properties, is not "
                "supported"
            )


_CHECKS = (_beside, _listed, _untyped, _formatted, _empty, _named)


def _number(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool) and math.isfinite(value)


def _inside(where: str, schema: dict[str, Any]) -> Iterator[tuple[str, Any]]:
    for name in _MAPS:
        if isinstance(schema.get(name), dict):
            yield from ((f"{where}/{name}/{key}", each) for key, each in schema[name].items())
    for name in ("anyOf", "oneOf", "allOf", "prefixItems", "items"):
        if isinstance(schema.get(name), list):
            yield from (
                (f"{where}/{name}/{place}", each) for place, each in enumerate(schema[name])
            )
    yield from ((f"{where}/{name}", schema[name]) for name in _SINGLE if name in schema)
