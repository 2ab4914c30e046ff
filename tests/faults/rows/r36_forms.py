"""Row 36: answers in a form under kills of every process; each is the one of a calm run, and fits
its form.

Real processes, at temperature 0 and under the coupled rule. Verifiers, drafters and the
coordinator, which has a journal, are killed at moments drawn from a seed and started again, also
while the cell recovers from the one before; clients ask for the rest of their answers.
"""

import asyncio
import json
import tempfile
from pathlib import Path
from typing import Any

import jsonschema
from tokenizers import Tokenizer

from tests.faults.pair import COUPLED, GREEDY, TARGET, prompt
from tests.faults.processes import FaultCell
from tests.faults.rows.program import Args, Rows, statement
from tests.faults.streams import Stream, hurt

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
    "ignore_eos": False,
    "resume_s": 60.0,
}


def fits(answer: Stream, tokenizer: Tokenizer) -> bool:
    """What ended by itself is of the schema."""
    try:
        if answer.finish == "stop":
            jsonschema.validate(json.loads(tokenizer.decode(answer.ids)), SCHEMA)
    except (ValueError, jsonschema.ValidationError):
        return False
    return True


def rows(args: Args) -> Rows:
    kills = LONG_KILLS if args.long else KILLS
    laws = [GREEDY if number % 2 else {**COUPLED, "seed": number} for number in range(STREAMS)]
    wave = [Stream(prompt(number), {**ASKED, **law}) for number, law in enumerate(laws)]
    with tempfile.TemporaryDirectory(prefix="dspark-forms-") as folder:
        settings = {"journal": str(Path(folder) / "journal"), "warm_up_s": 0}
        with FaultCell(verifiers=2, drafters=2, coordinator=settings) as cell:
            everybody = list(cell.children)
            calm, answers = (
                asyncio.run(hurt(cell, wave, cell.replace, everybody, times, patient=False))[0]
                for times in (0, kills)
            )
            settled = cell.settled(30.0)
    tokenizer = Tokenizer.from_file(str(TARGET / "tokenizer.json"))
    same = sum(one.ids == calm[number % STREAMS].ids for number, one in enumerate(answers))
    valid = sum(fits(one, tokenizer) for one in (*calm, *answers))
    value = {"kills": kills, "answers": len(answers), "same_ids": same, "all_freed": settled}
    value |= {"valid": valid, "of": len(calm) + len(answers)}
    value["tokens"] = sum(len(one.ids) for one in calm)
    bars = {
        "every answer has the ids of a calm run": same == len(answers),
        "and fits its schema": valid == value["of"],
        "all freed": settled,
    }
    yield statement("36", "answers in a form under kills", value, bars)
