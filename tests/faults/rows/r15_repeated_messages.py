"""Row 15: every message between processes gets lost, arrives twice, or takes its stream with it; answers stay the same.

For every kind of message that a cell exchanges while it starts, prefills, drafts, verifies, resends, drains and
releases, and for each of the three, a simulated cell of real processes runs the same requests, with that one message
hurt. Ids must be those of the calm run and, once leases are over, nothing may be held by anybody.
"""

from __future__ import annotations

import argparse
import asyncio
import sys
import time
from collections.abc import Iterator

from benchmarks.row import Row, note
from faults.boundaries import kinds
from faults.plan import Action, Plan, once
from faults.simulated import Answer, SimulatedCell, simulate

MODES = (Action.DROP, Action.TWICE, Action.CUT)
LEASE_S = 20.0
TOKENS = 200
# Said by or to processes that this cell does not have: front ends, operators, deployments.
ELSEWHERE = (
    "FrontendBatch",
    "CellBatch",
    "AnnounceRequest",
    "AnnounceReply",
    "GetStatusRequest",
    "GetStatusReply",
    "ExplainRequest",
    "RoundExplanation",
)
SETTINGS = {"verifiers": 2, "drafters": 2, "synthetic": True}


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--json", action="store_true")
    parser.add_argument("--long", action="store_true", help="hurt the second, fifth and ninth of each kind too")
    args = parser.parse_args()
    began = time.monotonic()
    calm, plan = _run(Plan())
    places = (1, 2, 5, 9) if args.long else (2,)
    failed: list[str] = []
    cases = hurt = 0
    said = {kind for kind in _expected() if plan.seen[kind]}
    for kind in sorted(said):
        for action in MODES:
            for at in sorted({min(place, plan.seen[kind]) for place in places}):
                cases += 1
                problem, its = _case(kind, action, at, calm)
                hurt += bool(its.hurt)
                if problem:
                    note(f"{kind} {action.value} {at}: {problem}")
                    failed.append(f"{kind} {action.value} {at}: {problem}")
    silent = sorted(set(_expected()) - said)
    value = {
        "cases": cases,
        "kinds": len(said),
        "hurt": hurt,
        "failed": failed,
        "never_said": silent,
        "seconds": round(time.monotonic() - began, 1),
    }
    bar = "100 % of the messages: the same ids, nothing left behind"
    return Row(15, "lost, repeated and cut messages change no answer", value, bar, not failed and not silent).show(
        as_json=args.json
    )


def _expected() -> Iterator[str]:
    return (kind for _, _, kind in kinds() if kind not in ELSEWHERE)


def _case(kind: str, action: Action, at: int, calm: list[Answer]) -> tuple[str, Plan]:
    plan = Plan(once(kind, action, at=at))
    try:
        answers, _ = _run(plan)
    except Exception as error:
        return f"{type(error).__name__}: {error}", plan
    for answer, other in zip(answers, calm, strict=True):
        if answer.error is not None:
            return str(answer.error), plan
        if answer.ids != other.ids:
            return "other ids", plan
    return "", plan


def _run(plan: Plan) -> tuple[list[Answer], Plan]:
    workers = {"lease_s": LEASE_S}
    answers = simulate(_story, plan=plan, verify=workers, draft=workers, **SETTINGS)
    return answers, plan


async def _story(cell: SimulatedCell) -> list[Answer]:
    """Long answers, a drafter and a verifier that leave in order and come back, and silence until leases are over."""
    asked = [asyncio.create_task(cell.ask([n + 2, n + 3, 5], max_tokens=TOKENS, policy="fixed:3")) for n in range(3)]
    await cell.after(0.05)
    await cell.terminate(cell.holder("draft"), grace_s=0.2)
    await cell.after(0.05)
    await cell.terminate(cell.holder("verify"), grace_s=0.2)
    answers = list(await asyncio.gather(*asked))
    await cell.after(2 * LEASE_S)
    left = cell.left_over()
    if left:
        raise AssertionError(f"held when nobody asks any more: {left}")
    return answers


if __name__ == "__main__":
    sys.exit(main())
