"""Whole greedy runs with stock pieces: no cache, no batching, nothing shared with the engines."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch

from dspark.model.checkpoint import LoadedTarget, load_drafter, load_target
from dspark.model.family import Drafter
from dspark.model.target import TargetTaps
from tests.unit.model.golden import ALL, target_of
from tests.unit.model.tiny import walked


@pytest.mark.parametrize("folder", ALL, ids=lambda path: path.name)
@torch.inference_mode()
def test_greedy_runs_equal_the_reference(folder: Path) -> None:
    target, drafter = load_target(target_of(folder)), load_drafter(folder)
    for case in json.loads((folder / "decode_cases.json").read_text()):
        found = run_case(target, drafter, case)
        assert found == {name: case[name] for name in found}


def run_case(target: LoadedTarget, drafter: Drafter, case: dict[str, Any]) -> dict[str, list[int]]:
    """The reference's own counting: a last round may overshoot and still counts."""
    ids, stops = list(case["prompt_ids"]), set(case["stop_token_ids"])
    end = len(ids) + case["max_new_tokens"]
    accepted_lengths, proposals, accepted_drafts = [], [], []
    logits, features = _forward(target, drafter, ids)
    ids.append(int(logits[-1].argmax()))
    stopped = ids[-1] in stops
    while not stopped and len(ids) - 1 < end:
        draft = _draft(drafter, ids, features, case["confidence_threshold"])
        if drafter.config.kind != "block":  # a chain is not walked past a stop token
            draft = draft[: next((n for n, token in enumerate(draft, start=1) if token in stops), len(draft))]
        logits, features = _forward(target, drafter, ids + draft)
        wanted = logits[len(ids) - 1 :].argmax(dim=-1).tolist()
        kept = 0
        while kept < len(draft) and draft[kept] == wanted[kept]:
            kept += 1
        inside = next((i + 1 for i, token in enumerate(draft[:kept]) if token in stops), None)
        if inside is not None:
            ids += draft[:inside]
            stopped = True
        else:
            ids += [*draft[:kept], wanted[kept]]
            stopped = wanted[kept] in stops
        accepted_lengths.append(inside or kept + 1)
        proposals.append(inside or len(draft))
        accepted_drafts.append(inside or kept)
        features = features[: len(ids) - 1]
    return {
        "output_ids": ids[:end],
        "acceptance_lengths": accepted_lengths,
        "proposal_lengths": proposals,
        "accepted_draft_lengths": accepted_drafts,
    }


def _forward(target: LoadedTarget, drafter: Drafter, ids: list[int]) -> tuple[torch.Tensor, torch.Tensor]:
    with TargetTaps(target.model, drafter.target_layer_ids) as taps:
        logits = target.model(input_ids=torch.tensor([ids]), use_cache=False).logits[0]
        return logits, taps.collect()[0]


def _draft(drafter: Drafter, ids: list[int], features: torch.Tensor, threshold: float) -> list[int]:
    anchors, text = torch.tensor([len(features)]), torch.tensor(ids)
    made = walked(drafter, features, text[:-1], anchors, anchor_ids=text[-1:])
    draft: list[int] = made.tokens[0].tolist()
    if threshold <= 0:
        return draft
    below = (torch.sigmoid(made.confidence[0]) < threshold).nonzero().flatten().tolist()
    return draft[: below[0]] if below else draft
