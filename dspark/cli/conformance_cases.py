"""The kinds of case files: how each is read, what computes its fields, and how they are compared.

A case is a mapping of fields. Some are given, all others are computed and compared, and so are the
target's own values among the given: a changed input would pass unnoticed otherwise.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from dspark.cli.conformance_decode import decode_outputs
from dspark.cli.conformance_served import GREEDY, ReferencePair, calibration_for, load_draft, served
from dspark.errors import CheckpointError
from dspark.model.drafter import BlockProposal
from dspark.model.families import as_block
from dspark.model.heads import sureness
from dspark.model.target import tapped
from dspark.model.weights_file import read_file
from dspark.types import Cursor

TOLERANCE = 1e-4  # of floats; of losses and gradients it is relative to the largest value
ROWS = 5  # of a context that are ingested at a time
LOSSES = ("loss", "ce_loss", "l1_loss", "confidence_loss")
# Fields of a loss case with a row per block. Blocks that are not kept do not count.
BLOCKWISE = ("anchor_positions", "target_ids", "eval_mask", "draft_logits", "confidence_logits")
GIVEN = (
    {"prompt_ids", "context_features", "anchor_id"}
    | {"input_ids", "loss_mask", "block_keep_mask", "anchor_positions"}
    | {"target_hidden_states", "target_last_hidden_states"}
    | {"max_new_tokens", "confidence_threshold", "stop_token_ids", "temperature"}
    # rows travel in bfloat16, which moves confidence by more than the tolerance
    | {"forced_previous_ids", "round_confidence_logits"}
    # inside the stages of DeepSeek-V4's module
    | {"block_keys", "block_positions", "context_keys", "context_key_positions"}
    | {"head_hidden", "stage_hidden"}
)

Case = Mapping[str, Any]
Found = Mapping[str, Any] | str  # the fields of a case, or why there are none


def difference(case: Case, found: Found) -> str | None:
    """None if a case holds what was found, field by field, else the first difference."""
    if isinstance(found, str):
        return found
    extra = sorted(case.keys() - found.keys() - GIVEN)
    if unknown := [name for name in extra if not isinstance(case[name], str)]:
        return f"nothing computes {', '.join(unknown)}"
    for name, value in found.items():
        if name not in case:
            return f"{name}: missing"
        mine, wanted = torch.as_tensor(value), torch.as_tensor(case[name])
        if mine.shape != wanted.shape:
            return f"{name}: shape {list(mine.shape)} instead of {list(wanted.shape)}"
        gaps = (mine.double() - wanted.double()).abs().flatten()
        near = TOLERANCE if wanted.is_floating_point() else 0.0
        if name in LOSSES or name.startswith("grad."):
            near *= float(wanted.abs().max())
        far = (~(gaps <= near)).nonzero().flatten().tolist()  # NaN is far
        if far:
            ours, theirs = mine.flatten()[far[0]], wanted.flatten()[far[0]]
            return f"{name}: {ours:.6g} instead of {theirs:.6g} at index {far[0]}"
    return None


@torch.inference_mode()
def _run_target(pair: ReferencePair, ids: Tensor) -> tuple[Tensor, Tensor]:
    """ids [B, T] -> (features [B, T, m*H], final-normed hidden states [B, T, H])."""
    assert pair.target is not None
    if int(ids.min()) < 0 or int(ids.max()) >= pair.target.vocab_size:
        raise CheckpointError(f"an id is not below the vocabulary size {pair.target.vocab_size}")
    return tapped(pair.target.model, ids, pair.drafter.target_layer_ids)


def read_blocks(file: Path) -> list[Case]:
    cases: dict[str, dict[str, Any]] = {}
    for name, tensor in read_file(file).items():
        number, _, field = name.partition(".")
        cases.setdefault(number, {})[field] = tensor
    for case in cases.values():
        # Without a confidence head, a slot's confidence is that of its likeliest token.
        told = case.get("confidence_logits")
        logits = sureness(case["corrected_logits"]) if told is None else told
        case["confidence"] = calibration_for(logits.shape[-1]).apply(logits, "greedy", "token")
    return [cases[number] for number in sorted(cases)]


@torch.inference_mode()
def block_outputs(cases: Sequence[Case], pair: ReferencePair) -> Iterable[list[Found]]:
    """All blocks in one pass of the drafter as it is served, on scattered pages."""
    from draft_service.engine import DraftItem

    size = pair.drafter.config.block_size
    lives = [case["context_features"].shape[1] + size for case in cases]
    draft = load_draft(pair, lives)
    items, projected = [], []
    for number, (case, life) in enumerate(zip(cases, lives, strict=True)):
        rows, ids = draft.drafter.project(case["context_features"][0]), case["prompt_ids"][0]
        projected.append(rows[None])
        cursor = Cursor(number, 1, 1, len(rows) + 1)
        served(draft.open(cursor, life))
        for start in range(0, len(rows), ROWS):
            part = slice(start, start + ROWS)
            served(draft.ingest(number, 1, start, ids[part].tolist(), rows[part]))
        items.append(DraftItem(cursor, int(case["anchor_id"][0]), len(rows), GREEDY))
    blocks = [served(block) for block in draft.draft(items)]
    proposal, anchors = draft.propose(items, size)
    corrected, said = [], [anchors]
    for _ in range(size):
        corrected.append(proposal.step(said[-1]))
        said.append(corrected[-1].argmax(dim=-1))
    outputs = {
        "block_hidden": draft.drafter.headed(proposal.hidden),
        "base_logits": draft.drafter.base_logits(proposal.hidden),
        "corrected_logits": torch.stack(corrected, dim=1),
        "draft_token_ids": torch.tensor([block.token_ids for block in blocks]),
        "confidence": torch.tensor([block.confidence for block in blocks]),
    }
    confident = draft.drafter.config.enable_confidence_head
    if confident:
        outputs["confidence_logits"] = proposal.confidence_logits(torch.stack(said[:-1], dim=1))
    if all("forced_previous_ids" in case for case in cases):  # another chain of tokens
        forced, _ = draft.propose(items, size)
        before = torch.cat([case["forced_previous_ids"] for case in cases])
        logits = [forced.step(previous) for previous in before.unbind(1)]
        outputs["forced_corrected_logits"] = torch.stack(logits, dim=1)
        if confident:
            outputs["forced_confidence_logits"] = forced.confidence_logits(before)
    found: list[Found] = []
    for row, case in enumerate(cases):
        inputs: dict[str, Any] = {"context_rows": projected[row]} if "context_rows" in case else {}
        if pair.target is not None:
            inputs["context_features"], last = _run_target(pair, case["prompt_ids"])
            inputs["anchor_id"] = pair.target.model.lm_head(last[:, -1]).argmax(dim=-1)
        found.append(inputs | {name: each[row : row + 1] for name, each in outputs.items()})
    return [found]


def read_loss(file: Path) -> list[Case]:
    case = read_file(file)
    keep = case["block_keep_mask"]
    return [{name: each[keep] if name in BLOCKWISE else each for name, each in case.items()}]


def loss_outputs(cases: Sequence[Case], pair: ReferencePair) -> Iterable[list[Found]]:
    """One training step on its texts back to back, as training packs them."""
    from dspark.training.batches import SampleBatch
    from dspark.training.loss import LossWeights, figures
    from dspark.training.objective import blocks_loss

    (case,), drafter = cases, as_block(pair.drafter)
    found: dict[str, Any] = {}
    if pair.target is not None:
        features, last = _run_target(pair, case["input_ids"])
        found |= {"target_hidden_states": features, "target_last_hidden_states": last}
    confident, anchors = drafter.config.enable_confidence_head, case["anchor_positions"]
    weights = LossWeights(confidence=1.0 if confident else 0.0)
    texts, length = case["input_ids"].shape
    batch = SampleBatch(
        ids=case["input_ids"].flatten(),
        supervised=case["loss_mask"].flatten() > 0,
        offsets=tuple(range(0, (texts + 1) * length, length)),
        numbers=tuple(range(texts)),
        features=case["target_hidden_states"].flatten(0, 1),
        last_hidden=case["target_last_hidden_states"].flatten(0, 1),
    )
    drafter.zero_grad(set_to_none=True)
    keep = case["block_keep_mask"]
    drawn = anchors.split(keep.sum(dim=1).tolist())
    head = drafter.lm_head.weight  # a verbatim copy of the target's
    hidden, labels, lean = blocks_loss(drafter, batch, drawn, head, weights)
    with torch.no_grad():
        first = case["input_ids"][keep.nonzero()[:, 0], anchors]
        previous = torch.cat([first[:, None], labels.target_ids[:, :-1]], dim=1)
        proposal = BlockProposal(drafter, hidden)
        logits = [proposal.step(before) for before in previous.unbind(1)]
        found |= labels._asdict() | {"draft_logits": torch.stack(logits, dim=1)}
        if confident:
            found["confidence_logits"] = proposal.confidence_logits(previous)
    loss = lean.objective / lean.sums.denominator
    loss.backward()  # type: ignore[no-untyped-call]
    values = figures(lean.sums, weights) | {"loss": float(loss.detach())}
    told_of = LOSSES if confident else LOSSES[:3]
    found |= {name: torch.tensor([values[name]]) for name in told_of}
    gradients = {f"grad.{name}": each.grad for name, each in drafter.named_parameters()}
    found |= {name: each for name, each in gradients.items() if name in case and each is not None}
    return [[found]]


def read_runs(file: Path) -> list[Case]:
    return list(json.loads(file.read_bytes()))


KINDS = {
    "block_cases.safetensors": (read_blocks, block_outputs),
    "loss_case.safetensors": (read_loss, loss_outputs),
    "decode_cases.json": (read_runs, decode_outputs),
}


def problems(cases: Sequence[Case], turns: Iterable[Sequence[Found]]) -> list[str | None]:
    """One entry per case: None, or what differs in the first of several turns in which one does."""
    told: list[str | None] = [None] * len(cases)
    for found in turns:
        pairs = zip(told, cases, found, strict=True)
        told = [before or difference(case, each) for before, case, each in pairs]
    return told
