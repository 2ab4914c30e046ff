"""The pair under measurement and the prompts for it: the shipped one with its held-out text, or any other with ids.

A target without a tokenizer gets random token ids from a fixed key instead of text.
"""

from __future__ import annotations

import argparse
import json
import random
import signal
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import NoReturn

ROOT = Path(__file__).resolve().parent.parent
PROMPTS = Path(__file__).resolve().parent / "prompts"
DOMAINS = ("code", "prose", "math")

Prompt = str | list[int]


@dataclass(frozen=True)
class Pair:
    """Folders of a target and its drafter."""

    target: Path
    drafter: Path

    @property
    def has_tokenizer(self) -> bool:
        return (self.target / "tokenizer.json").is_file()

    def _config(self) -> dict[str, int]:
        content: dict[str, int] = json.loads((self.target / "config.json").read_text(encoding="utf-8"))
        return content

    @property
    def context_length(self) -> int:
        return int(self._config()["max_position_embeddings"])

    @property
    def vocabulary(self) -> int:
        return int(self._config()["vocab_size"])

    def prompts(self, domain: str, count: int, *, skip: int = 0) -> list[Prompt]:
        """`count` held-out prompts of a domain."""
        if self.has_tokenizer:
            lines = (PROMPTS / f"{domain}.jsonl").read_text(encoding="utf-8").splitlines()
            chosen: list[Prompt] = [str(json.loads(line)["prompt"]) for line in lines[skip : skip + count]]
            if len(chosen) < count:
                raise SystemExit(f"{PROMPTS / domain}.jsonl holds {len(lines)} prompts, {skip + count} are needed")
            return chosen
        vocabulary, rng = self.vocabulary, random.Random(f"{domain}/{skip}")
        return [[rng.randrange(2, vocabulary) for _ in range(rng.randrange(16, 48))] for _ in range(count)]

    def token_ids(self, prompt: Prompt) -> list[int]:
        """The prompt as the coordinator sees it."""
        if not isinstance(prompt, str):
            return prompt
        from coordinator.reception.tokenizer import Tokenizer

        tokenizer = Tokenizer.load(self.target)
        if tokenizer is None:
            raise SystemExit(f"{self.target}: has no tokenizer.json, and prompts are text")
        return list(tokenizer.encode(prompt))


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """`--target`, `--drafter` and `--json`."""
    parser.add_argument("--target", type=Path, default=ROOT / "models" / "demo-target", help="folder of the target")
    parser.add_argument("--drafter", type=Path, default=ROOT / "models" / "demo-dspark", help="folder of the drafter")
    parser.add_argument("--json", action="store_true", help="print one JSON row")


def leave_in_order() -> None:
    """SIGTERM ends a benchmark the way Ctrl-C does: every `with` and `finally` runs, so no server is left behind."""

    def leave(number: int, frame: object) -> NoReturn:
        signal.signal(signal.SIGTERM, signal.SIG_IGN)  # tidying up is not interrupted
        raise SystemExit(128 + number)

    signal.signal(signal.SIGTERM, leave)


def chosen(args: argparse.Namespace) -> Pair:
    """The pair of the command line; says what is missing. From here on SIGTERM ends the program in order."""
    leave_in_order()
    pair = Pair(args.target, args.drafter)
    for folder in (pair.target, pair.drafter):
        if not (folder / "config.json").is_file():
            raise SystemExit(f"{folder} is not a model folder; say --target FOLDER --drafter FOLDER")
    return pair


def distinct(ids: Sequence[int], n: int = 4) -> float:
    """Share of different n-grams: text that only repeats itself comes out near 0."""
    grams = [tuple(ids[start : start + n]) for start in range(len(ids) - n + 1)]
    return len(set(grams)) / len(grams) if grams else 1.0
