"""Parses tool calls in the text of an answer while it streams.

A call is emitted as soon as its name is known and its arguments begin; the arguments follow
character by character. Text that only looked like a call is emitted unchanged. Every character is
examined once, and the output does not depend on how the text is chunked.
"""

from __future__ import annotations

import json
import re
import secrets
from collections.abc import Callable
from contextlib import suppress
from io import StringIO

from coordinator.http.reader import BLANK, AnswerPart, Reader, Steps, parted
from coordinator.http.tools import NAME, Format

MOST = 1 << 20  # characters of a call that are held back before it is emitted
_HEAD = 256  # characters of a call's name and the text around it
_SPACE = " \t\r\n"  # of JSON
_AFTER = f",}}]{_SPACE}"  # characters behind a value of JSON


class _NoCall(ValueError):
    """What was read of a call shows that it is none."""


class CallReader(Reader):
    """Reader of reasoning, then of text and tool calls."""

    def __init__(self, form: Format, *, inside: bool | None = None) -> None:
        super().__init__(inside=inside)
        self._form = form
        self._marks = (form.trigger, *form.around) if form.marked else ()
        self._said = False  # text was emitted since the last call
        self._calls = 0
        self._open = False  # the start of the call that is being read was emitted
        self._written = StringIO()  # text of that call, until then

    def _close(self) -> None:
        rest = self._written.getvalue() + self._held
        if self._inside:
            super()._close()
        elif rest.strip() or not self._calls:
            self._say(rest)

    def _answer(self) -> Steps[None]:
        # In a format without marks either the whole answer is a call, or it holds none.
        begun, first = not self._marks, True
        while True:
            if not begun:
                yield from self._plain()
            called = yield from self._call(first)
            begun = called and (yield from self._another())
            first = not begun

    def _plain(self) -> Steps[None]:
        """Reads text up to the mark of the next call."""
        mark, blank = "", "\n" if self._marks else ""
        while mark != self._form.trigger:
            text, mark, rest = parted(self._held, self._marks, blank)
            if blank and not mark and self._calls and not self._said and not text.strip():
                self._held = self._held[-BLANK:]  # white space before a call is not answer text
            else:
                self._held = rest
                self._say(text.rstrip("\n") if mark else text)
            if not mark:
                yield

    def _say(self, text: str) -> None:
        text = text if self._said or self._calls else text.lstrip("\n")
        if text and (self._said or not self._calls or text.strip()):
            self._said = True
            self._add(AnswerPart(text=text))

    def _call(self, first: bool) -> Steps[bool]:
        """Reads a call, or emits its text if it is none; returns whether it is one. first: it is
        the first of its list."""
        self._open, self._written = False, StringIO()
        self._written.write(self._form.trigger if self._form.marked else "")
        with suppress(ValueError):
            yield from self._keyed(first) if self._form.parameters else self._named()
        if self._open:
            self.called = True
        else:
            self._say(self._written.getvalue())
        self._written = StringIO()
        return self._open

    def _another(self) -> Steps[bool]:
        """Drops the closing mark of a call; returns whether another call of its list follows."""
        form, held = self._form, ""
        while True:
            held, self._held = held + self._held, ""
            rest = held.lstrip()
            if rest and rest[0] == form.separator.strip():
                self._held = rest[1:]
                return True
            if form.close and rest.startswith(form.close):
                self._held = rest[len(form.close) :]
                return False
            if not form.close.startswith(rest) or len(held) >= len(form.close) + BLANK:
                self._held = held
                return False
            yield  # the closing mark may still be incomplete

    def _named(self) -> Steps[None]:
        """Reads a call whose name precedes its arguments."""
        head = re.compile(rf"(.*?){re.escape(self._form.middle.strip())}\s*(?=\S)", re.DOTALL)
        while (found := head.match(self._held[:_HEAD])) is None:
            if len(self._held) >= _HEAD:
                self._take(_HEAD)
                raise _NoCall
            yield
        self._take(found.end())
        name = found[1].strip()
        if not NAME.fullmatch(name) or self._held[0] != "{":
            raise _NoCall
        self._begin(name)
        yield from self._value(self._tell)

    def _keyed(self, first: bool) -> Steps[None]:
        """Reads a call that is one object, with name and arguments in any order."""
        form, name = self._form, ""
        # pieces by key
        values: dict[str, list[str]] = {"name": [], form.parameters: []}
        arguments = values[form.parameters]
        if first and form.closing == "]":
            yield from self._expect("[")
        yield from self._expect("{")
        follows = yield from self._next('"}')
        while follows == '"':
            key = yield from self._key()
            yield from self._expect(":")
            begin = yield from self._next()
            if not (form.marked or self._open or key in ("type", *values)):
                raise _NoCall  # an object that is no call
            if key == form.parameters and name and begin == "{" and not self._open:
                self._begin(name)
                yield from self._value(self._tell)
            elif self._open or key not in values:
                yield from self._value(lambda _: None)
            else:
                yield from self._value(values[key].append)
                if key == "name":
                    name = _text("".join(values["name"]))
                if not (name if key == "name" else any(arguments)):
                    raise _NoCall  # a key without a value: `"arguments": }`
                if name and arguments:
                    self._begin(name)
                    self._tell(_unquoted("".join(arguments)))
            follows = yield from self._expect(",}")
            if follows == ",":
                follows = yield from self._next('"')

    def _key(self) -> Steps[str]:
        pieces: list[str] = []
        yield from self._value(pieces.append)
        return str(json.loads("".join(pieces), strict=False))

    def _value(self, told: Callable[[str], object]) -> Steps[None]:
        """Reads one JSON value, and passes it on piece by piece."""
        depth, quoted, escaped, over = 0, False, False, False
        while not over:
            if not self._held:
                yield from self._more()
            size = 0
            while size < len(self._held) and not over:
                letter = self._held[size]
                if quoted:
                    quoted = escaped or letter != '"'
                    escaped = letter == "\\" and not escaped
                    over = not quoted and not depth
                elif not depth and letter in _AFTER:
                    # the end of a number, true, false or null, which has no closing mark
                    break
                else:
                    quoted = letter == '"'
                    depth += (letter in "{[") - (letter in "}]")
                    over = not depth and letter in "}]"
                size += 1
            over |= size < len(self._held)
            told(self._take(size))

    def _expect(self, letters: str) -> Steps[str]:
        """Reads white space and one of `letters`, which it returns."""
        yield from self._next(letters)
        return self._take(1)

    def _next(self, letters: str = "") -> Steps[str]:
        """Reads white space; returns the next character, which must be one of `letters` if any are
        given."""
        while not (rest := self._held.lstrip(_SPACE)):
            self._take(len(self._held))
            yield from self._more()
        self._take(len(self._held) - len(rest))
        if letters and rest[0] not in letters:
            raise _NoCall
        return rest[0]

    def _more(self) -> Steps[None]:
        """Waits for more text of a call."""
        if self._written.tell() > MOST:
            raise _NoCall
        yield

    def _take(self, size: int) -> str:
        """Reads so many characters of a call."""
        text, self._held = self._held[:size], self._held[size:]
        if not self._open:
            self._written.write(text)
        return text

    def _begin(self, name: str) -> None:
        """Emits the start of a call."""
        self._open, self.called, self._said = True, False, False
        self._written = StringIO()
        self._add(AnswerPart(call=self._calls, name=name, id=new_call_id(self._form)))
        self._calls += 1

    def _tell(self, arguments: str) -> None:
        self._add(AnswerPart(call=self._calls - 1, arguments=arguments))


def _text(written: str) -> str:
    """Decodes a JSON string. Raises ValueError for anything else, and for lone surrogates, which
    UTF-8 cannot encode."""
    if not written.startswith('"'):
        raise ValueError("no text")
    text = str(json.loads(written, strict=False))
    text.encode()
    return text


def _unquoted(arguments: str) -> str:
    """The arguments themselves where they are JSON in a string, as in OpenAI's interface."""
    try:
        return _text(arguments)
    except ValueError:
        return arguments


def new_call_id(form: Format | None = None) -> str:
    """A random id for a call: of nine characters where the target's format has short ids."""
    if form is not None and form.short_ids:
        return secrets.token_hex(5)[:9]
    return f"call_{secrets.token_hex(12)}"
