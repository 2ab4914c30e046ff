"""What forms of answers cost at a verifier: a mask of a slot, the first use of a schema, and grammars that explode.

On the vocabulary of the shipped target (49,152 tokens), or of `--target`. Masks are those of slots along answers that
fit, as in rounds of five slots, and are put on logits; a schema's first use is everything between its admission and
its matcher, in a compiler that runs.
"""

from __future__ import annotations

import argparse
import json
import statistics
import time
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import torch
from tokenizers import Tokenizer

from benchmarks.row import Row, note
from dspark.decoding.masking import mask
from dspark.model.location import locate
from dspark.types import Constraint, ConstraintKind
from verify_service.grammars.compiling import checked, make_compiler
from verify_service.grammars.compiling import compiled as compile_form
from verify_service.grammars.grammars import GrammarFailed, GrammarRefused, Grammars
from verify_service.interface import Grammar

SLOTS = 5
MASK_MS, FIRST_MS, REFUSED_S = 0.3, 200.0, 1.0
KIND = ConstraintKind
STRING, WHOLE, LINKED = {"type": "string"}, {"type": "integer"}, {"$ref": "#/$defs/n"}


def schema(**properties: Any) -> dict[str, Any]:
    return {"type": "object", "properties": properties, "required": list(properties), "additionalProperties": False}


# Written for this project: (schema, an answer that fits).
SCHEMAS: list[tuple[dict[str, Any], object]] = [
    (schema(name=STRING, age=WHOLE), {"name": "Ada Lovelace", "age": 36}),
    (
        schema(kind={"enum": ["cat", "dog", "bird"]}, tags={"type": "array", "items": STRING, "maxItems": 4}),
        {"kind": "bird", "tags": ["small", "loud", "süß"]},
    ),
    (
        schema(code={"type": "string", "pattern": "^[A-Z]{3}-[0-9]{4}$"}, at=schema(x={"type": "number"}, y=WHOLE)),
        {"code": "ABC-1234", "at": {"x": -1.5, "y": 7}},
    ),
    (
        {"$ref": "#/$defs/n", "$defs": {"n": schema(v=WHOLE, next={"anyOf": [LINKED, {"type": "null"}]})}},
        {"v": 1, "next": {"v": 2, "next": {"v": 3, "next": None}}},
    ),
]  # fmt: skip


def hostile() -> dict[str, Constraint]:
    """Forty grammars that explode, or would."""

    def nested(count: int) -> str:
        return '{"type":"array","items":' * count + "{}" + "}" * count

    def optional(count: int) -> str:
        return json.dumps({"type": "object", "properties": {f"key_{n}": STRING for n in range(count)}})

    def repeated(depth: int, count: int) -> str:
        return "(" * depth + "x" + f"{{1,{count}}})" * depth

    made = {
        **{f"lists nested {n} times": (KIND.JSON_SCHEMA, nested(n)) for n in (200, 500, 1000, 2000, 4000, 9000)},
        **{f"{n} optional keys": (KIND.JSON_SCHEMA, optional(n)) for n in (100, 200, 400, 1000, 3000, 6000)},
        **{f"repeated {n} deep": (KIND.REGEX, repeated(n, 900) + "y") for n in (2, 3, 4, 6, 9)},
        **{f"{n} parentheses": (KIND.REGEX, "(" * n + "x" + ")" * n) for n in (500, 5_000, 50_000)},
        **{f"{n} words": (KIND.REGEX, "|".join(f"word{k}x" for k in range(n))) for n in (1_000, 5_000, 20_000)},
        **{f"(x+)+ {n} times": (KIND.REGEX, "(x+)+" * n + "y") for n in (1, 20, 400)},
        **{f"(.*x) {n} times": (KIND.REGEX, f"(.*x){{{n}}}") for n in (10, 100, 1000)},
        **{f"{n} values": (KIND.JSON_SCHEMA, json.dumps({"enum": list(map(str, range(n)))})) for n in (5_000, 20_000)},
        "a reference to itself": (KIND.JSON_SCHEMA, '{"$ref":"#"}'),
        "references in a circle": (
            KIND.JSON_SCHEMA,
            '{"$ref":"#/$defs/a","$defs":{"a":{"$ref":"#/$defs/b"},"b":{"$ref":"#/$defs/a"}}}',
        ),
        "a rule that is itself": (KIND.GRAMMAR, "root ::= root"),
        "left recursion": (KIND.GRAMMAR, 'root ::= root root root | root "a" | "a" | ""'),
        "rules without end": (KIND.GRAMMAR, "\n".join(f"r{n} ::= r{n + 1} r{n + 1}" for n in range(5_000))),
        "a string of a billion": (KIND.JSON_SCHEMA, '{"type":"string","minLength":1000000000}'),
        "a string to a billion": (KIND.JSON_SCHEMA, '{"type":"string","maxLength":1000000000}'),
        "a list of a million": (KIND.JSON_SCHEMA, '{"type":"array","items":{"type":"integer"},"minItems":1000000}'),
        "no JSON": (KIND.JSON_SCHEMA, "{" * 100_000),
    }  # fmt: skip
    return {name: Constraint(*given) for name, given in made.items()}


def timed(work: Callable[[], Any]) -> tuple[float, Any]:
    began = time.perf_counter()
    result = work()
    return time.perf_counter() - began, result


def compiled(grammars: Grammars, constraint: Constraint) -> Grammar | None:
    try:
        return grammars.compile(constraint, "").result(60)
    except (GrammarRefused, GrammarFailed):
        return None


def own_compiler(folder: Path, vocab_size: int, stop_ids: Sequence[int]) -> Callable[[Constraint], float]:
    """Milliseconds of processor time that a grammar takes to be tried and compiled, whatever else runs here."""
    compiler = make_compiler(folder, vocab_size, stop_ids)

    def took(constraint: Constraint) -> float:
        began = time.thread_time()
        checked(compile_form(compiler, constraint))
        compile_form(compiler, constraint)
        return 1e3 * (time.thread_time() - began)

    return took


def mask_ms(grammar: Grammar, ids: list[int], vocab: int) -> list[float]:
    """Milliseconds of processor time a slot, along an answer, rounds of `SLOTS` slots and a bonus."""
    matcher, costs = grammar.matcher(), []
    for at in range(0, len(ids), SLOTS):
        drafted = ids[at : at + SLOTS]
        logits = torch.zeros(len(drafted) + 1, vocab)

        def work(drafted: list[int] = drafted, logits: torch.Tensor = logits) -> None:
            mask(logits, [(0, matcher.masks(drafted))])

        began = time.thread_time()  # what others do on the machine is no cost of a mask
        work()
        costs.append(1e3 * (time.thread_time() - began) / (len(drafted) + 1))
        matcher.accept(drafted)
    return costs


def main(argv: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.forms", description=__doc__)
    parser.add_argument("--json", action="store_true", help="print one JSON row")
    parser.add_argument("--target", default="smollm2", help="whose vocabulary it is")
    args = parser.parse_args(argv)
    from dspark.model.checkpoint import load_target

    torch.set_num_threads(1)
    target = load_target(args.target)
    grammars = Grammars(target.folder, target.vocab_size, target.stop_ids)
    words = Tokenizer.from_file(str(locate(target.folder) / "tokenizer.json"))
    compiled(grammars, Constraint(KIND.REGEX, "x"))  # starts the compiler
    own = own_compiler(target.folder, target.vocab_size, target.stop_ids)
    first, again, slots, alone = [], [], list[float](), []
    for made, answer in SCHEMAS:
        constraint = Constraint(KIND.JSON_SCHEMA, json.dumps(made))
        took, grammar = timed(partial(compiled, grammars, constraint))
        assert grammar is not None, made
        alone.append(own(constraint))
        first.append(1e3 * took)
        again.append(1e3 * timed(partial(compiled, grammars, constraint))[0])
        for indent in (None, 2):
            ids = words.encode(json.dumps(answer, ensure_ascii=False, indent=indent)).ids
            mask_ms(grammar, ids, target.vocab_size)
            slots += mask_ms(grammar, ids, target.vocab_size)
    worst, refused, served = 0.0, 0, 0
    for name, constraint in hostile().items():
        took, grammar = timed(partial(compiled, grammars, constraint))
        worst = max(worst, took)
        refused, served = refused + (grammar is None), served + (grammar is not None)
        ms = 0.0
        if grammar is not None:
            ms = 1e3 * timed(partial(grammar.matcher().masks, ()))[0]
        note(f"{name}: {'refused' if grammar is None else f'served, first mask {ms:.2f} ms'} after {took:.2f} s")
    value = {
        "vocabulary": target.vocab_size,
        "mask_ms_a_slot": round(statistics.median(slots), 4),
        "mask_ms_a_slot_p99": round(sorted(slots)[int(0.99 * len(slots))], 4),
        "first_use_ms": [round(each, 1) for each in first],
        "first_use_processor_ms": [round(each, 1) for each in alone],
        "again_ms": round(max(again), 3),
        "hostile": {"refused": refused, "served": served, "longest_s": round(worst, 2)},
    }
    holds = value["mask_ms_a_slot"] <= MASK_MS and max(first) <= FIRST_MS and worst <= REFUSED_S  # type: ignore[operator]
    bar = f"mask <= {MASK_MS} ms, first use <= {FIRST_MS:g} ms, hostile <= {REFUSED_S:g} s"
    return Row("forms", "what forms cost", value, bar, holds).show(as_json=args.json)


if __name__ == "__main__":
    raise SystemExit(main())
