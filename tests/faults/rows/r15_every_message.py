"""Row 15: every internal message is lost, said twice, late or overtaken, once each; nothing changes but the time.

The kinds come from the protocol, so a new command is in the table at once. A kind that this story never says counts as
not covered, and is named. Simulated time; the real coordinator, workers and client.
"""

from __future__ import annotations

import asyncio
import sys
from collections import Counter
from typing import Any

from benchmarks.row import Row, note
from faults.boundaries import kinds
from faults.plan import Action, Plan, once
from faults.rows.program import arguments
from faults.simulated import Answer, SimulatedCell, simulate

PROMPTS = [[5, 9, 17, 33], [64, 3, 100, 3, 7, 7], [2, 3]]
TOKENS = 80
HELD_S = 60.0  # simulated, within which everything is free again, whatever was lost
MODES = (Action.DROP, Action.TWICE, Action.SWAP, Action.CUT)
SETTINGS: dict[str, Any] = {
    "verifiers": 2,
    "drafters": 2,
    "frontends": 1,
    "synthetic": True,
    "verify": {"lease_s": 20.0},
    "draft": {"lease_s": 20.0},
    "coordinator": {"verify_deadline_s": 1.0, "prefill_deadline_s": 1.0, "drafter_patience_s": 1.0},
}
OPERATORS = "/dspark.wire.v1.Control/"  # calls that change nothing, and one that says the same again when repeated
FRONTENDS = {"FrontendBatch", "CellBatch"}  # what is lost there ends its request, with an error or on time


async def story(cell: SimulatedCell) -> list[Answer]:
    """Requests, a drafter that comes back (so that rows are sent again), a client that leaves, a drain of each pool."""
    asked = [asyncio.create_task(cell.ask(prompt, max_tokens=TOKENS, policy="fixed:4")) for prompt in PROMPTS]
    through = asyncio.create_task(cell.ask([7, 9], max_tokens=30, at="frontend/0", timeout=20.0))
    leaving = asyncio.create_task(cell.ask([9, 9], max_tokens=200))
    await cell.after(0.05)
    cell.kill("draft/0")
    leaving.cancel()
    await cell.restart("draft/0")
    answers = list(await asyncio.gather(*asked))
    last = asyncio.create_task(cell.ask(PROMPTS[0], max_tokens=TOKENS, policy="fixed:4"))
    await cell.after(0.04)
    going = [asyncio.create_task(cell.terminate(name, 0.5)) for name in ("draft/0", cell.holder())]
    answers.append(await last)
    await asyncio.gather(*going)
    answers.append(await through)
    await cell.until(lambda: not cell.left_over(), within_s=HELD_S)
    return answers


def compare(plan: Plan, plain: list[list[int]], *, spared: bool) -> str:
    """What is wrong with a story under this plan; empty when nothing is. spared: the last answer may end early."""
    try:
        answers = simulate(story, plan=plan, **SETTINGS)
    except Exception as error:
        return f"{type(error).__name__}: {error}"
    if spared and (last := answers.pop()).ids != plain[-1][: len(last.ids)]:
        return "other ids through the front end"
    errors = [str(each.error) for each in answers if each.error is not None]
    if errors:
        return errors[0]
    return "" if [answer.ids for answer in answers] == plain[: len(answers)] else "other ids"


def main() -> int:
    args = arguments(__doc__)
    seen = Plan()
    undisturbed = simulate(story, plan=seen, **SETTINGS)
    assert all(answer.end for answer in undisturbed), [str(answer.error) for answer in undisturbed]
    plain = [answer.ids for answer in undisturbed]
    wanted = sorted({kind for method, _, kind in kinds() if not method.startswith(OPERATORS)})
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
                problem = compare(plan, plain, spared=kind in FRONTENDS)
                hurt[kind] += sum(plan.hurt.values())
                if problem:
                    failed += 1
                    why.append(f"{kind} {mode.value} at {place}: {problem}")
        note(f"{kind}: {count} said, {hurt[kind]} hurt")
    uncovered = [kind for kind in wanted if not hurt[kind]]
    value = {"kinds": len(wanted), "cases": cases, "failed": failed, "why": why[:8], "not_covered": uncovered}
    bar = "every message between processes x lost, twice, overtaken, cut: same ids, nothing held afterwards"
    return Row("15", "each message lost, repeated or out of order", value, bar, not failed and not uncovered).show(
        as_json=args.json
    )


if __name__ == "__main__":
    sys.exit(main())
