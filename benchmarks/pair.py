"""The pair under measurement and the prompts for it: questions of our own, for the shipped pair or
any other.

A target without a tokenizer gets random token ids from a fixed key instead of text.
"""

from __future__ import annotations

import argparse
import json
import random
import signal
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import NoReturn

from coordinator.http.template import question_renderer
from dspark import shipped
from dspark.errors import DsparkError
from dspark.loadgen import prompts
from dspark.model.location import locate
from dspark.targets import folder_of, is_imported

ROOT = Path(__file__).resolve().parent.parent
DOMAINS = prompts.DOMAINS

Prompt = str | list[int]


@dataclass(frozen=True)
class Pair:
    """Folders of a target and its drafter."""

    target: Path
    drafter: Path

    @property
    def has_tokenizer(self) -> bool:
        return (self.target / "tokenizer.json").is_file()

    @property
    def vocabulary(self) -> int:
        return int(
            json.loads((self.target / "config.json").read_text(encoding="utf-8"))["vocab_size"]
        )

    def prompts(self, domain: str, count: int) -> list[Prompt]:
        """`count` prompts of a domain, through the target's chat template."""
        if self.has_tokenizer:
            found = prompts.built_in((domain,), question_renderer(str(self.target)))[:count]
            if len(found) < count:
                raise SystemExit(f"{domain}: {len(found)} prompts, {count} are needed")
            return [
                question.prompt if isinstance(question.prompt, str) else [*question.prompt]
                for question in found
            ]
        vocabulary, rng = self.vocabulary, random.Random(domain)
        return [
            [rng.randrange(2, vocabulary) for _ in range(rng.randrange(16, 48))]
            for _ in range(count)
        ]

    def token_ids(self, prompt: Prompt) -> list[int]:
        """Token ids of the prompt, as the coordinator makes them."""
        if not isinstance(prompt, str):
            return prompt
        from coordinator.reception.tokenizer import Tokenizer

        tokenizer = Tokenizer.load(self.target)
        if tokenizer is None:
            raise SystemExit(f"{self.target}: has no tokenizer.json, and prompts are text")
        return list(tokenizer.encode(prompt))


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """`--target` and `--drafter`."""
    parser.add_argument("--target", default=shipped.TARGET, help="folder, name or hub id")
    parser.add_argument("--drafter", help="folder or hub id (the shipped one)")


def leave_in_order() -> None:
    """SIGTERM ends a benchmark the way Ctrl-C does: every `with` and `finally` runs, so no server
    is left behind."""

    def leave(number: int, frame: object) -> NoReturn:
        signal.signal(signal.SIGTERM, signal.SIG_IGN)  # tidying up is not interrupted
        raise SystemExit(128 + number)

    signal.signal(signal.SIGTERM, leave)


def chosen(args: argparse.Namespace) -> Pair:
    """The pair of the command line; SystemExit names what is missing. From here on SIGTERM ends the
    program in order."""
    leave_in_order()
    if is_imported(args.target) and not folder_of(args.target).is_dir():
        print(
            f"{args.target}: importing it once, into {folder_of(args.target)}",
            file=sys.stderr,
            flush=True,
        )
    try:
        return Pair(locate(args.target), locate(args.drafter or shipped.drafter()))
    except DsparkError as error:
        raise SystemExit(f"{error}; say --target FOLDER --drafter FOLDER") from error


def shipped_pair() -> Pair:
    """The shipped pair; its target is fetched where it was not yet."""
    return Pair(locate(shipped.TARGET), shipped.drafter())
