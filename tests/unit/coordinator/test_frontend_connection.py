"""What the coordinator holds of one front end, with a cell made of arithmetic behind it; and what a
front end tells its coordinator fits into messages that are let in."""

import asyncio
from collections.abc import AsyncIterator
from types import SimpleNamespace
from typing import Any

import pytest

from coordinator.cells import frontends as room
from coordinator.cells.frontends import CellService, FrontendConnection
from coordinator.cells.local_cell import LocalCell
from coordinator.frontend.link import BATCH_BYTES, CoordinatorConnection
from coordinator.lanes.monitor import Monitor
from dspark.client.request import write_request
from dspark.errors import Overloaded
from dspark.rounds.policy import parse_policy
from dspark.runtime.telemetry import Metrics
from dspark.wire.v1 import frontend_pb2, generate_pb2
from tests.fakes import answer_of
from tests.rounds_cell import RoundsCell

HELLO = frontend_pb2.FrontendHello(name="f")


def local(cell: RoundsCell) -> LocalCell:
    members: Any = SimpleNamespace(
        verifiers=[cell.lane.facts], drafters=[], ready=True, monitor=Monitor(cell.metrics)
    )
    return LocalCell(cell.admission, members, parse_policy("off"))


async def attached() -> tuple[RoundsCell, FrontendConnection]:
    cell = RoundsCell()
    return cell, FrontendConnection(local(cell), HELLO, cell.clock, cell.metrics)


def submit(number: int, tokens: int, **more: Any) -> frontend_pb2.FrontendBatch:
    options = {"request_id": f"r{number}", "temperature": 0, "max_tokens": tokens, **more}
    asked = frontend_pb2.Submit(call=number, request=write_request([5, 6], options))
    asked.deadline_us = 5_000_000
    return frontend_pb2.FrontendBatch(submits=[asked])


async def heard(attachment: FrontendConnection, call: int) -> tuple[list[int], int]:
    """(tokens of a call until it ends, messages they came in)."""
    tokens: list[int] = []
    batches = 0
    while (batch := await attachment.next()) is not None:
        batches += 1
        at = 0
        for number, length in zip(batch.calls, batch.lengths, strict=True):
            tokens += batch.token_ids[at : at + length] if number == call else []
            at += length
        if any(one.call == call for one in batch.ended):
            break
    return tokens, batches


async def failures(attachment: FrontendConnection) -> dict[int, frontend_pb2.Failed]:
    """By call, until the first one has its whole answer."""
    failed: dict[int, frontend_pb2.Failed] = {}
    while (batch := await attachment.next()) is not None:
        failed |= {one.call: one for one in batch.failed}
        assert {*batch.calls, *(one.call for one in batch.ended)} <= {1}
        if batch.ended:
            break
    return failed


async def test_front_ends_that_say_hello_at_one_time_are_counted_like_others(
    cell: RoundsCell, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(room, "MAX_FRONTENDS", 2)
    service, greets = CellService(local(cell), cell.clock, cell.metrics), asyncio.Event()

    async def said() -> AsyncIterator[frontend_pb2.FrontendBatch]:
        await greets.wait()
        yield frontend_pb2.FrontendBatch(hello=HELLO)
        await asyncio.Event().wait()

    context: Any = None
    streams = [service.Attach(said(), context) for _ in range(3)]
    first = [asyncio.ensure_future(anext(stream)) for stream in streams]
    await asyncio.sleep(0.1)
    greets.set()
    told = await asyncio.gather(*first, return_exceptions=True)
    assert [isinstance(each, Overloaded) for each in told] == [False, False, True]
    assert cell.metrics.value("dropped_total", kind="frontend", reason="too_many") == 1
    for stream in streams:
        await stream.aclose()
    assert not service.attached


async def test_what_waits_for_a_front_end_goes_out_in_one_message() -> None:
    cell, attachment = await attached()
    attachment.heard(submit(1, 12))
    await cell.finish(*[state for states in cell.admission._requests.values() for state in states])
    tokens, batches = await heard(attachment, 1)
    assert tokens == answer_of([5, 6], 12)
    assert batches == 1


async def test_a_front_end_that_does_not_read_is_let_go(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(room, "MAX_UNSENT", 5)
    cell, attachment = await attached()
    attachment.heard(submit(1, 90))
    await cell.until(lambda: not attachment.requests)
    assert not cell.admission.running
    assert cell.metrics.value("dropped_total", kind="commit", reason="not_read") == 6
    with pytest.raises(Overloaded, match="does not read"):
        await attachment.next()
    attachment.heard(submit(2, 4))  # too late for anything
    assert not cell.admission.running


async def test_a_request_that_waited_for_ages_costs_its_own_answer_alone() -> None:
    _, attachment = await attached()
    attachment.heard(submit(1, 12))
    late = submit(2, 12)
    late.submits[0].waited_us = 2**64 - 1
    attachment.heard(late)
    failed = await failures(attachment)
    assert {call: one.message.split(":")[0] for call, one in failed.items()} == {2: "waited_us"}
    attachment.close()


async def test_requests_are_checked_one_at_a_time_and_a_late_finish_is_counted() -> None:
    cell, attachment = await attached()
    batch = frontend_pb2.FrontendBatch()
    for number, wrong in enumerate(({}, {"top_p": 7.0}, {}, {}, {"stop": ["x"]}), 1):
        batch.MergeFrom(submit(number, 12, **wrong))
    batch.submits[2].request.text = "words"
    batch.submits[3].request.request_id = ""
    batch.finishes.add(call=99)
    attachment.heard(batch)
    assert {call: one.field for call, one in (await failures(attachment)).items()} == {
        2: "sampling_params.top_p",
        3: "text",
        4: "request_id",
        5: "sampling_params.stop",
    }
    assert cell.metrics.value("dropped_total", kind="finish", reason="late") == 1
    attachment.close()


async def test_an_answer_that_its_text_ended_is_freed_and_not_spoken_of_again() -> None:
    cell, attachment = await attached()
    attachment.heard(submit(1, 90))
    await asyncio.sleep(0.1)
    attachment.heard(frontend_pb2.FrontendBatch(finishes=[frontend_pb2.Finish(call=1, index=0)]))
    await asyncio.sleep(0.2)
    assert attachment.requests == cell.admission.running == 0
    assert cell.metrics.value("requests_total", outcome="stop") == 1
    batch = await attachment.next()
    assert not batch.ended
    assert not batch.failed


async def test_requests_share_a_message_only_up_to_its_bound() -> None:
    link = CoordinatorConnection(
        frontend_pb2.FrontendHello(name="frontend/0"), asyncio.get_running_loop(), Metrics()
    )
    sizes = [BATCH_BYTES // 2, BATCH_BYTES // 3, BATCH_BYTES // 2, 2 * BATCH_BYTES, 10, 10]
    for number, size in enumerate(sizes):
        request = generate_pb2.GenerateRequest(text="x" * size)
        link.send("submits", frontend_pb2.Submit(call=number, request=request))
    told = aiter(link)
    batches = [await anext(told) for _ in range(4)]
    calls = [[submit.call for submit in batch.submits] for batch in batches]
    assert calls == [[0, 1], [2], [3], [4, 5]]
    assert [batch.number for batch in batches] == [1, 2, 3, 4]
