"""Limits on the size of requests and commands, checked before they are parsed.

Parsing a message of a million small parts takes many times its bytes and time. So small requests
are bounded as a whole, and a request for an answer by its parts, the prompt by what the cell could
take. A command between services with a part that is too large is not parsed, and ends its stream.
Checks by field follow after that.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Generic, NamedTuple, TypeVar

from dspark.errors import InvalidRequest
from dspark.types import MAX_FORM

KIB, MIB = 1 << 10, 1 << 20
MAX_REQUEST = 4 * MIB  # bytes of one message from any caller
MOST_PARTS = 64  # of a request for an answer: fields that come again replace each other
LOOKED_AT = 64 * KIB  # bytes of a command above which it is checked

_SMALL = 4 * KIB
# Bytes of the whole message, by the last part of the method's name.
WHOLE: Mapping[str, int] = {
    "Abort": 256 * KIB,  # a thousand ids of 128 characters
    "GetModelInfo": _SMALL,
    "GetStatus": _SMALL,
    "Explain": _SMALL,
    "GetEnded": _SMALL,
    "Describe": _SMALL,
    "Announce": 4 * MIB,
    "Check": _SMALL,
    "Watch": _SMALL,
}
# Bytes of the parts of GenerateRequest, by field number; a name for the error, and what the largest
# proper one takes.
PARTS: Mapping[int, tuple[str, int]] = {
    1: ("request_id", KIB),
    2: ("text", MAX_REQUEST),
    3: ("tokenized", MAX_REQUEST),
    4: ("sampling_params", 64 * KIB),
    5: ("speculation", KIB),
    6: ("cache_salt", KIB),
    7: ("label", KIB),
    8: ("resume", KIB),
    9: ("traceparent", KIB),
    10: ("constraint", MAX_FORM),
}
_PROMPT = {number: PARTS[number] for number in (2, 3)}
# bytes: of everything beside the prompt; of one prompt token as id or text, at most
_BESIDE, _PER_TOKEN = 256 * KIB, 64
_GENERATE = "/Generate"
_VARINT, _BYTES = 0, 2  # wire types
_FIXED = {1: 8, 5: 4}  # and their bytes


def request_bytes(context_length: int) -> int:
    """Most bytes of a prompt that fits into `context_length` tokens with its answer. Leaves room
    for the rest of a request."""
    return min(_BESIDE + _PER_TOKEN * context_length, MAX_REQUEST - _BESIDE)


def check_size(method: str, data: bytes, prompt: int = MAX_REQUEST) -> None:
    """Raises InvalidRequest naming the part that is too large; a malformed message is left to the
    parser.

    prompt: most bytes of a prompt.
    """
    most = WHOLE.get(method.rpartition("/")[2])
    if most is not None and len(data) > most:
        raise InvalidRequest("request", f"{len(data)} bytes, at most {most} are allowed")
    if method.endswith(_GENERATE):
        parts = {
            **PARTS,
            **{number: (name, min(most, prompt)) for number, (name, most) in _PROMPT.items()},
        }
        if (why := too_large(memoryview(data), Bounds(parts))) is not None:
            raise why


@dataclass(frozen=True, slots=True)
class Bounds:
    """Size limits of a message. parts: a name for errors and most bytes, by field number; inner:
    limits within parts."""

    parts: Mapping[int, tuple[str, int]]
    most: int = MOST_PARTS  # parts, repeated ones each
    inner: Mapping[int, Bounds] = field(default_factory=dict)


M = TypeVar("M")


class Read(NamedTuple, Generic[M]):
    """A received command; an empty one in place of one with a part that was too large."""

    message: M
    too_large: InvalidRequest | None
    size: int  # bytes, as received


def reading(parse: Callable[[bytes], M], bounds: Bounds) -> Callable[[bytes], Read[M]]:
    """A parser of commands that checks the size of large ones first."""

    def read(data: bytes) -> Read[M]:
        why = too_large(memoryview(data), bounds) if len(data) > LOOKED_AT else None
        return Read(parse(data if why is None else b""), why, len(data))

    return read


def too_large(data: memoryview, bounds: Bounds) -> InvalidRequest | None:
    """The error that names the first part of a message that is too large; None without one."""
    for count, (number, value, end) in enumerate(_parts(data), 1):
        name, most = bounds.parts.get(number, ("message", KIB))
        if count > bounds.most:
            return InvalidRequest(name, f"more than {bounds.most} parts")
        if (inner := bounds.inner.get(number)) is not None:
            if (why := too_large(data[value:end], inner)) is not None:
                return why
        elif end - value > most:
            return InvalidRequest(name, f"{end - value} bytes, at most {most} are allowed")
    return None


def _parts(data: memoryview) -> Iterator[tuple[int, int, int]]:
    """The fields of a message in order, up to bytes that no parser would accept: number, and
    offsets of the value and of its end as its length says, which may lie beyond the data."""
    at = 0
    most = len(data)
    while at < most:
        tag = data[at]
        at += 1
        if tag >= 0x80:
            tag, at = _varint(data, at - 1)
        kind = tag & 7
        if kind == _BYTES:
            if at < most and data[at] < 0x80:
                size, at = data[at], at + 1
            else:
                size, at = _varint(data, at)
            end = at + size
        elif kind == _VARINT:
            end = _varint(data, at)[1]
        elif kind in _FIXED:
            end = at + _FIXED[kind]
        else:  # a group, or no field at all
            return
        yield tag >> 3, at, end
        at = end


def _varint(data: memoryview, at: int) -> tuple[int, int]:
    """(value, offset behind it) of a varint; one that is cut short ends with the data."""
    value = shift = 0
    while at < len(data):
        byte = data[at]
        at += 1
        value |= (byte & 0x7F) << shift
        if byte < 0x80 or shift > 63:
            break
        shift += 7
    return value, at
