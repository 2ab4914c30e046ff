"""Waiting for a condition: until it holds, or as long as it may take."""

import asyncio

import pytest

from coordinator.clock import LOOK_S, until


@pytest.mark.parametrize(
    ("holds_after_s", "longest_s", "waits_s"),
    [(1.0, 30.0, 1.0), (9.0, 0.5, 0.5), (9.0, 0.0, 0.0)],
)
async def test_a_wait_ends_when_its_condition_holds_or_when_it_has_taken_as_long_as_it_may(
    holds_after_s: float, longest_s: float, waits_s: float
) -> None:
    loop, held = asyncio.get_running_loop(), [1]
    began = loop.time()
    loop.call_later(holds_after_s, held.clear)
    await until(lambda: not held, longest_s)
    assert waits_s <= loop.time() - began <= waits_s + 2 * LOOK_S


async def test_what_holds_already_is_not_waited_for() -> None:
    began = asyncio.get_running_loop().time()
    await until(lambda: True, 0.0)
    assert asyncio.get_running_loop().time() == began
