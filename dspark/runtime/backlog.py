"""Bounds the messages and bytes that a stream has read and the device thread has not handled."""

from __future__ import annotations

from dspark.errors import Overloaded

MESSAGES, BYTES = 4096, 64 << 20


class Backlog:
    """Counts for one reading and one handling thread; each has its own count, so without a lock."""

    def __init__(self) -> None:
        self._read = (0, 0)  # messages and bytes so far; written by the reading thread alone
        self._seen = (0, 0)  # likewise, by the handling thread

    def read(self, size: int) -> None:
        """Counts a message, before it is queued. Raises Overloaded where it does not fit; into an
        empty backlog any message does."""
        messages, total = (read - seen for read, seen in zip(self._read, self._seen, strict=True))
        if messages >= MESSAGES or (messages and total + size > BYTES):
            raise Overloaded(
                f"{messages} messages of {total} bytes wait for the device", retry_after_s=1.0
            )
        self._read = (self._read[0] + 1, self._read[1] + size)

    def seen(self, size: int) -> None:
        """Counts a message as handled."""
        self._seen = (self._seen[0] + 1, self._seen[1] + size)
