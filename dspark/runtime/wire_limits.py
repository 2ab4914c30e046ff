"""How large the requests of clients and operators may be, looked at before anything is made of them.

A parser needs many times the bytes of a message that is made of a million small parts. So the whole of a small request
is bounded, and of a request for an answer each part, the prompt by what the cell could take; the checks by field come
after that.
"""

from __future__ import annotations

from collections.abc import Mapping

from dspark.errors import InvalidRequest

KIB, MIB = 1 << 10, 1 << 20
MAX_REQUEST = 16 * MIB  # bytes of one message from anybody
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
    3: ("tokenized", MAX_REQUEST),
    4: ("sampling_params", 64 * KIB),
    5: ("speculation", KIB),
    6: ("cache_salt", KIB),
    7: ("label", KIB),
    8: ("resume", KIB),
    9: ("traceparent", KIB),
}
_PROMPT = (2, 3)
_BESIDE, _PER_TOKEN = 256 * KIB, 64  # bytes: of all that is no prompt; of a prompt's token, in ids or text, at most
_GENERATE = "/Generate"
_VARINT, _BYTES = 0, 2  # wire types
_FIXED = {1: 8, 5: 4}  # and their bytes


def request_bytes(context_length: int) -> int:
    """The most a request for an answer takes, where a prompt and its answer have so many tokens at most."""
    return min(_BESIDE + _PER_TOKEN * context_length, MAX_REQUEST)


def check_size(method: str, data: bytes, prompt: int = MAX_REQUEST) -> None:
    """Raises InvalidRequest naming the part that is too large; a message that is none is left to the parser.

    prompt: bytes of a prompt, at most.
    """
    most = WHOLE.get(method.rpartition("/")[2])
    if most is not None and len(data) > most:
        raise InvalidRequest("request", f"{len(data)} bytes, at most {most} are allowed")
    if method.endswith(_GENERATE):
        _check_parts(data, prompt)


def _check_parts(data: bytes, prompt: int) -> None:
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
            if tag >> 3 in _PROMPT:
                most = min(most, prompt)
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
