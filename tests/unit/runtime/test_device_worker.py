"""The device thread: order, bounds, and callers that leave."""

from __future__ import annotations

import asyncio
import threading

import pytest
import structlog
from structlog.testing import LogCapture

from dspark.errors import Overloaded, Unavailable
from dspark.runtime import device_worker
from dspark.runtime.device_worker import BROKEN, DeviceWorker


async def test_rounds_go_before_prompt_chunks(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(device_worker, "LATER_S", 60.0)
    worker = DeviceWorker("t")
    gate, order = threading.Event(), []
    first = asyncio.ensure_future(worker.run(gate.wait, 5))
    await asyncio.sleep(0)
    chunks = [asyncio.ensure_future(worker.run(order.append, f"chunk{i}")) for i in range(2)]
    await asyncio.sleep(0)
    rounds = [
        asyncio.ensure_future(worker.run(order.append, f"round{i}", urgent=True)) for i in range(2)
    ]
    await asyncio.sleep(0)
    gate.set()
    await asyncio.gather(first, *chunks, *rounds)
    assert order == ["round0", "round1", "chunk0", "chunk1"]
    worker.close()


async def test_rounds_without_a_pause_do_not_keep_a_chunk_waiting_for_ever(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(device_worker, "LATER_S", 0.01)
    worker, loop, over = DeviceWorker("t"), asyncio.get_running_loop(), threading.Event()

    def again() -> None:
        if not over.is_set():
            worker.post(again, loop)

    worker.post(again, loop)
    try:
        assert await asyncio.wait_for(worker.run(int), 20) == 0
    finally:
        over.set()
        worker.close()


async def test_a_full_queue_is_an_overload_and_a_closed_one_unavailable() -> None:
    worker = DeviceWorker("t", limit=1)
    gate, begun = threading.Event(), threading.Event()

    def hold() -> bool:
        begun.set()
        return gate.wait(5)

    running = asyncio.ensure_future(worker.run(hold))
    await asyncio.to_thread(begun.wait, 5)
    waiting = asyncio.ensure_future(worker.run(int))
    await asyncio.sleep(0)
    with pytest.raises(Overloaded):
        await worker.run(int)
    gate.set()
    assert await running is True
    assert await waiting == 0
    worker.close()
    with pytest.raises(Unavailable):
        await worker.run(int)


async def test_an_error_reaches_its_caller_and_nobody_else() -> None:
    worker = DeviceWorker("t")
    broken, fine = worker.run(int, "x"), worker.run(int, "7")
    results = await asyncio.gather(broken, fine, return_exceptions=True)
    assert isinstance(results[0], ValueError)
    assert results[1] == 7
    worker.close()


@pytest.mark.parametrize("surely", [False, True])
async def test_a_cancelled_caller_leaves_undone_what_need_not_be_done(surely: bool) -> None:
    worker = DeviceWorker("t")
    gate, done = threading.Event(), list[int]()
    first = asyncio.ensure_future(worker.run(gate.wait, 5))
    await asyncio.sleep(0)
    second = asyncio.ensure_future((worker.run_surely if surely else worker.run)(done.append, 1))
    await asyncio.sleep(0)
    second.cancel()
    await asyncio.sleep(0)
    gate.set()
    await first
    assert await worker.run(lambda: done, urgent=False) == [1] * surely
    worker.close()


async def test_a_device_that_fails_at_everything_is_told_about_and_so_is_its_return() -> None:
    worker, heard = DeviceWorker("test"), list[bool]()
    worker.on_health = heard.append

    def fail() -> None:
        raise RuntimeError("the device is gone")

    async def failing(times: int) -> None:
        for _ in range(times):
            with pytest.raises(RuntimeError):
                await worker.run(fail)

    await failing(BROKEN - 1)
    await worker.run(int)  # a bad job fails alone
    await failing(BROKEN - 1)
    assert heard == []
    await failing(BROKEN)
    assert heard == [False]
    await worker.run(int)
    await asyncio.sleep(0)
    assert heard == [False, True]
    worker.close()


async def test_what_must_be_done_waits_for_room() -> None:
    worker = DeviceWorker("t", limit=0)
    surely = asyncio.ensure_future(worker.run_surely(int, "7"))
    await asyncio.sleep(0)
    assert not surely.done(), "refused, and not given up"
    worker._limit = 1
    assert await surely == 7
    worker.close()
    with pytest.raises(Unavailable):
        await worker.run_surely(int)


async def test_a_posted_job_runs_and_what_it_raises_is_the_devices() -> None:
    worker, loop, heard, done = (
        DeviceWorker("t"),
        asyncio.get_running_loop(),
        list[bool](),
        threading.Event(),
    )
    worker.on_health = heard.append

    def fail() -> None:
        raise RuntimeError("broken")

    for _ in range(BROKEN):
        await asyncio.to_thread(worker.post, fail, loop)
        worker.post(int, loop, computes=False)  # which hides no broken device
    worker.post(done.set, loop)
    await asyncio.to_thread(done.wait, 5)
    await worker.run(int)  # the loop hears of it behind what was said of the job before
    assert heard == [False, True]
    worker.close()
    worker.post(fail, loop)  # left out


async def test_a_job_of_another_thread_is_done_there_and_between_two_of_the_device_s_own() -> None:
    worker = DeviceWorker("t")
    gate, begun = threading.Event(), threading.Event()
    did: list[tuple[str, int]] = []

    def hold() -> None:
        begun.set()
        gate.wait(5)
        did.append(("own", threading.get_ident()))

    running = asyncio.ensure_future(worker.run(hold))
    await asyncio.to_thread(begun.wait, 5)
    other = threading.Thread(
        target=worker.here, args=(lambda: did.append(("here", threading.get_ident())),)
    )
    other.start()
    other.join(0.05)
    assert other.is_alive(), "it waits for the job that is run"
    gate.set()
    await asyncio.to_thread(other.join, 5)
    await running
    assert [name for name, _ in did] == ["own", "here"]
    assert did[1][1] == other.ident
    worker.close()


async def test_an_error_of_a_job_in_another_thread_is_logged_and_after_closing_there_is_none(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    heard = LogCapture()  # of a logger of its own: the module's may have been bound and kept before
    monkeypatch.setattr(
        device_worker,
        "log",
        structlog.wrap_logger(None, processors=[heard], wrapper_class=structlog.BoundLogger),
    )
    worker = DeviceWorker("t")
    worker.here(lambda: int("x"))
    assert [entry["event"] for entry in heard.entries] == ["device.failed"]
    worker.close()
    did: list[int] = []
    worker.here(lambda: did.append(1))
    assert did == []
