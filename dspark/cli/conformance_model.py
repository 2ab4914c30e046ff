"""Block and loss cases: the drafter's own numbers against the reference's.

Inputs are checked, too, if there is a target: stored features must be those that the target
computes from the stored ids, or a changed input would pass unnoticed.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

import torch
from torch import Tensor

from dspark.cli.conformance_served import calibrated_copy, calibration_for, load_draft, served
from dspark.errors import CheckpointError
from dspark.model.checkpoint import LoadedTarget
from dspark.model.drafter import BlockDrafter, BlockProposal
from dspark.model.families import as_block
from dspark.model.family import Drafter
from dspark.model.heads import sureness
from dspark.model.target import tapped
from dspark.model.weights_file import read_file
from dspark.types import Block, Cursor, SamplingParams

BLOCK_OUTPUTS = ("block_hidden", "base_logits", "corrected_logits")
ROWS = 5  # of a context that are ingested at a time
ABSOLUTE = 1e-4
RELATIVE = 1e-4


def block_cases(file: Path, drafter: Drafter, target: LoadedTarget | None) -> list[str | None]:
    """One entry per case: None, or what differs. All cases are one batch of the drafter as it is
    served."""
    cases: dict[str, dict[str, Tensor]] = {}
    for name, tensor in read_file(file).items():
        case, _, field = name.partition(".")
        cases.setdefault(case, {})[field] = tensor
    shared = None if target is None else copies_differ(drafter, target)
    told = {name: shared or _input_problem(cases[name], drafter, target) for name in sorted(cases)}
    sound = [name for name, problem in told.items() if problem is None]
    found = _block_problems([cases[name] for name in sound], file.parent, drafter, target)
    told |= zip(sound, found, strict=True)
    return list(told.values())


def loss_case(file: Path, drafter: Drafter, target: LoadedTarget | None) -> list[str | None]:
    """A single entry: None, or what differs."""
    case = read_file(file)
    if target is not None:
        features, last = _run_target(target, case["input_ids"], drafter.target_layer_ids)
        problem = (
            copies_differ(drafter, target)
            or _far("target_hidden_states", features, case)
            or _far("target_last_hidden_states", last, case)
        )
        if problem:
            return [problem]
    return [_loss_problem(case, as_block(drafter))]


@torch.inference_mode()
def _input_problem(
    case: Mapping[str, Tensor], drafter: Drafter, target: LoadedTarget | None
) -> str | None:
    """What is wrong with the fields, or with the target's values in them; None: nothing."""
    outputs = {
        *BLOCK_OUTPUTS,
        *(("confidence_logits",) if drafter.config.enable_confidence_head else ()),
    }
    inputs = {"prompt_ids", "context_features", "anchor_id", "draft_token_ids"}
    if (fields := set(case)) != outputs | inputs:
        return f"fields are {sorted(fields)}"
    if target is not None:
        computed, last = _run_target(target, case["prompt_ids"], drafter.target_layer_ids)
        if problem := _far("context_features", computed, case):
            return problem
        if (wanted := int(target.model.lm_head(last[0, -1]).argmax())) != int(case["anchor_id"][0]):
            return f"anchor_id: the target says {wanted}, the case {int(case['anchor_id'][0])}"
    return None


@torch.inference_mode()
def _block_problems(
    cases: Sequence[Mapping[str, Tensor]],
    folder: Path,
    drafter: Drafter,
    target: LoadedTarget | None,
) -> list[str | None]:
    """How a served drafter's outputs differ, by case; all blocks in one pass on scattered pages."""
    from draft_service.engine import DraftItem

    if not cases:
        return []
    size = drafter.config.block_size
    with calibrated_copy(folder, size) as copy:
        lengths = [case["context_features"].shape[1] for case in cases]
        draft = load_draft(
            copy,
            [length + size for length in lengths],
            target.folder if target is not None else None,
        )
        items = []
        greedy = SamplingParams(temperature=0.0)
        for number, (case, length) in enumerate(zip(cases, lengths, strict=True)):
            cursor, anchor = Cursor(number, 1, 1, length + 1), int(case["anchor_id"][0])
            served(draft.open(cursor, length + size))
            rows = draft.drafter.project(case["context_features"][0])
            ids = case["prompt_ids"][0].tolist()
            for start in range(0, length, ROWS):
                part = slice(start, start + ROWS)
                served(draft.ingest(number, 1, start, ids[part], rows[part]))
            items.append(DraftItem(cursor, anchor, features_through=length, params=greedy))
        blocks = draft.draft(items)
        proposal, anchors = draft.propose(items, size)
        corrected, said = [], [anchors]
        for _ in range(size):
            corrected.append(proposal.step(said[-1]))
            said.append(corrected[-1].argmax(dim=-1))
        found = {
            "block_hidden": proposal.hidden,
            "base_logits": draft.drafter.base_logits(proposal.hidden),
            "corrected_logits": torch.stack(corrected, dim=1),
        }
        if draft.drafter.config.enable_confidence_head:
            found["confidence_logits"] = proposal.confidence_logits(torch.stack(said[:-1], dim=1))
    return [
        next(
            (told for name in found if (told := _far(name, found[name][row : row + 1], case))), None
        )
        or _drafted_problem(block, case)
        for row, (case, block) in enumerate(zip(cases, blocks, strict=True))
    ]


def _drafted_problem(block: Block, case: Mapping[str, Tensor]) -> str | None:
    """How the block to send differs, in tokens or calibrated confidence; None: not at all."""
    wanted = case["draft_token_ids"][0].tolist()
    if list(block.token_ids) != wanted:
        why = f" ({block.empty_reason.name})" if block.empty_reason else ""
        return f"draft_token_ids: {list(block.token_ids)}{why} instead of {wanted}"
    # Without a confidence head, a slot's confidence is that of its likeliest token.
    told = (
        case["confidence_logits"][0]
        if "confidence_logits" in case
        else sureness(case["corrected_logits"][0])
    )
    logits = told.numpy()
    gap = abs(
        calibration_for(len(logits)).apply(logits, "greedy", "token") - block.confidence
    ).max()
    return None if gap <= ABSOLUTE else f"confidence: off by {gap:.3g} after calibration"


def _loss_problem(case: Mapping[str, Tensor], drafter: BlockDrafter) -> str | None:
    """How the loss differs, by texts; None: not at all. Blocks that are not kept do not count."""
    from dspark.training.anchors import label_blocks, slots_after
    from dspark.training.lean_loss import lean_block_loss
    from dspark.training.loss import LossWeights, figures
    from dspark.training.objective import add_sums

    size, confident = drafter.config.block_size, drafter.config.enable_confidence_head
    drafter.zero_grad(set_to_none=True)
    parts, weights = [], LossWeights(confidence=1.0 if confident else 0.0)
    shape = case["block_keep_mask"].shape
    for text, keep in enumerate(case["block_keep_mask"]):
        told = {
            name: tensor[text][keep] for name, tensor in case.items() if tensor.shape[:2] == shape
        }
        ids, anchors = case["input_ids"][text], told["anchor_positions"]
        labels = label_blocks(
            input_ids=ids, supervised=case["loss_mask"][text] > 0, anchors=anchors, block_size=size
        )
        for name, found in labels._asdict().items():
            if not torch.equal(found, told[name]):
                return f"{name} differs"
        if not len(anchors):
            continue
        hidden = drafter.forward_hidden(
            features=case["target_hidden_states"][text], input_ids=ids, anchors=anchors
        )
        previous = ids[slots_after(anchors, size, len(ids))]
        with torch.no_grad():
            proposal = BlockProposal(drafter, hidden)
            logits = torch.stack([proposal.step(before) for before in previous.unbind(1)], dim=1)
            confidence = proposal.confidence_logits(previous)
        if problem := _far("draft_logits", logits, told):
            return problem
        if confident and (problem := _far("confidence_logits", confidence, told)):
            return problem
        parts.append(
            lean_block_loss(
                drafter,
                hidden=hidden,
                input_ids=ids,
                anchors=anchors,
                labels=labels,
                last_hidden=case["target_last_hidden_states"][text],
                target_head=drafter.lm_head.weight,  # a verbatim copy of the target's
                weights=weights,
            )
        )
    sums = add_sums([part.sums for part in parts])
    loss = torch.stack([part.objective for part in parts]).sum() / sums.denominator
    loss.backward()  # type: ignore[no-untyped-call]
    values = figures(sums, weights) | {"loss": float(loss.detach())}
    for name in ("loss", "ce_loss", "l1_loss", *(("confidence_loss",) if confident else ())):
        if not abs(values[name] - (wanted := float(case[name]))) <= RELATIVE * abs(wanted):
            return f"{name}: {values[name]:.6g} instead of {wanted:.6g}"
    return _gradient_problem(case, drafter)


def _gradient_problem(case: Mapping[str, Tensor], drafter: BlockDrafter) -> str | None:
    parameters = dict(drafter.named_parameters())
    for name, wanted in case.items():
        if not name.startswith("grad."):
            continue
        parameter = parameters.get(name.removeprefix("grad."))
        if parameter is None or parameter.grad is None or parameter.grad.shape != wanted.shape:
            return f"{name}: no such gradient"
        gap = (parameter.grad - wanted).abs().max()
        if not gap <= RELATIVE * wanted.abs().max():
            return f"{name}: off by {float(gap):.3g}"
    return None


def _far(name: str, found: Tensor, case: Mapping[str, Tensor]) -> str | None:
    """None if a tensor is the stored field within the absolute tolerance, else the difference."""
    if name not in case:
        return f"{name}: missing"
    wanted = case[name]
    if found.shape != wanted.shape:
        return f"{name}: shape {list(found.shape)} instead of {list(wanted.shape)}"
    gap = float((found - wanted).abs().max()) if wanted.numel() else 0.0
    return None if gap <= ABSOLUTE else f"{name}: off by {gap:.3g}"  # NaN is far


def copies_differ(drafter: Drafter, target: LoadedTarget) -> str | None:
    """None if a drafter's embedding and vocabulary head are the target's, or a language model's
    own; else the problem."""
    if drafter.config.kind == "lm":
        return None
    embedding = target.model.get_input_embeddings().weight
    if not torch.equal(drafter.embed_tokens.weight, embedding):
        return "embed_tokens.weight is not the target's"
    head, kept = target.model.get_output_embeddings().weight, drafter.kept_tokens
    if not torch.equal(drafter.lm_head.weight, head if kept is None else head[kept]):
        return "lm_head.weight is not the target's"
    return None


@torch.inference_mode()
def _run_target(
    target: LoadedTarget, ids: Tensor, layer_ids: tuple[int, ...]
) -> tuple[Tensor, Tensor]:
    """ids [B, T] -> (features [B, T, m*H], final-normed hidden states [B, T, H])."""
    if int(ids.min()) < 0 or int(ids.max()) >= target.vocab_size:
        raise CheckpointError(f"an id is not below the vocabulary size {target.vocab_size}")
    return tapped(target.model, ids, layer_ids)
