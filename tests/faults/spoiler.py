"""Messages made wrong by their own schema: any field, at any depth, gets a value that somebody once
sent.

A spoiled message is still a message: what is wrong is a number at an edge, a column with one value
too few, bytes of the wrong length, a number that is none. `legal=False` leaves out values that
could be meant.
"""

import random
import struct
from typing import Any

from google.protobuf.descriptor import FieldDescriptor
from google.protobuf.message import Message

_FLOATS = (FieldDescriptor.CPPTYPE_DOUBLE, FieldDescriptor.CPPTYPE_FLOAT)
_BITS = {FieldDescriptor.CPPTYPE_UINT32: 32, FieldDescriptor.CPPTYPE_UINT64: 64}


class Spoiler:
    """Draws from one seed."""

    def __init__(self, seed: object, *, legal: bool = True, spare: tuple[str, ...] = ()) -> None:
        self._draw = random.Random(f"spoiler/{seed}")
        self._legal, self._spare = legal, spare

    def spoil(self, message: Message) -> str:
        """Changes one field of the message; returns its path."""
        fields = [field for field in message.DESCRIPTOR.fields if field.name not in self._spare]
        present = [field for field, _ in message.ListFields() if field.name not in self._spare]
        if not fields:
            return ""
        # Mostly what is there: a field of another choice would replace the message by an empty one.
        field = self._draw.choice(present if present and self._draw.random() < 0.9 else fields)
        return field.name + self._change(message, field)

    def _change(self, message: Message, field: Any) -> str:
        value: Any = getattr(message, field.name)
        if field.message_type is not None and field.message_type.GetOptions().map_entry:
            value[self._draw.choice([0, 2**32 - 1])] = float("nan")
            return "{}"
        if field.is_repeated:
            return self._column(value, field)
        if field.cpp_type == FieldDescriptor.CPPTYPE_MESSAGE:
            if self._draw.random() < 0.1 and self._legal:
                message.ClearField(field.name)
                return " cleared"
            value.SetInParent()
            return "." + self.spoil(value)
        setattr(message, field.name, self._value(field, value))
        return ""

    def _column(self, column: Any, field: Any) -> str:
        size = len(column)
        nested = field.cpp_type == FieldDescriptor.CPPTYPE_MESSAGE
        match self._draw.randrange(4):
            case 0 if size:
                del column[-1]
                return " shorter"
            case 1 if size:
                column.extend([column[0]] * self._draw.choice([1, 1, 3, 70]))
                return " longer"
            case 2 if size and self._legal:
                del column[:]
                return " empty"
        if nested:
            return "[]." + self.spoil(self._draw.choice(column) if size else column.add())
        if size:
            at = self._draw.randrange(size)
            column[at] = self._value(field, column[at])
            return f"[{at}]"
        column.append(self._value(field, None))
        return " one more"

    def _value(self, field: FieldDescriptor, was: Any) -> Any:
        draw, kind = self._draw, field.cpp_type
        if kind in _BITS:
            top = 2 ** _BITS[kind]
            edges = [top - 1, top // 2, top // 2 - 1]
            return (
                draw.choice(
                    [0, 1, (was or 0) + 1, draw.randrange(top), *edges] if self._legal else edges
                )
                % top
            )
        if kind in _FLOATS:
            return draw.choice(
                [float("nan"), float("inf"), -1.0, 1e30, *([0.0, 0.5] if self._legal else [])]
            )
        if field.type == FieldDescriptor.TYPE_BYTES:
            return self._bytes(was or b"")
        if kind == FieldDescriptor.CPPTYPE_STRING:
            return draw.choice(
                ["", "x", "a" * 5000, "127.0.0.1:99999", "unix:/tmp/x", "\x00\u202e"]
            )
        if kind == FieldDescriptor.CPPTYPE_ENUM:
            return draw.choice([0, 99, 2**31 - 1])
        if kind == FieldDescriptor.CPPTYPE_BOOL:
            return not was
        return draw.choice([-1, 2**31 - 1, -(2**31)])

    def _bytes(self, was: bytes) -> bytes:
        draw = self._draw
        number = struct.pack("<f", draw.choice([float("nan"), float("inf"), -1.0, 1e30]))
        at = draw.randrange(0, max(len(was) - 3, 1), 4)
        ways = [was[:-1], was[:-4], was + b"\0\0\0\0", was[:at] + number + was[at + 4 :]]
        if self._legal:
            ways += [b"", draw.randbytes(len(was))]
        return draw.choice(ways)
