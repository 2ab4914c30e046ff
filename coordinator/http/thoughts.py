"""What a target thinks before it answers: told apart from the answer, and bounded.

Templates that know `<think>` mark thoughts by it and `</think>`; their prompt may have begun them.
A budget is a form: so many tokens, none of which ends the thoughts, then the token that does, then
the answer in its own form.

gpt-oss answers in channels: what it thinks, what it calls, and what it says. A message is a head up
to `<|message|>`, then its text up to `<|end|>`, `<|call|>` or `<|return|>`. The head of the first
one follows a prompt that has named the assistant. What has no head is text.
"""

from __future__ import annotations

import re
from typing import Protocol

from coordinator.http.calls import Part, new_call_id, parted
from coordinator.http.schema import Form
from coordinator.http.tools import Shape, part_of
from dspark.errors import InvalidRequest, Unsupported

BEGIN, END = "<think>", "</think>"
MOST = 32_768  # tokens of thoughts
_BLANK = 64  # characters of white space before thoughts


class Reader(Protocol):
    """Makes parts of the text of one answer."""

    @property
    def calls(self) -> int:
        """Of tools so far."""

    @property
    def thought(self) -> int:
        """Tokens of thoughts so far, without those that begin and end them."""

    def push(self, text: str) -> list[Part]:
        """A token's text, and what is known by now."""

    def close(self) -> list[Part]:
        """What is left at the end of the answer."""


class PlainReader:
    """Of an answer that is nothing but text."""

    calls = thought = 0

    def push(self, text: str) -> list[Part]:
        return [Part(text=text)] if text else []

    def close(self) -> list[Part]:
        return []


class ThoughtReader:
    """Of an answer that thoughts may come before. inside: the prompt has begun them."""

    def __init__(self, rest: Reader, *, inside: bool) -> None:
        self._rest, self.thought = rest, 0
        self._state = "inside" if inside else "before"
        self._held = ""
        self._said = False  # of what is told now, anything but line breaks

    @property
    def calls(self) -> int:
        return self._rest.calls

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
        """Line breaks between thoughts and answer are of neither."""
        text, self._held = self._held if self._said else self._held.lstrip("\n"), ""
        self._said |= bool(text)
        return self._rest.push(text) if text else []


def with_budget(budget: int, form: Form | None, *, inside: bool, token: int | None) -> Form:
    """A form in which at most `budget` tokens of thoughts come before what `form` says. token: ends
    thoughts."""
    if token is None:
        raise Unsupported("thinking_token_budget", f"the target has no token {END}")
    if not 0 <= budget <= MOST:
        raise InvalidRequest("thinking_token_budget", f"must be in 0..{MOST}, got {budget}")
    thoughts: list[Shape] = [
        {
            "type": "repeat",
            "min": 0,
            "max": budget,
            "content": {"type": "exclude_token", "exclude_tokens": [token]},
        },
        {"type": "token", "token": token},
    ]
    if not inside:
        thoughts.insert(0, {"type": "const_string", "value": f"{BEGIN}\n"})
    rest = (
        {"type": "any_tokens", "exclude_tokens": []}
        if form is None
        else part_of(form, "thinking_token_budget")
    )
    whole = {"type": "sequence", "elements": [*thoughts, rest]}
    return {"structural_tag": {"type": "structural_tag", "format": whole}}


BEGINS = "<|channel|>"
_MESSAGE = "<|message|>"
_START = "<|start|>"
_ENDS = ("<|end|>", "<|call|>", "<|return|>", _START)
_HEADS = (_START, BEGINS, "to=")
_CALLED = re.compile(r"to=functions\.([A-Za-z0-9_.-]{1,64})")
_LONGEST = 256  # characters of a head


class HarmonyReader:
    """Keeps `Reader`."""

    def __init__(self) -> None:
        # kind of the message that is being read; empty within a head
        self._held, self._kind = (
            "",
            "",
        )
        self.calls = self.thought = 0

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
        at = self._held.find(_MESSAGE)
        if at < 0:
            if len(self._held) < _LONGEST:
                return False
            self._kind = "text"
            return True
        head, self._held = self._held[:at], self._held[at + len(_MESSAGE) :]
        called = _CALLED.search(head)
        self._kind = "call" if called else "thought" if f"{BEGINS}analysis" in head else "text"
        if called:
            self.calls += 1
            parts.append(Part(call=self.calls - 1, name=called[1], id=new_call_id()))
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
            parts.append(Part(call=self.calls - 1, arguments=text))
        else:
            parts.append(Part(reasoning=text) if self._kind == "thought" else Part(text=text))
