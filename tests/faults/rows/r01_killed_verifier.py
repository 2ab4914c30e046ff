"""Row 1: a verifier is killed at any moment; the streams go on on another one, with the same ids.

Simulated: stories of a cell with two verifiers, one of which dies ten times at moments drawn from the story's number,
between any two messages, under answers that are short enough for first and last tokens to be hit. Real: processes
under SIGKILL (`benchmarks.verifier_kill`), 5 of them, 200 with `--long`.
"""

from __future__ import annotations

import asyncio
import random
import sys
import time
from functools import partial

from benchmarks.failing import Setup
from benchmarks.pair import ROOT, Pair
from benchmarks.row import Row, note
from benchmarks.verifier_kill import BAR, measure
from faults.rows.program import arguments
from faults.simulated import Answer, SimulatedCell, simulate

STORIES, KILLS = 20, 10
LENGTHS = (1, 2, 3, 40, 400, 800)
LAWS: tuple[dict[str, object], ...] = ({"temperature": 0.0}, {"temperature": 0.9, "rule": "coupled"})
PATIENT = {"max_handovers": 1000, "flap_limit": 0}


def main() -> int:
    args = arguments(__doc__)
    began = time.monotonic()
    calm = simulate(_calm, synthetic=True)
    told = [
        simulate(partial(_story, seed=seed), seed=seed, verifiers=2, synthetic=True, coordinator=PATIENT)
        for seed in range(STORIES)
    ]
    answers = [answer for story, _ in told for answer in story]
    wrong = sum(answer.error is not None or answer.ids != calm[key] for key, answer in answers)
    simulated: dict[str, object] = {
        "kills": sum(kills for _, kills in told),
        "answers": len(answers),
        "wrong": wrong,
        "longest_stall_s": round(max(answer.longest_gap_s for _, answer in answers), 3),
        "seconds": round(time.monotonic() - began, 1),
    }
    note(f"simulated: {simulated}")
    models = ROOT / "models"
    setup = Setup(Pair(models / "demo-target", models / "demo-dspark"), synthetic=True)
    real, holds = measure(setup, kills=200 if args.long else 5)
    value = {"simulated": simulated, "real": real}
    return Row(1, "a killed verifier costs a pause", value, BAR, holds and not wrong).show(as_json=args.json)


Key = tuple[int, int, int]  # prompt, length, law
KEYS: list[Key] = [(n, length, n % 2) for n, length in enumerate(LENGTHS)]


async def _ask(cell: SimulatedCell, key: Key) -> tuple[Key, Answer]:
    number, length, law = key
    return key, await cell.ask([number + 2, 7], max_tokens=length, policy="fixed:3", **LAWS[law])


async def _calm(cell: SimulatedCell) -> dict[Key, list[int]]:
    return {key: answer.ids for key, answer in await asyncio.gather(*(_ask(cell, key) for key in KEYS))}


async def _story(cell: SimulatedCell, seed: int) -> tuple[list[tuple[Key, Answer]], int]:
    draw = random.Random(f"killed/{seed}")
    answers: list[tuple[Key, Answer]] = []
    over = asyncio.Event()

    async def keep_asking(key: Key) -> None:
        while not over.is_set():
            answers.append(await _ask(cell, key))

    asking = [asyncio.create_task(keep_asking(key)) for key in KEYS]
    for _ in range(KILLS):
        await cell.after(draw.uniform(0.001, 0.12))
        cell.kill(lost := cell.holder())
        await cell.after(draw.uniform(0.0, 0.12))
        await cell.restart(lost)
        await cell.connected(3)
    over.set()
    await asyncio.gather(*asking)
    await cell.after(1.0)
    if left := cell.left_over():
        raise AssertionError(f"held when nobody asks any more: {left}")
    return answers, KILLS


if __name__ == "__main__":
    sys.exit(main())
