"""The Qwen3-8B shape with random weights on one big GPU, in three parts of at most ten minutes
each.

    python -m benchmarks.gpu                 # needs CUDA; without it the rows say so
    python -m benchmarks.gpu --tiny          # a toy shape on any device: shows that it runs
    python -m benchmarks.gpu --only steps    # one of three; `engines`, `steps` need no grpcio
    python -m benchmarks.gpu --out gpu.json  # keeps all rows

**steps**: what a step of 1 to 64 sequences and 1 to 512 tokens, a draft and the rule alone take,
beside the least that reading weights and caches once could take here; with recorded passes and
without, the rule compiled and not. **served**: a coordinator, a verifier and a drafter as processes
of their own on this GPU, started by hand, clients over gRPC: tokens a second of 48 and 64 running
streams behind 1k-token prompts, without prefills in that time. Published serving figures compare
with this. **engines**: both engines in this process, taking turns as a round does, without
coordinator and messages: what the device side alone could give.

Acceptance is forced (3.61 of 7), so the text means nothing. Nothing is downloaded; no Ray is
needed.
"""

from __future__ import annotations

import argparse
import json
import math
import sys
import tempfile
import traceback
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch

from benchmarks import gpu_steps, random_pair
from benchmarks.engine_pair import EnginePair
from benchmarks.forced import SLOTS, Forced
from benchmarks.pair import Pair
from benchmarks.random_pair import TINY, PairShape
from benchmarks.row import Program, Row, note, only_rows

MEAN = 3.61
CONTEXT, ROUNDS, SPARED = 1024, 60, 4
SGLANG_TOK_S = 8_100.0  # published for this shape and an H200 at 48 sequences, served
MOST_OVER_FLOOR = 1.3


def main(argv: list[str] | None = None) -> int:
    parser = Program("gpu", __doc__)
    parser.add_argument("--tiny", action="store_true", help="a toy shape on any device")
    parser.add_argument("--only", choices=PARTS, help="one of the three")
    parser.add_argument("--out", type=Path, help="keep the rows as JSON")
    parser.add_argument(
        "--part-s", type=float, default=480.0, help="seconds after which steps leave the rest out"
    )
    parser.add_argument("--page-size", type=int, default=256, help="token slots of a page")
    parser.add_argument("--no-graphs", action="store_true", help="launch every operation by itself")
    args = parser.parse_args(argv)
    only_rows()
    rows: list[Row] = []
    for part, (what, bar, measure, held) in PARTS.items():
        if args.only not in (None, part):
            continue
        card = torch.cuda.get_device_name() if torch.cuda.is_available() else "no GPU"
        value: dict[str, Any] = {"device": card, "torch": torch.__version__}
        holds: bool | None = None
        if args.tiny or torch.cuda.is_available():
            try:
                measure(args, value)
                holds = None if args.tiny else held(value)
            except ImportError as error:  # a machine without what serving needs
                value["error"] = f"not measured: {error}"
            except Exception as error:  # what was measured stays, and the next part may have room
                traceback.print_exc()
                value["error"], holds = f"{type(error).__name__}: {error}", False
        shape = (
            "toy shape, shows only that it runs"
            if args.tiny
            else "Qwen3-8B shape, bf16, random weights"
        )
        rows.append(Row(f"B7 {part}", f"{shape}: {what} on one device", value, bar, holds))
        if args.out is not None:  # now, in case the next part ends the process
            args.out.write_text(
                json.dumps([asdict(row) for row in rows], indent=1) + "\n", encoding="utf-8"
            )
    return max(row.show(as_json=args.json) for row in rows)


def _steps(args: argparse.Namespace, value: dict[str, Any]) -> None:
    device, shape, context = _device(), _shape(args), 64 if args.tiny else CONTEXT
    room = max(gpu_steps.TINY_SEQUENCES if args.tiny else gpu_steps.SEQUENCES) * (context + 64)
    lines = value["lines"] = list[dict[str, Any]]()
    with _written(args) as pair:
        for line in gpu_steps.measure(
            lambda graphs: _engines(pair, args, room, graphs), args, shape, device, context
        ):
            lines.append(line)


def _within_floor(value: dict[str, Any]) -> bool | None:
    alone = [
        line
        for line in value["lines"]
        if line["part"] == "step" and line["sequences"] == line["tokens"] == 1
    ]
    return min(line["over_floor"] for line in alone) <= MOST_OVER_FLOOR if alone else None


def _served(args: argparse.Namespace, value: dict[str, Any]) -> None:
    from benchmarks.gpu_served import measure

    with _written(args) as pair:
        measure(pair, args, value, MEAN)


def _alone(args: argparse.Namespace, value: dict[str, Any]) -> None:
    """Measures every point, one after the other, on the same two engines."""
    counts = (2, 4) if args.tiny else (48, 64)
    context, rounds = (64, 4) if args.tiny else (CONTEXT, ROUNDS)
    with _written(args) as written:
        pair = _engines(
            written, args, max(counts) * (context + 8 * (rounds + 8)), not args.no_graphs
        )
    value["attention"] = pair.verifier.attention_path
    clock = gpu_steps.DeviceClock(_device(), math.inf)
    for count in counts:
        value[f"{count} sequences"] = point(pair, clock, count, context, rounds)
        note(f"{count} sequences: {value[f'{count} sequences']}")


# Of each part: what is measured, its bar, the measurement, and whether the bar holds.
PARTS: dict[str, tuple[str, str, Callable[..., None], Callable[[dict[str, Any]], bool | None]]] = {
    "steps": (
        "the parts of a round",
        f"a step of one token within {MOST_OVER_FLOOR:g}x of reading weights and cache once",
        _steps,
        _within_floor,
    ),
    "served": (
        "three services",
        f"above {SGLANG_TOK_S:,.0f} tok/s at 48 streams (SGLang, published)",
        _served,
        lambda value: value["48 streams"]["tok_s"] > SGLANG_TOK_S,
    ),
    "engines": ("both engines in one process", "a table", _alone, lambda value: None),
}


def _device() -> torch.device:
    return torch.device("cuda" if torch.cuda.is_available() else "cpu")


def _shape(args: argparse.Namespace) -> PairShape:
    return TINY if args.tiny else PairShape()


@contextmanager
def _written(args: argparse.Namespace) -> Iterator[Pair]:
    with tempfile.TemporaryDirectory(prefix="dspark-random-") as folder:
        yield random_pair.write(_shape(args), Path(folder))


def _engines(pair: Pair, args: argparse.Namespace, tokens: int, graphs: bool) -> EnginePair:
    """Both engines in bf16; a draft sends one entry of q per slot."""
    page = min(args.page_size, 16) if args.tiny else args.page_size
    made = EnginePair.load(
        pair,
        max(gpu_steps.SEQUENCES),
        -(-2 * tokens // page) * page,
        sampler=Forced(MEAN, SLOTS),
        page_size=page,
        max_batch_tokens=1024,
        cuda_graphs=graphs,
        dtype="bfloat16",
    )
    made.drafter.config = replace(made.drafter.config, q_entries=1)
    return made


def point(
    pair: EnginePair, clock: gpu_steps.DeviceClock, count: int, context: int, rounds: int
) -> dict[str, float]:
    """Speed of rounds of `count` sequences, the first few not counted. Passing rows on counts as
    verifying."""
    answers = [pair.pretend(number, context, 8 * (rounds + 8)) for number in range(count)]
    draft_s, verify_s, committed = [], [], []
    for _ in range(rounds + SPARED):
        began = clock.now()
        blocks = pair.draft(answers)
        middle = clock.now()
        committed.append(pair.judge(answers, blocks))
        draft_s.append(middle - began)
        verify_s.append(clock.now() - middle)
    pair.release(answers)
    drafting, verifying, said = draft_s[SPARED:], verify_s[SPARED:], sum(committed[SPARED:])
    return {
        "tok_s": round(said / (sum(drafting) + sum(verifying)), 1),
        "tau": round(said / rounds / count, 3),
        "draft_ms": round(1e3 * float(np.median(drafting)), 2),
        "verify_ms": round(1e3 * float(np.median(verifying)), 2),
    }


if __name__ == "__main__":
    sys.exit(main())
