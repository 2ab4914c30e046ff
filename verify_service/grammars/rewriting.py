"""A JSON schema in words that the compiler keeps, wherever it says the same in others. Pure.

Dates and addresses are patterns, one of several alternatives is any of them where a value cannot be
two, objects of several parts are one; tuples, and conditions on keys, are written in one way.
"""

from __future__ import annotations

import copy
import re
import warnings
from itertools import combinations
from typing import Any

from verify_service.grammars.expressions import anchored
from verify_service.grammars.schema import (
    FORMATS,
    FORMATTED,
    NOTES,
    pointed,
    types_of,
    values_of,
    walk,
)

_YEAR = r"(000[1-9]|00[1-9]\d|0[1-9]\d\d|[1-9]\d{3})"
_FOURTH = "(0[48]|[2468][048]|[13579][26])"
_DAY = (
    r"((0[13578]|1[02])-(0[1-9]|[12]\d|3[01])|(0[469]|11)-(0[1-9]|[12]\d|30)"
    r"|02-(0[1-9]|1\d|2[0-8]))"
)
_DATE = rf"({_YEAR}-{_DAY}|(\d\d{_FOURTH}|{_FOURTH}00)-02-29)"
_HOUR = r"([01]\d|2[0-3]):[0-5]\d"
_TIME = rf"{_HOUR}:[0-5]\d(\.\d{{1,6}})?(Z|[+-]{_HOUR})"
_BYTE = r"(25[0-5]|2[0-4]\d|1\d\d|[1-9]?\d)"
_HEX = "[0-9a-fA-F]{1,4}"
_SHORTENED = "|".join(f"({_HEX}:){{1,{7 - more}}}(:{_HEX}){{1,{more}}}" for more in range(1, 7))
_POINTER = "(/([^~/]|~[01])*)*"
_VARIABLE = r"[A-Za-z0-9_]+(:[1-9]\d{0,3}|\*)?"
_PATTERNS = {
    "date": _DATE,
    "time": _TIME,
    "date-time": f"{_DATE}T{_TIME}",
    "ipv4": rf"({_BYTE}\.){{3}}{_BYTE}",
    "ipv6": f"(({_HEX}:){{7}}{_HEX}|({_HEX}:){{1,7}}:|{_SHORTENED}|:(:{_HEX}){{1,7}}|::)",
    "json-pointer": _POINTER,
    "uri-template": rf"([!#$&(-;=?-\[\]_a-z~]|\{{[+#./;?&]?{_VARIABLE}(,{_VARIABLE})*\}})*",
    "relative-json-pointer": rf"(0|[1-9]\d*)(#|{_POINTER})",
}
_MAY_BE_EMPTY = {"json-pointer", "uri-reference", "uri-template"}
_REPEATED = re.compile(r"\^(\[(?:\\.|[^\\\]])+\]|\\[dwsDWS]|\.)([+*])\$")  # one kind of characters
# Of a bounded length: a scheme, then a host or none, and N characters.
_URI_CHARACTER = "[A-Za-z0-9._~!$&'()*+,;=:@/?-]"
_HOST = r"//[A-Za-z0-9.-]{1,64}(:\d{1,5})?"
_URI = (
    rf"^[a-z][a-z0-9+.-]{{0,15}}:"
    rf"({_HOST}(/{_URI_CHARACTER}{{0,N}})?|[A-Za-z0-9]{_URI_CHARACTER}{{0,N}})$"
)
_URI_PARTS = 90
_DOMAIN = r"@([A-Za-z0-9][A-Za-z0-9\-]*\.)+[A-Za-z]{2,}$"
_AHEAD = {  # patterns that look ahead, and the same without that
    r"^(?!^[-+.]*$)[+-]?0*\d*\.?\d*$": r"^[+-]?(\d+(\.\d*)?|\.\d+)$",  # pydantic's, of decimals
    # zod's, of mail addresses
    rf"^(?!\.)(?!.*\.\.)([A-Za-z0-9_'+\-\.]*)[A-Za-z0-9_+-]{_DOMAIN}": (
        rf"^([A-Za-z0-9_'+\-]+\.)*[A-Za-z0-9_'+\-]*[A-Za-z0-9_+\-]{_DOMAIN}"
    ),
}
_INMOST = 40  # steps into a schema of which a part is the whole again
_DEEPEST = 8  # references behind references, parts inside parts
_MERGED = {
    "type",
    "properties",
    "required",
    "additionalProperties",
    "unevaluatedProperties",
    "allOf",
}


def rewritten(schema: Any) -> Any:
    """The same schema, and what it is made of, in other words."""
    made = copy.deepcopy(schema)
    for where, part in walk(made):
        if where.count("/") < _INMOST:
            _merge_objects(part, made)
        _one_of_as_any_of(part, made)
        _keys_as_properties(part, made)
        if isinstance(part.get("items"), list):
            part["prefixItems"] = part.pop("items")
            if "additionalItems" in part:
                part["items"] = part.pop("additionalItems")
        if isinstance(part.get("prefixItems"), list):
            part["prefixItems"] = [{} if each is True else each for each in part["prefixItems"]]
        if "pattern" in part:
            part["pattern"] = _AHEAD.get(part["pattern"], part["pattern"])
            if anchored(part["pattern"]):
                # it says all that there is to say, and a format is a note
                part.pop("format", None)
        _lengths_as_patterns(part)
        if part.get("minProperties", 0) <= len(
            set(part.get("required", ())) & part.get("properties", {}).keys()
        ):
            part.pop("minProperties", None)  # that many have to come
        if (
            part.get("format") in _PATTERNS
            and "string" in types_of(part)
            and FORMATTED.isdisjoint(part)
        ):
            part["pattern"] = f"^{_PATTERNS[part.pop('format')]}$"
    return made


def _lengths_as_patterns(part: dict[str, Any]) -> None:
    """Lengths beside a format or a pattern, in place: as one of them, where it can say both."""
    least, most = part.get("minLength", 0), part.get("maxLength")
    pattern, form = part.get("pattern"), part.get("format")
    if not isinstance(least, int) or not isinstance(most, int | None):
        return
    if least == 1 and pattern is not None and not _takes_nothing(pattern):
        del part["minLength"]
    elif form in FORMATS - _MAY_BE_EMPTY and pattern is None and least < 2:
        part.pop("minLength", None)
        if form == "uri" and most is not None and most > _URI_PARTS:
            part["pattern"] = _URI.replace("N", str(most - _URI_PARTS))
            del part["format"], part["maxLength"]
    elif (
        form is None
        and FORMATTED & part.keys() > {"pattern"}
        and (found := _REPEATED.fullmatch(str(pattern)))
    ):
        part["pattern"] = (
            f"^{found[1]}{{{max(least, int(found[2] == '+'))},{'' if most is None else most}}}$"
        )
        part.pop("minLength", None)
        part.pop("maxLength", None)


def _takes_nothing(pattern: str) -> bool:
    with warnings.catch_warnings(action="ignore"):  # what a compiler leaves out is told by warnings
        try:
            return re.search(pattern, "") is not None
        except (re.error, OverflowError, RecursionError):  # of ECMAScript, or beyond Python
            return True


def _merge_objects(part: dict[str, Any], root: Any) -> None:
    """Objects that a value has to be all at once, in place."""
    if not isinstance(part.get("allOf"), list) or (
        len(part["allOf"]) == 1 and part.keys() - NOTES == {"allOf"}
    ):
        return
    pieces = list(_pieces(part, root, _DEEPEST))
    properties, needed = dict[str, Any](), dict[str, None]()
    for place, piece in enumerate(pieces):
        if (
            piece is None
            or piece.keys() - NOTES - _MERGED
            or piece.get("type", "object") != "object"
        ):
            return
        if piece.get("additionalProperties", True) is not True or (
            place and "unevaluatedProperties" in piece
        ):
            return
        for name, value in piece.get("properties", {}).items():
            if properties.setdefault(name, value) != value:
                return
        needed |= dict.fromkeys(piece.get("required", ()))
    properties = copy.deepcopy(properties)  # this part may be one of them
    closed = part.pop("unevaluatedProperties", True)
    del part["allOf"]
    part |= {"type": "object", "properties": properties, "required": list(needed)}
    if closed is not True or any("additionalProperties" in piece for piece in pieces if piece):
        part["additionalProperties"] = closed


def _pieces(part: Any, root: Any, deep: int) -> Any:
    found = _dereferenced(part, root)
    yield found if deep else None
    if found is not None and deep:
        for each in found.get("allOf", ()):
            yield from _pieces(each, root, deep - 1)


def _one_of_as_any_of(part: dict[str, Any], root: Any) -> None:
    """One of several becomes any of them where no value is two of them."""
    if "anyOf" not in part and isinstance(part.get("oneOf"), list):
        found = [_dereferenced(each, root) for each in part["oneOf"]]
        if all(
            one and other and _exclude_each_other(one, other)
            for one, other in combinations(found, 2)
        ):
            part["anyOf"] = part.pop("oneOf")


def _exclude_each_other(one: dict[str, Any], other: dict[str, Any]) -> bool:
    types = [
        set(types_of(each)) | ({"integer"} if "number" in types_of(each) else set())
        for each in (one, other)
    ]
    if all(types) and types[0].isdisjoint(types[1]):
        return True
    if _values_differ(one, other):
        return True
    both = set(one.get("required", ())) & set(other.get("required", ()))
    return any(
        _values_differ(*(each.get("properties", {}).get(name, {}) for each in (one, other)))
        for name in both
    )


def _values_differ(one: Any, other: Any) -> bool:
    """Whether each is one of several values, and none of the other's."""
    values = [_listed_values(each) for each in (one, other)]
    return all(values) and values[0].isdisjoint(values[1])


def _listed_values(schema: Any) -> set[tuple[type, Any]]:
    """The values that it lists, where they can be told from those of another list."""
    values = values_of(schema) if isinstance(schema, dict) else []
    if not all(isinstance(each, str | int | None) for each in values):
        return set()
    return {(type(each), each) for each in values}


def _keys_as_properties(part: dict[str, Any], root: Any) -> None:
    """What keys have to be, said by the properties."""
    if part.get("propertyNames") is True:
        del part["propertyNames"]
    elif isinstance(part.get("propertyNames"), dict) and "$ref" not in part["propertyNames"]:
        part["propertyNames"].setdefault("type", "string")  # which a key always is
    names = _dereferenced(part.get("propertyNames"), root)
    if names is None or part.keys() & {"properties", "patternProperties", "unevaluatedProperties"}:
        return
    if names.get("type", "string") != "string" or part.get("additionalProperties") is False:
        return
    if names.keys() - NOTES - {"type"} in (
        {"minLength"},
        {"maxLength"},
        {"minLength", "maxLength"},
    ):
        names = {
            "pattern": rf"^[\s\S]{{{names.get('minLength', 0)},{names.get('maxLength', '')}}}$"
        }
    rest, values = (
        names.keys() - (NOTES - {"format"}) - {"type"},
        part.get("additionalProperties", {}),
    )
    texts = values_of(names)
    if rest - {"pattern"} and not (
        rest <= {"enum", "const"} and all(isinstance(text, str) for text in texts)
    ):
        return
    del part["propertyNames"]
    part["additionalProperties"] = values
    if rest:
        part["additionalProperties"] = False
        if "pattern" in rest:
            part["patternProperties"] = {names["pattern"]: values}
        else:
            part["properties"] = {text: copy.deepcopy(values) for text in texts}


def _dereferenced(schema: Any, root: Any) -> dict[str, Any] | None:
    """Where it is a reference, what that names."""
    for _ in range(_DEEPEST):
        if not isinstance(schema, dict) or "$ref" not in schema:
            return schema if isinstance(schema, dict) else None
        if schema.keys() - NOTES != {"$ref"} or not isinstance(schema["$ref"], str):
            return None
        schema = pointed(root, schema["$ref"])
    return None
