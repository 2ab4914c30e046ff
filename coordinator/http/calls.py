"""Calls of tools in the text of an answer, read as it comes.

A call whose name is known is told at once, and its arguments as they are written, letter by letter. What only looked
like a call is text, as it was written.
"""

from __future__ import annotations

import json
import re
import secrets
from typing import NamedTuple

from coordinator.http.tools import Format

MOST = 1 << 20  # characters of one call
_DECODER = json.JSONDecoder()


class Part(NamedTuple):
    """What follows: text of the answer, or the beginning or more of the arguments of a call."""

    text: str = ""
    call: int | None = None  # which of the answer's calls
    name: str = ""  # where it begins
    id: str = ""
    arguments: str = ""


class CallReader:
    """Of one answer."""

    def __init__(self, form: Format) -> None:
        self._form = form
        key = re.escape(form.parameters)
        self._head = re.compile(r'\s*\{\s*"name"\s*:\s*("(?:[^"\\]|\\.)*")\s*,\s*"' + key + r'"\s*:\s*(?=\{)')
        self._held = ""  # not told yet
        self._inside = False  # behind a trigger
        self._written: _Arguments | None = None  # of a call that is being told
        self._said = False  # any text was told
        self.calls = 0

    def push(self, text: str) -> list[Part]:
        """What is known by now."""
        self._held += text
        parts: list[Part] = []
        while (part := self._step()) is not None:
            if part != Part():
                parts.append(part)
        return parts

    def close(self) -> list[Part]:
        """What is left at the end of the answer."""
        parts = []
        if self._inside and self._written is None:
            parts = self._whole(self._held)
            self._held = "" if parts else (self._trigger + self._held)
        if self._held and self._written is None and (self._held.strip() or not self.calls):
            parts.append(Part(text=self._held))
        self._held = ""
        return parts

    @property
    def _trigger(self) -> str:
        """What was taken off where a call began; where the JSON is the trigger, nothing."""
        return self._form.trigger if self._form.close else ""

    def _step(self) -> Part | None:
        """The next part; an empty one where only the state has changed; None where more text is needed."""
        if self._written is not None:
            return self._go_on(self._written)
        return self._call() if self._inside else self._text()

    def _text(self) -> Part | None:
        trigger = self._form.trigger
        at = self._begins()
        if at is not None:
            before, rest = self._held[:at], self._held[at:]
            self._inside, self._held = True, rest[len(self._trigger) :]
            return self._said_text(before.rstrip("\n") if self._form.close else before)
        keep = _overlap(self._held, trigger) if self._form.close or not self._said else 0
        while self._form.close and keep < len(self._held) and self._held[-keep - 1] == "\n":
            keep += 1  # lines before a call are none of the answer
        told, self._held = self._held[: len(self._held) - keep], self._held[len(self._held) - keep :]
        return self._said_text(told) if told else None

    def _begins(self) -> int | None:
        """Where a call does. Without a mark of its own it is the whole answer."""
        if self._form.close:
            at = self._held.find(self._form.trigger)
            return at if at >= 0 else None
        begins = re.match(r'\s*\{\s*"name"\s*:', self._held) if not self._said and not self.calls else None
        return 0 if begins else None

    def _said_text(self, text: str) -> Part:
        text = text if self._said or self.calls else text.lstrip("\n")
        if self.calls and not text.strip():
            return Part()  # white space between calls
        self._said |= bool(text)
        return Part(text=text)

    def _call(self) -> Part | None:
        head = self._head.match(self._held)
        if head is not None:
            name = json.loads(head[1], strict=False)
            self._held = self._held[head.end() :]
            self._written = _Arguments()
            self.calls += 1
            return Part(call=self.calls - 1, name=name, id=new_call_id())
        end = self._held.find(self._form.close) if self._form.close else -1
        if end < 0 and len(self._held) <= MOST:
            return None
        body, rest = (self._held[:end], self._held[end + len(self._form.close) :]) if end >= 0 else (self._held, "")
        self._inside, self._held = False, rest
        whole = self._whole(body)
        if whole:
            return whole[0]
        return self._said_text(self._trigger + body + (self._form.close if end >= 0 else ""))

    def _go_on(self, written: _Arguments) -> Part | None:
        taken = written.take(self._held)
        told, self._held = self._held[:taken], self._held[taken:]
        if told:
            return Part(call=self.calls - 1, arguments=told)
        if not written.over:
            return None
        close = "}" + self._form.close
        rest = re.match(r"\s*\}\s*" + re.escape(self._form.close), self._held)
        if rest is None and len(self._held) < len(close) + 64 and not self._held.strip().strip("}"):
            return None  # its end is on its way
        if rest is None and self._form.close.startswith(self._held.strip().removeprefix("}").strip()):
            return None
        self._held = self._held[rest.end() :] if rest is not None else self._held
        self._written, self._inside = None, False
        return Part()

    def _whole(self, body: str) -> list[Part]:
        """A call whose keys stand in another order; nothing where it is none."""
        try:
            made, _ = _DECODER.raw_decode(body.strip())
            name, arguments = made["name"], made[self._form.parameters]
            if not isinstance(name, str):
                return []
        except (ValueError, LookupError, TypeError, RecursionError):
            return []
        self.calls += 1
        told = arguments if isinstance(arguments, str) else json.dumps(arguments, ensure_ascii=False)
        return [Part(call=self.calls - 1, name=name, id=new_call_id(), arguments=told)]


class _Arguments:
    """How far a JSON object goes."""

    def __init__(self) -> None:
        self._depth, self._quoted, self._escaped, self.over = 0, False, False, False

    def take(self, text: str) -> int:
        """Leading characters that belong to it."""
        for place, letter in enumerate(text):
            if self.over:
                return place
            if self._quoted:
                self._quoted = self._escaped or letter != '"'
                self._escaped = letter == "\\" and not self._escaped
            elif letter == '"':
                self._quoted = True
            elif letter in "{[":
                self._depth += 1
            elif letter in "}]":
                self._depth -= 1
                self.over = self._depth == 0
        return len(text)


def new_call_id() -> str:
    return f"call_{secrets.token_hex(12)}"


def _overlap(text: str, mark: str) -> int:
    """Characters at the end of a text that a mark could begin with."""
    return next((size for size in range(min(len(mark) - 1, len(text)), 0, -1) if mark.startswith(text[-size:])), 0)
