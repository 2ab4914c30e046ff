"""How many drafters a verifier wants, from measured costs: the first guess, before utilisation says better. Pure.

With V verifiers of R running sequences each and D drafters, a cycle of a verifier is one draft and one verification.
A drafter has V R / D sequences to draft for in each cycle and merges them into passes as they come; so it computes
about T_d(V R / D) of a cycle of T_v(R (1 + l)) + T_d(V R / D) + hop seconds, l being the drafted tokens that a
sequence has verified per round. Where two cohorts taking turns are faster, as lanes find out by themselves, a cycle is
two drafts and two verifications of a half each, and ends with the busier of the two. The fewest D for which the share
is at most `busy` is the hint.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from operator import itemgetter

from deploy.load_report import DRAFT_RPC, LoadWindow
from dspark.client import CellStatus, MeasuredCost

MOST_DRAFTERS = 256


@dataclass(frozen=True)
class StepCurve:
    """Seconds by [tokens or sequences, context], linear in between and beyond the last points."""

    rows: tuple[int, ...]
    contexts: tuple[int, ...]
    seconds: tuple[tuple[float, ...], ...]

    @staticmethod
    def of(curve: MeasuredCost | None) -> StepCurve | None:
        """None when nothing was measured."""
        return None if curve is None else StepCurve(curve.tokens, curve.contexts or (0,), curve.seconds)

    def at(self, row: float, context: float) -> float:
        """Never below the cheapest measured pass."""
        column = [_line(self.contexts, values, context) for values in self.seconds]
        return max(_line(self.rows, column, row), min(column))


@dataclass(frozen=True)
class Hint:
    """drafters: as many as these verifiers want. busy: what each of them would be. Times in seconds of one cohort."""

    verifiers: int
    streams: int
    drafters: int
    busy: float
    draft_s: float
    verify_s: float
    hop_s: float
    cohorts: int = 1

    def sentence(self) -> str:
        """For people."""
        cycle = "a cycle is" if self.cohorts == 1 else "two cohorts take turns, each"
        return (
            f"{self.streams} streams on {self.verifiers} verifier{'s' * (self.verifiers > 1)} want {self.drafters} "
            f"drafter{'s' * (self.drafters != 1)}: {cycle} {1e3 * self.draft_s:.1f} ms drafting, "
            f"{1e3 * self.verify_s:.1f} ms verifying, {1e3 * self.hop_s:.1f} ms on the way; "
            f"a drafter computes {self.busy:.0%} of the time"
        )


def hint(
    draft: StepCurve,
    verify: StepCurve,
    *,
    verifiers: int,
    streams: int,
    verified: float,
    context: float,
    hop_s: float = 0.0,
    busy: float = 0.7,
) -> Hint:
    """For `streams` running sequences over all verifiers, `verified` drafted tokens each per round, at a context."""
    each = streams / max(verifiers, 1)

    def of(drafters: int, cohorts: int) -> tuple[float, Hint]:
        """(seconds of a cycle, what it looks like)"""
        draft_s = draft.at(max(streams / cohorts / drafters, 1.0), context)
        verify_s = verify.at(each / cohorts * (1 + verified), context)
        cycle_s = max(cohorts * verify_s, cohorts * draft_s, draft_s + verify_s + hop_s)
        share = cohorts * draft_s / cycle_s
        return cycle_s, Hint(verifiers, streams, drafters, share, draft_s, verify_s, hop_s, cohorts)

    for drafters in range(1, MOST_DRAFTERS + 1):
        halves = (1, 2) if each >= 2 else (1,)
        found = min((of(drafters, cohorts) for cohorts in halves), key=itemgetter(0))[1]
        if found.busy <= busy or streams / drafters <= 1:
            break
    return found


def hint_of(
    window: LoadWindow, *, streams: int | None = None, busy: float = 0.7, context: float = 256.0
) -> Hint | None:
    """From a running cell: its curves, its hops, what its rounds verify. None without drafters or curves."""
    status = window.newest.status
    lane = next((lane for lane in status.lanes if lane.draft_cost and lane.verify_cost), None)
    if lane is None:
        return None
    draft, verify = StepCurve.of(lane.draft_cost), StepCurve.of(lane.verify_cost)
    assert draft is not None
    assert verify is not None
    rounds = status.totals.get("dspark_rounds_total", 0.0)
    verified = status.totals.get("dspark_spec_decode_num_verified_tokens_total", 0.0) / rounds if rounds else 2.0
    running = sum(lane.running + lane.waiting for lane in status.lanes)
    count = streams if streams is not None else max(running, 1)
    first = hint(
        draft, verify, verifiers=len(status.lanes), streams=count, verified=verified, context=context, busy=busy
    )
    hop_s = max(_mean(status, DRAFT_RPC) - first.draft_s - window.draft_wait_s(), 0.0) if rounds else 0.0
    return hint(
        draft,
        verify,
        verifiers=len(status.lanes),
        streams=count,
        verified=verified,
        context=context,
        hop_s=min(hop_s, 0.01),
        busy=busy,
    )


def _mean(status: CellStatus, name: str) -> float:
    for each in status.distributions:
        count = sum(map(int, each.counts)) if each.name == name else 0
        if count:
            return each.sum / count
    return 0.0


def _line(xs: Sequence[float], ys: Sequence[float], x: float) -> float:
    """Linear interpolation; beyond the last point along the last segment, before the first at the first value."""
    if len(xs) == 1 or x <= xs[0]:
        return ys[0]
    right = next((index for index, each in enumerate(xs) if each >= x), len(xs) - 1)
    left = right - 1
    return ys[left] + (ys[right] - ys[left]) * (x - xs[left]) / (xs[right] - xs[left])
