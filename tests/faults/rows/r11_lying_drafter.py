"""Row 11: a drafter that lies about everything it can lie about: ids, distributions, confidences,
watermarks.

Whole answers, greedy and coupled, while every block of the drafter is replaced by a lie that passes
every check: their ids on the real pair and, on engines without weights in simulated time, what they
cost beside plain decoding. The coupled rule's law under such drafts is enumerated by
`tests/unit/decoding/test_exact_law.py`.
"""

import asyncio
import random
from collections.abc import Callable
from typing import Any

from benchmarks.row import note
from dspark.wire.v1 import draft_pb2
from tests.faults import pair
from tests.faults.plan import Message, Plan
from tests.faults.promises import lied_to
from tests.faults.rows.program import Args, Rows, statement
from tests.faults.simulated import SimulatedCell, simulate
from tests.faults.streams import Stream

SPEED = 0.90
TOKENS = 400
BLOCKS = "RoundsEvent.blocks"
# seconds, as the synthetic pair announces them
STEPS = {
    "judge_cohort": 0.015,
    "timed_draft": 0.002,
}
Lie = Callable[[draft_pb2.Blocks, random.Random], None]


def random_ids(blocks: draft_pb2.Blocks, draw: random.Random) -> None:
    for at in range(len(blocks.token_ids)):
        blocks.token_ids[at] = draw.randrange(100)


def _sure(blocks: draft_pb2.Blocks, draw: random.Random) -> None:
    random_ids(blocks, draw)
    blocks.confidence[:] = [1.0] * len(blocks.confidence)


def _unsure(blocks: draft_pb2.Blocks, draw: random.Random) -> None:
    blocks.confidence[:] = [0.0] * len(blocks.confidence)


def _watermarks(blocks: draft_pb2.Blocks, draw: random.Random) -> None:
    _sure(blocks, draw)
    blocks.watermarks[:] = [draw.choice([0, 1, 2**32 - 1]) for _ in blocks.watermarks]


def _slow(blocks: draft_pb2.Blocks, draw: random.Random) -> None:
    _sure(blocks, draw)
    blocks.forward_ns = draw.choice([0, 1, 2**63])


LIES: dict[str, Lie] = {
    "random ids": random_ids,
    "random ids, confidence 1": _sure,
    "confidence 0": _unsure,
    "false watermarks": _watermarks,
    "false times": _slow,
}


class Lying(Plan):
    """A plan under which every block is changed on its way, from when it is switched on."""

    def __init__(self, lie: Lie, seed: str = "lies", *, on: bool = True) -> None:
        super().__init__()
        self.on, draw = on, random.Random(seed)

        def tamper(message: Message, data: bytes) -> bytes:
            if not self.on or message.kind != BLOCKS:
                return data
            event = draft_pb2.RoundsEvent.FromString(data)
            lie(event.blocks, draw)
            return event.SerializeToString()

        self.tampers.append(tamper)


async def answers(cell: SimulatedCell, policy: str = "adaptive") -> tuple[list[Stream], float]:
    """Greedy and coupled ones beside each other, and the seconds they took."""
    began = cell.now
    asked = [
        cell.ask([n + 2, 9], max_tokens=TOKENS, policy=policy, **(pair.GREEDY, pair.COUPLED)[n % 2])
        for n in range(4)
    ]
    return list(await asyncio.gather(*asked)), cell.now - began


def rows(args: Args) -> Rows:
    settings: dict[str, Any] = {"synthetic": True, "seconds": STEPS}
    plain_s = simulate(lambda cell: answers(cell, "off"), **settings)[1]
    honest_s = simulate(answers, **settings)[1]
    speeds: dict[str, float] = {}
    wrong: list[str] = []
    for name, lie in LIES.items():
        speeds[name] = round(plain_s / simulate(answers, plan=Lying(lie), **settings)[1], 3)
        wrong += [
            f"{name}: {each}"
            for seed in range(8 if args.long else 1)
            for each in lied_to(seed, name)
        ]
        note(f"{name}: {speeds[name]} of plain decoding's speed")
    value = {
        "lies": len(LIES),
        "other_ids": wrong[:3],
        "speed_of_plain": speeds,
        "honest_speed": round(plain_s / honest_s, 2),
        "engine": "pair; speed: synthetic",
    }
    bars = {
        "same ids under every lie": not wrong,
        f">= {SPEED:.0%} of plain decoding's speed": min(speeds.values()) >= SPEED,
    }
    yield statement("11", "a drafter that lies", value, bars)
