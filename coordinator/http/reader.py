"""Splits the streamed text of one answer into parts: reasoning, text, and what else a target
writes.

A reader holds text until it is certain what it is. Every character is examined once, and the parts
do not depend on how the text is chunked.

Templates that know `<think>` mark reasoning by it and `</think>`; the prompt may have begun it.
"""

from __future__ import annotations

from collections.abc import Generator, Iterable
from typing import NamedTuple, TypeAlias, TypeVar

from coordinator.reception.output_processor import overlap

BEGIN, END = "<think>", "</think>"
BLANK = 64  # characters of white space that are held back where a mark may follow

T = TypeVar("T")
Steps: TypeAlias = Generator[None, None, T]  # yields where it needs more text


class AnswerPart(NamedTuple):
    """An increment of an answer: text, reasoning, the start of a call, or more of its arguments."""

    text: str = ""
    reasoning: str = ""
    call: int | None = None  # index of the call in the answer
    name: str = ""  # set in a call's first part, as `id`
    id: str = ""
    arguments: str = ""


def parted(held: str, marks: Iterable[str], blank: str = "") -> tuple[str, str, str]:
    """(text before the first of `marks`, the mark, text after it). Without one: (text that is
    certain, "", the tail that may begin one, with the characters of `blank` before it)."""
    at, mark = min(
        ((place, mark) for mark in marks if (place := held.find(mark)) >= 0), default=(-1, "")
    )
    if mark:
        return held[:at], mark, held[at + len(mark) :]
    keep = max((overlap(held, mark) for mark in marks), default=0)
    while keep < min(len(held), BLANK) and held[-keep - 1] in blank:
        keep += 1
    return held[: len(held) - keep], "", held[len(held) - keep :]


class Reader:
    """Reader of reasoning, then of text; others have an `_answer` of their own. inside: the prompt
    began the reasoning; None where the target marks none.

    called: there are tool calls so far, the last of them complete. thought: reasoning tokens so
    far, without those that begin and end it.
    """

    def __init__(self, *, inside: bool | None = None) -> None:
        self.called, self.thought = False, 0
        self._held, self._parts = "", list[AnswerPart]()
        self._inside = inside
        self._reading = self._read()

    def read(self, texts: Iterable[str], *, rest: str = "", over: bool) -> list[AnswerPart]:
        """Takes the texts of tokens; returns the parts that are certain by now, neighbours of one
        kind merged. rest: text behind them, of no new token. over: the answer ends with them."""
        for text in texts:
            was_inside = self._inside
            self._held += text
            next(self._reading)
            self.thought += bool(was_inside and self._inside)
        if rest:
            self._held += rest
            next(self._reading)
        if over:
            self._close()
        parts, self._parts = self._parts, []
        return parts

    def _read(self) -> Steps[None]:
        if self._inside is not None:
            yield from self._thoughts()
        yield from self._answer()

    def _answer(self) -> Steps[None]:
        """Reads the answer behind its reasoning."""
        while True:
            self._add(AnswerPart(text=self._held))
            self._held = ""
            yield

    def _close(self) -> None:
        """Tells what is held at the end of the answer."""
        if self._inside:
            self._add(AnswerPart(reasoning=self._held.rstrip("\n")))
        else:
            self._add(AnswerPart(text=self._held))

    def _thoughts(self) -> Steps[None]:
        """Reads reasoning, if there is any, without the line breaks around it."""
        while not self._inside:
            rest = self._held.lstrip()
            if rest.startswith(BEGIN):
                self._inside, self._held = True, rest[len(BEGIN) :]
            elif BEGIN.startswith(rest) and len(self._held) < BLANK:
                yield
            else:
                return
        yield from self._line()
        while self._inside:
            text, mark, self._held = parted(self._held, (END,), "\n")
            self._add(AnswerPart(reasoning=text.rstrip("\n") if mark else text))
            if mark:
                self._inside = False
            else:
                yield
        yield from self._line()

    def _line(self) -> Steps[None]:
        """Drops line breaks up to other text."""
        while not (rest := self._held.lstrip("\n")):
            self._held = ""
            yield
        self._held = rest

    def _add(self, part: AnswerPart) -> None:
        """Tells a part, unless it is empty; merged with the last one if that is of its kind."""
        if not (part.text or part.reasoning or part.name or part.arguments):
            return
        last = self._parts[-1] if self._parts else None
        if last and (part.call, bool(part.reasoning)) == (last.call, bool(last.reasoning)):
            self._parts[-1] = last._replace(
                text=last.text + part.text,
                reasoning=last.reasoning + part.reasoning,
                arguments=last.arguments + part.arguments,
            )
        else:
            self._parts.append(part)
