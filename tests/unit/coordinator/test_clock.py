"""Waiting for a condition: until it holds, or as long as it may take."""

from __future__ import annotations

import asyncio

from rounds_cell import virtual

from coordinator.clock import LOOK_S, until


@virtual
async def test_a_wait_ends_when_its_condition_holds() -> None:
    loop, held = asyncio.get_running_loop(), [1]
    began = loop.time()
    loop.call_later(1.0, held.clear)
    await until(lambda: not held, 30.0)
    assert 1.0 <= loop.time() - began <= 1.0 + 2 * LOOK_S


@virtual
async def test_a_wait_ends_when_it_has_taken_as_long_as_it_may() -> None:
    loop = asyncio.get_running_loop()
    for longest_s in (0.0, 0.5):
        began = loop.time()
        await until(lambda: False, longest_s)
        assert longest_s <= loop.time() - began <= longest_s + LOOK_S


@virtual
async def test_what_holds_already_is_not_waited_for() -> None:
    loop = asyncio.get_running_loop()
    began = loop.time()
    await until(lambda: True, 0.0)
    assert loop.time() == began
