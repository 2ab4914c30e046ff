"""Peak memory of the lean training loss against the plain one, at the widths of Qwen3-4B (row 4.9).

Each form runs in a process of its own: weights and inputs first, then the high-water mark is reset, then loss and
gradients of the hidden states and of the small heads. What is compared is the peak above the weights and inputs, which
are the same for both. `--device cuda` asks the allocator instead of the system.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from benchmarks.row import Row, note
from dspark.model.config import DrafterConfig
from dspark.model.drafter import BlockDrafter
from dspark.model.markov import VanillaHead
from training.lean_loss import lean_block_loss
from training.loss import LossWeights, block_loss, mix, target_slot_logits

HIDDEN, VOCABULARY, RANK, BLOCK, LENGTH = 2560, 151_936, 256, 7, 512
FORMS = ("plain", "lean")
BAR_TIMES, BAR_LOSS = 2.0, 1e-5


def main(argv: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.lean_loss", description=__doc__)
    parser.add_argument("--json", action="store_true", help="print one JSON row")
    parser.add_argument("--anchors", type=int, default=32, help="blocks of 7 slots")
    parser.add_argument("--vocabulary", type=int, default=VOCABULARY, help="tokens of the vocabulary")
    parser.add_argument("--device", default="cpu", help="cpu or cuda")
    parser.add_argument("--threads", type=int, default=1, help="of torch")
    parser.add_argument("--form", choices=FORMS, help=argparse.SUPPRESS)  # what the measuring processes are told
    args = parser.parse_args(argv)
    if args.form:
        print(json.dumps(measure(args)), flush=True)
        return 0
    found: dict[str, Any] = {}
    for form in FORMS:
        words = [f"--{name}={getattr(args, name)}" for name in ("anchors", "vocabulary", "device", "threads")]
        command = [sys.executable, "-m", "benchmarks.lean_loss", f"--form={form}", *words]
        found[form] = json.loads(subprocess.run(command, check=True, capture_output=True, text=True).stdout)
        note(f"{form}: {found[form]}")
    plain, lean = (found[form] for form in FORMS)
    times = plain["peak_bytes"] / lean["peak_bytes"]
    gaps = {name: abs(lean[name] / plain[name] - 1) for name in ("loss", "grad_hidden", "grad_markov")}
    value = found | {
        "anchors": args.anchors,
        "slots": args.anchors * BLOCK,
        "vocabulary": args.vocabulary,
        "hidden": HIDDEN,
        "device": args.device,
        "times_less": round(times, 2),
        "relative_gap": gaps,
    }
    holds = times >= BAR_TIMES and all(gap <= BAR_LOSS for gap in gaps.values())
    bar = f"at least {BAR_TIMES:g} times less, loss and gradient norms equal to {BAR_LOSS:g}"
    return Row("4.9", "lean loss", value, bar, holds).show(as_json=args.json)


def measure(args: argparse.Namespace) -> dict[str, float]:
    """Peak bytes above the inputs, seconds, the loss and the norms of two gradients, of one form."""
    torch.set_num_threads(args.threads)
    device = torch.device(args.device)
    drafter, inputs = make_case(args.anchors, args.vocabulary, device)
    before = _reset_peak(device)
    start = time.perf_counter()
    loss = _plain(drafter, inputs) if args.form == "plain" else _lean(drafter, inputs)
    loss.backward()  # type: ignore[no-untyped-call]
    seconds = time.perf_counter() - start
    assert isinstance(drafter.markov_head, VanillaHead)
    grads = {"hidden": inputs["hidden"].grad, "markov": drafter.markov_head.markov_w2.weight.grad}
    return {
        "peak_bytes": _peak(device) - before,
        "input_bytes": before,
        "seconds": round(seconds, 2),
        "loss": loss.item(),
        **{f"grad_{name}": float(torch.linalg.vector_norm(grad)) for name, grad in grads.items() if grad is not None},
    }


def make_case(anchors: int, vocabulary: int, device: torch.device) -> tuple[BlockDrafter, dict[str, Tensor]]:
    """A drafter of which only the ends exist, and one conversation's hidden states."""
    config = DrafterConfig(
        hidden_size=HIDDEN,
        intermediate_size=9728,
        num_hidden_layers=1,
        num_attention_heads=32,
        num_key_value_heads=8,
        head_dim=128,
        vocab_size=vocabulary,
        rms_norm_eps=1e-6,
        rope_theta=1e6,
        max_position_embeddings=40960,
        block_size=BLOCK,
        mask_token_id=vocabulary - 1,
        target_layer_ids=(1,),
        num_target_layers=36,
        markov_rank=RANK,
        markov_head_type="vanilla",
        enable_confidence_head=True,
        confidence_head_with_markov=True,
    )
    with torch.device("meta"):
        drafter = BlockDrafter(config)
    generator = torch.Generator(device).manual_seed(0)

    def noise(*shape: int, scale: float = 1.0) -> Tensor:
        return torch.randn(*shape, generator=generator, device=device).mul_(scale)

    drafter.lm_head.weight = nn.Parameter(noise(vocabulary, HIDDEN, scale=0.02), requires_grad=False)
    for part in (drafter.markov_head, drafter.confidence_head):
        assert part is not None
        part.to_empty(device=device)
        for parameter in part.parameters():
            parameter.data.copy_(noise(*parameter.shape, scale=0.02))
    positions = torch.linspace(0, LENGTH - BLOCK - 2, anchors, device=device).long()[None]
    return drafter, {
        "hidden": noise(1, anchors, BLOCK, HIDDEN).requires_grad_(),
        "ids": torch.randint(0, vocabulary, (1, LENGTH), generator=generator, device=device),
        "positions": positions,
        "last_hidden": noise(1, LENGTH, HIDDEN),
    }


def _labels(drafter: BlockDrafter, inputs: dict[str, Tensor]) -> tuple[Tensor, Tensor, Tensor]:
    slots = torch.arange(1, BLOCK + 1, device=inputs["ids"].device)
    index = inputs["positions"].unsqueeze(-1) + slots
    target_ids = inputs["ids"].gather(1, index.flatten(1)).view(index.shape)
    previous = drafter.previous_ids(inputs["ids"], inputs["positions"])
    return target_ids, previous, torch.ones(index.shape, dtype=torch.bool, device=index.device)


def _plain(drafter: BlockDrafter, inputs: dict[str, Tensor]) -> Tensor:
    target_ids, previous, mask = _labels(drafter, inputs)
    bias = drafter.markov_head.biases(previous, inputs["hidden"])
    base = drafter.base_logits(inputs["hidden"])
    sums = block_loss(
        corrected_logits=base if bias is None else base + bias,
        confidence_logits=drafter.confidence_logits(inputs["hidden"], previous),
        target_logits=target_slot_logits(
            last_hidden=inputs["last_hidden"],
            anchor_positions=inputs["positions"],
            block_size=BLOCK,
            lm_head=lambda hidden: hidden @ drafter.lm_head.weight.t(),
        ),
        target_ids=target_ids,
        eval_mask=mask,
        decay=4.0,
    )
    return mix(sums, LossWeights())


def _lean(drafter: BlockDrafter, inputs: dict[str, Tensor]) -> Tensor:
    target_ids, previous, mask = _labels(drafter, inputs)
    loss = lean_block_loss(
        drafter,
        hidden=inputs["hidden"],
        previous_ids=previous,
        target_ids=target_ids,
        eval_mask=mask,
        anchor_positions=inputs["positions"],
        last_hidden=inputs["last_hidden"],
        target_head=drafter.lm_head.weight,
        weights=LossWeights(),
    )
    return loss.objective / (loss.sums.denominator + 1e-6)


def _reset_peak(device: torch.device) -> int:
    """Bytes in use now; from here on the peak counts."""
    if device.type == "cuda":
        torch.cuda.synchronize()
        torch.cuda.reset_peak_memory_stats()
        return int(torch.cuda.memory_allocated())
    Path("/proc/self/clear_refs").write_text("5", encoding="ascii")
    return _status("VmRSS")


def _peak(device: torch.device) -> int:
    return int(torch.cuda.max_memory_allocated()) if device.type == "cuda" else _status("VmHWM")


def _status(name: str) -> int:
    """A line of this process's own account of its memory, in bytes."""
    lines = Path("/proc/self/status").read_text(encoding="ascii").splitlines()
    return next(int(line.split()[1]) * 1024 for line in lines if line.startswith(f"{name}:"))


if __name__ == "__main__":
    sys.exit(main())
