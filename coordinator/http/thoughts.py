"""A target's reasoning before its answer: separated from the answer, and limited by a budget.

Templates that know `<think>` mark reasoning by it and `</think>`; the prompt may have begun it. A
budget is a form: at most so many tokens, none of which ends the reasoning, then the token that
does, then the answer in its own form.

gpt-oss answers in channels, for reasoning, calls and text. A message is a head up to
`<|message|>`, then its text up to `<|end|>`, `<|call|>` or `<|return|>`. The first head lacks its
start, which the prompt has written. A message without a head is text.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Protocol

from coordinator.http.calls import Part, new_call_id, parted
from coordinator.http.schema import Form
from coordinator.http.tools import Shape, part_of, spelled
from dspark.errors import InvalidRequest, Unsupported

BEGIN, END = "<think>", "</think>"
MOST = 32_768  # largest budget in tokens
_BLANK = 64  # characters of white space before reasoning


class Reader(Protocol):
    """Splits the streamed text of one answer into parts."""

    @property
    def called(self) -> bool:
        """Whether there are tool calls so far, the last of them complete."""

    @property
    def thought(self) -> int:
        """Reasoning tokens so far, without those that begin and end it."""

    def push(self, text: str) -> list[Part]:
        """Takes a token's text; returns the parts that are certain by now."""

    def close(self) -> list[Part]:
        """Returns the parts left at the end of the answer."""


class PlainReader:
    """Reader of an answer that is only text."""

    called, thought = False, 0

    def push(self, text: str) -> list[Part]:
        return [Part(text=text)] if text else []

    def close(self) -> list[Part]:
        return []


class ThoughtReader:
    """Reader of reasoning, then of the answer by `rest`. inside: the prompt began the reasoning."""

    def __init__(self, rest: Reader, *, inside: bool) -> None:
        self._rest, self.thought = rest, 0
        self._state = "inside" if inside else "before"
        self._held = ""
        self._said = False  # the current kind has had more than line breaks

    @property
    def called(self) -> bool:
        return self._rest.called

    def push(self, text: str) -> list[Part]:
        was_inside = self._state == "inside"
        parts = self._push(text)
        self.thought += was_inside and self._state == "inside"
        return parts

    def _push(self, text: str) -> list[Part]:
        self._held += text
        if self._state == "before":
            rest = self._held.lstrip()
            if rest.startswith(BEGIN):
                self._state, self._held = "inside", rest[len(BEGIN) :]
            elif BEGIN.startswith(rest) and len(self._held) < _BLANK:
                return []
            else:
                self._state, self._said = "behind", True
        parts = self._inside() if self._state == "inside" else []
        return parts + self._behind() if self._state == "behind" else parts

    def close(self) -> list[Part]:
        if self._state == "inside":
            return self._thought(self._held.rstrip("\n")) + self._rest.close()
        self._said |= self._state == "before"
        return self._behind() + self._rest.close()

    def _inside(self) -> list[Part]:
        text, mark, self._held = parted(self._held, (END,), "\n")
        parts = self._thought(text.rstrip("\n") if mark else text)
        if mark:
            self._state, self._said = "behind", False
        return parts

    def _thought(self, text: str) -> list[Part]:
        text = text if self._said else text.lstrip("\n")
        self._said |= bool(text)
        return [Part(reasoning=text)] if text else []

    def _behind(self) -> list[Part]:
        """Passes the answer on, without the line breaks between reasoning and answer."""
        text, self._held = self._held if self._said else self._held.lstrip("\n"), ""
        self._said |= bool(text)
        return self._rest.push(text) if text else []


def with_budget(
    budget: int, form: Form | None, *, inside: bool, token: int | None, special: Mapping[str, int]
) -> Form:
    """A form of at most `budget` reasoning tokens followed by `form`. inside: the prompt began the
    reasoning. token: ends it. special: ids of special tokens by text. Raises Unsupported without
    a token that ends it."""
    if token is None:
        raise Unsupported("thinking_token_budget", f"the target has no token {END}")
    if not 0 <= budget <= MOST:
        raise InvalidRequest("thinking_token_budget", f"must be in 0..{MOST}, got {budget}")
    thought = {"type": "exclude_token", "exclude_tokens": [token]}
    thoughts: list[Shape] = [
        {"type": "repeat", "min": 0, "max": budget, "content": thought},
        {"type": "token", "token": token},
    ]
    if not inside:
        thoughts = [*spelled(f"{BEGIN}\n", special), *thoughts]
    rest: Shape = {"type": "any_tokens", "exclude_tokens": []}
    if form is not None:
        rest = part_of(form, "thinking_token_budget")
    whole = {"type": "sequence", "elements": [*thoughts, rest]}
    return {"structural_tag": {"type": "structural_tag", "format": whole}}


BEGINS = "<|channel|>"
_MESSAGE = "<|message|>"
_START = "<|start|>"
_ENDS = ("<|end|>", "<|call|>", "<|return|>", _START)
_HEADS = (_START, BEGINS, "to=")
_CALLED = re.compile(r"to=functions\.([A-Za-z0-9_.-]{1,128})")
_LONGEST = 256  # characters of a head


class HarmonyReader:
    """Reader of an answer in gpt-oss's channels."""

    called = False  # a call ends with the answer

    def __init__(self) -> None:
        # `_kind` is that of the message that is being read; empty within a head
        self._held, self._kind = "", ""
        self._calls = self.thought = 0

    def push(self, text: str) -> list[Part]:
        before, parts = self._kind, list[Part]()
        self._held += text
        while self._held and (self._body(parts) if self._kind else self._head(parts)):
            continue
        self.thought += before == self._kind == "thought"
        return parts

    def close(self) -> list[Part]:
        parts: list[Part] = []
        if self._kind:
            self._tell(self._held, parts)
        elif (rest := self._held.strip()) and BEGINS not in rest and not rest.startswith(_START):
            parts.append(Part(text=self._held))
        self._held = ""
        return parts

    def _head(self, parts: list[Part]) -> bool:
        rest = self._held.lstrip()
        if not any(rest.startswith(head) or head.startswith(rest) for head in _HEADS):
            self._kind = "text"
            return True
        at = self._held.find(_MESSAGE, 0, _LONGEST)
        if at < 0:
            if len(self._held) < _LONGEST:
                return False
            # it is text, and so is the mark that it may begin with
            parts.append(Part(text=self._held[:1]))
            self._held, self._kind = self._held[1:], "text"
            return True
        head, self._held = self._held[:at], self._held[at + len(_MESSAGE) :]
        called = _CALLED.search(head)
        self._kind = "call" if called else "thought" if f"{BEGINS}analysis" in head else "text"
        if called:
            self.called, self._calls = True, self._calls + 1
            parts.append(Part(call=self._calls - 1, name=called[1], id=new_call_id()))
        return True

    def _body(self, parts: list[Part]) -> bool:
        text, mark, rest = parted(self._held, _ENDS)
        self._tell(text, parts)
        self._held = mark + rest if mark == _START else rest
        if mark:
            self._kind = ""
        return bool(mark)

    def _tell(self, text: str, parts: list[Part]) -> None:
        if not text:
            return
        if self._kind == "call":
            parts.append(Part(call=self._calls - 1, arguments=text))
        else:
            parts.append(Part(reasoning=text) if self._kind == "thought" else Part(text=text))
