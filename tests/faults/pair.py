"""The pair that every promise about ids or laws is tried on: `tests/data/pair`, and prompts it is
not sure about.

A target of the Qwen3 shape and a DSpark drafter of it, of which about half of the drafts that are
looked at are kept: engines that can be wrong, in steps of milliseconds. Engines without weights are
for load and for time only.
"""

import functools
import json
from pathlib import Path
from typing import Any

from tokenizers import Tokenizer

ROOT = Path(__file__).resolve().parents[2]
FOLDER = ROOT / "tests" / "data" / "pair"
TARGET, DRAFTER = FOLDER / "target", FOLDER / "drafter"
FLAT = ROOT / "benchmarks" / "synthetic" / "flat.yaml"  # engines that only take time
VOCABULARY = 512

# What is promised of each: the ids themselves, or that recorded choices lead to them.
GREEDY: dict[str, Any] = {"temperature": 0.0}
COUPLED: dict[str, Any] = {"temperature": 0.8, "rule": "coupled"}
BLOCK: dict[str, Any] = {"temperature": 0.8, "rule": "block"}
TOKEN: dict[str, Any] = {"temperature": 0.8, "top_p": 0.95, "rule": "token"}
ALL_PARAMS = (GREEDY, COUPLED, BLOCK, TOKEN)


@functools.cache
def prompts() -> tuple[tuple[int, ...], ...]:
    """32 of 32 ids each."""
    tokenizer = Tokenizer.from_file(str(TARGET / "tokenizer.json"))
    lines = (FOLDER / "prompts.jsonl").read_text(encoding="utf-8").splitlines()
    return tuple(tuple(tokenizer.encode(json.loads(line)["turns"][0]).ids) for line in lines)


def prompt(number: int, length: int = 32) -> list[int]:
    """The first ids of one of them; a longer one goes on with those that follow it."""
    ids = [
        token
        for step in range(-(-length // 32))
        for token in prompts()[(number + step) % len(prompts())]
    ]
    return ids[:length]
