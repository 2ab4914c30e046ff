"""Why a round went as it did: settled rounds as numbers and words. Pure; read when somebody asks, never on the way.

What a verified slot brings is `gain`, in tokens: survival times trust times the request's weight. What it costs is
`price`, in the same unit: the tokens that the lane would commit, at the rate this step promises, in the time one more
slot takes. Under `greedy` a slot is verified while its gain is above the price; `async` ranks by gain within a budget.

Shapes: n sequences of a cohort, k slots of a block.
"""

from __future__ import annotations

import numpy as np

from coordinator.lanes.drafting import result_of
from coordinator.lanes.explain import AnyRound, Part, Settled
from coordinator.lanes.reported import Reported
from coordinator.watching import reports
from coordinator.watching.rounds_told import Slot, Sums, Told, Why, fate_of, origins
from dspark.rounds.policy import Fixed, Greedy, Kind, Threshold
from dspark.rounds.schedule import Floats
from dspark.types import Verdict

CURVE_POINTS = 40  # of the expected rate by slots verified, at most


def sums_of(settled: AnyRound) -> Sums:
    if isinstance(settled, Reported):
        return reports.sums_of(settled)
    turns, judged = settled.turns, settled.judged
    passes = [done.forward_s for reply in settled.asked.replies.values() if (done := result_of(reply)) is not None]
    return Sums(
        lane=settled.lane,
        ended=settled.ended,
        sequences=len(turns),
        drafted=sum(len(turn.block.token_ids) for turn in turns),
        verified=sum(turn.prefix for turn in turns),
        tokens=judged.tokens,
        committed=settled.committed,
        budget=settled.terms.budget,
        plain=settled.plain,
        probe=settled.plan.probe,
        round_s=settled.ended - settled.began,
        draft_s=settled.drafted_s,
        draft_pass_s=max(passes, default=0.0),
        verify_s=settled.verified_s,
        verify_pass_s=judged.forward_s,
        late=tuple(
            drafter.facts.name
            for drafter, its in settled.asked.orders.items()
            if any(turn.empty_because in ("late", "drafter_lost") for turn in its)
        ),
    )


def told(part: Part) -> Told:
    """An answer's part in its round."""
    settled, at = part.round, part.at
    if isinstance(settled, Reported):
        return reports.told(settled, at, part.offset, part.kept, part.room)
    turn, verdict = settled.turns[at], settled.judged.verdicts[at]
    accepted, judged = (verdict.accepted, verdict.judged) if isinstance(verdict, Verdict) else (0, 0)
    block, next_token = turn.block.token_ids, verdict.next_token if isinstance(verdict, Verdict) else 0
    gains, drafter = _gains(settled), _drafter(settled, at)
    alive = settled.blocks.alive()
    slots = tuple(
        Slot(
            token,
            float(settled.blocks.confidence[at, slot]),
            float(alive[at, slot]),
            float(gains[at, slot]),
            fate_of(slot, accepted, judged, part.kept),
        )
        for slot, token in enumerate(block)
    )
    return Told(
        lane=settled.lane,
        sequence=turn.cursor.sequence,
        choice=turn.track.answer.index,
        round=turn.cursor.round,
        offset=part.offset,
        policy=str(turn.track.request.policy),
        drafter=drafter,
        empty_because="" if block else turn.empty_because or "unspecified",
        asked=turn.slots if drafter else 0,
        slots=slots,
        prefix=turn.prefix,
        accepted=min(accepted, part.kept),
        tokens=(*block[:accepted], next_token)[: part.kept],
        origins=origins(accepted, judged, part.kept),
        why=_why(part),
        price=price(settled),
        cohort=sums_of(settled),
    )


def price(settled: AnyRound) -> float | None:
    """Gain from which on one slot more would have paid, at the size that was chosen; None without a curve."""
    if isinstance(settled, Reported):
        return reports.price(settled)
    found = _rates(settled, 1)
    if found is None:
        return None
    rates, seconds, chosen = found
    return float(rates[chosen] * (seconds[chosen + 1] - seconds[chosen]))


def curve(settled: AnyRound) -> tuple[list[tuple[int, float]], int] | None:
    """((slots verified for adaptive rows, expected tokens per second) thinned out, slots chosen); None without one."""
    if isinstance(settled, Reported):
        return None  # it was the planner's, a round ago
    found = _rates(settled, 0)
    if found is None or len(found[0]) < 2:
        return None
    rates, _, chosen = found
    step = max(-(-len(rates) // CURVE_POINTS), 1)
    shown = sorted({*range(0, len(rates), step), chosen, len(rates) - 1})
    return [(slots, float(rates[slots])) for slots in shown], chosen


def _rates(settled: Settled, beyond: int) -> tuple[Floats, Floats, int] | None:
    """(expected rate, seconds, slots chosen); the first two by slots of adaptive rows, seconds for `beyond` more."""
    step, kinds = settled.terms.step_seconds, settled.cohort.policies.kind
    adaptive = (kinds == Kind.GREEDY) | (kinds == Kind.ASYNC)
    if step is None or not adaptive.any():
        return None
    gains = _gains(settled)
    prefixes = np.array([turn.prefix for turn in settled.turns], np.int64)
    own = ~adaptive
    inside = np.arange(gains.shape[1]) < np.where(own, prefixes, 0)[:, None]
    ranked = np.sort(gains[adaptive], axis=None)[::-1]
    ranked = ranked[: int(np.count_nonzero(ranked > 0.0))]
    expected = float(settled.cohort.weight.sum()) + float(gains[inside].sum())
    base = settled.terms.base_tokens + len(settled.turns) + int(prefixes[own].sum())
    seconds = step(base + np.arange(len(ranked) + 1 + beyond, dtype=np.float64))
    rates = (expected + np.concatenate(([0.0], np.cumsum(ranked)))) / seconds[: len(ranked) + 1]
    return rates, seconds, min(int(prefixes[adaptive].sum()), len(ranked))


def _gains(settled: Settled) -> Floats:
    """[n, k]"""
    gains: Floats = settled.blocks.alive() * (settled.trust * settled.cohort.weight)[:, None]
    return gains


def _drafter(settled: Settled, at: int) -> str:
    """Replica that was asked for the block of one row; empty when nobody was."""
    turn = settled.turns[at]
    asked = (drafter for drafter, its in settled.asked.orders.items() if any(each is turn for each in its))
    return next((drafter.facts.name for drafter in asked), "")


def _why(part: Part) -> Why:
    assert isinstance(part.round, Settled)
    turn = part.round.turns[part.at]
    drafted, policy = len(turn.block.token_ids), turn.track.request.policy
    if not drafted:
        return Why.NO_DRAFT
    if isinstance(policy, Fixed) and turn.prefix == policy.slots:
        return Why.FIXED
    if turn.prefix >= drafted:
        return Why.WHOLE
    if turn.prefix >= part.room - 1:
        return Why.ROOM
    match policy:
        case Threshold():
            return Why.THRESHOLD
        case Greedy():
            return Why.PRICE
    return Why.BUDGET
