"""Rounds that verifiers report, explained: what was said of them is what was committed."""

import asyncio
import re
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from coordinator import live
from coordinator.lanes.drafter_assignment import REASONS
from coordinator.lanes.watch import Reported, RoundPart
from coordinator.live import feed
from coordinator.watching.endings import Endings
from coordinator.watching.explaining import origins, price, step_of, told
from dspark.errors import Expired, Overloaded, RequestCancelled, Unavailable
from dspark.rounds.control import PassReport, Timing
from dspark.rounds.events import Report, RoundReport
from dspark.rounds.plan import Plan, PlanKind, Terms
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


PRICED = Terms(PlanKind.PRICE, 6, 0.3, weight=2.0)
SAID = RoundReport(
    7, 0, 4, 20, (11, 12, 13), 2, 4, (0.9, 0.8, 0.5, 0.5, 0.5), drafter=3,
    forced=(True, False, False),
)  # fmt: skip


def part_of(said: RoundReport = SAID, terms: Terms = PRICED, kept: int = 3, room: int = 9) -> Any:
    """A part in a round of two sequences, of which the other one's block came late."""
    state: Any = SimpleNamespace(
        answer=SimpleNamespace(index=2), request=SimpleNamespace(policy="adaptive")
    )
    rounds = [said, RoundReport(8, 0, 1, 5, (3,), why_empty="late", drafter=1)]
    timing = Timing(forward_s=0.004, round_s=0.010, draft_s=0.002, waited_s=0.003)
    report = PassReport(Report(1, rounds), timing, tokens=9)
    made = Reported(
        "verify/1", 0.0, report, rounds, [state] * 2, ["", "late"], Plan(terms), "draft/{}".format
    )
    return RoundPart(made, 0, 7, kept, room)


def test_every_field_of_an_explanation() -> None:
    """Of an answer that ends with the first token of a round."""
    said = told(part_of(kept=1))
    assert [(slot.fate, slot.HasField("token_id")) for slot in said.slots] == [
        (wire.FATE_ACCEPTED, True),
        (wire.FATE_CUT, False),
        (wire.FATE_REJECTED, False),
        (wire.FATE_VOID, False),
        (wire.FATE_UNVERIFIED, False),
    ]
    alive = [0.9, 0.72, 0.36, 0.18, 0.09]
    assert [slot.survival for slot in said.slots] == pytest.approx(alive)
    assert [slot.gain for slot in said.slots] == pytest.approx([2 * each for each in alive])
    del said.slots[:]
    step = {"lane": "verify/1", "price": 0.3, "sequences": 2, "step_drafted": 5}
    step |= {"step_verified": 4, "step_tokens": 9, "step_committed": 4, "plain": False}
    step |= {"round_ms": 10.0, "draft_ms": 3.0, "draft_pass_ms": 2.0, "verify_pass_ms": 4.0}
    assert said == wire.RoundExplanation(
        index=2, round=4, offset=7, policy="adaptive", drafter="draft/3", asked=6, prefix=4,
        accepted=1, token_ids=[11], origins=[wire.ORIGIN_DRAFTED], forced=[True],
        why=wire.PREFIX_END_PRICE, late=["draft/1"], **step,
    )  # fmt: skip


@pytest.mark.parametrize(
    ("accepted", "judged", "kept", "last"),
    [(2, 2, 3, "BONUS"), (2, 3, 3, "CORRECTED"), (0, 0, 1, "PLAIN"), (2, 3, 2, "DRAFTED")],
)
def test_where_the_last_token_came_from(accepted: int, judged: int, kept: int, last: str) -> None:
    said = [wire.Origin.Name(each) for each in origins(accepted, judged, kept)]
    assert said == ["ORIGIN_DRAFTED"] * (kept - 1) + [f"ORIGIN_{last}"]


@pytest.mark.parametrize(
    ("terms", "room", "why"),
    [
        (PRICED, 6, "PRICE"),
        (PRICED, 5, "ROOM"),  # four and the target's own
        (PRICED._replace(kind=PlanKind.THRESHOLD), 9, "THRESHOLD"),
        (Terms(PlanKind.FIXED, 4), 9, "FIXED"),
        (Terms(PlanKind.FIXED, 5), 5, "ROOM"),
    ],
)
def test_why_a_prefix_ended(terms: Terms, room: int, why: str) -> None:
    assert wire.PrefixEnd.Name(told(part_of(terms=terms, room=room)).why) == f"PREFIX_END_{why}"


def test_a_draft_that_a_form_forbids_and_a_price_without_bound() -> None:
    fates = [slot.fate for slot in told(part_of(SAID._replace(forbidden=True))).slots]
    assert fates[2] == wire.FATE_FORBIDDEN
    for terms in (PRICED._replace(price=float("inf")), Terms(PlanKind.FIXED, 4)):
        assert price(part_of(terms=terms).round) is None


async def test_an_ended_answer_in_numbers() -> None:
    cell = RoundsCell(max_running=1)
    cell.ask()  # which it waits for
    state = cell.ask(max_tokens=40, policy="threshold:0.85")
    await cell.finish(state)
    (said,) = cell.admission.endings.of("r2")
    stats = state.stats
    assert stats.verified_histogram != stats.acceptance_histogram
    assert 0 < stats.queue_s() < stats.first_token_s() < stats.total_s()
    assert said == wire.EndedAnswer(
        request_id="r2", outcome="length", policy="threshold:0.85", rule="token",
        verifier="verify/1", drafter="draft/0", prompt_tokens=2, completion_tokens=40,
        draft_tokens=stats.drafted, verified_histogram=stats.verified_histogram,
        accepted_histogram=stats.acceptance_histogram,
        mean_acceptance_length=stats.mean_acceptance_length,
        queue_ms=1e3 * stats.queue_s(), ttft_ms=1e3 * stats.first_token_s(),
        total_ms=1e3 * stats.total_s(),
    )  # fmt: skip
    value = cell.metrics.value
    others = cell.admission.endings.of("r1")[0]
    prefills = stats.first_token_s() - stats.queue_s() + 1e-3 * (others.ttft_ms - others.queue_ms)
    decodes = stats.total_s() - stats.first_token_s() + 1e-3 * (others.total_ms - others.ttft_ms)
    assert value("request_prefill_time_seconds_sum") == pytest.approx(prefills)
    assert value("request_decode_time_seconds_sum") == pytest.approx(decodes)
    assert value("request_prompt_tokens_sum") == 4
    assert value("request_generation_tokens_sum") == 48
    assert value("request_success_total", finished_reason="length") == 2


@pytest.mark.parametrize(
    ("error", "first", "outcome"),
    [
        (RequestCancelled("gone"), None, "cancelled"),
        (Expired("too late"), 1.0, "expired"),
        (Overloaded("full", 1.0), None, "overloaded"),
        (Overloaded("not read", 1.0), 1.0, "slow_reader"),
        (Unavailable("away"), 1.0, "unavailable"),
        (ValueError("a bug"), None, "error"),
    ],
)
async def test_how_an_answer_ended_badly(
    error: Exception, first: float | None, outcome: str
) -> None:
    cell = RoundsCell()
    state = cell.ask()
    state.stats.first, state.stats.ended = first, 2.0
    endings = Endings(cell.metrics)
    assert endings.add(state, error) == outcome
    (said,) = endings.last(None)
    assert (said.outcome, said.error) == (outcome, str(error))
    assert (said.ttft_ms > 0) is (first is not None)
    aborted = cell.metrics.value("request_success_total", finished_reason="abort")
    assert aborted == (outcome == "cancelled")


def test_a_frame_of_the_live_page_in_numbers() -> None:
    rounds = [
        wire.RoundExplanation(
            sequences=2, step_drafted=8, step_verified=5, step_committed=6, round_ms=10.0,
            late=["draft/0"],
        ),
        wire.RoundExplanation(
            sequences=1, step_drafted=4, step_verified=1, step_committed=2, round_ms=20.0,
            late=["draft/0", "draft/1"],
        ),
    ]  # fmt: skip
    assert feed._recent(rounds) == {
        "turns": 3, "drafted": 12, "verified": 6, "committed": 8,
        "late": {"draft/0": 2, "draft/1": 1}, "round_ms": 15.0,
    }  # fmt: skip
    ended = wire.EndedAnswer(
        request_id="r", index=1, outcome="stop", completion_tokens=9, accepted_histogram=[1, 0, 3],
        mean_acceptance_length=2.004, total_ms=12.34,
    )  # fmt: skip
    assert feed._ended(ended) == {
        "id": "r", "index": 1, "outcome": "stop", "tokens": 9, "rounds": 4, "tau": 2.0, "ms": 12.3,
    }  # fmt: skip


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
