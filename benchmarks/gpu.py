"""The Qwen3-8B shape with random weights on one big GPU: tokens per second of rounds of forced length, and how far one
sequence's step is from reading the weights once.

    python -m benchmarks.h200                 # needs CUDA; without it the row says so
    python -m benchmarks.h200 --tiny          # a toy shape on any device: only shows that the program runs

Both engines stand in this process on the same GPU and take turns, as a round does: draft a block, verify it, hand the
feature rows back. No gRPC, no coordinator: what is measured is the device side. Nothing is loaded or downloaded, and
nothing but torch, transformers and this project is needed. Acceptance is forced, so the text means nothing.
"""

from __future__ import annotations

import argparse
import sys
import time
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch

from benchmarks.row import Row, note
from draft_service.config import DraftConfig
from draft_service.engine import DraftEngine
from draft_service.interface import DraftItem
from dspark.model.calibration import IDENTITY
from dspark.model.checkpoint import LoadedTarget
from dspark.model.config import DrafterConfig
from dspark.model.context import ContextProjection
from dspark.model.drafter import BlockDrafter
from dspark.model.target import TargetTaps
from dspark.types import NO_Q, Block, Cursor, Law, SparseQ, Verdict
from verify_service.config import VerifyConfig
from verify_service.engine import VerifyEngine
from verify_service.loading import choose_runner
from verify_service.sequences import VerifyItem

GREEDY = Law(temperature=0.0)
MEAN, SLOTS = 3.61, 7
CONTEXT, ROUNDS = 1024, 60
SGLANG_TOK_S = 8_100.0  # published for this shape and device at 48 sequences


@dataclass(frozen=True)
class Shape:
    """Of the target; the drafter has its widths and `draft_layers`."""

    vocab_size: int = 151_936
    hidden_size: int = 4096
    intermediate_size: int = 12_288
    num_hidden_layers: int = 36
    num_attention_heads: int = 32
    num_key_value_heads: int = 8
    head_dim: int = 128
    max_position_embeddings: int = 40_960
    draft_layers: int = 5
    markov_rank: int = 256
    taps: tuple[int, ...] = (1, 9, 17, 25, 33)


TINY = Shape(512, 64, 96, 4, 4, 2, 16, 2048, 1, 8, (0, 1, 2))


def main(argv: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.h200", description=__doc__)
    parser.add_argument("--tiny", action="store_true", help="a toy shape on any device")
    parser.add_argument("--page-size", type=int, default=256, help="token slots of a page")
    parser.add_argument("--no-graphs", action="store_true", help="launch every operation by itself")
    parser.add_argument("--json", action="store_true", help="print one JSON row")
    args = parser.parse_args(argv)
    bar = f"published: SGLang {SGLANG_TOK_S:,.0f} tok/s at 48; one sequence within 1.3x of reading the weights"
    if not torch.cuda.is_available() and not args.tiny:
        return Row("3.13", "Qwen3-8B shape on one GPU", "no GPU", bar, None).show(as_json=args.json)
    value = measure(args)
    holds = None
    if not args.tiny:
        at_48: Any = value["48 sequences"]
        one: Any = value["one sequence"]
        holds = at_48["tok_s"] > SGLANG_TOK_S and one["over_floor"] <= 1.3
    name = "toy shape, shows only that it runs" if args.tiny else "Qwen3-8B shape on one GPU"
    return Row("3.13", name, value, bar, holds).show(as_json=args.json)


def measure(args: argparse.Namespace) -> dict[str, object]:
    """Every point, one after the other, on the same two engines."""
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    shape = TINY if args.tiny else Shape()
    counts = (2, 4) if args.tiny else (48, 64)
    context, rounds = (64, 4) if args.tiny else (CONTEXT, ROUNDS)
    verifier, drafter = engines(shape, device, args, max(counts) * (context + 8 * (rounds + 8)))
    value: dict[str, object] = {
        "device": torch.cuda.get_device_name(device) if device.type == "cuda" else "cpu",
        "torch": torch.__version__,
        "attention": verifier.attention_path,
    }
    for count in counts:
        value[f"{count} sequences"] = served(verifier, drafter, count, context, rounds)
        note(f"{count} sequences: {value[f'{count} sequences']}")
    value["one sequence"] = alone(verifier, context, rounds, shape)
    return value


def engines(
    shape: Shape, device: torch.device, args: argparse.Namespace, tokens: int
) -> tuple[VerifyEngine, DraftEngine]:
    """Random weights on the device, in bf16."""
    from transformers import Qwen3Config, Qwen3ForCausalLM

    dtype = torch.bfloat16
    fields = {
        name: getattr(shape, name)
        for name in Shape.__dataclass_fields__
        if name not in ("draft_layers", "markov_rank", "taps")
    }
    torch.manual_seed(0)
    with torch.device(device):
        torch.set_default_dtype(dtype)
        model = Qwen3ForCausalLM(Qwen3Config(**fields, tie_word_embeddings=False)).eval().requires_grad_(False)
        settings = DrafterConfig(
            **{name: value for name, value in fields.items() if name != "num_hidden_layers"},
            num_hidden_layers=shape.draft_layers,
            rms_norm_eps=1e-6,
            rope_theta=1e6,
            block_size=SLOTS,
            mask_token_id=shape.vocab_size - 1,
            target_layer_ids=shape.taps,
            num_target_layers=shape.num_hidden_layers,
            markov_rank=shape.markov_rank,
            markov_head_type="vanilla",
            enable_confidence_head=True,
            confidence_head_with_markov=True,
        )
        drafter = BlockDrafter(settings).eval().requires_grad_(False)
        projection = ContextProjection(
            feature_size=settings.feature_size,
            hidden_size=shape.hidden_size,
            eps=1e-6,
            target_layer_ids=shape.taps,
        ).requires_grad_(False)
        torch.set_default_dtype(torch.float32)
    page = min(args.page_size, 16) if args.tiny else args.page_size
    verify_config = VerifyConfig(
        target="random",
        kv_tokens=-(-2 * tokens // page) * page,
        page_size=page,
        max_batch_tokens=1024,
        force_acceptance=MEAN,
        cuda_graphs=not args.no_graphs,
        prefix_cache=False,
    )
    target = LoadedTarget(
        model, Path("random"), (), shape.max_position_embeddings, shape.vocab_size, shape.hidden_size,
        shape.num_hidden_layers,
    )  # fmt: skip
    taps = TargetTaps(model, shape.taps).attach()
    runner = choose_runner(verify_config, target, taps)
    verifier = VerifyEngine(target=target, runner=runner, projection=projection, config=verify_config, version="random")
    draft_config = replace(DraftConfig(drafter="random"), context_tokens=2 * tokens, q_entries=1)
    drafter.serve()
    return verifier, DraftEngine(
        drafter=drafter, calibration=IDENTITY, config=draft_config, version="random", calibrated=False
    )


def served(verifier: VerifyEngine, drafter: DraftEngine, count: int, context: int, rounds: int) -> dict[str, float]:
    """Rounds of `count` sequences, the first few not counted."""
    cursors = [Cursor(n, 1, 1, context + 1) for n in range(count)]
    anchors = [0] * count  # what a pretended sequence ends with
    for cursor in cursors:
        start = Cursor(cursor.sequence, 1, 0, context)
        longest = context + 8 * (rounds + 8)
        for problem in (verifier.pretend(start, GREEDY, longest), drafter.open(start, longest)):
            if problem is not None:
                raise RuntimeError(problem.message)
        drafter.ingest(cursor.sequence, 1, 0, [0] * context, torch.ones(context, drafter.drafter.config.hidden_size))
    draft_s, verify_s, committed = [], [], []
    for turn in range(rounds + 4):
        began = _now(verifier.device)
        asked = [
            DraftItem(cursor, anchor, cursor.committed_len - 1, GREEDY)
            for cursor, anchor in zip(cursors, anchors, strict=True)
        ]
        blocks = drafter.draft(asked)
        middle = _now(verifier.device)
        items = [_item(c, a, b) for c, a, b in zip(cursors, anchors, blocks, strict=True)]
        judged = verifier.judge_cohort(items)
        ended = _now(verifier.device)
        said = 0
        for n, (outcome, rows) in enumerate(zip(judged.outcomes, judged.features, strict=True)):
            if not isinstance(outcome, Verdict) or rows is None:
                raise RuntimeError(f"not judged: {outcome}")
            made: Any = rows
            drafter.ingest(n, 1, made.start, list(made.token_ids), made.rows)
            said += outcome.accepted + 1
            at = cursors[n]
            cursors[n] = Cursor(n, 1, at.round + 1, at.committed_len + outcome.accepted + 1)
            anchors[n] = outcome.next_token
        if turn >= 4:
            draft_s.append(middle - began)
            verify_s.append(ended - middle)
            committed.append(said)
        total = _now(verifier.device) - began
        if turn >= 4:
            verify_s[-1] += total - (ended - began)  # handing rows over belongs to the round
    for cursor in cursors:
        verifier.release(cursor.sequence, 1)
        drafter.release(cursor.sequence, 1)
    spent = sum(draft_s) + sum(verify_s)
    return {
        "tok_s": round(sum(committed) / spent, 1),
        "tau": round(sum(committed) / len(committed) / count, 3),
        "draft_ms": round(1e3 * float(np.median(draft_s)), 2),
        "verify_ms": round(1e3 * float(np.median(verify_s)), 2),
    }


def alone(verifier: VerifyEngine, context: int, rounds: int, shape: Shape) -> dict[str, float]:
    """Plain decoding of one sequence, against reading weights and cache once at this device's measured rate."""
    problem = verifier.pretend(Cursor(0, 1, 0, context), GREEDY, context + 8)
    if problem is not None:
        raise RuntimeError(problem.message)
    item = VerifyItem(Cursor(0, 1, 1, context + 1), 0, (), NO_Q, wants_rows=False)
    taken = []
    for turn in range(rounds + 5):
        began = _now(verifier.device)
        verifier.judge_cohort([item])
        if turn >= 5:
            taken.append(_now(verifier.device) - began)
        verifier.rewind(0, context)
    verifier.release(0, 1)
    model = verifier.target.model
    read = sum(p.numel() * p.element_size() for p in model.parameters()) - model.get_input_embeddings().weight.nbytes
    read += 2 * 2 * shape.num_hidden_layers * shape.num_key_value_heads * shape.head_dim * context
    rate = _bytes_per_second(verifier.device)
    step = float(np.median(taken))
    return {
        "step_ms": round(1e3 * step, 3),
        "floor_ms": round(1e3 * read / rate, 3),
        "over_floor": round(step * rate / read, 3),
        "measured_tb_s": round(rate / 1e12, 3),
    }


def _item(cursor: Cursor, anchor: int, block: Block) -> VerifyItem:
    ids = block.token_ids
    if not ids:
        raise RuntimeError(f"an empty block: {block.empty_reason.name}")
    q = SparseQ.of(np.array(ids, np.uint32)[:, None], np.ones((len(ids), 1), np.float32))
    return VerifyItem(cursor, anchor, ids, q)


def _bytes_per_second(device: torch.device) -> float:
    """What reading takes: a large sum, best of several."""
    numbers = torch.ones((1 << 30) if device.type == "cuda" else (1 << 22), dtype=torch.int8, device=device).view(
        torch.int64
    )
    best = float("inf")
    for _ in range(10):
        began = _now(device)
        numbers.max()
        best = min(best, _now(device) - began)
    return numbers.nbytes / best


def _now(device: torch.device) -> float:
    if device.type == "cuda":
        torch.cuda.synchronize(device)
    return time.perf_counter()


if __name__ == "__main__":
    sys.exit(main())
