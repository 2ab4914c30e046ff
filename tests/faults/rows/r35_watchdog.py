"""Row 35: drafters that go bad while streams run: an alarm soon, no wrong token, and hardly a token
a second lost.

What goes bad is every block from one moment on: other ids than were drafted, confidences that are
no numbers, ids beyond the vocabulary, no ids at all, or no answer at all. Ids are judged on the
real pair; what it costs from the alarm on, later trials included, is told beside plain decoding on
engines without weights in simulated time.
"""

import asyncio
import random
from typing import Any

from benchmarks.row import note
from dspark.wire.v1 import draft_pb2
from tests.faults import pair
from tests.faults.plan import Action, Fate, Message
from tests.faults.promises import asking, judged
from tests.faults.rows.program import Args, Rows, statement
from tests.faults.rows.r11_lying_drafter import BLOCKS, STEPS, Lying, random_ids
from tests.faults.simulated import SimulatedCell, simulate
from tests.faults.streams import Stream

ROUNDS, SPEED = 100, 0.90
HEALTHY = 200  # passes before anything goes bad, on engines without weights
TOKENS = 2600  # of each of two answers there: some 40 simulated seconds
# rules that other ids than were drafted cannot hurt
ALL_PARAMS = {"collapse": (pair.GREEDY, pair.COUPLED)}


def _nan(blocks: draft_pb2.Blocks, draw: random.Random) -> None:
    blocks.confidence[:] = [float("nan")] * len(blocks.confidence)


def _foreign(blocks: draft_pb2.Blocks, draw: random.Random) -> None:
    blocks.token_ids[:] = [1 << 30] * len(blocks.token_ids)


def _nothing(blocks: draft_pb2.Blocks, draw: random.Random) -> None:
    blocks.lengths[:] = [0] * len(blocks.lengths)
    blocks.q_entries[:] = [0] * len(blocks.lengths)
    for column in ("token_ids", "confidence", "q_ids", "q_probs"):
        blocks.ClearField(column)


FAULTS = {
    "collapse": random_ids,
    "NaN": _nan,
    "foreign ids": _foreign,
    "nothing drafted": _nothing,
    "silence": lambda blocks, draw: None,  # nothing comes at all
}


def gone(name: str) -> Lying:
    """A plan that hurts nothing until it is switched on."""
    plan = Lying(FAULTS[name], name, on=False)

    def silence(message: Message) -> Fate | None:
        hit = plan.on and name == "silence" and message.kind == BLOCKS
        return Fate(Action.DROP) if hit else None

    plan.rules.append(silence)
    return plan


async def _alarm(cell: SimulatedCell, plan: Lying) -> int:
    """Passes from the first bad block to the alarm, or until it is too late for one."""
    plan.on, before = True, cell.metric("cohorts_total")

    def passes() -> int:
        return int(cell.metric("cohorts_total") - before)

    await cell.until(
        lambda: cell.metric("drafter_alarms_total") > 0 or passes() > ROUNDS, within_s=60.0
    )
    return passes()


def ids(name: str, seed: int) -> tuple[int, list[str]]:
    """(passes to the alarm, what is wrong) on the real pair."""
    plan = gone(name)

    async def story(cell: SimulatedCell) -> tuple[int, list[str]]:
        laws, draw = ALL_PARAMS.get(name, pair.ALL_PARAMS), random.Random(seed)
        asked = asking(cell, draw, 4, prompts=(20,), laws=laws, max_tokens=160, policy="adaptive")
        await cell.until(lambda: cell.metric("cohorts_total") > 10)
        passes = await _alarm(cell, plan)
        return passes, judged(cell, await asyncio.gather(*asked))

    return simulate(story, plan=plan, seed=seed)


def speed(name: str) -> tuple[int, float]:
    """(passes to the alarm, tokens a second from then on) without weights; of "" plain decoding."""
    plan = gone(name) if name else None

    async def story(cell: SimulatedCell) -> tuple[int, float]:
        answers = [Stream(), Stream()]
        asked = [
            asyncio.create_task(
                cell.ask(
                    [n + 2, 9],
                    into=each,
                    max_tokens=TOKENS,
                    policy="adaptive" if name else "off",
                    **pair.GREEDY,
                )
            )
            for n, each in enumerate(answers)
        ]
        await cell.until(lambda: cell.metric("cohorts_total") > HEALTHY)
        passes = await _alarm(cell, plan) if plan is not None else 0
        began, before = cell.now, sum(len(each.ids) for each in answers)
        # both of them run until then
        await asyncio.wait(asked, return_when=asyncio.FIRST_COMPLETED)
        rate = (sum(len(each.ids) for each in answers) - before) / (cell.now - began)
        await asyncio.gather(*asked)
        return passes, rate

    settings: dict[str, Any] = {"synthetic": True, "seconds": STEPS}
    return simulate(story, plan=plan, **settings)


def rows(args: Args) -> Rows:
    plain = speed("")[1]
    passes: dict[str, int] = {}
    speeds: dict[str, float] = {}
    wrong: list[str] = []
    for name in FAULTS:
        told = [ids(name, seed) for seed in range(8 if args.long else 1)]
        without_weights, rate = speed(name)
        passes[name] = max(without_weights, *(each[0] for each in told), 0)
        speeds[name] = round(rate / plain, 3)
        wrong += [f"{name}: {each}" for _, found in told for each in found]
        note(
            f"{name}: alarm after {passes[name]} passes, then {speeds[name]} of plain decoding's "
            "speed"
        )
    value = {
        "passes_to_the_alarm": passes,
        "speed_of_plain_behind_it": speeds,
        "other_ids": wrong[:3],
        "engine": "pair; speed: synthetic",
    }
    bars = {
        f"alarm within {ROUNDS} passes": max(passes.values()) <= ROUNDS,
        "same ids": not wrong,
        f">= {SPEED:.0%} of plain decoding's speed behind the alarm": min(speeds.values()) >= SPEED,
    }
    yield statement("35", "a drafter that goes bad", value, bars)
