"""Rounds that verifiers report, explained: what was said of them is what was committed."""

import asyncio
import re
from pathlib import Path
from typing import Any

import pytest

from coordinator import live
from coordinator.lanes.drafter_assignment import REASONS
from coordinator.lanes.watch import RoundPart
from coordinator.watching.explaining import price, step_of, told
from dspark.wire.v1 import control_pb2 as wire
from tests.fakes import answer_of
from tests.rounds_cell import RoundsCell, ToyPair


async def explained(policy: str, **settings: Any) -> list[RoundPart]:
    cell = RoundsCell(**settings)
    with cell.explain.request("r1") as watch:
        state = cell.ask(max_tokens=40, policy=policy)
        cell.ask((8, 9), max_tokens=40, policy=policy)
        await cell.finish(state)
        return watch.taken()


@pytest.mark.parametrize("policy", ["adaptive", "fixed:2", "threshold:0.95", "off"])
async def test_the_tokens_that_are_told_are_the_answer(policy: str) -> None:
    found = [told(part) for part in await explained(policy)]
    whole = answer_of((5, 6), 40)
    assert [token for each in found for token in each.token_ids] == whole[1:], "but the prefill's"
    sizes = [len(each.token_ids) for each in found]
    assert [each.offset for each in found] == [1 + sum(sizes[:at]) for at in range(len(found))]
    assert [each.round for each in found] == list(range(1, len(found) + 1))
    for each in found:
        assert (each.lane, each.policy) == ("verify/1", policy)
        assert len(each.origins) == len(each.token_ids)
        assert each.sequences in (1, 2)
        kept = [slot.token_id for slot in each.slots if slot.fate == wire.FATE_ACCEPTED]
        assert kept == each.token_ids[: len(kept)]
        untold = [
            slot for slot in each.slots if slot.fate in (wire.FATE_REJECTED, wire.FATE_UNVERIFIED)
        ]
        assert not any(slot.HasField("token_id") for slot in untold)
        assert bool(each.slots) is (each.drafter == "draft/0")
        assert bool(each.slots) is not bool(each.empty_because)


def test_the_live_page_has_a_sentence_for_every_reason() -> None:
    page = (Path(live.__file__).parent / "page" / "words.js").read_text(encoding="utf-8")
    sentences = set(re.findall(r"^  (\w+): \"", page.partition("const FATES")[0], re.MULTILINE))
    assert sentences == {*REASONS.values(), "policy_off", "distrusted", "left_out"}


async def test_what_ended_a_prefix_is_told() -> None:
    whys = {
        policy: {told(part).why for part in await explained(policy)}
        for policy in ("fixed:2", "threshold:0.95", "off")
    }
    assert wire.PREFIX_END_FIXED in whys["fixed:2"]
    assert wire.PREFIX_END_THRESHOLD in whys["threshold:0.95"]
    assert whys["off"] == {wire.PREFIX_END_NO_DRAFT}
    origins = {origin for part in await explained("fixed:4") for origin in told(part).origins}
    of_blocks = {wire.ORIGIN_DRAFTED, wire.ORIGIN_CORRECTED, wire.ORIGIN_BONUS}
    assert origins == of_blocks | {wire.ORIGIN_PLAIN}


async def test_gains_are_what_the_verifier_compared_with_the_price() -> None:
    parts = await explained("adaptive", pair=ToyPair(wrong_every=1000))
    priced = [part for part in parts if price(part.round) is not None and told(part).slots]
    assert priced
    for part in priced:
        each = told(part)
        assert [slot.survival for slot in each.slots] == pytest.approx(
            [0.9 ** (place + 1) for place in range(len(each.slots))]
        )
        gains = [slot.gain for slot in each.slots]
        assert gains == sorted(gains, reverse=True)


async def test_a_round_of_a_try_is_not_told_as_a_plain_one() -> None:
    cell = RoundsCell(pair=ToyPair(wrong_every=1), draft_ms=25, sink=1 << 20)
    found = []
    with cell.explain.cell() as watch:
        states = [cell.ask((seed, 3), max_tokens=2000) for seed in range(16)]
        for _ in range(2000):
            await asyncio.sleep(0.01)
            found += watch.taken()
            if states[0].sequence.finished:
                break
    plain = [each for each in found if not each.plan.terms.drafts]
    tries = [each for each in plain if any(own.terms for own in each.plan.sequences.values())]
    assert {step_of(each).plain for each in tries} == {False}
    assert {step_of(each).plain for each in plain if not each.plan.sequences} == {True}


async def test_a_cohort_in_numbers() -> None:
    cell = RoundsCell()
    with cell.explain.cell() as watch:
        states = [cell.ask((seed, 3), max_tokens=30, policy="fixed:3") for seed in range(3)]
        await asyncio.sleep(0.05)
        cell.drafters[0].silent = True
        await cell.finish(*states)
        sums = [step_of(each) for each in watch.taken()]
    assert sum(each.step_committed for each in sums) == 3 * 29
    assert {tuple(each.late) for each in sums} == {(), ("draft/0",)}
    drafted = [each for each in sums if each.step_drafted]
    assert all(each.step_verified <= each.step_drafted for each in drafted)
    assert all(each.step_tokens == each.sequences + each.step_verified for each in drafted)
    assert all(each.verify_pass_ms > 0.0 and each.draft_pass_ms > 0.0 for each in drafted)
