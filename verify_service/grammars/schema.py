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

_UNKEPT = {"not", "uniqueItems", "contains", "if", "dependentRequired", "dependentSchemas"}
_UNKEPT |= {"dependencies", "$dynamicRef", "$recursiveRef"}
BRANCHES = ("anyOf", "oneOf", "allOf", "$ref")  # the compiler ignores keywords beside these
_LISTED = ("const", "enum")  # the compiler allows every listed value
TELLING = {"type", *_LISTED, *BRANCHES}  # one of these says what a value is
_MAPS = ("properties", "patternProperties", "$defs", "definitions")
_LISTS = ("anyOf", "oneOf", "allOf", "prefixItems")
_SINGLE = {"items", "additionalProperties", "unevaluatedProperties", "propertyNames"}
_SINGLE |= {"additionalItems", "unevaluatedItems"}
_COUNTS = ("Length", "Items", "Properties")  # min and max of these
_BOUNDS = ("minimum", "maximum", "exclusiveMinimum", "exclusiveMaximum", "multipleOf")
# Conditions that the compiler applies only if it knows the type of the value.
_OF_TYPES = {"pattern", "format", "patternProperties", "propertyNames", "required", *_BOUNDS}
_OF_TYPES |= {f"{end}{name}" for end in ("min", "max") for name in _COUNTS}
# Keywords that imply a type: the compiler allows no other type beside them.
_TELL_TYPES = {"properties", "additionalProperties", "unevaluatedProperties"}
_TELL_TYPES |= {"items", "prefixItems", "unevaluatedItems"}
# All others are annotations: no answer depends on them.
CONDITIONS = {"nullable", *TELLING, *_OF_TYPES, *_TELL_TYPES, *_UNKEPT}
FORMATTED = {"pattern", "minLength", "maxLength"}  # unsupported beside a format
OTHER_FORMATS = {"idn-email", "idn-hostname", "iri", "iri-reference", "regex"}
_LARGEST = 2**63 - 1
_LONGEST = 80  # characters of a path in a message
_TYPES: dict[str, Callable[[Any], bool]] = {
    "null": lambda value: value is None,
    "boolean": lambda value: isinstance(value, bool),
    "integer": lambda value: _number(value) and value == int(value),
    "number": lambda value: _number(value),
    "string": lambda value: isinstance(value, str),
    "array": lambda value: isinstance(value, list),
    "object": lambda value: isinstance(value, dict),
}
# What values of keywords must be.
_SHAPES: list[tuple[tuple[str, ...], str, Callable[[Any], bool]]] = [
    (_MAPS, "an object", _TYPES["object"]),
    ((*_LISTS, "enum"), "a list", _TYPES["array"]),
    (("pattern", "format", "$ref"), "a text", _TYPES["string"]),
    (("type",), "a name or a list of them", lambda value: isinstance(value, str | list)),
    (("required",), "a list of names", lambda value: are_texts(value)),
    (
        _BOUNDS,
        f"a number within {_LARGEST}",
        lambda value: type(value) in (int, float) and _within(value),
    ),
]


def refuse(check: Callable[[dict[str, Any]], Iterator[str]], root: Any) -> None:
    """Raises ValueError for the first problem that a check finds in a part of a schema."""
    for where, schema in walk(root):
        for problem in check(schema):
            where = where if len(where) <= _LONGEST else f"{where[:_LONGEST]}..."
            raise ValueError(f"{where or '#'}: {problem}")


def inside(value: Any, beyond: str = "") -> Iterator[Any]:
    """Everything in a JSON value, itself included. beyond: a key whose values are left out."""
    waiting = [value]
    while waiting:
        yield (found := waiting.pop())
        match found:
            case dict():
                waiting += [part for name, part in found.items() if name != beyond]
            case list():
                waiting += found


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
            waiting += _subschemas(where, schema)
            if (reference := schema.get("$ref")) is not None:
                waiting.append((reference.removeprefix("#"), pointed(root, reference)))


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


def values_of(schema: dict[str, Any]) -> Sequence[Any]:
    """The values that a schema lists by `const` or `enum`."""
    return [schema["const"]] if "const" in schema else schema.get("enum", [])


def rest_of(schema: dict[str, Any]) -> Any:
    """The schema of values whose keys are not named; False without them."""
    return schema.get("additionalProperties", schema.get("unevaluatedProperties", False))


def of_type(branch: dict[str, Any], schema: dict[str, Any]) -> bool:
    """Whether the schema's type adds nothing to the branch."""
    if "type" in branch:
        return bool(branch["type"] == schema.get("type"))
    return _typed(values_of(branch), schema)


def _typed(values: Sequence[Any], schema: dict[str, Any]) -> bool:
    """Whether there are values, all of types that the schema allows."""
    kinds = [_TYPES[each] for each in types_of(schema) if each in _TYPES]
    return bool(values) and (
        not kinds or all(any(kind(value) for kind in kinds) for value in values)
    )


def misshapen(schema: dict[str, Any]) -> Iterator[str]:
    """Keywords with a value of wrong type or range."""
    for names, said, fits in _SHAPES:
        yield from (
            f"{name} must be {said}" for name in names if name in schema and not fits(schema[name])
        )
    for name in _COUNTS:
        least, most = schema.get(f"min{name}", 0), schema.get(f"max{name}", _LARGEST)
        if any(type(bound) is not int or not 0 <= bound <= _LARGEST for bound in (least, most)):
            yield f"min{name} and max{name} must be whole numbers from 0 on"
        elif least > MOST_COUNT:
            yield f"min{name} above {MOST_COUNT} is not supported"
        elif least > most:
            yield f"min{name} is above max{name}"


def unkept(schema: dict[str, Any]) -> Iterator[str]:
    """What the compiler would ignore."""
    for name in sorted(_UNKEPT):
        if schema.get(name) is not None and not (name == "uniqueItems" and schema[name] is False):
            yield f"{name} is not supported"
    if schema.get("nullable"):
        yield "nullable without type is not supported"
    if "oneOf" in schema:
        yield "oneOf is supported where types differ, or values that a required property lists"
    if len(schema.get("allOf", ())) > 1:
        yield "allOf of several parts is supported where these are objects that take further keys"
    if schema.get("format") in OTHER_FORMATS:
        yield f"format {schema['format']!r} is not supported"
    yield from _beside(schema)
    yield from _empty(schema)
    yield from _named(schema)
    if "$id" in schema and any("$ref" in part for _, part in walk(schema)):
        yield "$id around a $ref is not supported"


def _beside(schema: dict[str, Any]) -> Iterator[str]:
    """Conditions beside a keyword, or without a type, which make the compiler ignore them."""
    alone = next((name for name in (*BRANCHES, *_LISTED) if name in schema), None)
    if alone in BRANCHES:
        lost, where = CONDITIONS - _UNKEPT - {alone}, f"beside {alone}"
    elif alone is not None:
        lost, where = CONDITIONS - _UNKEPT - {alone, "type", "format"}, f"beside {alone}"
    elif "format" in schema and schema.get("type"):
        lost, where = FORMATTED, "beside format"
    elif schema.get("type") or not _TELL_TYPES.isdisjoint(schema):
        return
    else:
        lost, where = _OF_TYPES, "without type"
    if rest := sorted(lost & schema.keys()):
        yield f"{', '.join(rest)} {where} is not supported"
    if alone in _LISTED:
        values = values_of(schema)
        if any(isinstance(each, int) and not _within(each) for each in inside(values)):
            yield f"{alone} has a number beyond {_LARGEST}"
        if values and not _typed(values, schema):
            yield f"{alone} has a value that is not of its type"


def _empty(schema: dict[str, Any]) -> Iterator[str]:
    """Parts that no value satisfies, for which the compiler allows an empty one."""
    yield from (
        f"{name} must not be empty" for name in ("type", *BRANCHES) if schema.get(name) == []
    )
    if "number" in types_of(schema):
        low, high = [
            [schema[name] for name in names if name in schema]
            for names in (("minimum", "exclusiveMinimum"), ("maximum", "exclusiveMaximum"))
        ]
        if low and high and math.ceil(max(low) * 10**6) > math.floor(min(high) * 10**6):
            yield "no number of six decimals is within its bounds"


def _named(schema: dict[str, Any]) -> Iterator[str]:
    """Conditions on keys that the compiler ignores if the key matches by name or pattern."""
    properties, patterns = schema.get("properties", {}), schema.get("patternProperties", {})
    rest = rest_of(schema)
    for name in ("additionalProperties", "unevaluatedProperties", *_MAPS[:2]):
        if "propertyNames" in schema and schema.get(name, True) is not True:
            yield f"{name} beside propertyNames is not supported"
    unnamed = patterns or rest is not False or "propertyNames" in schema
    if schema.get("minProperties", 0) > 1 and unnamed:
        yield (
            "minProperties above 1 beside keys that are not named is not supported: one of "
            "these may come twice"
        )
    names = schema.get("propertyNames")
    if isinstance(names, dict) and names.get("type", "string") != "string":
        yield "propertyNames of another type than string are not supported"
    kinds = [*patterns.values(), *([] if rest is False else [rest])]
    if patterns and any(kind != kinds[0] for kind in kinds):
        yield ("patternProperties of several kinds, or beside other keys, are not supported")
    for name in properties:
        if any(re.search(pattern, name) for pattern in patterns):
            yield (
                f"a pattern of patternProperties that fits {name!r}, one of properties, is not "
                "supported"
            )
    for name in schema.get("required", ()):
        if name not in properties:
            yield f"required names {name!r}, which properties do not"


def _number(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool) and math.isfinite(value)


def _within(number: float) -> bool:
    return -_LARGEST <= number <= _LARGEST


def are_texts(value: Any) -> bool:
    return isinstance(value, list) and all(isinstance(name, str) for name in value)


def _subschemas(where: str, schema: dict[str, Any]) -> Iterator[tuple[str, Any]]:
    for name in _MAPS:
        yield from ((f"{where}/{name}/{key}", each) for key, each in schema.get(name, {}).items())
    for name in (*_LISTS, "items"):
        if isinstance(schema.get(name), list):
            yield from (
                (f"{where}/{name}/{place}", each) for place, each in enumerate(schema[name])
            )
    yield from ((f"{where}/{name}", schema[name]) for name in sorted(_SINGLE & schema.keys()))
