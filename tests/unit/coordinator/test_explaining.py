"""Rounds that verifiers report, explained: what was said of them is what was committed."""

from __future__ import annotations

import asyncio

import pytest
from fakes import answer_of
from rounds_cell import RoundsCell, ToyPair, story, virtual

from coordinator.watching.explaining import Fate, Origin, PrefixEnd, price, sums_of, told
from coordinator.watching.watch import RoundPart


def explained(policy: str, max_tokens: int = 40, **settings: object) -> list[RoundPart]:
    async def tell(cell: RoundsCell) -> list[RoundPart]:
        with cell.explain.request("r1") as watch:
            state = cell.ask(max_tokens=max_tokens, policy=policy)
            cell.ask((8, 9), max_tokens=max_tokens, policy=policy)
            await cell.finish(state)
            return watch.parts()

    return story(tell, **settings)


@pytest.mark.parametrize("policy", ["adaptive", "fixed:2", "threshold:0.95", "off"])
def test_the_tokens_that_are_told_are_the_answer(policy: str) -> None:
    found = [told(part) for part in explained(policy)]
    whole = answer_of((5, 6), 40)
    assert [token for each in found for token in each.tokens] == whole[1:], "the first is the prefill's"
    assert [each.offset for each in found] == [1 + sum(len(e.tokens) for e in found[:at]) for at in range(len(found))]
    assert [each.round for each in found] == list(range(1, len(found) + 1))
    for each in found:
        assert (each.lane, each.policy) == ("verify/1", policy)
        assert len(each.origins) == len(each.tokens)
        assert each.cohort.sequences in (1, 2)
        kept = [slot.token for slot in each.slots if slot.fate is Fate.ACCEPTED]
        assert kept == list(each.tokens[: len(kept)])
        assert all(slot.token is None for slot in each.slots if slot.fate in (Fate.REJECTED, Fate.UNVERIFIED))
        assert bool(each.slots) is (each.drafter == "draft/0")
        assert bool(each.slots) is not bool(each.empty_because)


def test_what_ended_a_prefix_is_told() -> None:
    whys = {policy: {told(part).why for part in explained(policy)} for policy in ("fixed:2", "threshold:0.95", "off")}
    assert PrefixEnd.FIXED in whys["fixed:2"]
    assert PrefixEnd.THRESHOLD in whys["threshold:0.95"]
    assert whys["off"] == {PrefixEnd.NO_DRAFT}
    origins = {origin for part in explained("fixed:4") for origin in told(part).origins}
    assert origins == {Origin.DRAFTED, Origin.CORRECTED, Origin.BONUS, Origin.PLAIN}


def test_gains_are_what_the_verifier_compared_with_the_price() -> None:
    parts = explained("adaptive", pair=ToyPair(wrong_every=1000))
    priced = [part for part in parts if price(part.round) is not None and told(part).slots]
    assert priced
    for part in priced:
        each = told(part)
        assert [slot.survival for slot in each.slots] == pytest.approx(
            [0.9 ** (place + 1) for place in range(len(each.slots))]
        )
        gains = [slot.gain for slot in each.slots]
        assert gains == sorted(gains, reverse=True)


@virtual
async def test_a_cohort_in_numbers() -> None:
    cell = RoundsCell()
    with cell.explain.cell() as watch:
        states = [cell.ask((seed, 3), max_tokens=30, policy="fixed:3") for seed in range(3)]
        await asyncio.sleep(0.05)
        cell.drafters[0].silent = True
        await cell.finish(*states)
        sums = [sums_of(each) for each in watch.rounds()]
    assert sum(each.committed for each in sums) == 3 * 29
    assert {each.late for each in sums} == {(), ("draft/0",)}
    drafted = [each for each in sums if each.drafted]
    assert all(each.verified <= each.drafted and each.tokens == each.sequences + each.verified for each in drafted)
    assert all(each.verify_pass_s > 0.0 and each.draft_pass_s > 0.0 for each in drafted)
