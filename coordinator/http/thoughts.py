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

from coordinator.http.calls import Part, Reader, Steps, new_call_id, parted
from coordinator.http.schema import Form
from coordinator.http.tools import Shape, part_of, spelled
from dspark.errors import InvalidRequest, Unsupported

BEGIN, END = "<think>", "</think>"
MOST = 32_768  # largest budget in tokens
_BLANK = 64  # characters of white space before reasoning


class ThoughtReader(Reader):
    """Reader of reasoning, then of the answer by `rest`. inside: the prompt began the reasoning."""

    def __init__(self, rest: Reader, *, inside: bool) -> None:
        super().__init__()
        self._rest, self._inside = rest, inside
        self._said = False  # the current kind has had more than line breaks

    def _push(self, text: str) -> None:
        was_inside = self._inside
        super()._push(text)
        self.thought += was_inside and self._inside

    def _close(self) -> None:
        if self._inside:
            self._think(self._held.rstrip("\n"))
            self._held = ""
        self._pass_on(self._held, over=True)  # white space, or the beginning of a mark

    def _pass_on(self, text: str, *, over: bool = False) -> None:
        for part in self._rest.read([text], over=over):
            self._add(part)
        self.called = self._rest.called

    def _read(self) -> Steps[None]:
        if not self._inside:
            self._inside = yield from self._begins()
            self._said = not self._inside
        while self._inside:
            text, mark, self._held = parted(self._held, (END,), "\n")
            self._think(text.rstrip("\n") if mark else text)
            if mark:
                self._inside = self._said = False
            else:
                yield
        while True:
            # without the line breaks between reasoning and answer
            text, self._held = self._held if self._said else self._held.lstrip("\n"), ""
            self._said |= bool(text)
            self._pass_on(text)
            yield

    def _begins(self) -> Steps[bool]:
        """Drops the mark that begins reasoning; returns whether there is one."""
        while not (rest := self._held.lstrip()).startswith(BEGIN):
            if not BEGIN.startswith(rest) or len(self._held) >= _BLANK:
                return False
            yield
        self._held = rest[len(BEGIN) :]
        return True

    def _think(self, text: str) -> None:
        text = text if self._said else text.lstrip("\n")
        self._said |= bool(text)
        self._add(Part(reasoning=text))


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

    def _push(self, text: str) -> None:
        before = self._kind
        super()._push(text)
        self.thought += before == self._kind == "thought"

    def _close(self) -> None:
        rest = self._held.strip()
        if self._kind:
            self._tell(self._held)
        elif rest and BEGINS not in rest and not rest.startswith(_START):
            self._add(Part(text=self._held))

    def _read(self) -> Steps[None]:
        while True:
            self._kind, mark = (yield from self._head()), ""
            while not mark:
                text, mark, rest = parted(self._held, _ENDS)
                self._tell(text)
                self._held = mark + rest if mark == _START else rest
                if not mark:
                    yield
            self._kind = ""

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
                self._add(Part(text=self._held[:1]))
                self._held = self._held[1:]
                return "text"
            yield
        head, self._held = self._held[:at], self._held[at + len(_MESSAGE) :]
        if (called := _CALLED.search(head)) is None:
            return "thought" if f"{BEGINS}analysis" in head else "text"
        self.called, self._calls = True, self._calls + 1
        self._add(Part(call=self._calls - 1, name=called[1], id=new_call_id()))
        return "call"

    def _tell(self, text: str) -> None:
        if self._kind == "call":
            self._add(Part(call=self._calls - 1, arguments=text))
        else:
            self._add(Part(reasoning=text) if self._kind == "thought" else Part(text=text))
