"""Eagle3's training-time test at some anchors of a text instead of everywhere.

The published loss unrolls the chain at every position: seven times the text, of which a block drafter's anchors are a
small part. Here chains start at the very anchors that block drafters are trained at, so that all families see the
same positions; step by step, position by position it is `training/eagle3_loss.py`.
"""

import torch
from torch import Tensor

from dspark.model.chain import ChainDrafter
from dspark.model.family import ContextTokens, Entries
from training.anchors import Anchors, Labels, gather_slots
from training.eagle3_loss import chain_sums
from training.lean_loss import LeanLoss
from training.soft_cross_entropy import soft_cross_entropy


def chain_hidden(drafter: ChainDrafter, *, features: Tensor, input_ids: Tensor, anchors: Tensor) -> Tensor:
    """features [B, T, m*H], ids [B, T], anchors [B, A] from 1 on -> [B, A, k, H] after the final norm."""
    batch, length = input_ids.shape
    count, size = anchors.shape[1], drafter.config.block_size
    rows = drafter.project(features)
    positions = torch.arange(length - 1, device=input_ids.device).expand(batch, -1)
    keys, values = drafter.ingest(ContextTokens(rows[:, :-1], input_ids[:, 1:], positions))
    spread = (keys.shape[0], batch, count, *keys.shape[2:])
    context = Entries(
        keys.unsqueeze(2).expand(spread).flatten(1, 2),
        values.unsqueeze(2).expand(spread).flatten(1, 2),
        (anchors - 1).flatten(),
    )
    index = torch.arange(batch, device=input_ids.device).unsqueeze(-1)
    previous = gather_slots(input_ids, anchors, size).flatten(0, 1)  # [B*A, k]
    proposal = drafter.propose(
        anchor_ids=previous[:, 0],
        anchor_positions=anchors.flatten(),
        context=context,
        last_rows=rows[index, anchors - 1].flatten(0, 1),
        slots=size,
    )
    for slot in range(size):
        proposal.step(previous[:, slot])
    return proposal.hidden.view(batch, count, size, -1)


def chain_block_loss(
    drafter: ChainDrafter,
    *,
    features: Tensor,  # [B, T, m*H]
    input_ids: Tensor,  # [B, T]
    anchors: Anchors,
    labels: Labels,
    last_hidden: Tensor,  # [B, T, H] of the target, final-normed
    target_head: Tensor,  # [V, H]
) -> LeanLoss:
    """Sum over slots k of 0.8^(k-1) soft cross-entropies, over all anchors; the denominator counts anchors."""
    positions = anchors.positions.clamp(min=1)
    hidden = chain_hidden(drafter, features=features, input_ids=input_ids, anchors=positions)
    mask, size = labels.eval_mask, drafter.config.block_size
    wanted = gather_slots(last_hidden, positions, size)
    objective, l1_sum = (torch.zeros((), device=hidden.device) for _ in range(2))
    accepted = torch.zeros(mask.shape, device=hidden.device)
    for slot in range(size):
        judged = mask[..., slot]
        total, l1 = soft_cross_entropy(
            hidden[..., slot, :][judged],
            drafter.lm_head.weight,
            wanted=wanted[..., slot, :][judged],
            target_head=target_head,
            cap=drafter.config.logit_softcap,
        )
        weight = drafter.config.step_loss_decay**slot
        objective, l1_sum = objective + weight * total, l1_sum + weight * l1.sum()
        accepted[..., slot][judged] = (1 - 0.5 * l1).clamp(0, 1)
    count = mask[..., 0].sum().float()
    return LeanLoss(objective, chain_sums(ce=objective, l1=l1_sum, denominator=count, accepted=accepted, masks=mask))
