"""Converts options to message fields, and messages to dataclasses. An option that cannot be
converted raises InvalidRequest, which names the field."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Mapping
from dataclasses import fields, is_dataclass
from functools import cache, partial
from types import NoneType
from typing import Any, TypeVar, cast, get_args, get_type_hints

from google.protobuf.descriptor import EnumDescriptor
from google.protobuf.message import Message

from dspark.errors import InvalidRequest
from dspark.numerals import number, shown, truth, whole
from dspark.wire.v1 import types_pb2

T = TypeVar("T")

MOST_ID, MOST_SEED, MOST_INT = 2**32 - 1, 2**64 - 1, 2**31 - 1

Read = Callable[[str, Any], Any]  # (field, value) -> what the message takes


def _named(read: Callable[[object], Any]) -> Read:
    """Wraps `read`: its ValueError becomes an InvalidRequest that names the field."""

    def named(field: str, value: object) -> Any:
        try:
            return read(value)
        except ValueError as error:
            raise InvalidRequest(field, str(error)) from None

    return named


number_of, _truth, _whole_number = _named(number), _named(truth), _named(whole)


def _whole(least: int, most: int = MOST_ID, *, words: str = "") -> Read:
    """Reader of whole numbers in least..most. words: the server's text for values below `least`."""

    def read(field: str, value: object) -> int:
        made: int = _whole_number(field, value)
        if made < least:
            raise InvalidRequest(
                field, f"must be {words or f'in {least}..{most}'}, got {shown(made)}"
            )
        if made > most:
            raise InvalidRequest(field, f"must be at most {most}, got {shown(made)}")
        return made

    return read


count_of = _whole(0)


def _top_k(field: str, value: object) -> int:
    made: int = _whole(-1)(field, value)
    return max(made, 0)  # -1 keeps everything, like 0


def _bias(field: str, value: object) -> dict[int, float]:
    if not isinstance(value, Mapping):
        raise InvalidRequest(
            field, f"must be a mapping of token ids to numbers, got {shown(value)}"
        )
    return {_id(field, token): number_of(field, bias) for token, bias in value.items()}


def _id(field: str, value: object) -> int:
    token: int = _whole_number(field, value)
    if not 0 <= token <= MOST_ID:
        raise InvalidRequest(field, f"{shown(token)} is not a token id")
    return token


def ids_of(field: str, values: object) -> list[int]:
    """Checks token ids and returns them as a list; raises InvalidRequest."""
    if isinstance(values, str | bytes) or not isinstance(values, Iterable):
        raise InvalidRequest(field, f"must be a list of token ids, got {shown(values)}")
    ids = list(values)
    if set(map(type, ids)) == {int} and min(ids) >= 0 and max(ids) <= MOST_ID:
        # a fast path for nearly all lists, which may be long
        return ids
    return [_id(field, value) for value in ids]


def text_of(field: str, value: object) -> str:
    """Checks that a value is a text that can be encoded in UTF-8; raises InvalidRequest."""
    if not isinstance(value, str):
        raise InvalidRequest(field, f"must be a text, got {shown(value)}")
    try:
        value.encode()
    except UnicodeEncodeError:
        raise InvalidRequest(field, "holds half of a character (a lone surrogate)") from None
    return value


def texts_of(field: str, value: object) -> list[str]:
    """Checks one text, or several, and returns them as a list; raises InvalidRequest."""
    if isinstance(value, str):
        return [text_of(field, value)]
    if isinstance(value, bytes) or not isinstance(value, Iterable):
        raise InvalidRequest(field, f"must be a text or a list of texts, got {shown(value)}")
    return [text_of(field, one) for one in value]


# Readers by the name of the option, which is also that of the field. The server checks whether
# values are in range.
SAMPLING: Mapping[str, Read] = {
    "max_tokens": _whole(0, words="at least 1"),
    "min_tokens": _whole(0, words="at least 0"),
    "temperature": number_of,
    "top_p": number_of,
    "top_k": _top_k,
    "min_p": number_of,
    "repetition_penalty": number_of,
    "presence_penalty": number_of,
    "frequency_penalty": number_of,
    "logit_bias": _bias,
    "stop": texts_of,
    "stop_token_ids": ids_of,
    "skip_special_tokens": _truth,
    "include_stop_str_in_output": _truth,
    "ignore_eos": _truth,
    "n": _whole(0, words="in 1..16"),
    "logprobs": _whole(-MOST_INT - 1, MOST_INT, words="in 0..20"),
    "prompt_logprobs": _whole(-MOST_INT - 1, MOST_INT, words="in 0..20"),
    "seed": _whole(0, MOST_SEED),
}
# The same for options of speculation, without the rule, which `request.RULES` reads.
SPECULATION: Mapping[str, Read] = {"policy": text_of, "weight": number_of, "drafter": text_of}


def constraint_of(field: str, value: Mapping[str, Any]) -> types_pb2.Constraint:
    """The message of a constraint, a mapping of one kind to its form; raises InvalidRequest."""
    forms = types_pb2.Constraint.DESCRIPTOR.oneofs_by_name["form"].fields
    if (
        not isinstance(value, Mapping)
        or len(value) != 1
        or next(iter(value)) not in {form.name for form in forms}
    ):
        raise InvalidRequest(
            field, f"must have one of {', '.join(form.name for form in forms)}, got {shown(value)}"
        )
    ((name, form),) = value.items()
    message, at = types_pb2.Constraint(), f"{field}.{name}"
    if name == "choice":
        if not isinstance(form, list | tuple):
            raise InvalidRequest(at, f"must be a list of texts, got {shown(form)}")
        message.choice.value.extend(text_of(at, one) for one in form)
    elif name == "json_object":
        message.json_object = _truth(at, form)
    else:
        if name in ("json_schema", "structural_tag") and not isinstance(form, str):
            form = _json(at, form)
        setattr(message, name, text_of(at, form))
    return message


def _json(field: str, value: Any) -> str:
    try:
        return json.dumps(value, ensure_ascii=False)
    except (TypeError, ValueError, RecursionError) as error:
        raise InvalidRequest(field, f"is not JSON: {error}") from None


@cache
def words(kind: EnumDescriptor) -> dict[int, str]:
    """Words of a wire enumeration by number: FATE_ACCEPTED is "accepted". 0 has no word."""
    prefix = kind.values_by_number[0].name.removesuffix("UNSPECIFIED")
    return {one.number: one.name.removeprefix(prefix).lower() for one in kind.values if one.number}


def copied(kind: type[T], message: Any, **more: Any) -> T:
    """A dataclass from the message's fields of the same names. Messages inside become dataclasses,
    what is repeated tuples, enumerations words ("unknown" where there is none), and a field that is
    absent None, where it may be. `more`: values of fields that are not copied."""
    hints = _hints(cast("Any", kind))  # mypy takes a type[T] for unhashable
    for name, hint in hints.items():
        if name not in more:
            more[name] = _told(message, name, hint)
    return kind(**more)


@cache
def _hints(kind: type[Any]) -> dict[str, Any]:
    hints = get_type_hints(kind)
    return {field.name: hints[field.name] for field in fields(kind)}


def _told(message: Any, name: str, hint: Any) -> Any:
    field, parts = message.DESCRIPTOR.fields_by_name.get(name), (hint, *get_args(hint))
    if field is None:  # the name of a oneof
        chosen = message.WhichOneof(name)
        return getattr(message, chosen) if chosen else None
    if NoneType in parts and not message.HasField(name):
        return None
    read: Callable[[Any], Any] | None = None
    if field.enum_type is not None:
        read = partial(_word, words(field.enum_type))
    elif inner := [part for part in parts if is_dataclass(part)]:
        read = partial(copied, cast("Any", inner[0]))
    value = getattr(message, name)
    if isinstance(value, str | int | float | Message):
        return read(value) if read else value
    return tuple(map(read, value) if read else value)


def _word(known: Mapping[int, str], number: int) -> str:
    return known.get(number, "unknown")
