"""What is told of rounds: the same tokens that clients got, reasons that the numbers bear out, and nothing unasked."""

from collections.abc import AsyncIterator, Callable

import pytest
import pytest_asyncio
from fakes import VOCAB, FakeDrafter, ToyCell, calm, read

from coordinator.lanes.drafting import DraftWaits
from coordinator.lanes.explain import LANE_ROUNDS, MAX_WATCHES, Explain, Watch
from coordinator.lanes.lane import Conduct
from coordinator.lanes.ports import DraftOrder
from coordinator.scheduling.cost_curve import CostCurve
from coordinator.watching.explaining import curve, price, sums_of, told
from coordinator.watching.rounds_told import Fate, Origin, Told, Why, origins
from dspark.errors import Overloaded
from dspark.types import Block

MakeCell = Callable[..., ToyCell]
CHEAP = CostCurve([1, 2, 8], [64], [0.010, 0.0101, 0.0107])
DEAR = CostCurve([1, 2, 3, 4, 8], [64], [0.010, 0.012, 0.015, 0.019, 0.040])


@pytest_asyncio.fixture
async def make_cell() -> AsyncIterator[MakeCell]:
    cells: list[ToyCell] = []

    def make(**settings: object) -> ToyCell:
        cells.append(ToyCell(waits=settings.pop("waits", Conduct(bypass=False)), **settings))
        return cells[-1]

    yield make
    for cell in cells:
        await cell.close()


async def everything(cell: ToyCell, **asked: object) -> tuple[list[int], list[Told]]:
    """A request's tokens as its client got them, and all that is told of it."""
    with cell.explain.request("r1") as watch:
        track = cell.ask(**asked)
        await cell.finish(track)
        return await read(track), [told(part) for part in watch.parts()]


@pytest.mark.parametrize("policy", ["greedy", "async", "fixed:1", "fixed:3", "threshold:0.5", "off"])
async def test_what_is_told_is_what_the_client_got(make_cell: MakeCell, policy: str) -> None:
    tokens, rounds = await everything(make_cell(cost=CHEAP), max_tokens=23, policy=policy)
    assert [token for each in rounds for token in each.tokens] == tokens[1:]  # the first one is the prefill's
    assert [each.offset for each in rounds] == [1 + sum(len(e.tokens) for e in rounds[:n]) for n in range(len(rounds))]
    for each in rounds:
        assert len(each.origins) == len(each.tokens)
        drafted = [token for token, origin in zip(each.tokens, each.origins, strict=True) if origin is Origin.DRAFTED]
        accepted = [slot.token for slot in each.slots if slot.fate is Fate.ACCEPTED]
        assert drafted == accepted == [slot.token for slot in each.slots[: each.accepted]]
    seen = {origin for each in rounds for origin in each.origins}
    assert seen == {Origin.PLAIN} if policy == "off" else seen >= {Origin.DRAFTED, Origin.CORRECTED}


async def test_survival_is_the_running_product_and_ends_where_the_prefix_does(make_cell: MakeCell) -> None:
    _, rounds = await everything(make_cell(cost=DEAR), max_tokens=30)
    first = rounds[0]
    assert [slot.survival for slot in first.slots] == pytest.approx([0.9, 0.81, 0.729, 0.6561])
    assert 0 < first.prefix < 4
    assert [slot.fate is Fate.UNVERIFIED for slot in first.slots] == [slot >= first.prefix for slot in range(4)]


async def test_a_greedy_prefix_ends_where_a_slot_brings_less_than_it_costs(make_cell: MakeCell) -> None:
    _, rounds = await everything(make_cell(cost=DEAR), max_tokens=60)
    cut = [each for each in rounds if each.why is Why.PRICE]
    assert cut
    for each in cut:
        assert each.price is not None
        assert each.slots[each.prefix].gain <= each.price
        assert all(slot.gain > 0 for slot in each.slots[: each.prefix])


async def test_the_curve_of_expected_rates_peaks_at_what_was_chosen(make_cell: MakeCell) -> None:
    cell = make_cell(cost=DEAR)
    with cell.explain.cell() as watch:
        tracks = [cell.ask((seed, 7), max_tokens=30) for seed in range(5)]
        await cell.finish(*tracks)
        found = [(curve(each), each) for each in watch.rounds()]
    drawn = [(points, each) for points, each in found if points is not None and sums_of(each).drafted >= 8]
    assert drawn
    for (points, chosen), each in drawn:
        if any(turn.prefix == turn.track.answer.room - 1 for turn in each.turns):
            continue  # cut by what the answer had room for
        rates = dict(points)
        assert rates[chosen] == max(rates.values())
        assert chosen == sums_of(each).verified


@pytest.mark.parametrize(
    ("policy", "why", "because"),
    [
        ("off", Why.NO_DRAFT, "policy_off"),
        ("threshold:0.95", Why.THRESHOLD, ""),
        ("fixed:2", Why.FIXED, ""),
        ("fixed:9", Why.WHOLE, ""),
        ("async", Why.WHOLE, ""),
    ],
)
async def test_reasons(make_cell: MakeCell, policy: str, why: Why, because: str) -> None:
    _, rounds = await everything(make_cell(), max_tokens=20, policy=policy)
    first = rounds[0]
    assert first.why is why
    assert first.empty_because == because
    assert first.policy == policy
    assert (first.asked > 0) == bool(first.drafter) == (policy != "off")


async def test_without_a_curve_nothing_is_weighed(make_cell: MakeCell) -> None:
    cell = make_cell()
    with cell.explain.cell() as watch:
        track = cell.ask(max_tokens=12)
        await cell.finish(track)
        rounds = watch.rounds()
    assert rounds
    assert all(price(each) is None and curve(each) is None for each in rounds)


async def test_who_was_late_is_named(make_cell: MakeCell) -> None:
    cell = make_cell(waits=Conduct(DraftWaits(deadline_s=0.1, patience_s=5.0), bypass=False))
    with cell.explain.cell() as all_of_it, cell.explain.request("r1") as watch:
        track = cell.ask(max_tokens=12)
        cell.drafters[0].holding.add("draft")
        await calm()
        await cell.clock.advance(0.15)
        await calm()
        cell.drafters[0].let_go("draft")
        await cell.finish(track)
        first, rounds = told(watch.parts()[0]), all_of_it.rounds()
    assert first.why is Why.NO_DRAFT
    assert first.empty_because == "late"
    assert first.drafter == "draft/0"
    assert first.cohort.late == ("draft/0",)
    assert first.cohort.draft_s == pytest.approx(0.1, abs=0.06)
    assert not any(sums_of(each).late for each in rounds[1:])


async def test_a_bad_draft_that_was_turned_down_explains_itself(make_cell: MakeCell) -> None:
    class Wrong(FakeDrafter):
        def _block(self, order: DraftOrder) -> Block:
            block = super()._block(order)
            return block._replace(token_ids=tuple((token + 1) % VOCAB for token in block.token_ids))

    cell = make_cell(cost=CHEAP)
    cell.drafters[0].__class__ = Wrong
    _, rounds = await everything(cell, max_tokens=12, policy="fixed:3")
    first = rounds[0]
    assert first.origins == (Origin.CORRECTED,)
    assert [slot.fate for slot in first.slots] == [Fate.REJECTED, Fate.VOID, Fate.VOID]


async def test_nothing_is_kept_while_nobody_watches(make_cell: MakeCell) -> None:
    cell = make_cell()
    await cell.finish(cell.ask(max_tokens=12))
    assert not cell.explain.watched
    with cell.explain.cell() as watch:
        assert cell.explain.watched
        assert watch.rounds() == []
    assert not cell.explain.watched
    await cell.finish(cell.ask(max_tokens=12))
    assert watch.rounds() == []


async def test_a_watch_keeps_the_newest_rounds_and_tells_each_once(make_cell: MakeCell) -> None:
    cell = make_cell(outlet=1000)
    with cell.explain.cell() as watch:
        tracks = [cell.ask((seed,), max_tokens=480, policy="off") for seed in range(2)]
        await cell.finish(*tracks)
        await cell.finish(cell.ask((3,), max_tokens=200, policy="off"))
        lost: list[None] = []
        cell.explain.lost = lambda: lost.append(None)
        await cell.finish(cell.ask((4,), max_tokens=9, policy="off"))
        rounds = watch.rounds()
        assert len(rounds) == LANE_ROUNDS
        assert len(lost) == 8, "each is counted that falls out: the first token is the prefill's"
        assert rounds[-1].turns[0].track.request.id == "r4"
        assert watch.rounds() == []


def test_watches_are_bounded() -> None:
    explain = Explain()
    watches: list[Watch] = [explain.cell() for _ in range(MAX_WATCHES)]
    with pytest.raises(Overloaded):
        explain.request("one more")
    explain.close(watches[0])
    explain.request("one more")


@pytest.mark.parametrize(
    ("accepted", "judged", "kept", "expected"),
    [
        (0, 0, 1, [Origin.PLAIN]),
        (0, 3, 1, [Origin.CORRECTED]),
        (2, 3, 3, [Origin.DRAFTED, Origin.DRAFTED, Origin.CORRECTED]),
        (3, 3, 4, [Origin.DRAFTED, Origin.DRAFTED, Origin.DRAFTED, Origin.BONUS]),
        (3, 3, 2, [Origin.DRAFTED, Origin.DRAFTED]),  # the answer ended
    ],
)
def test_origins(accepted: int, judged: int, kept: int, expected: list[Origin]) -> None:
    assert list(origins(accepted, judged, kept)) == expected
