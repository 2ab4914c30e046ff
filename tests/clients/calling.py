"""How the programs of this folder run: `python -m tests.clients.PROGRAM URL` prints what became of
each call, as JSON.

They run in the clients' own environment, which holds nothing of this project.
"""

import json
import sys
import traceback
from collections.abc import Callable, Mapping
from typing import Literal

from pydantic import BaseModel

Call = Callable[[str], None]
TOOL = {
    "name": "weather",
    "description": "What it will be like.",
    "parameters": {
        "type": "object",
        "properties": {
            "place": {"enum": ["here", "there"]},
            "days": {"type": "integer", "minimum": 1, "maximum": 7},
        },
        "required": ["place", "days"],
        "additionalProperties": False,
    },
}


class Thing(BaseModel):
    """A thing."""

    kind: Literal["plain", "fancy"]
    good: bool


def check(arguments: Mapping[str, object]) -> None:
    assert set(arguments) == {"place", "days"}, arguments
    assert arguments["place"] in ("here", "there"), arguments
    assert arguments["days"] in range(1, 8), arguments


def run(calls: Mapping[str, Call]) -> None:
    """Every call by its name in docs/openai.md, with the cell's address."""
    told = {}
    for name, call in calls.items():
        try:
            call(sys.argv[1])
            told[name] = ""
        except Exception:
            told[name] = traceback.format_exc()
    print(json.dumps(told))
