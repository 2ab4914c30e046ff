"""Row 4: malformed commands, rows and events between services: refused where they arrive, and
nobody else notices.

First real processes: a verifier and a drafter are sent commands and feature rows spoiled by their
schema, over streams beside which an honest one decodes. Then a coordinator, in simulated time,
whose workers' events are spoiled.
"""

import asyncio
from collections import Counter
from typing import Any

from google.protobuf.message_factory import GetMessageClass

from benchmarks.row import note
from dspark.types import SamplingParams
from tests.faults import oracle, pair
from tests.faults.attack import attack
from tests.faults.boundaries import methods
from tests.faults.plan import Message, Plan
from tests.faults.processes import FaultCell
from tests.faults.rows.program import Args, Rows, statement
from tests.faults.simulated import SimulatedCell, simulate
from tests.faults.spoiler import Spoiler
from tests.faults.streams import Stream

EVENTS = ("ControlUp", "RoundsEvent")
REFUSAL_S = 0.002
GROWTH_MB = 64.0  # resident, after a warm-up, whatever was sent since
CROWD = 6  # attackers at a time, of a million messages


def spoiled_events(seed: int, share: float) -> tuple[Plan, Counter[str]]:
    """A plan under which a share of what workers say is malformed."""
    plan, done = Plan(), Counter[str]()
    spoiler = Spoiler(f"events/{seed}", legal=False, spare=("tag", "incarnation"))
    draw = spoiler._draw

    def tamper(message: Message, data: bytes) -> bytes:
        if (
            message.source[:1] not in "vd"
            or message.kind.split(".")[0] not in EVENTS
            or draw.random() >= share
        ):
            return data
        event: Any = GetMessageClass(methods()[message.method][1])()
        event.ParseFromString(data)
        spoiler.spoil(event)
        done[message.kind] += 1
        return bytes(event.SerializeToString())

    plan.tampers.append(tamper)
    return plan, done


async def several(cell: SimulatedCell) -> list[Stream]:
    asked = [cell.ask(pair.prompt(n, 6 + n), max_tokens=20, policy="fixed:4") for n in range(3)]
    answers = list(await asyncio.gather(*asked))
    cell.network.plan.tampers.clear()
    await cell.connected(3)
    answers.append(await cell.ask(pair.prompt(3, 9), max_tokens=20))
    await cell.until(lambda: not cell.left_over(), within_s=60.0)
    return answers


GREEDY = SamplingParams(temperature=0.0)


def hear(stories: int) -> dict[str, Any]:
    settings: dict[str, Any] = {"verifiers": 2, "coordinator": {"verify_deadline_s": 1.0}}
    spoiled: Counter[str] = Counter()
    wrong: list[str] = []
    ended = errors = 0
    for seed in range(stories):
        plan, done = spoiled_events(seed, 0.03)
        try:
            answers = simulate(several, plan=plan, seed=seed, **settings)
        except Exception as error:
            wrong.append(f"seed {seed}: {type(error).__name__}: {error}")
            continue
        spoiled += done
        for answer in answers:
            ended, errors = ended + (answer.error is None), errors + (answer.error is not None)
            if answer.error is None and (
                other := oracle.examine(answer.prompt, answer.ids, GREEDY).wrong
            ):
                wrong.append(f"seed {seed}: {other}")
        if answers[-1].error is not None:
            wrong.append(f"seed {seed}: a request after the trouble: {answers[-1].error}")
    return {
        "stories": stories,
        "spoiled_events": sum(spoiled.values()),
        "kinds": len(spoiled),
        "answers_as_ever": ended,
        "definite_errors": errors,
        "wrong": wrong[:5],
        "wrong_in_all": len(wrong),
    }


OPTIONS = {"messages": None}


def rows(args: Args) -> Rows:
    count = int(args.messages or (1_000_000 if args.long else 10_000))
    with FaultCell() as cell:
        value = asyncio.run(attack(cell, count, crowd=CROWD if args.long else 1))
    bars = {
        "every kind refused": min(value["refused_by_kind"].values(), default=0) > 0,
        "0 deaths, 0 hangs": not value["hung"] and not value["deaths"],
        "no refusal by a bug": not {"INTERNAL", "UNKNOWN"} & value["streams_ended"].keys(),
        "nothing honest refused": not value["honest_refused"],
        "nothing held afterwards": not value["held_at_the_end"],
        "neighbour's ids unchanged": value["neighbour_unchanged"],
        f"p99 refusal < {1e3 * REFUSAL_S:g} ms": value["p99_refusal_ms"] < 1e3 * REFUSAL_S,
        f"resident + {GROWTH_MB:g} MB": value["rss_growth_mb"] <= GROWTH_MB,
    }
    yield statement("4", "malformed commands and rows at workers", value, bars)
    note("events at the coordinator")
    heard = hear(2000 if args.long else 30)
    bars = {
        "every request ends with its ids or an error, nothing held afterwards, later requests as "
        "ever": not heard["wrong_in_all"],
        "more than one event spoiled a story": heard["spoiled_events"] > heard["stories"],
    }
    yield statement("4", "malformed events at the coordinator", heard, bars)
