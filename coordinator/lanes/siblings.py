"""Answers of one request share a prompt: the first of them has it run, the others come when it is in.

They would otherwise be taken in side by side, find nothing of the prompt computed, and run it once each. What they
then find in the verifier's prefix cache is all of it but the last page.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Iterator

from coordinator.requests.request import Request


class Siblings:
    """The prompts of one lane that are being run for more than one answer."""

    def __init__(self) -> None:
        self._first: dict[str, asyncio.Future[None]] = {}  # by request; done when the prompt is in, or is not coming

    def ahead(self, request: Request) -> asyncio.Future[None] | None:
        """What an answer waits for before it is taken in; None when nobody runs its prompt."""
        return self._first.get(request.id)

    @contextlib.contextmanager
    def first(self, request: Request) -> Iterator[None]:
        """Its prompt is being run meanwhile; those who come while somebody does so already hold nobody up."""
        if request.choices < 2 or request.id in self._first:
            yield
            return
        running = self._first[request.id] = asyncio.get_running_loop().create_future()
        try:
            yield
        finally:
            del self._first[request.id]
            running.set_result(None)
