"""What a stream has read and the device thread has not looked at: a bounded number of messages and
of bytes."""

from __future__ import annotations

from dspark.errors import Overloaded

MESSAGES, BYTES = 4096, 64 << 20


class Backlog:
    """One thread reads and another one looks: each counts for itself, so nothing is locked."""

    def __init__(self) -> None:
        self._read = (0, 0)  # messages and bytes so far; written by whoever reads alone
        self._seen = (0, 0)  # so too, by whoever looks

    def read(self, size: int) -> None:
        """Before a message is handed on. Raises Overloaded where it does not fit; by itself any
        message does."""
        messages, total = (read - seen for read, seen in zip(self._read, self._seen, strict=True))
        if messages >= MESSAGES or (messages and total + size > BYTES):
            raise Overloaded(
                f"{messages} messages of {total} bytes wait for the device", retry_after_s=1.0
            )
        self._read = (self._read[0] + 1, self._read[1] + size)

    def seen(self, size: int) -> None:
        """A message has been taken up."""
        self._seen = (self._seen[0] + 1, self._seen[1] + size)
