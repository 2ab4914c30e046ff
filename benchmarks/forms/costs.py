"""What forms cost at a verifier: a mask of a slot, and the first use of a schema.

On the vocabulary of a target. Masks are those of slots along answers that fit, as in rounds of five
slots, and are applied to logits; a schema's first use is everything from its admission to its
matcher, in a compiler that runs.
"""

from __future__ import annotations

import json
import time
from pathlib import Path
from typing import Any

import torch
from tokenizers import Tokenizer

from benchmarks.forms.cases import closed
from benchmarks.row import Row
from dspark.decoding.masking import mask
from dspark.loadgen.summary import spread
from dspark.model.checkpoint import load_target
from dspark.types import Constraint, ConstraintKind
from verify_service.batch_runner import Grammar
from verify_service.grammars.grammars import Grammars

SLOTS = 5
MASK_MS, FIRST_MS = 0.3, 200.0
STRING, WHOLE, LINKED = {"type": "string"}, {"type": "integer"}, {"$ref": "#/$defs/n"}

# Written for this project: (schema, an answer that fits).
SCHEMAS: list[tuple[dict[str, Any], object]] = [
    (closed({"name": STRING, "age": WHOLE}), {"name": "Ada Lovelace", "age": 36}),
    (
        closed(
            {
                "kind": {"enum": ["cat", "dog", "bird"]},
                "tags": {"type": "array", "items": STRING, "maxItems": 4},
            }
        ),
        {"kind": "bird", "tags": ["small", "loud", "süß"]},
    ),
    (
        closed(
            {
                "code": {"type": "string", "pattern": "^[A-Z]{3}-[0-9]{4}$"},
                "at": closed({"x": {"type": "number"}, "y": WHOLE}),
            }
        ),
        {"code": "ABC-1234", "at": {"x": -1.5, "y": 7}},
    ),
    (
        closed(
            {
                "title": {"type": "string", "minLength": 1, "maxLength": 120},
                "summary": {"type": "string", "maxLength": 2000},
                "author": {"type": "string", "pattern": "^[A-Za-z .-]{1,80}$"},
            }
        ),
        {"title": "On ferns", "summary": "Which of them grow in the shade.", "author": "A. B."},
    ),
    (
        {
            "$ref": "#/$defs/n",
            "$defs": {"n": closed({"v": WHOLE, "next": {"anyOf": [LINKED, {"type": "null"}]}})},
        },
        {"v": 1, "next": {"v": 2, "next": {"v": 3, "next": None}}},
    ),
]


def compiled(grammars: Grammars, constraint: Constraint) -> tuple[float, Any]:
    """(milliseconds until it is compiled, the grammar)."""
    began = time.perf_counter()
    grammar = grammars.compile(constraint, "").result(60)
    return 1e3 * (time.perf_counter() - began), grammar


def mask_s(grammar: Grammar, ids: list[int], vocab: int) -> list[float]:
    """Seconds of processor time a slot, along an answer, rounds of `SLOTS` slots and a bonus."""
    matcher, costs = grammar(), []
    for at in range(0, len(ids), SLOTS):
        drafted = ids[at : at + SLOTS]
        logits = torch.zeros(len(drafted) + 1, vocab)
        began = time.thread_time()  # other work of the machine is no cost of a mask
        mask(logits, [(0, matcher.masks(drafted))])
        costs.append((time.thread_time() - began) / (len(drafted) + 1))
        matcher.accept(drafted)
    return costs


def row(folder: Path) -> Row:
    """Measures with the target in `folder`."""
    torch.set_num_threads(1)
    target = load_target(folder)
    grammars = Grammars(target.folder, target.vocab_size, target.stop_ids)
    words = Tokenizer.from_file(str(folder / "tokenizer.json"))
    compiled(grammars, Constraint(ConstraintKind.REGEX, "x"))  # starts the compiler
    first, again, slots = list[float](), list[float](), list[float]()
    for made, answer in SCHEMAS:
        constraint = Constraint(ConstraintKind.JSON_SCHEMA, json.dumps(made))
        took, grammar = compiled(grammars, constraint)
        first.append(took)
        again.append(compiled(grammars, constraint)[0])
        for indent in (None, 2):
            ids = words.encode(json.dumps(answer, ensure_ascii=False, indent=indent)).ids
            mask_s(grammar, ids, target.vocab_size)
            slots += mask_s(grammar, ids, target.vocab_size)
    a_slot = spread(slots) or {}
    value = {
        "vocabulary": target.vocab_size,
        "mask_ms_a_slot": a_slot["p50"],
        "mask_ms_a_slot_p99": a_slot["p99"],
        "first_use_ms": [round(each, 1) for each in first],
        "again_ms": round(max(again), 3),
    }
    bar = f"mask <= {MASK_MS} ms, first use <= {FIRST_MS:g} ms"
    return Row(
        "forms", "what forms cost", value, bar, a_slot["p50"] <= MASK_MS and max(first) <= FIRST_MS
    )
