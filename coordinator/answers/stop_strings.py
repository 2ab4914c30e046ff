"""Stop strings, looked for in the text as it grows. Pure.

Text that may yet turn out to begin a stop string is held back: never more than the longest one less a character.
"""

from __future__ import annotations

from collections.abc import Sequence


class StopStrings:
    """Decides what may be shown."""

    def __init__(self, stops: Sequence[str], *, show_match: bool = False) -> None:
        self._stops = tuple(stops)
        self._show_match = show_match
        self._held = ""

    def push(self, text: str, *, may_end: bool = True) -> tuple[str, str | None]:
        """(text that may be shown, the stop string that ends the answer).

        The earliest match that this text completes counts, and none where the answer may not end yet.
        """
        if not self._stops:
            return text, None
        old = len(self._held)
        text = self._held + text
        found = [
            (at, order)
            for order, stop in enumerate(self._stops)
            if may_end and (at := text.find(stop, max(old - len(stop) + 1, 0))) >= 0
        ]
        if found:
            at, order = min(found)
            stop = self._stops[order]
            self._held = ""
            return text[: at + len(stop)] if self._show_match else text[:at], stop
        hold = max(self._overlap(text, stop) for stop in self._stops)
        shown, self._held = text[: len(text) - hold], text[len(text) - hold :]
        return shown, None

    def flush(self) -> str:
        """What was held back; the answer is over and it was no stop string."""
        held, self._held = self._held, ""
        return held

    @staticmethod
    def _overlap(text: str, stop: str) -> int:
        """Length of the longest end of `text` that begins `stop`."""
        for length in range(min(len(stop) - 1, len(text)), 0, -1):
            if text.endswith(stop[:length]):
                return length
        return 0
