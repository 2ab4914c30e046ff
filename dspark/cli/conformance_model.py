"""Block and loss cases: the drafter's own numbers against the reference's.

Inputs are checked as well where a target is at hand: stored features must be what the target
computes from the stored ids, or a changed input would pass unnoticed.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import lru_cache
from pathlib import Path

import torch
from torch import Tensor

from dspark.errors import CheckpointError
from dspark.model.anchored import entries_at
from dspark.model.checkpoint import LoadedTarget, load_target
from dspark.model.drafter import BlockDrafter
from dspark.model.families import as_block
from dspark.model.family import Drafter
from dspark.model.target import TargetTaps
from dspark.model.weights_file import read_file

ABSOLUTE = 1e-4
RELATIVE = 1e-4


def block_cases(file: Path, *, drafter: Drafter, target_folder: Path | None) -> list[str | None]:
    """One entry per case: None, or what differs."""
    cases: dict[str, dict[str, Tensor]] = {}
    for name, tensor in read_file(file).items():
        case, _, field = name.partition(".")
        cases.setdefault(case, {})[field] = tensor
    target = target_at(target_folder)
    shared = None if target is None else copies_differ(drafter, target)
    return [shared or _block_problem(cases[name], drafter, target) for name in sorted(cases)]


def loss_case(file: Path, *, drafter: Drafter, target_folder: Path | None) -> list[str | None]:
    """A single entry: None, or what differs."""
    case, target = read_file(file), target_at(target_folder)
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
def _block_problem(case: Mapping[str, Tensor], drafter: Drafter, target: LoadedTarget | None) -> str | None:
    features, anchor = case["context_features"], case["anchor_id"]
    if target is not None:
        computed, last = _run_target(target, case["prompt_ids"], drafter.target_layer_ids)
        if problem := _far("context_features", computed, case):
            return problem
        if (wanted := int(target.model.lm_head(last[0, -1]).argmax())) != int(anchor[0]):
            return f"anchor_id: the target says {wanted}, the case {int(anchor[0])}"
    entries, last_rows = entries_at(
        drafter, features=features[0], token_ids=case["prompt_ids"][0], anchors=torch.tensor([features.shape[1]])
    )
    size = drafter.config.block_size
    proposal = drafter.propose(
        anchor_ids=anchor,
        anchor_positions=torch.tensor([features.shape[1]]),
        context=entries,
        last_rows=last_rows,
        slots=size,
    )
    corrected, said = [], [anchor]
    for _ in range(size):
        corrected.append(proposal.step(said[-1]))
        said.append(corrected[-1].argmax(dim=-1))
    ids = torch.stack(said[1:], dim=1)
    found = {
        "block_hidden": proposal.hidden,
        "base_logits": drafter.base_logits(proposal.hidden),
        "corrected_logits": torch.stack(corrected, dim=1),
    }
    if (confidence := proposal.confidence_logits(torch.stack(said[:-1], dim=1))) is not None:
        found["confidence_logits"] = confidence
    inputs = {"prompt_ids", "context_features", "anchor_id", "draft_token_ids"}
    if (fields := set(case)) != found.keys() | inputs:
        return f"fields are {sorted(fields)}"
    if not torch.equal(ids, case["draft_token_ids"]):
        return f"draft_token_ids: {ids.tolist()} instead of {case['draft_token_ids'].tolist()}"
    return next((told for name in found if (told := _far(name, found[name], case))), None)


def _loss_problem(case: Mapping[str, Tensor], drafter: BlockDrafter) -> str | None:
    from training.anchors import Anchors, label_blocks
    from training.loss import LossWeights, block_loss, figures, mix, target_slot_logits

    anchors = Anchors(case["anchor_positions"], case["block_keep_mask"])
    size = drafter.config.block_size
    labels = label_blocks(input_ids=case["input_ids"], loss_mask=case["loss_mask"], anchors=anchors, block_size=size)
    for name, found in (("eval_mask", labels.eval_mask), ("target_ids", labels.target_ids)):
        if not torch.equal(found, case[name]):
            return f"{name} differs"
    drafter.zero_grad(set_to_none=True)
    out = drafter.forward_blocks(
        features=case["target_hidden_states"],
        input_ids=case["input_ids"],
        anchor_positions=anchors.positions,
        block_keep_mask=anchors.keep,
    )
    kept = anchors.keep  # what a dummy block yields means nothing
    if problem := _far("draft_logits", out.corrected_logits.detach()[kept], case, kept):
        return problem
    confident = out.confidence_logits is not None
    if out.confidence_logits is not None and (
        problem := _far("confidence_logits", out.confidence_logits.detach()[kept], case, kept)
    ):
        return problem
    weights = LossWeights(confidence=1.0 if confident else 0.0)
    sums = block_loss(
        corrected_logits=out.corrected_logits,
        confidence_logits=out.confidence_logits,
        target_logits=target_slot_logits(
            last_hidden=case["target_last_hidden_states"],
            anchor_positions=anchors.positions,
            block_size=size,
            lm_head=drafter.base_logits,  # a verbatim copy of the target's
        ),
        target_ids=labels.target_ids,
        eval_mask=labels.eval_mask,
        decay=weights.decay,
    )
    loss = mix(sums, weights)
    loss.backward()  # type: ignore[no-untyped-call]
    values = figures(sums) | {"loss": float(loss.detach())}
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


def _far(name: str, found: Tensor, case: Mapping[str, Tensor], where: Tensor | None = None) -> str | None:
    """None if a field is as stored within the absolute tolerance."""
    if name not in case:
        return f"{name}: missing"
    wanted = case[name] if where is None else case[name][where]
    if found.shape != wanted.shape:
        return f"{name}: shape {list(found.shape)} instead of {list(wanted.shape)}"
    gap = float((found - wanted).abs().max()) if wanted.numel() else 0.0
    return None if gap <= ABSOLUTE else f"{name}: off by {gap:.3g}"  # NaN is far


def copies_differ(drafter: Drafter, target: LoadedTarget) -> str | None:
    """None where a drafter's embedding and vocabulary head are the target's; a language model has its own."""
    if drafter.config.kind == "lm":
        return None
    head, kept = target.model.get_output_embeddings().weight, drafter.kept_tokens
    pairs = (
        ("embed_tokens.weight", drafter.embed_tokens.weight, target.model.get_input_embeddings().weight),
        ("lm_head.weight", drafter.lm_head.weight, head if kept is None else head[kept]),
    )
    return next((f"{name} is not the target's" for name, mine, its in pairs if not torch.equal(mine, its)), None)


@torch.inference_mode()
def _run_target(target: LoadedTarget, ids: Tensor, layer_ids: tuple[int, ...]) -> tuple[Tensor, Tensor]:
    """ids [B, T] -> (features [B, T, m*H], final-normed hidden states [B, T, H])."""
    if int(ids.min()) < 0 or int(ids.max()) >= target.vocab_size:
        raise CheckpointError(f"an id is not below the vocabulary size {target.vocab_size}")
    with TargetTaps(target.model, layer_ids) as taps:
        last = target.model.get_decoder()(input_ids=ids, use_cache=False).last_hidden_state
        return taps.collect(), last


def target_at(folder: Path | None) -> LoadedTarget | None:
    """The target in a folder, loaded once."""
    return None if folder is None else _load_once(folder)


def forget_targets() -> None:
    """Frees the targets that were kept between case files."""
    _load_once.cache_clear()


@lru_cache(maxsize=2)
def _load_once(folder: Path) -> LoadedTarget:
    return load_target(folder)
