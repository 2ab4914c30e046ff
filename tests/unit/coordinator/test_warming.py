"""The first requests of a worker against arithmetic ones, a clock turned by hand."""

from __future__ import annotations

import asyncio

import pytest
from fakes import FakeDrafter, FakeVerifier, ManualClock, Talk, calm

from coordinator.lanes.lane import Conduct
from coordinator.workers.warming import Unwarmed, warm
from dspark.types import Rule


def _begin(verifier: FakeVerifier, drafter: FakeDrafter, clock: ManualClock) -> asyncio.Task[None]:
    work = warm(verifier, [drafter], plain=False, rule=Rule.BLOCK, waits=Conduct(), clock=clock)
    return asyncio.get_running_loop().create_task(work)


async def test_a_drafter_whose_first_requests_are_given_up_leaves_the_verifier_alone() -> None:
    talk, clock = Talk(), ManualClock()
    drafter = FakeDrafter(talk)
    verifier = FakeVerifier(talk, [drafter])
    verifier.holding.add("prefill")
    before = asyncio.all_tasks()
    warming = _begin(verifier, drafter, clock)
    await calm()
    assert verifier.prefills == 1
    warming.cancel()
    await asyncio.gather(warming, return_exceptions=True)
    await calm()
    assert asyncio.all_tasks() == before, "nothing of them goes on"
    await clock.advance(10 * Conduct().prefill_s)
    assert verifier.alive, verifier.closed_because


@pytest.mark.parametrize("kind", ["prefill", "verify"])
async def test_what_takes_too_long_fails_the_first_requests_and_not_the_verifier(kind: str) -> None:
    talk, clock = Talk(), ManualClock()
    drafter = FakeDrafter(talk)
    verifier = FakeVerifier(talk, [drafter])
    verifier.holding.add(kind)
    warming = _begin(verifier, drafter, clock)
    await calm()
    await clock.advance(10 * Conduct().prefill_s)
    with pytest.raises(Unwarmed, match=r"no (prefill within|verdict for) 1"):
        await warming
    assert verifier.alive, verifier.closed_because
    assert not verifier.sequences, "what they held is free"
