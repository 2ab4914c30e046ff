"""How a process ends: what goes wrong is raised, and a worker that leaves waits for what it holds,
for what it has just let in too, and no longer than it was given."""

import asyncio
import signal
import threading
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from types import SimpleNamespace
from typing import Any

import pytest

from dspark.runtime import shell
from dspark.runtime.device_worker import DeviceWorker
from dspark.runtime.shell import run_until_signal
from dspark.runtime.worker import emptied


async def run(stop: Callable[[float], Awaitable[None]], *signals: signal.Signals) -> None:
    """A process that ends so, and gets these signals once it is ready."""

    async def start() -> Any:
        return SimpleNamespace(endpoint="h:1", incarnation=1, stop=stop)

    def ready(_: object) -> None:
        for each in signals:
            signal.raise_signal(each)

    await run_until_signal(start, grace_s=1.0, ready=ready)


async def test_what_goes_wrong_in_an_orderly_stop_is_raised() -> None:
    async def stop(grace_s: float) -> None:
        raise RuntimeError("the journal cannot be closed")

    with pytest.raises(RuntimeError, match="journal"):
        await run(stop, signal.SIGTERM)


@pytest.mark.parametrize("ignored", [False, True], ids=["", "nohup"])
async def test_a_terminal_that_closes_ends_it_in_order_but_not_under_nohup(ignored: bool) -> None:
    graces: list[float] = []

    async def stop(grace_s: float) -> None:
        signal.raise_signal(signal.SIGHUP)  # the kernel says it after the shell
        await asyncio.sleep(0.01)
        graces.append(grace_s)

    before = signal.signal(signal.SIGHUP, signal.SIG_IGN if ignored else signal.SIG_DFL)
    try:
        await run(stop, signal.SIGHUP, *([signal.SIGTERM] if ignored else []))
    finally:
        signal.signal(signal.SIGHUP, before)
    assert graces == [1.0]


@pytest.mark.parametrize("ends", [True, False])
async def test_tasks_that_are_just_ending_are_waited_for_but_not_without_end(
    ends: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(shell, "LEFT_S", 30.0 if ends else 0.01)
    left: list[asyncio.Task[None]] = []

    async def stop(grace_s: float) -> None:
        left.append(asyncio.create_task(asyncio.sleep(0.01 if ends else 1000.0)))

    await run(stop, signal.SIGTERM)
    assert left[0].done() is ends
    left[0].cancel()


async def test_a_start_that_is_broken_off_closes_what_it_has_opened() -> None:
    closed: list[bool] = []

    async def start() -> Any:
        try:
            signal.raise_signal(signal.SIGTERM)
            await asyncio.sleep(60.0)
        finally:
            await asyncio.sleep(0)
            closed.append(True)

    await run_until_signal(start, grace_s=1.0, ready=lambda _: None)
    assert closed


@pytest.fixture
def device() -> Iterator[DeviceWorker]:
    made = DeviceWorker("test")
    yield made
    made.close()


@pytest.fixture
async def busy(device: DeviceWorker) -> AsyncIterator[threading.Event]:
    """The device is, until this is set."""
    over = threading.Event()
    device.submit(over.wait, 10.0)
    yield over
    over.set()


async def test_a_sequence_that_was_let_in_but_not_yet_taken_up_is_waited_for(
    device: DeviceWorker, busy: threading.Event
) -> None:
    held: list[int] = []
    device.submit(held.append, 1, urgent=True)
    waiting = asyncio.create_task(emptied(device, lambda: len(held), 30.0))
    await asyncio.sleep(0)
    assert not waiting.done(), "nothing is held yet, and nobody may conclude from that"
    busy.set()
    assert await device.run(lambda: len(held)) == 1
    assert not waiting.done()
    await device.run(held.clear)
    await waiting


async def test_a_device_that_does_not_answer_is_waited_for_no_longer_than_the_grace(
    device: DeviceWorker, busy: threading.Event
) -> None:
    await emptied(device, lambda: 1, 0.0)


async def test_a_device_that_has_ended_holds_nothing(device: DeviceWorker) -> None:
    device.close()
    await emptied(device, lambda: 1, 30.0)
