"""The two heads, trained from nothing."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch
from torch import Tensor

from dspark import plots
from dspark.model.checkpoint import load_drafter
from dspark.model.drafter import BlockDrafter
from dspark.model.families import as_block, fresh_drafter
from dspark.model.target import tapped
from dspark.training.anchors import draw_anchors, label_blocks
from dspark.training.asked import answers, questions
from dspark.training.lean_loss import LeanLoss, lean_block_loss
from dspark.training.loss import LossWeights, figures
from dspark.types import Rule
from guide.pair import DRAFTER, QUESTIONS, Tour

BLOCKS, RATE = 32, 5e-3
PLOTTED = {
    "confidence_abs_error": "error of confidence",
    "tau": "tau of a block, teacher forced",
}


def mini_training(tour: Tour) -> str:
    """The two heads, from nothing."""
    student = _without_heads(tour)
    heads = [weight for weight in student.parameters() if weight.requires_grad]
    texts = _texts(tour)
    optimizer = torch.optim.AdamW(heads, lr=RATE)
    generator, log = torch.Generator().manual_seed(0), []
    for step in range(tour.steps):
        objective, sums = _loss(tour, student, texts[step % len(texts)], generator)
        optimizer.zero_grad()
        (objective / sums.denominator).backward()  # type: ignore[no-untyped-call]
        optimizer.step()
        error = float(sums.confidence_error / sums.slots.sum().clamp(min=1))
        log.append(figures(sums, LossWeights()) | {"confidence_abs_error": error})
    plot = _curves(tour, log, smooth=max(1, min(len(texts), len(log) // 3)))  # every text once
    fifth = max(1, len(log) // 5)
    first, last = (
        np.mean([row["confidence_abs_error"] for row in part])
        for part in (log[:fifth], log[-fifth:])
    )
    return f"""## 8. Where the heads come from

Forget both heads, keep the rest of the drafter frozen, and train {sum(w.numel() for w in heads):,}
weights for {len(log)} steps of {BLOCKS} blocks on text that the target wrote. Three terms: a little
cross-entropy, mostly the distance between p and q, which is exactly what acceptance costs, and the
confidence's own; the label of a slot's confidence is 1 - distance / 2, the chance that it would be
accepted.

{plot}

The error of confidence went from {first:.3f} to {last:.3f} in {len(log)} steps. A whole drafter
takes longer: `dspark train` does it for a target of your own, `dspark calibrate` and `dspark
evaluate` say how good it is."""


def _without_heads(tour: Tour) -> BlockDrafter:
    """The drafter with heads as they are before training; nothing else of it learns."""
    ends = {"embedding": tour.drafter.embed_tokens.weight, "lm_head": tour.drafter.lm_head.weight}
    fresh = as_block(
        fresh_drafter(tour.drafter.config, **ends, generator=torch.Generator().manual_seed(0))
    )
    student = as_block(load_drafter(DRAFTER)).requires_grad_(False)
    for name in ("markov_head", "confidence_head"):
        head = student.get_submodule(name)
        head.load_state_dict(fresh.get_submodule(name).state_dict())
        head.requires_grad_(True)
    return student


def _texts(tour: Tour) -> list[Tensor]:
    """Prompts with the target's answers, [1, T] each."""
    asked = questions(QUESTIONS, tour.target, rows=tour.rows)
    told = answers(
        tour.target,
        asked,
        temperature=1.0,
        rule=Rule.TOKEN,
        seed=5,
        new_tokens=tour.tokens,
        room=tour.slots,
    )
    return [answer.ids for answer in told]


def _loss(tour: Tour, student: BlockDrafter, ids: Tensor, generator: torch.Generator) -> LeanLoss:
    """Of some blocks of one text [1, T], against what the target says there."""
    model = tour.target.model
    with torch.no_grad():
        features, hidden = tapped(model, ids, student.target_layer_ids)
    supervised = torch.ones(ids.shape[1], dtype=torch.bool)
    anchors = draw_anchors(supervised, BLOCKS, generator=generator)
    return lean_block_loss(
        student,
        hidden=student.forward_hidden(features=features[0], input_ids=ids[0], anchors=anchors),
        input_ids=ids[0],
        anchors=anchors,
        labels=label_blocks(
            input_ids=ids[0], supervised=supervised, anchors=anchors, block_size=tour.slots
        ),
        last_hidden=hidden[0],
        target_head=model.lm_head.weight,
        weights=LossWeights(),
    )


def _curves(tour: Tour, log: Sequence[dict[str, float]], smooth: int) -> str:
    figure, panes = plots.panels(2, (4, 3))
    for pane, (name, title) in zip(panes, PLOTTED.items(), strict=True):
        values = np.convolve([row[name] for row in log], np.ones(smooth) / smooth, "valid")
        pane.plot(range(smooth, len(log) + 1), values, label=f"mean of {smooth} steps")
        pane.set_xlabel("step")
        pane.set_title(title, fontsize=10)
    return tour.save(figure, "training", from_zero=False)
