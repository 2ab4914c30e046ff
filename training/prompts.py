"""Held-out prompts as text: whole lines, without the last line break, of held-out documents, one JSON object per line.

The demo, the tests and the evaluation read the same files.
"""

import json
import random
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from pathlib import Path

from transformers import PreTrainedTokenizerFast

from training.corpus import DOMAINS, Document

PER_DOMAIN = 64
PER_DOCUMENT = 4
TOKENS = (40, 100)


@dataclass(frozen=True, slots=True)
class Prompt:
    id: str
    domain: str
    prompt: str


def beginnings(document: Document, rng: random.Random) -> Iterator[list[str]]:
    """Lines from the start of the document, then from its paragraphs in random order (a worksheet has one start)."""
    lines = document.text.splitlines(keepends=True)
    yield lines
    if document.domain == "math":
        return
    starts = [n + 1 for n, line in enumerate(lines[:-4]) if not line.strip() and lines[n + 1].strip()]
    for start in rng.sample(starts, min(len(starts), 40)):
        yield lines[start:]


def whole_lines(lines: list[str], tokenizer: PreTrainedTokenizerFast, most: int) -> str | None:
    """As many whole lines as stay within `most` tokens, or None if those are too few."""
    taken = ""
    for line in lines:
        if len(tokenizer.encode(taken + line)) > most:
            break
        taken += line
    rest = len("".join(lines)) - len(taken)
    # A line break is one token with the indentation after it, so the last one is left to the target.
    taken = taken.rstrip()
    return taken if rest and len(tokenizer.encode(taken)) >= TOKENS[0] else None


def choose(documents: list[Document], tokenizer: PreTrainedTokenizerFast, seed: int) -> list[Prompt]:
    """`PER_DOMAIN` prompts of each domain, at most `PER_DOCUMENT` of one document, different lengths."""
    chosen = []
    for domain in DOMAINS:
        rng = random.Random(f"prompts/{seed}/{domain}")
        candidates = [d for d in documents if d.held_out and d.domain == domain]
        rng.shuffle(candidates)
        found: list[str] = []
        for each in range(1, PER_DOCUMENT + 1):
            for document in candidates:
                for number, lines in enumerate(beginnings(document, random.Random(f"{seed}/{document.name}"))):
                    if len(found) >= PER_DOMAIN or number > 8 * each:
                        break
                    text = whole_lines(lines, tokenizer, rng.randint(60, TOKENS[1]))
                    if text is not None and text not in found:
                        found.append(text)
                        break
        chosen += [Prompt(f"{domain}-{n:02d}", domain, text) for n, text in enumerate(found[:PER_DOMAIN])]
    return chosen


def write(prompts: list[Prompt], folder: Path) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    for domain in DOMAINS:
        with (folder / f"{domain}.jsonl").open("w", encoding="utf-8") as file:
            for prompt in prompts:
                if prompt.domain == domain:
                    file.write(json.dumps(asdict(prompt)) + "\n")


def read(folder: Path) -> list[Prompt]:
    prompts = []
    for domain in DOMAINS:
        with (folder / f"{domain}.jsonl").open(encoding="utf-8") as file:
            prompts += [Prompt(**json.loads(line)) for line in file]
    return prompts
