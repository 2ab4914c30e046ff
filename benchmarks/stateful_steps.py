"""Steps of targets with states, of sequences that share passes and of sequences that do not: milliseconds a step.

    python -m benchmarks.stateful_steps --json

Random weights of a middling shape, a state space and a hybrid of convolutions and attention. Contexts are equally long,
as those of the answers of one prompt are; a state space shares its passes wherever its sequences stand.
"""

from __future__ import annotations

import argparse
import sys
import time
from typing import Any

import numpy as np
import torch

from benchmarks.row import Row, note
from verify_service.plan import Segment
from verify_service.stateful import StatefulRunner

SEQUENCES, CONTEXT, TOKENS, TIMES = 8, 64, (1, 4), 9


def models(hidden: int, layers: int) -> dict[str, Any]:
    from transformers import Lfm2Config, Lfm2ForCausalLM, Mamba2Config, Mamba2ForCausalLM

    torch.manual_seed(0)
    state_space = Mamba2Config(
        vocab_size=4096, hidden_size=hidden, num_hidden_layers=layers, num_heads=2 * hidden // 32, head_dim=32,
        state_size=32, n_groups=1, chunk_size=64,
    )  # fmt: skip
    hybrid = Lfm2Config(
        vocab_size=4096, hidden_size=hidden, intermediate_size=3 * hidden, num_hidden_layers=layers,
        num_attention_heads=8, num_key_value_heads=2, full_attn_idxs=list(range(1, layers, 2)),
    )  # fmt: skip
    return {
        "mamba2": Mamba2ForCausalLM(state_space).eval().requires_grad_(False),
        "lfm2": Lfm2ForCausalLM(hybrid).eval().requires_grad_(False),
    }


def step_ms(model: Any, tokens: int, *, together: bool) -> float:
    """Of `SEQUENCES` sequences with so many new tokens each, a draft of which one is kept."""
    runner = StatefulRunner(model, None, together=together)
    draw = torch.Generator().manual_seed(1)
    texts = [torch.randint(2, 4000, (CONTEXT,), generator=draw).tolist() for _ in range(SEQUENCES)]
    runner.run([Segment(n, 0, ids, (), CONTEXT) for n, ids in enumerate(texts)], [])
    taken = []
    for turn in range(TIMES):
        segments = [Segment(n, len(ids), [5 + turn] * tokens, (), CONTEXT) for n, ids in enumerate(texts)]
        began = time.perf_counter()
        runner.run(segments, None)
        taken.append(time.perf_counter() - began)
        for ids in texts:
            ids.append(5 + turn)
    return 1e3 * float(np.median(taken))


def main(argv: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--json", action="store_true", help="print a JSON row")
    parser.add_argument("--hidden", type=int, default=512)
    parser.add_argument("--layers", type=int, default=8)
    args = parser.parse_args(argv)
    torch.set_num_threads(1)
    value: dict[str, Any] = {"sequences": SEQUENCES}
    for name, model in models(args.hidden, args.layers).items():
        for tokens in TOKENS:
            alone, shared = (round(step_ms(model, tokens, together=each), 1) for each in (False, True))
            value[f"{name}, {tokens} tokens each"] = {"alone_ms": alone, "together_ms": shared}
            note(f"{name}, {tokens} tokens each: {alone} ms, together {shared} ms")
    holds = all(each["together_ms"] < each["alone_ms"] for each in value.values() if isinstance(each, dict))
    return Row("stateful", "steps of targets with states", value, "together takes less", holds).show(as_json=args.json)


if __name__ == "__main__":
    sys.exit(main())
