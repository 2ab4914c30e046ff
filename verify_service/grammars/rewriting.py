"""Rewrites a JSON schema into an equivalent one with keywords that the compiler supports. Pure.

Formats of dates and addresses become patterns, `oneOf` becomes `anyOf` if no value fits two
alternatives, and `allOf` of objects becomes one object. Tuples and `propertyNames` get one form. An
object of which nothing is named takes any properties, and an array any items.
"""

from __future__ import annotations

import copy
import json
import re
import warnings
from itertools import combinations
from typing import Any

from verify_service.grammars.expressions import MOST_COUNT, anchored
from verify_service.grammars.schema import (
    CONDITIONS,
    FORMATTED,
    OTHER_FORMATS,
    TELLING,
    are_texts,
    of_type,
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
_X = "[0-9a-fA-F]"
_HEX = f"{_X}{{1,4}}"
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
    **{  # pydantic's
        f"uuid{version}": f"{_X}{{8}}-{_X}{{4}}-{version}{_X}{{3}}-[89ab]{_X}{{3}}-{_X}{{12}}"
        for version in (1, 3, 4, 5, 6, 7, 8)
    },
}
# formats that are no notes: those above, and the compiler's own
_FORMATS = {*_PATTERNS, "duration", "email", "hostname", "uuid", "uri", "uri-reference"}
_MAY_BE_EMPTY = {"json-pointer", "uri-reference", "uri-template"}
_REPEATED = re.compile(r"\^(\[(?:\\.|[^\\\]])+\]|\\[dwsDWS]|\.)([+*])\$")  # one repeated class
# URI of bounded length: a scheme, an optional host with a slash behind it, and N characters. The
# compiler counts them where nothing optional goes before; unrolled they cost it most of its time.
_URI_CHARACTER = "[A-Za-z0-9._~!$&'()*+,;=:@/?-]"
_HOST = "//[A-Za-z0-9.-]{1,64}"
_URI = (
    rf"^[a-z][a-z0-9+.-]{{0,15}}:({_HOST}/|{_HOST}:\d{{1,5}}/|[A-Za-z0-9]){_URI_CHARACTER}{{0,N}}$"
)
_URI_PARTS = 90
_DOMAIN = r"@([A-Za-z0-9][A-Za-z0-9\-]*\.)+[A-Za-z]{2,}$"
_SECONDS = r"\d+([.,]\d+)?S"
_DAYS = r"(\d+Y(\d+M)?(\d+D)?|\d+M(\d+D)?|\d+D)"
_HOURS = rf"T(\d+H(\d+M)?({_SECONDS})?|\d+M({_SECONDS})?|{_SECONDS})"
_AHEAD = {  # common patterns with lookahead, and equivalents without
    r"^(?!^[-+.]*$)[+-]?0*\d*\.?\d*$": r"^[+-]?(\d+(\.\d*)?|\.\d+)$",  # pydantic's for decimals
    # zod's for mail addresses
    rf"^(?!\.)(?!.*\.\.)([A-Za-z0-9_'+\-\.]*)[A-Za-z0-9_+-]{_DOMAIN}": (
        rf"^([A-Za-z0-9_'+\-]+\.)*[A-Za-z0-9_'+\-]*[A-Za-z0-9_+\-]{_DOMAIN}"
    ),
    # zod's for durations
    r"^P(?:(\d+W)|(?!.*W)(?=\d|T\d)(\d+Y)?(\d+M)?(\d+D)?"
    r"(T(?=\d)(\d+H)?(\d+M)?(\d+([.,]\d+)?S)?)?)$": rf"^P(\d+W|{_DAYS}({_HOURS})?|{_HOURS})$",
}
_INMOST = 40  # deepest rewriting of a recursive schema, in steps
_DEEPEST = 8  # chained references, nested parts
_OF_KEYS = {"properties", "additionalProperties", "unevaluatedProperties"}
_MERGED = {*_OF_KEYS, "type", "required", "allOf"}


def rewritten(schema: Any) -> Any:
    """A rewritten copy of a schema, its subschemas included."""
    made = copy.deepcopy(schema)
    if isinstance(made, dict):
        made.pop("$id", None)  # of the whole: references are read from here
    for _, part in walk(made):
        _refer_plainly(part, made)  # before anything has another place
        if part.pop("nullable", False):  # OpenAPI's
            if part.get("type"):
                part["type"] = sorted({*types_of(part), "null"})
            else:
                part["nullable"] = True
        if part.get("format") not in _FORMATS | OTHER_FORMATS:
            part.pop("format", None)
        if part.get("allOf") == []:
            del part["allOf"]  # says nothing
        for name in ("maxLength", "maxItems", "maxProperties"):
            if part.get(name, 0) > MOST_COUNT:
                del part[name]  # no answer is so long
    for where, part in walk(made):
        if where.count("/") < _INMOST:
            _merge_objects(part, made)
        # pydantic 2.9 and older write a literal both ways; JSON tells 1 from true
        if "const" in part and json.dumps(part.get("enum")) == json.dumps([part["const"]]):
            del part["enum"]
        _one_of_as_any_of(part, made)
        _type_branches(part)
        _keys_as_properties(part, made)
        if isinstance(part.get("items"), list):
            part["prefixItems"] = part.pop("items")
            if "additionalItems" in part:
                part["items"] = part.pop("additionalItems")
        if "prefixItems" in part:
            part["prefixItems"] = [{} if each is True else each for each in part["prefixItems"]]
        if "pattern" in part:
            part["pattern"] = _AHEAD.get(part["pattern"], part["pattern"])
            if anchored(part["pattern"]):
                # an anchored pattern says all; the format is only a note
                part.pop("format", None)
        _lengths_as_patterns(part)
        if part.get("minProperties", 0) <= len(
            set(part.get("required", ())) & part.get("properties", {}).keys()
        ):
            part.pop("minProperties", None)  # implied by the required keys
        if (
            part.get("format") in _PATTERNS
            and "string" in types_of(part)
            and {*FORMATTED, "const", "enum"}.isdisjoint(part)
        ):
            part["pattern"] = f"^{_PATTERNS[part.pop('format')]}$"
    for part in [part for _, part in walk(made) if _typed_by_branches(part, made)]:
        del part["type"]
    for _, part in walk(made):
        _open(part)
    return made


def _refer_plainly(part: dict[str, Any], root: Any) -> None:
    """Gives what is referred to by escapes or by places in lists, which the compiler does not read,
    a name of its own, in place."""
    reference = part.get("$ref", "")
    if not re.search(r"[~%]|/[0-9]", reference):
        return
    found, named = pointed(root, reference), root.setdefault("$defs", {})
    name = re.sub("[~%/]", "-", reference.removeprefix("#/"))
    if found is not None and named.setdefault(name, found) is found:
        part["$ref"] = f"#/$defs/{name}"


def _type_branches(part: dict[str, Any]) -> None:
    """Gives the part's type to its branches that say none, in place."""
    if "type" in part and "anyOf" in part:
        part["anyOf"] = [
            {"type": part["type"], **each}
            if isinstance(each, dict) and TELLING.isdisjoint(each)
            else each
            for each in part["anyOf"]
        ]


def _typed_by_branches(part: dict[str, Any], root: Any) -> bool:
    """Whether every branch has the part's type, which the compiler would ignore beside them."""
    branches = part.get("anyOf") or part.get("allOf")
    if "type" not in part or not branches:
        return False
    found = [_dereferenced(each, root) for each in branches]
    return all(one is not None and of_type(one, part) for one in found)


def _open(part: dict[str, Any]) -> None:
    """Allows any properties or items, in place, where nothing is said of them: beside a bound the
    compiler would allow none."""
    if part.keys() & TELLING != {"type"}:
        return
    types = types_of(part)
    if "object" in types and part.keys().isdisjoint(
        {*_OF_KEYS, "patternProperties", "propertyNames"}
    ):
        part["additionalProperties"] = True
    if "array" in types and {"items", "prefixItems", "unevaluatedItems"}.isdisjoint(part):
        part["items"] = {}


def _lengths_as_patterns(part: dict[str, Any]) -> None:
    """Moves length limits into a pattern or format beside them, in place, where possible."""
    least, most = part.get("minLength", 0), part.get("maxLength")
    pattern, form = part.get("pattern"), part.get("format")
    counted = _REPEATED.fullmatch(pattern) if pattern is not None and form is None else None
    if counted and not {"minLength", "maxLength"}.isdisjoint(part):
        least = max(least, int(counted[2] == "+"))
        part["pattern"] = f"^{counted[1]}{{{least},{'' if most is None else most}}}$"
        part.pop("minLength", None)
        part.pop("maxLength", None)
    elif least == 1 and pattern is not None and not _takes_nothing(pattern):
        del part["minLength"]
    elif form in _FORMATS - _MAY_BE_EMPTY and pattern is None and least < 2:
        part.pop("minLength", None)
        if form == "uri" and most is not None and most > _URI_PARTS:
            part["pattern"] = _URI.replace("N", str(most - _URI_PARTS))
            del part["format"], part["maxLength"]


def _takes_nothing(pattern: str) -> bool:
    with warnings.catch_warnings(action="ignore"):  # Python may warn about the pattern
        try:
            return re.search(pattern, "") is not None
        except (re.error, OverflowError, RecursionError):  # unknown to Python, or too large
            return True


def _merge_objects(part: dict[str, Any], root: Any) -> None:
    """Merges an `allOf` of objects into one object, in place, if they can be merged."""
    alone = part.keys() & CONDITIONS == {"allOf"} and len(part["allOf"]) == 1
    if alone or "allOf" not in part:
        return
    pieces = list(_pieces(part, root, _DEEPEST))
    properties, needed = dict[str, Any](), dict[str, None]()
    for place, piece in enumerate(pieces):
        if (
            piece is None
            or piece.keys() & CONDITIONS - _MERGED
            or piece.get("type", "object") != "object"
            or piece.get("additionalProperties", True) is not True
            or (place and "unevaluatedProperties" in piece)
        ):
            return
        for name, value in piece.get("properties", {}).items():
            if properties.setdefault(name, value) != value:
                return
        needed |= dict.fromkeys(piece.get("required", ()))
    properties = copy.deepcopy(properties)  # they may contain this part
    closed = part.pop("unevaluatedProperties", True)
    del part["allOf"]
    part |= {"type": "object", "required": list(needed)}
    if any("properties" in piece for piece in pieces):  # else it is open, see `_open`
        part["properties"] = properties
    if closed is not True or any("additionalProperties" in piece for piece in pieces):
        part["additionalProperties"] = closed


def _pieces(part: Any, root: Any, deep: int) -> Any:
    found = _dereferenced(part, root)
    yield found if deep else None
    if found is not None and deep:
        for each in found.get("allOf", ()):
            yield from _pieces(each, root, deep - 1)


def _one_of_as_any_of(part: dict[str, Any], root: Any) -> None:
    """Turns `oneOf` into `anyOf`, in place, if no value fits two alternatives."""
    if "oneOf" in part and "anyOf" not in part:
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
    """Whether both list their values and have none in common."""
    values = [_listed_values(each) for each in (one, other)]
    return all(values) and values[0].isdisjoint(values[1])


def _listed_values(schema: Any) -> set[tuple[type, Any]]:
    """The values that a schema lists, if all can be compared; else empty."""
    values = values_of(schema) if isinstance(schema, dict) else []
    if not all(isinstance(each, str | int | None) for each in values):
        return set()
    return {(type(each), each) for each in values}


def _keys_as_properties(part: dict[str, Any], root: Any) -> None:
    """Expresses `propertyNames` by properties or patterns, in place, where possible."""
    if part.get("propertyNames") is True:
        del part["propertyNames"]
    elif isinstance(part.get("propertyNames"), dict) and "$ref" not in part["propertyNames"]:
        part["propertyNames"].setdefault("type", "string")  # keys are strings
    names = _dereferenced(part.get("propertyNames"), root)
    if names is None or part.keys() & {"properties", "patternProperties", "unevaluatedProperties"}:
        return
    if names.get("type", "string") != "string" or part.get("additionalProperties") is False:
        return
    said, values = names.keys() & CONDITIONS - {"type"}, part.get("additionalProperties", {})
    told: dict[str, Any] = {"additionalProperties": False}
    if not said:
        told = {"additionalProperties": values}
    elif said <= {"minLength", "maxLength"}:
        length = f"{names.get('minLength', 0)},{names.get('maxLength', '')}"
        told["patternProperties"] = {rf"^[\s\S]{{{length}}}$": values}
    elif said == {"pattern"}:
        told["patternProperties"] = {names["pattern"]: values}
    elif said in ({"const"}, {"enum"}) and are_texts(values_of(names)):
        told["properties"] = {text: copy.deepcopy(values) for text in values_of(names)}
    else:
        return
    del part["propertyNames"]
    part |= told


def _dereferenced(schema: Any, root: Any) -> dict[str, Any] | None:
    """A schema with its references followed; None if that fails."""
    for _ in range(_DEEPEST):
        if not isinstance(schema, dict) or "$ref" not in schema:
            return schema if isinstance(schema, dict) else None
        if schema.keys() & CONDITIONS != {"$ref"}:
            return None
        schema = pointed(root, schema["$ref"])
    return None
