"""A target's reasoning before its answer: limited by a budget, or in a channel of its own.

A budget is a form: at most so many tokens, none of which ends the reasoning, then the token that
does, then the answer in its own form.

gpt-oss answers in channels, for reasoning, calls and text. A message is a head up to
`<|message|>`, then its text up to `<|end|>`, `<|call|>` or `<|return|>`. The first head lacks its
start, which the prompt has written. A message without a head is text.
"""

from __future__ import annotations

import re
from collections.abc import Mapping

from coordinator.http.calls import new_call_id
from coordinator.http.reader import BEGIN, END, AnswerPart, Reader, Steps, parted
from coordinator.http.schema import Form
from coordinator.http.tools import Shape, part_of, spelled
from dspark.errors import InvalidRequest, Unsupported

MOST = 32_768  # largest budget in tokens


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


class HarmonyReader(Reader):
    """Reader of an answer in gpt-oss's channels, where a call ends with the answer."""

    def __init__(self) -> None:
        super().__init__()
        self._kind, self._calls = "", 0  # of the message that is being read; "" within a head

    def _close(self) -> None:
        rest = self._held.strip()
        if self._kind:
            self._tell(self._held)
        elif rest and BEGINS not in rest and not rest.startswith(_START):
            self._add(AnswerPart(text=self._held))

    def _read(self) -> Steps[None]:
        while True:
            self._kind, mark = (yield from self._head()), ""
            self._inside = self._kind == "thought"
            while not mark:
                text, mark, rest = parted(self._held, _ENDS)
                self._tell(text)
                self._held = mark + rest if mark == _START else rest
                if not mark:
                    yield
            self._kind, self._inside = "", False

    def _head(self) -> Steps[str]:
        """Reads the head of a message, if it has one; returns the kind of the message."""
        while True:
            rest, at = self._held.lstrip(), self._held.find(_MESSAGE, 0, _LONGEST)
            if not any(rest.startswith(head) or head.startswith(rest) for head in _HEADS):
                return "text"
            if at >= 0:
                break
            if len(self._held) >= _LONGEST:
                # text, and so is the mark that it begins with
                self._add(AnswerPart(text=self._held[:1]))
                self._held = self._held[1:]
                return "text"
            yield
        head, self._held = self._held[:at], self._held[at + len(_MESSAGE) :]
        if (called := _CALLED.search(head)) is None:
            return "thought" if f"{BEGINS}analysis" in head else "text"
        self.called, self._calls = True, self._calls + 1
        self._add(AnswerPart(call=self._calls - 1, name=called[1], id=new_call_id()))
        return "call"

    def _tell(self, text: str) -> None:
        if self._kind == "call":
            self._add(AnswerPart(call=self._calls - 1, arguments=text))
        else:
            self._add(
                AnswerPart(reasoning=text) if self._kind == "thought" else AnswerPart(text=text)
            )
