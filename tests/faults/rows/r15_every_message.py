"""Row 15: every internal message is lost, said twice, late or overtaken, once each; nothing changes
but the time.

The kinds come from the protocol, so a new command is in the table at once. A kind that this story
never says counts as not covered, and is named. Simulated time; the real coordinator, workers and
client on the real pair, requests under all laws.
"""

import asyncio
from collections import Counter
from typing import Any

from benchmarks.row import note
from tests.faults import pair
from tests.faults.boundaries import kinds
from tests.faults.plan import Action, Plan, once
from tests.faults.promises import judged
from tests.faults.rows.program import Args, Rows, statement
from tests.faults.simulated import SimulatedCell, simulate
from tests.faults.streams import Stream

TOKENS = 14
LONG = 24  # a prompt of more rows than an order carries: they are sent again in pieces
KEPT_S = 11.0  # simulated, until drafters are told which contexts are wanted
HELD_S = 60.0  # simulated, within which everything is free again, whatever was lost
MODES = (Action.DROP, Action.TWICE, Action.SWAP, Action.CUT)
SETTINGS: dict[str, Any] = {
    "verifiers": 2,
    "drafters": 2,
    "frontends": 1,
    # answers last until a drafter is asked again and rows are sent again
    "seconds": {"judge_cohort": 0.08},
    # Fewer places than are asked for: some are refused, and wait.
    "verify": {"lease_s": 20.0, "drafter_patience_s": 1.0, "max_sequences": 2},
    "draft": {"lease_s": 20.0},
    "coordinator": {"verify_deadline_s": 1.0, "prefill_deadline_s": 1.0},
}
# calls of operators change nothing, or say the same again when repeated
LEFT_OUT = ("/dspark.wire.v1.Control/",)
# rows of this pair fit beside their order; tests of services have wider ones
TOO_SMALL = "RoundsCommand.rows"


async def story(cell: SimulatedCell) -> list[str]:
    """Requests, a drafter that comes back and gets rows again, a client that leaves, two drains."""

    def ask(number: int, **more: Any) -> asyncio.Task[Stream]:
        options = {"max_tokens": TOKENS, "policy": "fixed:4", **pair.ALL_PARAMS[number % 4], **more}
        return asyncio.create_task(cell.ask(pair.prompt(number, 6 + 4 * number), **options))

    asked = [ask(number) for number in (LONG, 0, 1, 2, 3)]
    through = ask(4, at="frontend/0", timeout=20.0)
    leaving = ask(5, max_tokens=200)
    await cell.after(0.05)
    cell.kill("draft/0")
    leaving.cancel()
    await cell.restart("draft/0")
    answers = list(await asyncio.gather(*asked))
    await cell.after(KEPT_S)
    last = ask(6)
    await cell.after(0.04)
    going = [asyncio.create_task(cell.terminate(name, 0.5)) for name in ("draft/0", cell.holder())]
    answers.append(await last)
    await asyncio.gather(*going)
    spared = await through
    # it may end early, not wrong
    spared.error = None if spared.end is None and cell.network.plan.hurt else spared.error
    await cell.until(lambda: not cell.left_over(), within_s=HELD_S)
    # of who left
    return [each for each in judged(cell, [*answers, spared]) if "stand in no text" not in each]


def hurt_by(plan: Plan) -> str:
    """What is wrong with a story under this plan; empty when nothing is."""
    try:
        return next(iter(simulate(story, plan=plan, **SETTINGS)), "")
    except Exception as error:
        return f"{type(error).__name__}: {error}"


def rows(args: Args) -> Rows:
    seen = Plan()
    assert not (found := simulate(story, plan=seen, **SETTINGS)), found
    wanted = sorted(
        {
            kind
            for method, _, kind in kinds()
            if not method.startswith(LEFT_OUT) and kind != TOO_SMALL
        }
    )
    cases = failed = 0
    why: list[str] = []
    hurt: Counter[str] = Counter()
    for kind in wanted:
        count = seen.seen[kind]
        places = sorted({1, 2, max(count // 2, 1), count}) if args.long else [max(count // 2, 1)]
        for mode in MODES if count else ():
            for place in places:
                plan = Plan(once(kind, mode, at=place))
                cases += 1
                problem = hurt_by(plan)
                hurt[kind] += sum(plan.hurt.values())
                if problem:
                    failed += 1
                    why.append(f"{kind} {mode.value} at {place}: {problem}")
        note(f"{kind}: {count} said, {hurt[kind]} hurt")
    uncovered = [kind for kind in wanted if not hurt[kind]]
    value = {
        "kinds": len(wanted),
        "cases": cases,
        "failed": failed,
        "why": why[:8],
        "not_covered": uncovered,
        "engine": "pair",
    }
    bars = {
        "every message between processes": not uncovered,
        "lost, twice, overtaken, cut: the target's ids or the choices', nothing held": not failed,
    }
    yield statement("15", "each message lost, repeated or out of order", value, bars)
