"""Row 1, simulated: a verifier is killed at any moment, of two; every stream goes on with the ids of an unkilled run.

The real coordinator in simulated time, with real engines for every tenth ten of kills and synthetic ones for the
others. Kills fall anywhere: before the first token, inside a round, between a verdict and its commit, on the last
token. Each story begins a few requests, kills the verifier that holds most of them, and starts it again.
"""

from __future__ import annotations

import asyncio
import random
import sys

from benchmarks.row import Row, note
from faults.rows.program import arguments, quantile
from faults.simulated import Answer, SimulatedCell, simulate

PROMPTS = [[5, 9, 17, 33], [2, 100, 7], [64, 3, 100, 3], [11, 12, 13, 14, 15]]
LENGTHS = [24, 16, 30, 9]
KILLS_EACH = 10
STALL_S = 1.0  # simulated, on top of which comes the prefill


async def calm(cell: SimulatedCell) -> list[list[int]]:
    """The answers when nobody dies."""
    return [(await _ask(cell, which)).ids for which in range(len(PROMPTS))]


async def _ask(cell: SimulatedCell, which: int) -> Answer:
    return await cell.ask(
        PROMPTS[which], max_tokens=LENGTHS[which], policy=["greedy", "fixed:3", "off", "async"][which]
    )


async def killing(cell: SimulatedCell, kills: int, draw: random.Random) -> list[tuple[int, Answer]]:
    answers: list[tuple[int, Answer]] = []
    for _ in range(kills):
        chosen = [draw.randrange(len(PROMPTS)) for _ in range(2)]
        asked = [asyncio.create_task(_ask(cell, which)) for which in chosen]
        await cell.after(draw.uniform(0.001, 0.14))
        cell.kill(lost := cell.holder())
        await cell.after(draw.choice([0.0, 0.01, 0.2]))
        await cell.restart(lost)
        answers += zip(chosen, await asyncio.gather(*asked), strict=True)
        await cell.after(20.0)  # who is lost four times a minute is held off, which is another check
        await cell.connected(3)
        assert cell.left_over() == {}, cell.left_over()
    return answers


def main() -> int:
    args = arguments(__doc__)
    kills = 2000 if args.long else 200
    plain = {synthetic: simulate(calm, synthetic=synthetic) for synthetic in (False, True)}
    answers: list[tuple[int, Answer]] = []
    same = 0
    for seed in range(kills // KILLS_EACH):
        draw = random.Random(f"kills/{seed}")
        synthetic = seed % 10 != 0
        made = simulate(
            lambda cell, draw=draw: killing(cell, KILLS_EACH, draw),
            seed=seed,
            verifiers=2,
            drafters=1 + seed % 2,
            synthetic=synthetic,
        )
        same += sum(answer.ids == plain[synthetic][which] for which, answer in made)
        answers += made
        note(f"{(seed + 1) * KILLS_EACH} kills")
    failed = [str(answer.error) for _, answer in answers if answer.error is not None]
    stall = quantile([answer.longest_gap_s for _, answer in answers], 0.99)
    value = {
        "kills": kills,
        "streams": len(answers),
        "failed": len(failed),
        "why": failed[:3],
        "same_ids": same,
        "p99_stall_s": round(stall, 3),
    }
    holds = not failed and same == len(answers) and stall <= STALL_S
    bar = f"0 failed, all ids those of an unkilled run, p99 stall <= {STALL_S:g} s (simulated time)"
    return Row("1", "a verifier is killed at any token (simulated)", value, bar, holds).show(as_json=args.json)


if __name__ == "__main__":
    sys.exit(main())
