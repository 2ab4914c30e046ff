"""The held-out prompts that ship with the project: `python -m training.held_out --tokenizer models/demo-target`.

Whole lines of documents that the demo pair was never trained on, and of those only what has no stretch in common with
training text. One set to evaluate on, one to calibrate on, and one more for the calibration of greedy requests, of what
the first two left of the same documents and of worksheets of its own. No prompt is in two sets, nor do two overlap.
"""

from __future__ import annotations

import argparse
import json
import random
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from training.arithmetic import worksheet
from training.corpus import DOMAINS, SHEET_LENGTHS, Document, collect

FOLDER = Path(__file__).parent / "held-out"
SETS = {"evaluate": 96, "calibrate": 192}  # prompts of each domain
GREEDY = {"code": 480, "prose": 240, "math": 320}  # prompts of the third set, most
TOKENS = (24, 96)
STRETCH = 100  # characters that a prompt may not share with training text


def files(name: str) -> list[Path]:
    """The shipped files of a set, one for each domain."""
    return [_place(FOLDER, name, domain) for domain in DOMAINS]


def _place(folder: Path, name: str, domain: str) -> Path:
    suffix = "-greedy" if name == "calibrate-greedy" else ""  # rounds go by the names of files: no two are alike
    return folder / name / f"{domain}{suffix}.jsonl"


def paragraphs(document: Document, *, apart: bool = True) -> Iterator[str]:
    """Stretches that begin where a paragraph, a function or a problem does; `apart`: none reaches into the next."""
    lines = document.text.splitlines(keepends=True)
    starts = [0] + [
        n for n in range(1, len(lines)) if not lines[n - 1].strip() and lines[n].strip() and document.domain != "math"
    ]
    at = 0
    for start in starts:
        if start >= at or not apart:  # what an earlier prompt reached into is not used again
            text = "".join(lines[start : start + 24])
            yield text
            at = start + 24


def shortened(text: str, tokenizer: Any, most: int) -> str | None:
    """Whole lines of at most `most` tokens; None where fewer than the least are left."""
    taken = ""
    for line in text.splitlines(keepends=True):
        if len(tokenizer.encode(taken + line)) > most:
            break
        taken += line
    taken = taken.rstrip()
    return taken if len(tokenizer.encode(taken)) >= TOKENS[0] else None


def known(text: str, training: str) -> bool:
    """Whether any stretch of the prompt, in steps of half a stretch, is in the training text; a short prompt counts
    as one stretch."""
    places = range(0, max(1, len(text) - STRETCH + 1), STRETCH // 2)
    return any(text[place : place + STRETCH] in training for place in places)


def choose(documents: Sequence[Document], tokenizer: Any, domain: str, seed: int) -> list[str]:
    """Enough prompts for all sets, in random order."""
    training = "\0".join(d.text for d in documents if d.domain == domain and not d.held_out)
    rng = random.Random(f"held-out/{seed}/{domain}")
    candidates = [text for d in documents if d.domain == domain and d.held_out for text in paragraphs(d)]
    rng.shuffle(candidates)
    found: list[str] = []
    for text in candidates:
        prompt = shortened(text, tokenizer, rng.randint(48, TOKENS[1]))
        if prompt is not None and prompt not in found and not known(prompt, training):
            found.append(prompt)
        if len(found) == sum(SETS.values()):
            break
    return found


def choose_more(
    documents: Sequence[Document], tokenizer: Any, domain: str, seed: int, taken: Sequence[str]
) -> list[str]:
    """Prompts that share no line with those `taken`, from any paragraph; worksheets are new ones."""
    training = "\0".join(d.text for d in documents if d.domain == domain and not d.held_out)
    rng = random.Random(f"held-out/greedy/{seed}/{domain}")
    if domain == "math":
        candidates = [worksheet(rng, rng.choice(SHEET_LENGTHS)) for _ in range(2 * GREEDY[domain])]
    else:
        candidates = [
            text for d in documents if d.domain == domain and d.held_out for text in paragraphs(d, apart=False)
        ]
        rng.shuffle(candidates)
    seen = {line for text in taken for line in _telling(text)} if domain != "math" else set()
    found: list[str] = []
    for text in candidates:
        prompt = shortened(text, tokenizer, rng.randint(48, TOKENS[1]))
        if prompt is None or prompt in taken or seen.intersection(_telling(prompt)) or known(prompt, training):
            continue
        found.append(prompt)
        if domain != "math":
            seen.update(_telling(prompt))
        if len(found) == GREEDY[domain]:
            break
    return found


def _telling(text: str) -> set[str]:
    """Lines that are of this text alone; short ones are in many."""
    return {line.strip() for line in text.splitlines() if len(line.strip()) >= 20}


def make(folder: Path, tokenizer: Any, seed: int = 0) -> dict[str, int]:
    """Writes `evaluate/DOMAIN.jsonl`, `calibrate/DOMAIN.jsonl` and `calibrate-greedy/`; prompts by file."""
    documents = collect(seed)
    counts = {}
    for domain in DOMAINS:
        texts = choose(documents, tokenizer, domain, seed)
        share = len(texts) * SETS["evaluate"] // sum(SETS.values())
        more = choose_more(documents, tokenizer, domain, seed, texts)
        for name, part in (("evaluate", texts[:share]), ("calibrate", texts[share:]), ("calibrate-greedy", more)):
            path = _place(folder, name, domain)
            path.parent.mkdir(parents=True, exist_ok=True)
            rows = [{"id": f"{domain}-{name}-{n:03}", "domain": domain, "turns": [t]} for n, t in enumerate(part)]
            path.write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")
            counts[f"{name}/{domain}"] = len(part)
    return counts


def main() -> None:
    parser = argparse.ArgumentParser(prog="training.held_out", description=__doc__)
    parser.add_argument("--tokenizer", type=Path, required=True, help="folder of the demo target")
    parser.add_argument("--folder", type=Path, default=FOLDER)
    parser.add_argument("--seed", type=int, default=0)
    chosen = parser.parse_args()
    from training.tokenizer import load

    for name, count in make(chosen.folder, load(chosen.tokenizer), chosen.seed).items():
        print(name, count)


if __name__ == "__main__":
    main()
