"""Row 36: answers in a form under kills of every process; each is the one of a calm run, and fits
its form.

Real processes, at temperature 0 and under the coupled rule. Verifiers, drafters and the
coordinator, which has a journal, are killed at moments drawn from a seed and started again; clients
ask for the rest of their answers.
"""

from __future__ import annotations

import asyncio
import json
import random
import tempfile
from pathlib import Path
from typing import Any

import jsonschema

from benchmarks.row import note
from dspark.client import AsyncClient, Completion
from faults.pair import COUPLED, GREEDY, prompt
from faults.processes import FaultCell
from faults.rows.program import Args, Rows, statement

STREAMS = 8
KILLS, LONG_KILLS = 6, 100
WORDS = {
    "type": "array",
    "items": {"type": "string", "maxLength": 12},
    "minItems": 12,
    "maxItems": 12,
}
SCHEMA = {
    "type": "object",
    "properties": {"words": WORDS},
    "required": ["words"],
    "additionalProperties": False,
}
ASKED: dict[str, Any] = {
    "max_tokens": 400,
    "constraint": {"json_schema": SCHEMA},
    "timeout": 300.0,
    "resume_s": 60.0,
}


async def ask(client: AsyncClient, number: int) -> Completion:
    """One of the answers, the same whenever it is asked for."""
    params = {**GREEDY} if number % 2 else {**COUPLED, "seed": number}
    events = [event async for event in client.generate(prompt(number), **ASKED, **params)]
    return Completion.of(events)


async def wave(cell: FaultCell) -> list[Completion]:
    async with AsyncClient(cell.endpoint) as client:
        return list(await asyncio.gather(*(ask(client, number) for number in range(STREAMS))))


async def storm(cell: FaultCell, kills: int) -> list[list[Completion]]:
    """Waves, one after the other, until there were enough kills."""
    draw, made = random.Random(35), list[list[Completion]]()
    left = kills
    while left > 0:
        running = asyncio.create_task(wave(cell))
        while left > 0 and not running.done():
            await asyncio.sleep(draw.uniform(0.1, 1.0))
            victim = draw.choice(sorted(cell.children))
            await asyncio.to_thread(cell.kill, victim)
            await asyncio.to_thread(cell.restart, victim)
            left -= 1
            note(f"{victim}, {left} kills to go")
        made.append(await running)
    return made


def fits(answer: Completion) -> bool:
    """What ended by itself is of the schema."""
    (choice,) = answer.choices
    try:
        if choice.finish_reason == "stop":
            jsonschema.validate(json.loads(choice.text), SCHEMA)
    except (ValueError, jsonschema.ValidationError):
        return False
    return True


def rows(args: Args) -> Rows:
    kills = LONG_KILLS if args.long else KILLS
    with tempfile.TemporaryDirectory(prefix="dspark-forms-") as folder:
        settings = {"journal": str(Path(folder) / "journal"), "warm_up_s": 0}
        with FaultCell(verifiers=2, drafters=2, coordinator=settings) as cell:
            calm = asyncio.run(wave(cell))
            hurt = asyncio.run(storm(cell, kills))
            settled = cell.settled(30.0)
    answers = [answer for each in hurt for answer in each]
    ids = [answer.choices[0].token_ids for answer in calm]
    same = sum(
        answer.choices[0].token_ids == ids[number % STREAMS]
        for number, answer in enumerate(answers)
    )
    valid = sum(map(fits, [*calm, *answers]))
    value = {"kills": kills, "answers": len(answers), "same_ids": same, "all_freed": settled}
    value |= {"valid": valid, "of": len(calm) + len(answers), "tokens": sum(map(len, ids))}
    bars = {
        "every answer has the ids of a calm run": same == len(answers),
        "and fits its schema": valid == value["of"],
        "all freed": settled,
    }
    yield statement("36", "answers in a form under kills", value, bars)
