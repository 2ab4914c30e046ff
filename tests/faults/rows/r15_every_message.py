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
    "synthetic": True,
    "verify": {"lease_s": 20.0},
    "draft": {"lease_s": 20.0},
    "coordinator": {"verify_deadline_s": 1.0, "prefill_deadline_s": 1.0, "drafter_patience_s": 1.0},
}
# Said by processes that this story does without; their own tests hold them.
ELSEWHERE = {"FrontendBatch", "CellBatch", "AnnounceRequest", "AnnounceReply", "GetStatusRequest", "GetStatusReply"}


async def story(cell: SimulatedCell) -> list[Answer]:
    """Requests, a drafter that comes back (so that rows are sent again), a client that leaves, a drain of each pool."""
    asked = [asyncio.create_task(cell.ask(prompt, max_tokens=TOKENS, policy="fixed:4")) for prompt in PROMPTS]
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
    await cell.until(lambda: not cell.left_over(), within_s=HELD_S)
    return answers


def main() -> int:
    args = arguments(__doc__)
    seen = Plan()
    plain = [answer.ids for answer in simulate(story, plan=seen, **SETTINGS)]
    wanted = sorted({kind for _, _, kind in kinds()} - ELSEWHERE)
    cases = failed = 0
    why: list[str] = []
    hurt: Counter[str] = Counter()
    for kind in wanted:
        count = seen.seen[kind]
        places = sorted({1, 2, max(count // 2, 1), count}) if args.long else sorted({min(2, count), max(count // 2, 1)})
        for mode in MODES if count else ():
            for place in places:
                plan = Plan(once(kind, mode, at=place))
                cases += 1
                try:
                    answers = simulate(story, plan=plan, **SETTINGS)
                    bad = [str(each.error) for each in answers if each.error is not None]
                    same = [answer.ids for answer in answers] == plain
                    problem = bad[0] if bad else "" if same else "other ids"
                except Exception as error:
                    problem = f"{type(error).__name__}: {error}"
                hurt[kind] += sum(plan.hurt.values())
                if problem:
                    failed += 1
                    why.append(f"{kind} {mode.value} at {place}: {problem}")
        note(f"{kind}: {count} said, {hurt[kind]} hurt")
    uncovered = [kind for kind in wanted if not hurt[kind]]
    value = {"kinds": len(wanted), "cases": cases, "failed": failed, "why": why[:8], "not_covered": uncovered}
    bar = "every internal message x lost, twice, overtaken, cut: same ids, nothing held afterwards"
    return Row("15", "each message lost, repeated or out of order", value, bar, not failed and not uncovered).show(
        as_json=args.json
    )


if __name__ == "__main__":
    sys.exit(main())
