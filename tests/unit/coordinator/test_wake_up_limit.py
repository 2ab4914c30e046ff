"""Waiting for a condition, until it holds or as long as it may take; and for a turn: readers of a
whole cohort pass a few at a time, and what comes in meanwhile is heard between them."""

import asyncio

import pytest

from coordinator.answers.output_queue import WakeUpLimit
from coordinator.clock import LOOK_S, TURNS_TO_SEND, until


async def test_readers_pass_in_order_a_few_in_each_turn_of_the_loop() -> None:
    wake_ups, passed = WakeUpLimit(at_a_time=2), list[int]()

    async def read(number: int) -> None:
        await wake_ups.passed()
        passed.append(number)

    readers = [asyncio.create_task(read(number)) for number in range(7)]
    seen = []
    while len(passed) < len(readers):
        await asyncio.sleep(0)
        seen.append(len(passed))
    assert passed == list(range(7))
    # orders leave first, and then no turn is lost
    assert seen == [0] * (TURNS_TO_SEND + 1) + [2, 4, 6, 7]
    await asyncio.gather(*readers)


async def test_a_reader_that_left_holds_nobody_up_and_later_ones_find_it_open() -> None:
    wake_ups = WakeUpLimit(at_a_time=1)
    gone, here = (asyncio.create_task(wake_ups.passed()) for _ in range(2))
    await asyncio.sleep(0)
    gone.cancel()
    async with asyncio.timeout(5):
        await here
        await asyncio.gather(gone, return_exceptions=True)
        await wake_ups.passed()


@pytest.mark.parametrize(
    ("holds_after_s", "longest_s", "waits_s"), [(1.0, 30.0, 1.0), (9.0, 0.5, 0.5), (9.0, 0.0, 0.0)]
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
