"""The law of answers in a form, over the wire: `python -m tests.wire_law.forms`.

A random pair over pieces of JSON, and a schema with few texts that can each be spelled in many
ways. What may come is read off the list of texts alone, and the target's law of every spelling is
enumerated by transformers and numpy: no part of the product computes what is expected.
"""

import argparse
import itertools
import json
import sys
from collections import Counter
from pathlib import Path
from typing import Any

import jsonschema
import numpy as np
import torch

from benchmarks.row import Row
from tests.wire_law.pair import served, write_tiny_pair
from tests.wire_law.sampling import sample
from tests.wire_law.statistics import holm, p_value
from tests.wire_law.verdict import P_BAR

DRAWS, SEED = 50_000, 32
RULES, POLICIES = ("token", "block", "coupled"), ("fixed:3", "adaptive")
KINDS, FLAGS = ("a", "ab", "bab"), (True, False)
SCHEMA: dict[str, Any] = {
    "type": "object",
    "properties": {"k": {"enum": list(KINDS)}, "n": {"type": "boolean"}},
    "required": ["k", "n"],
    "additionalProperties": False,
}
# No white space: there is one text to each value.
TEXTS = tuple(
    json.dumps({"k": kind, "n": flag}, separators=(",", ":")) for kind in KINDS for flag in FLAGS
)
WORDS = (
    '{"k":"', '{"', 'k":"', "a", "b", "ab", "ba", '","n":', '","', 'n":', "true", "tr", "ue",
    "false", "fal",
    "se", "}", "true}", "x", "0",
)  # fmt: skip
END, MASK = len(WORDS), len(WORDS) + 1
VOCABULARY = len(WORDS) + 2
PROMPT = (3, 4, 18, 6, 19)
ASKED = {"temperature": 1.0, "max_tokens": 32, "constraint": {"json_schema": SCHEMA}}
Spelling = tuple[int, ...]


def write_pair(folder: Path, *, vocabulary: int, seed: int) -> tuple[Path, Path]:
    """(target, drafter), the target with a tokenizer of `WORDS` and a token that ends an answer."""
    from tokenizers import Tokenizer, decoders, models

    target, drafter = write_tiny_pair(folder, vocabulary=vocabulary, seed=seed)
    words = {word: number for number, word in enumerate((*WORDS, "<end>", "<mask>"))}
    tokenizer = Tokenizer(models.WordLevel(words, unk_token="<mask>"))
    tokenizer.decoder = decoders.Fuse()
    tokenizer.add_special_tokens(["<end>", "<mask>"])
    tokenizer.save(str(target / "tokenizer.json"))
    (target / "generation_config.json").write_text(
        json.dumps({"eos_token_id": END}), encoding="utf-8"
    )
    return target, drafter


def may_come(said: str) -> list[int]:
    """Tokens that go on with a text, or end it."""
    going = [
        number
        for number, word in enumerate(WORDS)
        if any(text.startswith(said + word) for text in TEXTS)
    ]
    return [*going, END] if said in TEXTS else going


def law_of(target: Path) -> dict[Spelling, float]:
    """The chance of every spelling, its end included."""
    from transformers import AutoModelForCausalLM

    model = AutoModelForCausalLM.from_pretrained(target, dtype=torch.float32).double().eval()
    found: dict[Spelling, float] = {}
    waiting: list[tuple[Spelling, str, float]] = [((), "", 1.0)]
    while waiting:
        spelling, said, chance = waiting.pop()
        tokens = may_come(said)
        with torch.no_grad():
            logits = model(torch.tensor([[*PROMPT, *spelling]])).logits[0, -1].numpy()[tokens]
        weights = np.exp(logits - logits.max())
        for token, part in zip(tokens, weights / weights.sum(), strict=True):
            if token == END:
                found[*spelling, END] = chance * float(part)
            else:
                waiting.append(((*spelling, token), said + WORDS[token], chance * float(part)))
    return found


def _fits(text: str) -> bool:
    try:
        jsonschema.validate(json.loads(text), SCHEMA)
    except (ValueError, jsonschema.ValidationError):
        return False
    return True


def judge(law: dict[Spelling, float], counts: Counter[Spelling]) -> float:
    """p of the spellings that came; 0 where one came that may not."""
    if counts.keys() - law.keys():
        return 0.0
    return p_value(np.array([*law.values()]), np.array([counts[each] for each in law]))


def measure(endpoint: str, target: Path, draws: int, *, seed: int) -> list[dict[str, Any]]:
    """A row for each rule and policy, of `draws` answers a rule."""
    law = law_of(target)
    rows: list[dict[str, Any]] = []
    for number, (rule, policy) in enumerate(itertools.product(RULES, POLICIES)):
        asked = {"rule": rule, "policy": policy, **ASKED}
        each, first = draws // len(POLICIES), seed + number * draws
        made = sample(endpoint, [PROMPT], each, first_seed=first, **asked)
        counts = Counter({ids: count for (_, ids), count in made.answers.items()})
        rows.append(
            {
                "rule": rule,
                "policy": policy,
                "answers": counts.total(),
                "unfit": sum(count for text, count in made.texts.items() if not _fits(text)),
                "spellings": len(law),
                "seen": len(counts),
                "tokens_a_round": round(made.tokens_a_round, 2),
                "p": judge(law, counts),
            }
        )
    for row, value in zip(rows, holm([row["p"] for row in rows]), strict=True):
        row["p_corrected"] = value
    return rows


def main(argv: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.wire_law.forms", description=__doc__)
    parser.add_argument(
        "--draws", type=int, default=DRAWS, metavar="N", help=f"answers a rule ({DRAWS})"
    )
    parser.add_argument(
        "--seed", type=int, default=SEED, help="first request seed, and key of the checkpoints"
    )
    args = parser.parse_args(argv)
    with served(write_pair, VOCABULARY, args.seed) as (endpoint, target):
        rows = measure(endpoint, target, args.draws, seed=args.seed)
    for row in rows:
        print(json.dumps(row))
    least, unfit = min(row["p_corrected"] for row in rows), sum(row["unfit"] for row in rows)
    holds = least > P_BAR and not unfit
    value = {"p_corrected": least, "unfit": unfit, "answers": sum(row["answers"] for row in rows)}
    bar = f"p > {P_BAR}, all valid"
    return Row("wire-law-forms", "answers follow the masked law", value, bar, holds).show(
        as_json=True
    )


if __name__ == "__main__":
    sys.exit(main())
