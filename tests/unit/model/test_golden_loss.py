"""One training forward and backward equals the reference, in slices; `dspark conformance` checks the plain form."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file
from torch import Tensor

from dspark.model.checkpoint import load_drafter
from dspark.model.drafter import BlockDrafter
from dspark.model.families import as_block
from dspark.training.anchors import Anchors, Labels, label_blocks
from dspark.training.lean_loss import lean_block_loss
from dspark.training.loss import LossSums, LossWeights, figures
from tests.unit.model.golden import TARGET, TRAINED

RELATIVE = 1e-4
pytestmark = pytest.mark.parametrize("folder", TRAINED, ids=lambda path: path.name)


def test_loss_and_gradients_equal_the_reference(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("dspark.training.lean_loss.SLICE_ROWS", 16)  # several slices, the last one short
    drafter, case = as_block(load_drafter(folder)), load_file(folder / "loss_case.safetensors")
    labels, weights = _labels(case), _weights(drafter)
    objective, sums = lean_block_loss(
        drafter,
        hidden=drafter.forward_hidden(**_inputs(case)),
        previous_ids=drafter.previous_ids(case["input_ids"], case["anchor_positions"]),
        target_ids=labels.target_ids,
        eval_mask=labels.eval_mask,
        anchor_positions=case["anchor_positions"],
        last_hidden=case["target_last_hidden_states"],
        target_head=_target_head(),
        weights=weights,
    )
    _check(drafter, case, objective / (sums.denominator + 1e-6), sums)


def _check(drafter: BlockDrafter, case: dict[str, Tensor], loss: Tensor, sums: LossSums) -> None:
    shown = figures(sums)
    torch.testing.assert_close(loss.detach(), case["loss"][0], atol=0, rtol=RELATIVE)
    for name in ("ce_loss", "l1_loss", "confidence_loss"):
        if name in case:
            assert shown[name] == pytest.approx(case[name].item(), rel=RELATIVE)
    loss.backward()
    parameters = dict(drafter.named_parameters())
    compared = 0
    for name, wanted in case.items():
        if name.startswith("grad."):
            found = parameters[name.removeprefix("grad.")].grad
            assert found is not None, name
            assert (found - wanted).norm() <= RELATIVE * wanted.norm(), name
            compared += 1
    assert compared
    assert drafter.embed_tokens.weight.grad is None
    assert drafter.lm_head.weight.grad is None


def _inputs(case: dict[str, Tensor]) -> dict[str, Tensor]:
    return {
        "features": case["target_hidden_states"],
        "input_ids": case["input_ids"],
        "anchor_positions": case["anchor_positions"],
        "block_keep_mask": case["block_keep_mask"],
    }


def _labels(case: dict[str, Tensor]) -> Labels:
    return label_blocks(
        input_ids=case["input_ids"],
        loss_mask=case["loss_mask"],
        anchors=Anchors(case["anchor_positions"], case["block_keep_mask"]),
        block_size=case["target_ids"].shape[-1],
    )


def _weights(drafter: BlockDrafter) -> LossWeights:
    return LossWeights(confidence=1.0 if drafter.confidence_head is not None else 0.0)


def _target_head() -> Tensor:
    return load_file(TARGET / "model.safetensors")["lm_head.weight"]
