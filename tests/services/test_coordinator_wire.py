"""What a drafter may do wrong on the wire, against a real verifier: it costs speed, never an id."""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import Callable
from typing import Any

import pytest
from fake_drafter import LIES, FakeDrafter, Reply, Said, sound

from dspark.client import AsyncClient
from dspark.wire.v1 import draft_pb2
from tests.services.cell import Cell
from tests.waiting import until
from verify_service.drafters import MALFORMED_ORDERS


async def staged(cell: Cell, reply: Reply) -> tuple[Any, FakeDrafter]:
    """(coordinator, drafter): a verifier, a wild drafter, a coordinator between them."""
    verifier = await cell.verifier()
    drafter = await cell.begun(FakeDrafter(reply, verifier.engine.projection))
    return await cell.coordinator(drafters=[drafter], policy="fixed:7"), drafter


async def ask(coordinator: Any, policy: str = "", tokens: int = 30) -> tuple[int, ...]:
    asked: Any = {"temperature": 0.0, "ignore_eos": True, "policy": policy, "timeout": 30.0}
    async with AsyncClient(coordinator.endpoint) as client:
        return (await client.complete([3, 17, 42], max_tokens=tokens, **asked)).token_ids


async def ask_until(condition: Callable[[], bool], coordinator: Any) -> None:
    async with asyncio.timeout(30.0):
        while not condition():
            await ask(coordinator)


def ends_the_stream(order: draft_pb2.Order) -> None:
    """Says nothing more."""


WILD: dict[str, Reply] = {
    **{
        what: LIES[what]
        # every lie is told in test_rounds_failing
        for what in ("twice", "no distributions", "nothing at all")
    },
    "the end of its stream": ends_the_stream,
    "the greeting of another process": lambda order: [
        draft_pb2.RoundsWelcome(incarnation=5, drafter_version="another")
    ],
}


def empty(order: draft_pb2.Order, **changes: Any) -> draft_pb2.Blocks:
    """A block without a slot."""
    none = dict.fromkeys(("token_ids", "confidence"), ()) | dict.fromkeys(("q_ids", "q_probs"), b"")
    return sound(order, **{**none, "lengths": [0], "q_entries": [0], **changes})


@pytest.mark.parametrize("what", WILD)
async def test_whatever_it_says_no_id_changes_and_it_is_let_go_and_tried_again(
    cell: Cell, what: str
) -> None:
    coordinator, wild = await staged(cell, WILD[what])
    expected = await ask(coordinator, policy="off", tokens=200)
    assert await ask(coordinator, tokens=200) == expected
    await ask_until(lambda: wild.streams > 1, coordinator)
    assert wild.orders <= MALFORMED_ORDERS * wild.streams
    malformed = cell.verifiers[0].metrics.value("dropped_total", kind="block", reason="malformed")
    assert (malformed > 0) is (WILD[what] is not ends_the_stream)


async def test_one_malformed_block_among_good_ones_costs_that_block(cell: Cell) -> None:
    numbers = itertools.count()

    def reply(order: draft_pb2.Order) -> list[Said] | None:
        return [sound(order)] if next(numbers) % 2 else LIES["no distributions"](order)

    coordinator, wild = await staged(cell, reply)
    expected = await ask(coordinator, policy="off")
    assert await ask(coordinator) == expected
    assert wild.orders > 2 * MALFORMED_ORDERS
    assert wild.streams == 1
    told = coordinator.metrics.value("empty_blocks_total", reason="invalid")
    assert wild.orders // 2 <= told <= wild.orders // 2 + 2


async def test_a_drafter_that_forgot_a_context_gets_it_again(cell: Cell) -> None:
    def reply(order: draft_pb2.Order) -> list[Said]:
        forgot = {"empty_reasons": [draft_pb2.EMPTY_REASON_UNKNOWN_SEQUENCE], "watermarks": [0]}
        return [empty(order, **forgot) if wild.opened == 1 else sound(order)]

    coordinator, wild = await staged(cell, reply)
    expected = await ask(coordinator, policy="off")
    assert await ask(coordinator) == expected
    assert (wild.opened, wild.streams) == (2, 1)
    assert coordinator.metrics.value("spec_decode_num_drafts_total") > 3


async def test_a_lost_drafter_is_known_by_its_broken_stream(cell: Cell) -> None:
    coordinator, drafter = await staged(cell, LIES["honest"])
    await ask(coordinator)
    assert coordinator.cell.membership.drafters
    await drafter.__aexit__()
    await until(lambda: not coordinator.cell.membership.drafters, 5.0)  # no deadline is this short
    assert coordinator.metrics.value("worker_losses_total", pool="draft") == 1
