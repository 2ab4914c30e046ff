"""A stream to a worker that ends, in whatever way, leaves nobody waiting."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from types import SimpleNamespace
from typing import Any

import pytest

from dspark.errors import Lost, PeerError
from dspark.runtime.session import Session
from dspark.runtime.telemetry import Metrics


class Worker:
    """Answers every command with its own tag."""

    def __init__(self) -> None:
        self.lost: list[str] = []
        self.session: Session[int] = Session(
            self._stream, name="w", incarnation=7, metrics=Metrics(), on_lost=self.lost.append
        )

    async def _stream(self, commands: AsyncIterator[int]) -> AsyncIterator[Any]:
        async for tag in commands:
            yield SimpleNamespace(tag=tag, incarnation=7)

    def ask(self, read: Callable[[Any], Any]) -> asyncio.Future[Any]:
        return self.session.ask(lambda tag, incarnation: tag, read)


async def test_an_answer_is_what_was_read_of_it() -> None:
    worker = Worker()
    assert await worker.ask(lambda event: event.tag) == 1
    worker.session.close("enough")
    await worker.session.ended()
    assert worker.lost == ["enough"]


@pytest.mark.parametrize("error", [PeerError("columns"), KeyError("columns")], ids=["malformed", "a bug"])
async def test_an_answer_that_cannot_be_read_fails_everybody_who_waits(error: Exception) -> None:
    worker = Worker()

    def read(event: Any) -> Any:
        raise error

    waiting = [worker.ask(read), worker.ask(lambda event: event)]
    for future in waiting:
        with pytest.raises(Lost):
            await asyncio.wait_for(future, 5)
    await worker.session.ended()
    assert len(worker.lost) == 1
