"""Parses tool calls in the text of an answer while it streams.

A call is emitted as soon as its name is known and its arguments begin; the arguments follow
character by character. Text that only looked like a call is emitted unchanged. Every character is
examined once, and the output does not depend on how the text is chunked.
"""

from __future__ import annotations

import json
import secrets
from collections.abc import Iterable
from typing import NamedTuple

from coordinator.http.tools import NAME, Format
from coordinator.reception.output_processor import overlap

MOST = 1 << 20  # characters of a call that are held back before it is emitted
_HEAD = 256  # characters of a call's name and the text around it
_BLANK = 64  # characters of white space that are held back where a call may follow


class Part(NamedTuple):
    """An increment of an answer: text, reasoning, the start of a call, or more of its arguments."""

    text: str = ""
    reasoning: str = ""
    call: int | None = None  # index of the call in the answer
    name: str = ""  # set in a call's first part, as `id`
    id: str = ""
    arguments: str = ""


def joined(parts: Iterable[Part]) -> list[Part]:
    """The same increments, with neighbours of one kind merged."""
    made: list[Part] = []
    for part in parts:
        last = made[-1] if made and not part.name else None
        if last and (part.call, bool(part.reasoning)) == (last.call, bool(last.reasoning)):
            made[-1] = last._replace(
                text=last.text + part.text,
                reasoning=last.reasoning + part.reasoning,
                arguments=last.arguments + part.arguments,
            )
        else:
            made.append(part)
    return made


def parted(held: str, marks: Iterable[str], blank: str = "") -> tuple[str, str, str]:
    """(text before the first of `marks`, the mark, text after it). Without one: (text that is
    certain, "", the tail that may begin one, with the characters of `blank` before it)."""
    at, mark = min(
        ((place, mark) for mark in marks if (place := held.find(mark)) >= 0), default=(-1, "")
    )
    if mark:
        return held[:at], mark, held[at + len(mark) :]
    keep = max((overlap(held, mark) for mark in marks), default=0)
    while keep < min(len(held), _BLANK) and held[-keep - 1] in blank:
        keep += 1
    return held[: len(held) - keep], "", held[len(held) - keep :]


_SPACE = " \t\r\n"
# Transitions: (what is expected, the next character) to what is expected after it.
_NEXT = {
    ("[", "["): "{",
    ("{", "{"): "first",
    ("first", '"'): "key",
    ("first", "}"): "over",
    ("another", '"'): "key",
    (":", ":"): "value",
    (",", ","): "another",
    (",", "}"): "over",
}


class JsonValue:
    """Finds the end of one JSON value in streamed text. over: the value has ended."""

    def __init__(self) -> None:
        self._depth, self._quoted, self._escaped, self.over = 0, False, False, False

    def take(self, text: str, at: int) -> int:
        """Reads `text` from index `at`; returns the index behind the value's characters."""
        for place in range(at, len(text)):
            letter = text[place]
            if self._quoted:
                if self._escaped:
                    self._escaped = False
                elif letter == "\\":
                    self._escaped = True
                elif letter == '"':
                    self._quoted, self.over = False, not self._depth
            elif letter == '"':
                self._quoted = True
            elif letter in "{[":
                self._depth += 1
            elif not self._depth and (letter in ",}]" or letter in _SPACE):
                # the end of a number, true, false or null, which has no closing mark
                self.over = True
                return place
            elif letter in "}]":
                self._depth -= 1
                self.over = not self._depth
            if self.over:
                return place + 1
        return len(text)


class JsonKeys:
    """Reads the keys and values of a JSON object in streamed text. listed: the object is the first
    of a list, whose bracket precedes it. over: it has ended. broken: the text is no object."""

    def __init__(self, *, listed: bool = False) -> None:
        self._next, self._key = "[" if listed else "{", ""
        self._value: JsonValue | None = None
        self.over = self.broken = False

    def read(self, text: str, at: int) -> tuple[int, tuple[str, str, bool] | None]:
        """Reads from `at` to the next piece of a value: (index behind it, (key, piece, whether the
        value is complete)). The second is None where this text holds no more."""
        while at < len(text) and not self.over and not self.broken:
            if self._value is not None:
                begin, at, ended = at, self._value.take(text, at), self._value.over
                if ended:
                    self._value = None
                if (found := self._more(text[begin:at], ended)) is not None:
                    return at, found
            elif text[at] in _SPACE:
                at += 1
            elif self._next == "value":
                self._value = JsonValue()
            else:
                self._next = _NEXT.get((self._next, text[at]), "broken")
                self.over, self.broken = self._next == "over", self._next == "broken"
                if self._next == "key":
                    self._key, self._value = "", JsonValue()
                elif not self.broken:
                    at += 1
        return at, None

    def _more(self, piece: str, ended: bool) -> tuple[str, str, bool] | None:
        if self._next == "value":
            self._next = "," if ended else self._next
            return self._key, piece, ended
        self._key += piece
        if ended:
            self._next = ":"
            try:
                self._key = str(json.loads(self._key, strict=False))
            except ValueError:
                self.broken = True
        return None


class CallReader:
    """Splits the streamed text of one answer into text and tool calls, as a `Reader`."""

    def __init__(self, form: Format) -> None:
        self._form = form
        self._marks = (form.trigger, *form.around) if form.marked else ()
        self._held = ""  # not emitted yet
        self._said = False  # text was emitted since the last call
        # In a format without marks either the whole answer is a call, or it holds none.
        self._call: _OpenCall | None = None if self._marks else _OpenCall(form)
        self._tail = False  # a call has ended, and its closing mark may follow
        self._calls = self.thought = 0

    @property
    def called(self) -> bool:
        return self._calls > 0 and not (self._call is not None and self._call.told)

    def push(self, text: str) -> list[Part]:
        """Takes more text; returns the increments that are certain by now."""
        self._held += text
        parts: list[Part] = []
        while self._held and self._step(parts):
            continue
        return parts

    def close(self) -> list[Part]:
        """Returns the increments left at the end of the answer."""
        parts: list[Part] = []
        if self._call is not None and not self._call.told:
            self._held = self._call.written + self._held
        elif self._call is not None or self._tail:
            self._held = ""
        if self._held.strip() or not self._calls:
            self._say(self._held, parts)
        self._held = ""
        return parts

    def _step(self, parts: list[Part]) -> bool:
        """Parses one step; returns whether the held text may allow another."""
        if self._call is not None:
            return self._in_call(self._call, parts)
        return self._behind_call() if self._tail else self._in_text(parts)

    def _in_text(self, parts: list[Part]) -> bool:
        text, mark, rest = parted(self._held, self._marks, "\n" if self._marks else "")
        if self._marks and not mark and self._calls and not self._said and not text.strip():
            self._held = self._held[-_BLANK:]  # white space before a call is not answer text
            return False
        self._held = rest
        self._say(text.rstrip("\n") if mark else text, parts)
        if mark == self._form.trigger:
            self._call = _OpenCall(self._form)
        return bool(mark)

    def _say(self, text: str, parts: list[Part]) -> None:
        text = text if self._said or self._calls else text.lstrip("\n")
        if text and (self._said or not self._calls or text.strip()):
            self._said = True
            parts.append(Part(text=text))

    def _in_call(self, call: _OpenCall, parts: list[Part]) -> bool:
        told = call.told
        used, arguments = call.read(self._held)
        self._held = self._held[used:]
        if call.told and not told:
            self._calls += 1
            self._said = False
            parts.append(Part(call=self._calls - 1, name=call.name, id=new_call_id(self._form)))
        if arguments:
            parts.append(Part(call=self._calls - 1, arguments=arguments))
        if not call.over:
            return False
        self._call, self._tail = None, call.told
        if not call.told:
            self._say(call.written, parts)
        return True

    def _behind_call(self) -> bool:
        """Drops the closing mark of a call, or begins the next call of a list."""
        form, rest = self._form, self._held.lstrip()
        if rest and rest[0] == form.separator.strip():  # of a list of calls
            self._tail, self._call, self._held = False, _OpenCall(form, listed=False), rest[1:]
        elif form.close and rest.startswith(form.close):
            self._tail, self._held = False, rest[len(form.close) :]
        elif form.close.startswith(rest) and len(self._held) < len(form.close) + _BLANK:
            return False  # the closing mark may still be incomplete
        else:
            self._tail = False
        return True


class _OpenCall:
    """A call that is being read. told: its start was emitted. over: it has ended, or is no call."""

    def __init__(self, form: Format, *, listed: bool = True) -> None:
        self._form = form
        self._before = [form.trigger] if form.marked else []  # text read, until `told`
        self._size = 0
        self._head = ""  # name and separator, where the name precedes the arguments
        self._keys = JsonKeys(listed=listed and form.closing == "]") if form.parameters else None
        # pieces by key, where the call is one object
        self._values: dict[str, list[str]] = {"name": [], form.parameters: []}
        self._value: JsonValue | None = None  # arguments behind the name
        self._ready = False  # arguments are complete before the start was emitted
        self.name = ""
        self.told = self.over = False

    @property
    def written(self) -> str:
        """The text read of a call that is not `told`."""
        return "".join(self._before)

    def read(self, text: str) -> tuple[int, str]:
        """Reads `text`: (characters read, arguments to emit)."""
        used, arguments = self._keyed(text) if self._keys is not None else self._named(text)
        if self.told:
            self._before.clear()
        else:
            self._before.append(text[:used])
            self._size += used
            self.over |= self._size > MOST
        return used, arguments

    def _named(self, text: str) -> tuple[int, str]:
        """`read` for a call whose name precedes its arguments."""
        start = 0
        if self._value is None:
            had = len(self._head)
            self._head += text[:_HEAD]
            name, middle, behind = self._head.partition(self._form.middle.strip())
            arguments = behind.lstrip()
            if not middle or not arguments:
                self.over = len(self._head) >= _HEAD
                return min(len(text), _HEAD), ""
            start = len(self._head) - len(arguments) - had
            self.name = name.strip()
            if not NAME.fullmatch(self.name) or arguments[0] != "{":
                self.over = True
                return start, ""
            self.told, self._value = True, JsonValue()
        end = self._value.take(text, start)
        self.over = self._value.over
        return end, text[start:end]

    def _keyed(self, text: str) -> tuple[int, str]:
        """`read` for a call that is one object, with name and arguments in any order."""
        assert self._keys is not None
        at, out = 0, list[str]()
        while not self.over:
            at, found = self._keys.read(text, at)
            if found is None:
                break
            key, piece, ended = found
            if self.told:
                out.append(piece if key == self._form.parameters and not self._ready else "")
                continue
            if not self._form.marked and key not in ("name", "type", self._form.parameters):
                self.over = True  # an object that is no call
                break
            if key in self._values:
                self._values[key].append(piece)
            if key == "name" and ended and not self._read_name():
                self.over = True
                break
            if key == self._form.parameters and ended and not any(self._values[key]):
                # a key without a value: `"arguments": }`
                self.over = True
                break
            out.append(self._tell(ended and key == self._form.parameters))
        self.over |= self._keys.over or self._keys.broken
        return at, "".join(out)

    def _read_name(self) -> bool:
        try:
            self.name = _text("".join(self._values["name"]))
        except ValueError:
            return False
        return bool(self.name)

    def _tell(self, arguments_over: bool) -> str:
        self._ready |= arguments_over
        pieces = self._values[self._form.parameters]
        if not self.name or not pieces or not (self._ready or pieces[0].startswith("{")):
            return ""
        arguments = "".join(pieces)
        self.told = True
        if arguments[0] == '"':  # JSON in a string, as in OpenAI's interface
            try:
                return _text(arguments)
            except ValueError:
                return arguments
        return arguments


def _text(written: str) -> str:
    """Decodes a JSON string. Raises ValueError for anything else, and for lone surrogates, which
    UTF-8 cannot encode."""
    if not written.startswith('"'):
        raise ValueError("no text")
    text = str(json.loads(written, strict=False))
    text.encode()
    return text


def new_call_id(form: Format | None = None) -> str:
    """A random id for a call: of nine characters where the target's format has short ids."""
    if form is not None and form.short_ids:
        return secrets.token_hex(5)[:9]
    return f"call_{secrets.token_hex(12)}"
