"""Answers in channels, as gpt-oss writes them: what it thinks, what it calls, and what it says.

A message is a head up to `<|message|>`, then its text up to `<|end|>`, `<|call|>` or `<|return|>`. The head of the
first one follows a prompt that has named the assistant. What has no head is text.
"""

from __future__ import annotations

import re

from coordinator.http.calls import Part, new_call_id
from coordinator.reception.output_processor import overlap

BEGINS = "<|channel|>"
_MESSAGE = "<|message|>"
_START = "<|start|>"
_ENDS = ("<|end|>", "<|call|>", "<|return|>", _START)
_HEADS = (_START, BEGINS, "to=")
_ENDED = re.compile("|".join(map(re.escape, _ENDS)))
_CALLED = re.compile(r"to=functions\.([A-Za-z0-9_.-]{1,64})")
_LONGEST = 256  # characters of a head


class HarmonyReader:
    """Keeps `Reader`."""

    def __init__(self) -> None:
        self._held, self._kind = "", ""  # kind of the message that is being read; empty within a head
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
        ended = _ENDED.search(self._held)
        if ended is None:
            keep = max(overlap(self._held, mark) for mark in _ENDS)
            self._tell(self._held[: len(self._held) - keep], parts)
            self._held = self._held[len(self._held) - keep :]
            return False
        self._tell(self._held[: ended.start()], parts)
        self._held = self._held[ended.start() if ended[0] == _START else ended.end() :]
        self._kind = ""
        return True

    def _tell(self, text: str, parts: list[Part]) -> None:
        if not text:
            return
        if self._kind == "call":
            parts.append(Part(call=self.calls - 1, arguments=text))
        else:
            parts.append(Part(reasoning=text) if self._kind == "thought" else Part(text=text))
