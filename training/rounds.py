"""Speculative rounds, replayed on text that the target generated.

The tokens a lossless verifier emits are the target's own, so the text is drawn first, many rows at a time, and
the rounds are drawn given the text. With q the draft law and p the target law of a slot, the pair
(draft, emitted token x) of the acceptance rule has: accepted, draft = x, with probability min(1, q(x)/p(x));
otherwise rejected, and the draft came from the normalised max(q - p, 0). After a rejection nothing is accepted,
and the later drafts come from q alone. That joint law is the rule's own; only the order of drawing differs.

B rows, T tokens, A anchors, k slots, V vocabulary.
"""

from dataclasses import dataclass

import torch
from torch import Tensor
from transformers import Qwen3ForCausalLM

from dspark.model.drafter import BlockDrafter
from dspark.model.target import TargetTaps
from training.anchors import gather_slots

TOP_K_CUT = 64


@dataclass(frozen=True, slots=True)
class Blocks:
    """A drafted and judged block at every anchor of one row."""

    accepted: Tensor  # [A] how many slots were accepted, 0..k
    confidence: Tensor  # [A, k] confidence logits, given the drafts before each slot


def law(logits: Tensor, temperature: float, cut: int | None) -> Tensor:
    """logits [..., V] -> probabilities at the temperature, one-hot at 0; `cut` keeps the largest few."""
    logits = logits.float()
    if temperature == 0:
        return torch.zeros_like(logits).scatter_(-1, logits.argmax(-1, keepdim=True), 1.0)
    if cut is not None and cut < logits.shape[-1]:
        least = logits.topk(cut, dim=-1).values[..., -1:]
        logits = logits.masked_fill(logits < least, -torch.inf)
    return torch.softmax(logits / temperature, dim=-1)


def sample(weights: Tensor, generator: torch.Generator) -> Tensor:
    """Draws from unnormalised weights [..., V] -> ids [...]."""
    noise = torch.empty_like(weights).exponential_(generator=generator)
    return (weights / noise).argmax(dim=-1)


@torch.inference_mode()
def judge(
    drafter: BlockDrafter,
    target: Qwen3ForCausalLM,
    ids: Tensor,  # [1, T] with at least k tokens after the last anchor
    anchors: Tensor,  # [A]
    *,
    temperature: float,
    generator: torch.Generator,
    cut: int | None = TOP_K_CUT,
) -> Blocks:
    """Drafts a block at every anchor and judges it against the text."""
    size = drafter.config.block_size
    with TargetTaps(target, drafter.config.target_layer_ids) as taps:
        last = target.model(input_ids=ids, use_cache=False).last_hidden_state
        features = taps.collect()
    wanted = law(target.lm_head(gather_slots(last, anchors[None], size)[0]), temperature, None)  # [A, k, V]
    positions, keep = anchors[None], torch.ones(1, len(anchors), dtype=torch.bool)
    hidden = drafter.forward_hidden(features=features, input_ids=ids, anchor_positions=positions, block_keep_mask=keep)[
        0
    ]
    base = drafter.base_logits(hidden)
    previous = ids[0, anchors]
    state = drafter.markov_head.initial_state(len(anchors), hidden)
    alive = torch.ones(len(anchors), dtype=torch.bool)
    accepted = torch.zeros(len(anchors), dtype=torch.int64)
    before = []
    for slot in range(size):
        before.append(previous)
        bias, state = drafter.markov_head.bias(state, previous, hidden[:, slot])
        q = law(base[:, slot] if bias is None else base[:, slot] + bias, temperature, cut)
        p, truth = wanted[:, slot], ids[0, anchors + slot + 1]
        ratio = (q.gather(-1, truth[:, None]) / p.gather(-1, truth[:, None]).clamp(min=1e-12)).squeeze(-1)
        alive = alive & (torch.rand(len(anchors), generator=generator) < ratio)
        accepted += alive
        # A rejected draft; once a block has ended its later drafts follow q whatever the target says.
        first_rejection = ~alive & (accepted == slot)
        surplus = torch.where(first_rejection[:, None], (q - p).clamp(min=0), q)
        surplus = torch.where(surplus.sum(-1, keepdim=True) > 0, surplus, q)
        previous = torch.where(alive, truth, sample(surplus, generator))
    scores = drafter.confidence_logits(hidden, torch.stack(before, dim=1))
    assert scores is not None
    return Blocks(accepted, scores)


def walk(accepted: list[int], ends: list[bool], new_tokens: int) -> list[tuple[int, int]]:
    """Rounds (anchor, emitted tokens) from the first anchor on, until `new_tokens` are there or the text ends.

    `accepted[i]` belongs to the anchor at the i-th new token, `ends[i]` says whether that token ends the text.
    The first token comes from the prefill and is no round. A round whose accepted drafts end the text counts up
    to the end, without the bonus token.
    """
    rounds, at = [], 0
    while at + 1 < new_tokens and not ends[at]:
        drafted = ends[at + 1 : at + 1 + accepted[at]]
        if any(drafted):
            rounds.append((at, drafted.index(True) + 1))
            break
        rounds.append((at, accepted[at] + 1))
        at += accepted[at] + 1
    return rounds
