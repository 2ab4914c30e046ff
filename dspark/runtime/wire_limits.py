"""How large the requests of clients and operators may be, looked at before anything is made of them.

A parser needs many times the bytes of a message that is made of a million small parts. So the whole of a small request
is bounded, and of a request for an answer each part but the prompt; the checks by field come after that.
"""

from __future__ import annotations

from collections.abc import Mapping

from dspark.errors import InvalidRequest

KIB, MIB = 1 << 10, 1 << 20
MOST_PARTS = 64  # of a request for an answer: fields that come again replace each other

_SMALL = 4 * KIB
# Bytes of the whole message, by the method's last word.
WHOLE: Mapping[str, int] = {
    "Abort": 256 * KIB,  # a thousand ids of 128 characters
    "GetModelInfo": _SMALL,
    "GetStatus": _SMALL,
    "Explain": _SMALL,
    "Describe": _SMALL,
    "Announce": 4 * MIB,
    "Check": _SMALL,
    "Watch": _SMALL,
}
# Bytes of the parts of GenerateRequest, by field number; a name for the error, and what the largest proper one takes.
PARTS: Mapping[int, tuple[str, int]] = {
    1: ("request_id", KIB),
    2: ("text", 4 * MIB),
    3: ("tokenized", 16 * MIB),
    4: ("sampling_params", 64 * KIB),
    5: ("speculation", KIB),
    6: ("cache_salt", KIB),
    7: ("label", KIB),
    8: ("resume", KIB),
    9: ("traceparent", KIB),
}
_GENERATE = "/Generate"
_VARINT, _BYTES = 0, 2  # wire types
_FIXED = {1: 8, 5: 4}  # and their bytes


def check_size(method: str, data: bytes) -> None:
    """Raises InvalidRequest naming the part that is too large; a message that is none is left to the parser."""
    most = WHOLE.get(method.rpartition("/")[2])
    if most is not None and len(data) > most:
        raise InvalidRequest("request", f"{len(data)} bytes, at most {most} are allowed")
    if method.endswith(_GENERATE):
        _check_parts(data)


def _check_parts(data: bytes) -> None:
    at = parts = 0
    while at < len(data):
        parts += 1
        if parts > MOST_PARTS:
            raise InvalidRequest("request", f"more than {MOST_PARTS} parts")
        tag, at = _varint(data, at)
        kind = tag & 7
        if kind == _BYTES:
            size, at = _varint(data, at)
            name, most = PARTS.get(tag >> 3, ("request", KIB))
            if size > most:
                raise InvalidRequest(name, f"{size} bytes, at most {most} are allowed")
            at += size
        elif kind == _VARINT:
            at = _varint(data, at)[1]
        elif kind in _FIXED:
            at += _FIXED[kind]
        else:  # a group, or nothing at all
            return


def _varint(data: bytes, at: int) -> tuple[int, int]:
    """(value, where it ends); what is cut short ends with the data."""
    value = shift = 0
    while at < len(data):
        byte = data[at]
        at += 1
        value |= (byte & 0x7F) << shift
        if byte < 0x80 or shift > 63:
            break
        shift += 7
    return value, at
