"""A coordinator with real workers over loopback gRPC, in this process, on the golden pair."""

import asyncio
import socket
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from coordinator.workers.worker import WorkerRole
from draft_service.service import DraftService
from dspark.client import AsyncClient
from dspark.errors import Unavailable
from tests.faults.oracle import plain_greedy
from tests.services.cell import Cell, health, says
from tests.waiting import until

PROMPT = (3, 17, 42, 9, 77, 5)
GREEDY: Any = {"temperature": 0.0, "ignore_eos": True}


async def test_status_shows_the_whole_cell(client: AsyncClient) -> None:
    await client.complete(PROMPT, max_tokens=24, policy="fixed:2", **GREEDY)
    status = await client.status()
    assert [(each.name, each.state) for each in status.processes] == [
        ("coordinator/0", "serving"),
        ("verify/0", "serving"),
        ("draft/0", "serving"),
    ]
    (lane,) = status.lanes
    assert (lane.verifier, lane.drafters, lane.policy) == ("verify/0", ("draft/0",), "adaptive")
    assert lane.rounds > 0
    assert lane.mean_acceptance_length >= 1
    info = await client.model_info()
    assert (info.vocab_size, info.context_length, info.block_size) == (128, 512, 7)
    assert (info.has_tokenizer, info.stop_token_ids, info.rule) == (False, (1,), "block")


async def test_the_status_is_told_although_a_worker_that_is_asked_for_its_own_is_let_go(
    cell: Cell, monkeypatch: pytest.MonkeyPatch
) -> None:
    describe, hangs, asked = DraftService.Describe, False, asyncio.Event()

    async def slowly(*told: Any) -> Any:
        if hangs:
            asked.set()
            await asyncio.Event().wait()
        return await describe(*told)

    monkeypatch.setattr(DraftService, "Describe", slowly)
    coordinator = await cell.whole()
    membership, hangs = coordinator.cell.membership, True
    telling = asyncio.ensure_future(cell.client(coordinator).status())
    await asked.wait()
    known = [each.address for each in membership.workers]
    membership.announce([each for each in known if each.role is WorkerRole.VERIFY])
    told = {each.name: each.detail for each in (await telling).processes}
    assert told["draft/0"] == "does not say what it holds: deadline_exceeded"


async def test_draining_flips_health_first_and_lets_streams_finish(
    cell: Cell, golden_target: Path
) -> None:
    coordinator = await cell.whole()
    client = cell.client(coordinator)
    service = "dspark.wire.v1.Generation"
    assert await health(coordinator, service) == "serving"
    running = asyncio.ensure_future(client.complete(PROMPT, max_tokens=200, **GREEDY))
    await until(lambda: coordinator.metrics.value("rounds_total") > 3)
    stopping = asyncio.ensure_future(coordinator.stop(20.0))
    await says(coordinator, service, "not_serving")
    assert not running.done()
    with pytest.raises(Unavailable, match="draining"):
        await client.complete((5,), max_tokens=24, **GREEDY)
    assert [list((await running).token_ids)] == plain_greedy(golden_target, [PROMPT], 200)
    await asyncio.wait_for(stopping, 5)


async def test_a_verifier_that_was_announced_as_draining_takes_nothing_until_it_no_longer_is(
    cell: Cell, golden_target: Path
) -> None:
    await cell.verifier()
    coordinator = await cell.coordinator()
    client, membership = cell.client(coordinator), coordinator.cell.membership
    known = [worker.address for worker in membership.workers]
    membership.announce(known, known)
    with pytest.raises(Unavailable, match="every verifier is draining"):
        await client.complete(PROMPT, max_tokens=9, **GREEDY)
    membership.announce(known)
    answer = await client.complete(PROMPT, max_tokens=9, **GREEDY)
    assert [list(answer.token_ids)] == plain_greedy(golden_target, [PROMPT], 9)


async def test_a_process_that_has_two_names_is_one_worker(cell: Cell) -> None:
    """Until it is lost under the first: the second may be another way to it."""
    coordinator = await cell.whole()
    membership = coordinator.cell.membership
    known = [each.address for each in membership.workers]
    again = [
        replace(each, endpoint=each.endpoint.replace("127.0.0.1", "localhost"), name="again")
        for each in known
    ]
    membership.announce([*known, *again])
    await until(lambda: all(each.detail for each in membership.workers if each.address in again))
    status = await cell.client(coordinator).status()
    assert {each.detail for each in status.processes if each.name == "again"} == {
        f"the same process as {each.name} at {each.endpoint}" for each in known
    }
    assert [(lane.verifier, lane.drafters) for lane in status.lanes] == [("verify/0", ("draft/0",))]
    membership.announce(again)
    await until(lambda: membership.ready and len(membership.drafters) == 1)
    assert {each.endpoint for each in (*membership.verifiers, *membership.drafters)} == {
        each.endpoint for each in again
    }


async def test_of_a_worker_that_is_not_there_status_says_what_is(cell: Cell) -> None:
    with socket.create_server(("127.0.0.1", 0)) as silent:  # takes connections, as a hung process
        places = ("127.0.0.1:1", f"127.0.0.1:{silent.getsockname()[1]}")
        swapped = (await cell.verifier()).endpoint
        coordinator = await cell.coordinator(
            verify=places, draft=(swapped,), describe_deadline_s=0.1
        )
        nobody, hung, other = coordinator.cell.membership.workers
        await until(lambda: "Connection refused" in nobody.detail)
        await until(lambda: "timed out before receiving SETTINGS" in hung.detail)
        await until(lambda: other.detail == f"{swapped}: what answers there is no drafter")
