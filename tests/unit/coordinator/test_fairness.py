"""Tenants that wait are served evenly in weighted tokens, a flood is refused where it is made,
waiting has an end."""

import asyncio
import random

import pytest

from coordinator.lanes.request_state import RequestState
from coordinator.queue.scheduler import LEAST_HINT_S
from coordinator.queue.waiting_queue import ANSWER, MOST_TENANTS, PROMPT
from dspark.errors import Overloaded
from tests.fakes import read
from tests.rounds_cell import RoundsCell


def held(cell: RoundsCell) -> RoundsCell:
    """Nothing gets on."""
    cell.port.hold()
    return cell


async def test_the_gap_between_tenants_that_wait_stays_within_the_bound() -> None:
    running, longest, prompt = 3, 12, 4
    cell = RoundsCell(max_running=running)
    draw = random.Random(5)
    states: list[RequestState] = []
    for tenant, count in (("flood", 60), ("light", 30), ("third", 30)):
        for _ in range(count):
            ids = [draw.randrange(97) for _ in range(draw.randint(1, prompt))]
            states.append(
                cell.ask(ids, max_tokens=draw.randint(1, longest), policy="off", tenant=tenant)
            )
    # The theorem: 2 max(w_p L, w_q M), L the longest prompt and M the most tokens of answers that
    # run at a time.
    bound = 2.0 * max(PROMPT * prompt, ANSWER * running * longest)
    widest, looks = 0.0, 0
    while len(given := cell.admission.given()) > 1:
        widest, looks = max(widest, max(given.values()) - min(given.values())), looks + 1
        await asyncio.sleep(0.001)
    assert looks > 50
    assert 0.0 < widest <= bound
    await cell.finish(*states)
    assert cell.clean()


async def test_idleness_is_no_credit() -> None:
    cell = RoundsCell(max_running=1)
    await cell.finish(*[cell.ask((seed,), max_tokens=10, tenant="busy") for seed in range(10)])
    held(cell)
    running = cell.ask((1,), max_tokens=4, tenant="busy")
    await asyncio.sleep(0.1)
    for seed in range(3):
        cell.ask((seed,), max_tokens=4, tenant="busy")
        cell.ask((seed,), max_tokens=4, tenant="back again")
    given = cell.admission.given()
    assert given["back again"] >= given["busy"] - ANSWER * 4 - PROMPT
    cell.port.let_go()
    await cell.finish(running)


async def test_a_full_line_refuses_whoever_fills_it() -> None:
    cell = held(RoundsCell(max_running=1, max_queued=8))
    flood = [cell.ask(tenant="flood") for _ in range(9)]
    with pytest.raises(Overloaded):
        cell.ask(tenant="flood")
    light = [cell.ask((5, 6), tenant="light") for _ in range(4)]  # up to the same number
    assert cell.admission.queued == 8
    ended = [state.sequence.finished for state in flood]
    assert ended == [False] * 5 + [True] * 4, "the newest had to go"
    with pytest.raises(Overloaded) as refused:
        await read(flood[-1])
    assert refused.value.retry_after_s > 0
    with pytest.raises(Overloaded):
        cell.ask(tenant="light")
    assert cell.metrics.value("admission_rejections_total", reason="displaced") == 4
    cell.port.let_go()
    await cell.finish(*flood, *light)
    assert cell.clean()


async def test_a_request_is_displaced_as_a_whole_and_all_of_its_answers_count() -> None:
    cell = held(RoundsCell(max_running=1, max_queued=8))
    running = cell.ask(tenant="flood")
    flood = [cell.answers(choices=4, tenant="flood") for _ in range(2)]
    light = cell.ask(tenant="light")
    assert [states[0].sequence.finished for states in flood] == [False, True]
    assert cell.admission.queued == 5
    more = cell.answers(choices=3, tenant="light")  # there is room
    with pytest.raises(Overloaded, match="8 requests wait"):
        cell.ask(tenant="third")  # it would leave the flood with nothing, and itself with one
    cell.port.let_go()
    await cell.finish(running, light, *flood[0], *more)
    assert cell.metrics.value("admission_rejections_total", reason="displaced") == 1


async def test_a_hint_is_of_the_time_between_ends_whatever_was_idle_before() -> None:
    cell = RoundsCell(max_running=1, max_queued=1)

    async def took_s() -> float:
        began = cell.clock.time()
        await cell.finish(cell.ask(max_tokens=8))
        return cell.clock.time() - began

    async def hint_s() -> float:
        asked = [cell.ask(max_tokens=8) for _ in range(2)]
        with pytest.raises(Overloaded) as refused:
            cell.ask(max_tokens=8)
        await cell.finish(*asked)
        return float(refused.value.retry_after_s)

    longest_s = max([await took_s() for _ in range(4)])
    assert await hint_s() <= max(longest_s, LEAST_HINT_S)
    await asyncio.sleep(3600.0)
    assert await hint_s() <= max(longest_s, LEAST_HINT_S)
    await took_s()
    assert await hint_s() <= max(longest_s, LEAST_HINT_S), "an hour without requests is no wait"


async def test_waiting_for_a_first_place_has_an_end() -> None:
    cell = held(RoundsCell(max_running=1, queue_deadline_s=4.0))
    running, waiting = cell.ask(), cell.ask()
    await asyncio.sleep(3.9)
    late = cell.ask()
    assert not waiting.sequence.finished
    await asyncio.sleep(0.5)
    with pytest.raises(Overloaded, match="no place was free") as refused:
        await read(waiting)
    assert refused.value.retry_after_s > 0
    assert not late.sequence.finished
    assert cell.metrics.value("admission_rejections_total", reason="queue_deadline") == 1
    cell.port.let_go()
    await cell.answered(running, late)


async def test_what_another_answer_of_the_request_began_is_not_given_up() -> None:
    """The end of one answer by an error is that of all, also of those that are being read."""
    cell = held(RoundsCell(max_running=2, max_queued=2, queue_deadline_s=4.0))
    states = cell.answers(policy="off", choices=4, tenant="flood")
    with pytest.raises(Overloaded, match="2 requests wait"):
        cell.ask(tenant="light")
    await asyncio.sleep(9.0)
    assert not any(state.sequence.finished for state in states)
    cell.port.let_go()
    await cell.finish(*states)
    assert cell.metrics.value("requests_total", outcome="length") == 4


async def test_a_tenant_that_has_a_request_is_not_forgotten() -> None:
    cell = RoundsCell(max_running=2)
    cell.admission._shares._settled["runs"] = 5.0  # less than anybody's
    states = [cell.ask(tenant=tenant) for tenant in ("runs", "placed last")]
    for number in range(MOST_TENANTS + 1):
        cell.admission._shares._settled[f"t{number}"] = 100.0 + number
    cell.ask(tenant="newcomer")
    assert len(cell.admission._shares._settled) <= MOST_TENANTS // 2 + 4
    assert cell.admission._shares._settled["runs"] >= 5.0
    await cell.finish(*states)


async def test_a_tenant_with_nobody_running_does_not_wait_for_others_to_end() -> None:
    cell = held(RoundsCell(max_running=8))
    for _ in range(12):
        cell.ask(tenant="flood")
    assert (cell.admission.running, cell.admission.queued) == (8, 4)
    light = cell.ask(tenant="light")
    assert light.stats.placed is not None
    for tenant in ("light", "another"):  # has one running; no place is left for newcomers
        assert cell.ask(tenant=tenant).stats.placed is None
