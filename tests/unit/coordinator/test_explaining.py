"""Rounds that verifiers report, explained: what was said of them is what was committed."""

import asyncio
import re
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from coordinator import live
from coordinator.lanes.drafter_assignment import REASONS
from coordinator.lanes.watch import CommittedRound, RoundPart
from coordinator.watching.answer_log import AnswerLog
from coordinator.watching.explaining import origins, price, step_of, told
from dspark.rounds.control import PassReport, Timing
from dspark.rounds.events import Report, RoundReport
from dspark.rounds.plan import BlockTerms, Plan, PlanKind
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


PRICED = BlockTerms(PlanKind.PRICE, 6, 0.3, weight=2.0)
SAID = RoundReport(
    7, 0, 4, 20, (11, 12, 13), 2, 4, (0.9, 0.8, 0.5, 0.5, 0.5), drafter=3,
    forced=(True, False, False),
)  # fmt: skip


def part_of(
    said: RoundReport = SAID, terms: BlockTerms = PRICED, kept: int = 3, room: int = 9
) -> Any:
    """A part in a round of two sequences, of which the other one's block came late."""
    state: Any = SimpleNamespace(
        answer=SimpleNamespace(index=2), request=SimpleNamespace(policy="adaptive")
    )
    rounds = [said, RoundReport(8, 0, 1, 5, (3,), why_empty="late", drafter=1)]
    timing = Timing(forward_s=0.004, round_s=0.010, draft_s=0.002, waited_s=0.003)
    report = PassReport(Report(1, rounds), timing, tokens=9)
    made = CommittedRound(
        "verify/1", 0.0, report, rounds, [state] * 2, ["", "late"], Plan(terms), "draft/{}".format
    )
    return RoundPart(made, 0, 7, kept, room)


def test_every_field_of_an_explanation() -> None:
    """Of an answer that ends with the first token of a round."""
    said = told(part_of(kept=1))
    fates = [(wire.Fate.Name(each.fate), each.HasField("token_id")) for each in said.slots]
    assert fates == [
        ("FATE_ACCEPTED", True), ("FATE_CUT", False), ("FATE_REJECTED", False),
        ("FATE_VOID", False), ("FATE_UNVERIFIED", False),
    ]  # fmt: skip
    gains = [each.gain for each in said.slots]
    assert gains == pytest.approx([2 * each for each in (0.9, 0.72, 0.36, 0.18, 0.09)])
    del said.slots[:]
    assert said == wire.RoundExplanation(
        index=2, round=4, offset=7, policy="adaptive", drafter="draft/3", asked=6, prefix=4,
        accepted=1, token_ids=[11], origins=[wire.ORIGIN_DRAFTED], forced=[True],
        why=wire.PREFIX_END_PRICE, late=["draft/1"], lane="verify/1", price=0.3, sequences=2,
        step_drafted=5, step_verified=4, step_tokens=9, step_committed=4, plain=False,
        round_ms=10.0, draft_ms=3.0, draft_pass_ms=2.0, verify_pass_ms=4.0,
    )  # fmt: skip


def test_what_became_of_the_last_token_and_why_a_prefix_ended() -> None:
    last = [origins(*each)[-1] for each in ((2, 2, 3), (2, 3, 3), (0, 0, 1), (2, 3, 2))]
    kinds = ("BONUS", "CORRECTED", "PLAIN", "DRAFTED")
    assert [wire.Origin.Name(each) for each in last] == [f"ORIGIN_{kind}" for kind in kinds]
    parts = {
        "PRICE": part_of(room=6),
        "ROOM": part_of(room=5),  # four and the target's own
        "THRESHOLD": part_of(terms=PRICED._replace(kind=PlanKind.THRESHOLD)),
        "FIXED": part_of(terms=BlockTerms(PlanKind.FIXED, 4)),
        "NO_DRAFT": part_of(SAID._replace(confidence=())),
        "WHOLE": part_of(SAID._replace(verified=5), BlockTerms(PlanKind.FIXED, 6)),
    }
    for why, part in parts.items():
        assert wire.PrefixEnd.Name(told(part).why) == f"PREFIX_END_{why}"
    assert price(parts["FIXED"].round) is None
    forbidden = told(part_of(SAID._replace(forbidden=True)))
    assert forbidden.slots[2].fate == wire.FATE_FORBIDDEN


async def test_an_ended_answer_in_numbers() -> None:
    cell = RoundsCell(max_running=1)
    cell.ask()  # which it waits for
    state = cell.ask(max_tokens=40, policy="threshold:0.85")
    await cell.finish(state)
    (said,) = cell.admission.endings.of("r2")
    stats = state.stats
    assert stats.verified_histogram != stats.acceptance_histogram
    queued, first, whole = stats.queue_s(), stats.first_token_s(), stats.total_s()
    assert 0 < queued < first < whole
    assert said == wire.EndedAnswer(
        request_id="r2", outcome="length", policy="threshold:0.85", rule="token",
        verifier="verify/1", drafter="draft/0", prompt_tokens=2, completion_tokens=40,
        draft_tokens=stats.drafted, verified_histogram=stats.verified_histogram,
        accepted_histogram=stats.acceptance_histogram,
        mean_acceptance_length=stats.mean_acceptance_length,
        queue_ms=1e3 * queued, ttft_ms=1e3 * first, total_ms=1e3 * whole,
    )  # fmt: skip
    counted = RoundsCell().metrics
    AnswerLog(counted).add(state, None)
    times = [f"{name}_time_seconds" for name in ("prefill", "decode")]
    sums = [
        counted.value(f"request_{name}_sum")
        for name in (*times, "prompt_tokens", "generation_tokens")
    ]
    assert sums == pytest.approx([first - queued, whole - first, 2, 40])


def test_the_live_page_has_a_sentence_for_every_reason() -> None:
    page = (Path(live.__file__).parent / "page" / "words.js").read_text(encoding="utf-8")
    sentences = set(re.findall(r"^  (\w+): \"", page.partition("const FATES")[0], re.MULTILINE))
    assert sentences == {*REASONS.values(), "policy_off", "distrusted", "left_out"}


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


async def test_a_cohort_in_numbers(cell: RoundsCell) -> None:
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
