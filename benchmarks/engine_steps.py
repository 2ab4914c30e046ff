"""What one step costs: the verify pass for 1 and for a whole block of tokens, the draft, and the plain library forward.

    python -m benchmarks.engine_steps --target TARGET --drafter DRAFTER

All variants take turns inside one process, so that a busy moment of the machine touches them alike; medians and lower
quintiles are printed. The bound on the speed-up of a lone sequence is what these numbers and tau allow.
"""

from __future__ import annotations

import argparse
import json
import platform
import time
from collections.abc import Callable

import numpy as np
import torch

from benchmarks.row import only_rows
from draft_service.config import DraftConfig
from draft_service.engine import DraftEngine, DraftItem
from dspark.types import NO_Q, Cursor, Law, SparseQ
from verify_service.config import VerifyConfig
from verify_service.engine import VerifyEngine
from verify_service.sequences import VerifyItem

GREEDY = Law(temperature=0.0)


def main(argv: list[str] | None = None) -> None:
    """Measures and prints."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--target", required=True, help="folder or hub id of the target")
    parser.add_argument("--drafter", required=True, help="folder or hub id of the drafter")
    parser.add_argument("--context", type=int, default=160, help="tokens before the anchor")
    parser.add_argument("--sequences", type=int, default=1, help="sequences in a step")
    parser.add_argument("--threads", type=int, default=1, help="torch threads")
    parser.add_argument("--repeats", type=int, default=60, help="samples of each variant")
    parser.add_argument("--temperature", type=float, default=0.0, help="0 is greedy")
    parser.add_argument("--json", action="store_true", help="print one JSON object")
    arguments = parser.parse_args(argv)
    only_rows()
    result = measure(arguments)
    if arguments.json:
        print(json.dumps(result))
        return
    for name, row in result["steps"].items():
        print(f"{name:28s} median {row['median_ms']:7.2f} ms   lower quintile {row['p20_ms']:7.2f} ms")
    print("bound on the speed-up by tau: " + "  ".join(f"{t}: {v:.2f}" for t, v in result["bound"].items()))


def measure(arguments: argparse.Namespace) -> dict[str, dict[str, dict[str, float]]]:
    """Every variant, in turns."""
    verifier, stock = (
        VerifyEngine.load(
            VerifyConfig(
                target=arguments.target, drafter=arguments.drafter, threads=arguments.threads, lean_layers=lean
            )
        )
        for lean in (True, False)
    )
    drafter = DraftEngine.load(DraftConfig(drafter=arguments.drafter, threads=arguments.threads))
    block = drafter.drafter.config.block_size
    variants = {
        "plain forward, 1 token": plain_step(arguments, 1),
        f"plain forward, {block + 1} tokens": plain_step(arguments, block + 1),
        **{
            f"{name}, {tokens} token{'s' * (tokens > 1)}": verify_step(engine, arguments, tokens - 1)
            for tokens in sorted({1, 4, block + 1})
            for name, engine in (("verify", verifier), ("verify, stock layers", stock))
        },
        "draft": draft_step(drafter, arguments),
    }
    samples: dict[str, list[float]] = {name: [] for name in variants}
    for turn in range(arguments.repeats + 5):
        for name, step in variants.items():
            began = time.perf_counter()
            step()
            if turn >= 5:
                samples[name].append(time.perf_counter() - began)
    steps = {
        name: {"median_ms": 1e3 * float(np.median(taken)), "p20_ms": 1e3 * float(np.quantile(taken, 0.2))}
        for name, taken in samples.items()
    }
    plain = steps["plain forward, 1 token"]["median_ms"]
    round_ms = steps[f"verify, {block + 1} tokens"]["median_ms"] + steps["draft"]["median_ms"]
    bound = {str(tau): tau * plain / round_ms for tau in (2.0, 3.0, 4.0, 5.0)}
    about = {"context": float(arguments.context), "sequences": float(arguments.sequences)}
    about["threads"] = float(arguments.threads)
    return {"steps": steps, "bound": bound, "about": about, "machine": {platform.machine(): 1.0}}  # type: ignore[dict-item]


def plain_step(arguments: argparse.Namespace, tokens: int) -> Callable[[], None]:
    """The library's own cached forward of a fresh copy of the target, one sequence at a time."""
    from transformers import DynamicCache

    from dspark.model.checkpoint import load_target
    from dspark.model.library import cache_argument

    model = load_target(arguments.target).model
    model.set_attn_implementation("sdpa")
    ids = torch.randint(0, 100, (1, arguments.context))
    name = cache_argument(model)
    caches = [DynamicCache() for _ in range(arguments.sequences)]
    with torch.inference_mode():
        for cache in caches:
            model(input_ids=ids, use_cache=True, **{name: cache})

    @torch.inference_mode()
    def step() -> None:
        for cache in caches:
            logits = model(input_ids=ids[:, :tokens], use_cache=True, **{name: cache}).logits
            logits.argmax(dim=-1).tolist()
            cache.crop(-tokens)

    return step


def verify_step(engine: VerifyEngine, arguments: argparse.Namespace, drafted: int) -> Callable[[], None]:
    """A cohort as the verifier serves it, rule and projection included."""
    law = Law(temperature=arguments.temperature, seed=1)
    first = drafted * 1000
    items = []
    for n in range(arguments.sequences):
        problem = engine.pretend(Cursor(first + n, 1, 0, arguments.context), law, arguments.context + 80)
        assert problem is None, problem
        ids = tuple(range(drafted))
        q = SparseQ.of(np.array(ids, np.uint32)[:, None], np.ones((drafted, 1), np.float32)) if drafted else NO_Q
        items.append(VerifyItem(Cursor(first + n, 1, 1, arguments.context + 1), 0, ids, q))

    def step() -> None:
        engine.judge_cohort(items)
        for item in items:
            engine.rewind(item.cursor.sequence, arguments.context)

    return step


def draft_step(engine: DraftEngine, arguments: argparse.Namespace) -> Callable[[], None]:
    """A cohort as the drafter serves it, walk and confidence included."""
    law = Law(temperature=arguments.temperature, seed=1)
    items = []
    for n in range(arguments.sequences):
        problem = engine.pretend(Cursor(n, 1, 0, arguments.context), arguments.context)
        assert problem is None, problem
        items.append(DraftItem(Cursor(n, 1, 1, arguments.context + 1), 5, arguments.context, law))
    return lambda: (engine.draft(items), None)[1]


if __name__ == "__main__":
    main()
