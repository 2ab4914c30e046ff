"""The device thread: order, bounds, and callers that leave."""

import asyncio
import threading
from collections.abc import Iterator
from unittest.mock import Mock

import pytest
import structlog
from structlog.testing import LogCapture

from dspark.errors import Overloaded, Unavailable
from dspark.runtime import device_worker
from dspark.runtime.device_worker import BROKEN, DeviceWorker


@pytest.fixture
def worker() -> Iterator[DeviceWorker]:
    made = DeviceWorker("t", limit=5)
    yield made
    made.close()


async def busy(worker: DeviceWorker) -> tuple[threading.Event, asyncio.Future[bool]]:
    """A job that has begun, and ends with the event."""
    gate, begun = threading.Event(), threading.Event()

    def hold() -> bool:
        begun.set()
        return gate.wait(5)

    running = asyncio.ensure_future(worker.run(hold))
    await asyncio.to_thread(begun.wait, 5)
    return gate, running


async def test_rounds_go_before_prompt_chunks(
    worker: DeviceWorker, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(device_worker, "LATER_S", 60.0)
    (gate, first), order = await busy(worker), list[str]()
    chunks = [asyncio.ensure_future(worker.run(order.append, f"chunk{i}")) for i in range(2)]
    await asyncio.sleep(0)
    rounds = [
        asyncio.ensure_future(worker.run(order.append, f"round{i}", urgent=True)) for i in range(2)
    ]
    await asyncio.sleep(0)
    gate.set()
    await asyncio.gather(first, *chunks, *rounds)
    assert order == ["round0", "round1", "chunk0", "chunk1"]


async def test_rounds_without_a_pause_do_not_keep_a_chunk_waiting_for_ever(
    worker: DeviceWorker, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(device_worker, "LATER_S", 0.01)
    loop, over = asyncio.get_running_loop(), threading.Event()

    def again() -> None:
        if not over.is_set():
            worker.post(again, loop)

    worker.post(again, loop)
    try:
        assert await asyncio.wait_for(worker.run(int), 20) == 0
    finally:
        over.set()


async def test_a_full_queue_is_overload_and_a_closed_one_unavailable(worker: DeviceWorker) -> None:
    gate, running = await busy(worker)
    waiting = [asyncio.ensure_future(worker.run(int)) for _ in range(5)]
    await asyncio.sleep(0)
    with pytest.raises(Overloaded):
        await worker.run(int)
    gate.set()
    assert await running is True
    assert await asyncio.gather(*waiting) == [0] * 5
    worker.close()
    with pytest.raises(Unavailable):
        await worker.run(int)


async def test_an_error_reaches_its_caller_and_nobody_else(worker: DeviceWorker) -> None:
    broken, fine = worker.run(int, "x"), worker.run(int, "7")
    results = await asyncio.gather(broken, fine, return_exceptions=True)
    assert isinstance(results[0], ValueError)
    assert results[1] == 7


@pytest.mark.parametrize("surely", [False, True])
async def test_a_cancelled_caller_leaves_undone_what_need_not_be_done(
    worker: DeviceWorker, surely: bool
) -> None:
    (gate, first), done = await busy(worker), list[int]()
    second = asyncio.ensure_future((worker.run_surely if surely else worker.run)(done.append, 1))
    await asyncio.sleep(0)
    second.cancel()
    await asyncio.sleep(0)
    gate.set()
    await first
    assert await worker.run(lambda: done, urgent=False) == [1] * surely


async def test_a_device_that_fails_at_everything_is_told_about_and_so_is_its_return(
    worker: DeviceWorker,
) -> None:
    heard = list[bool]()
    worker.on_health = heard.append

    async def failing(times: int) -> None:
        for _ in range(times):
            with pytest.raises(ValueError, match="invalid literal"):
                await worker.run(int, "x")

    await failing(BROKEN - 1)
    await worker.run(int)  # a bad job fails alone
    await failing(BROKEN - 1)
    assert heard == []
    await failing(BROKEN)
    assert heard == [False]
    await worker.run(int)
    await asyncio.sleep(0)
    assert heard == [False, True]


async def test_what_must_be_done_waits_for_room(worker: DeviceWorker) -> None:
    worker._limit = 0
    surely = asyncio.ensure_future(worker.run_surely(int, "7"))
    await asyncio.sleep(0)
    assert not surely.done(), "refused, and not given up"
    worker._limit = 1
    assert await surely == 7
    worker.close()
    with pytest.raises(Unavailable):
        await worker.run_surely(int)


async def test_a_posted_job_runs_and_what_it_raises_is_the_devices(worker: DeviceWorker) -> None:
    loop, heard, done = asyncio.get_running_loop(), list[bool](), threading.Event()
    worker.on_health = heard.append

    fail = Mock(side_effect=RuntimeError("broken"))
    for _ in range(BROKEN):
        await asyncio.to_thread(worker.post, fail, loop)
        worker.post(int, loop, computes=False)  # which hides no broken device
    worker.post(done.set, loop)
    await asyncio.to_thread(done.wait, 5)
    await worker.run(int)  # the loop hears of it behind what was said of the job before
    assert heard == [False, True]
    worker.close()
    worker.post(fail, loop)  # left out
    assert fail.call_count == BROKEN


async def test_a_job_of_another_thread_is_done_there_and_between_two_of_the_device_s_own(
    worker: DeviceWorker,
) -> None:
    gate, running = await busy(worker)
    did: list[tuple[bool, int]] = []

    def job() -> None:
        did.append((gate.is_set(), threading.get_ident()))

    other = threading.Thread(target=worker.here, args=(job,))
    other.start()
    other.join(0.05)
    assert other.is_alive(), "it waits for the job that is run"
    gate.set()
    await asyncio.to_thread(other.join, 5)
    await running
    assert did == [(True, other.ident)]


async def test_an_error_of_a_job_in_another_thread_is_logged_and_after_closing_there_is_none(
    worker: DeviceWorker, monkeypatch: pytest.MonkeyPatch
) -> None:
    heard = LogCapture()  # of a logger of its own: the module's may have been bound and kept before
    monkeypatch.setattr(
        device_worker,
        "log",
        structlog.wrap_logger(None, processors=[heard], wrapper_class=structlog.BoundLogger),
    )
    worker.here(lambda: int("x"))
    assert [entry["event"] for entry in heard.entries] == ["device.failed"]
    worker.close()
    did: list[int] = []
    worker.here(lambda: did.append(1))
    assert did == []
