"""Sources of prompts: a file, the built-in questions, or random token ids of a given length."""

from __future__ import annotations

import json
import random
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from dspark.client import Options
from dspark.errors import InvalidRequest, in_short

BUILT_IN = Path(__file__).resolve().parent / "questions"
DOMAINS = ("chat", "code", "reasoning", "writing")


@dataclass(frozen=True, slots=True)
class Question:
    """One request to send. `prompt` is text or token ids; max_tokens None: that of the run."""

    prompt: str | tuple[int, ...]
    domain: str = ""
    max_tokens: int | None = None

    def options(self, common: Options, number: int) -> Options:
        """The options of its request, of those of a run; `number` keys its draws."""
        own = common.copy()
        if self.max_tokens is not None:
            own["max_tokens"] = self.max_tokens
        if (seed := own.get("seed")) is not None:
            own["seed"] = seed + number
        return own


def built_in(
    domains: Sequence[str] = DOMAINS, render: Callable[[str], str] | None = None
) -> list[Question]:
    """The built-in questions, their domains in turns; `render` makes a prompt of each, by a chat
    template for example."""

    def asked(row: str, domain: str) -> Question:
        (text,) = json.loads(row)["turns"]
        return Question(text if render is None else render(text), domain)

    columns = [
        [
            asked(row, domain)
            for row in (BUILT_IN / f"{domain}.jsonl").read_text(encoding="utf-8").splitlines()
        ]
        for domain in domains
    ]
    return [question for row in zip(*columns, strict=False) for question in row]


def from_file(path: Path) -> list[Question]:
    """JSON lines with `prompt` (text) or `prompt_token_ids`, and optionally `domain` and
    `max_tokens`."""
    try:
        lines = path.read_bytes().split(b"\n")  # texts may hold what else ends a line
    except OSError as error:
        raise InvalidRequest("prompts", f"{path} cannot be read: {in_short(error)}") from None
    found = [
        _read(line, f"{path}:{number}") for number, line in enumerate(lines, 1) if line.strip()
    ]
    if not found:
        raise InvalidRequest("prompts", f"{path} holds no prompt")
    return found


def random_ids(count: int, length: int, vocabulary: int, seed: int) -> list[Question]:
    """`count` prompts of `length` uniform token ids; the lowest sixteen, often special, are left
    out."""
    rng, low = random.Random(f"random-ids/{seed}"), min(16, vocabulary - 1)
    return [
        Question(tuple(rng.randrange(low, vocabulary) for _ in range(length)), "random")
        for _ in range(count)
    ]


def cycle(questions: Sequence[Question], seed: int) -> Iterator[Question]:
    """Yields the questions without end, shuffled anew each time; the seed fixes the order."""
    rng, order = random.Random(f"order/{seed}"), list(questions)
    while True:
        rng.shuffle(order)
        yield from order


def _read(line: bytes, place: str) -> Question:
    try:
        content = json.loads(line)
    except ValueError as error:
        raise InvalidRequest("prompts", f"{place}: not JSON ({error})") from None
    if not isinstance(content, dict):
        raise InvalidRequest("prompts", f"{place}: not a JSON object")
    text, ids = content.get("prompt"), content.get("prompt_token_ids")
    if isinstance(text, str) == isinstance(ids, list):
        raise InvalidRequest(
            "prompts", f"{place}: give either `prompt`, a text, or `prompt_token_ids`, a list"
        )
    if isinstance(ids, list) and not all(isinstance(token, int) and token >= 0 for token in ids):
        raise InvalidRequest("prompts", f"{place}: `prompt_token_ids` must be whole numbers from 0")
    longest = content.get("max_tokens")
    if longest is not None and (not isinstance(longest, int) or longest < 1):
        raise InvalidRequest("prompts", f"{place}: `max_tokens` must be a whole number from 1")
    return Question(
        text if isinstance(text, str) else tuple(ids or ()), str(content.get("domain", "")), longest
    )
