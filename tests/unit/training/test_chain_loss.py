"""Losses of drafters that go token by token: the lean forms against the formulas written out."""

import itertools

import pytest
import torch
from torch import Tensor

from dspark.model.chain import ChainDrafter
from dspark.model.config import Kind, ModelType
from dspark.model.family import softcapped
from dspark.model.language import LanguageDrafter
from dspark.training.batches import SampleBatch
from dspark.training.objective import step_loss
from tests.unit.model.tiny import FAMILIES, family_drafter

CHAINS = [family for family in FAMILIES if family[0] in ("eagle3", "mtp")]
BATCH, LENGTH = 3, 13


def _case(drafter: ChainDrafter | LanguageDrafter) -> dict[str, Tensor]:
    generator, config = torch.Generator().manual_seed(7), drafter.config
    loss_mask = torch.ones(BATCH, LENGTH)
    loss_mask[0, :6] = 0
    loss_mask[1, 4] = 0
    loss_mask[2, 9:] = 0  # padding
    return {
        "input_ids": torch.randint(0, config.vocab_size, (BATCH, LENGTH), generator=generator),
        "loss_mask": loss_mask,
        "last_hidden": torch.randn(BATCH, LENGTH, config.hidden_size, generator=generator),
        "target_head": torch.randn(config.vocab_size, config.hidden_size, generator=generator)
        * 0.3,
    }


def _batch(
    case: dict[str, Tensor], lengths: tuple[int, ...], features: Tensor | None = None
) -> SampleBatch:
    """The first tokens of each row, back to back."""

    def joined(rows: Tensor) -> Tensor:
        return torch.cat([row[:length] for row, length in zip(rows, lengths, strict=True)])

    return SampleBatch(
        ids=joined(case["input_ids"]),
        supervised=joined(case["loss_mask"]) > 0,
        offsets=tuple(itertools.accumulate(lengths, initial=0)),
        numbers=tuple(range(len(lengths))),
        features=joined(torch.empty(BATCH, LENGTH, 0) if features is None else features),
        last_hidden=joined(case["last_hidden"]),
    )


@pytest.mark.parametrize(("kind", "model_type"), CHAINS)
def test_the_loss_is_the_formula_and_so_its_gradients(kind: Kind, model_type: ModelType) -> None:
    drafter = family_drafter(kind, model_type).train()
    assert isinstance(drafter, ChainDrafter)
    case, lengths = _case(drafter), (LENGTH, LENGTH, 9)
    features = torch.randn(
        BATCH, LENGTH, drafter.feature_size, generator=torch.Generator().manual_seed(8)
    )
    lean = step_loss(drafter, _batch(case, lengths, features), case["target_head"])
    (lean.objective / lean.sums.denominator).backward()
    found = {name: p.grad for name, p in drafter.named_parameters() if p.grad is not None}
    drafter.zero_grad()
    steps = drafter.config.block_size if kind == "eagle3" else 1
    plain, counts, accepted = torch.zeros(()), [0] * steps, [0.0] * steps
    for step, hidden in enumerate(
        drafter.forward_steps(features=features, input_ids=case["input_ids"], steps=steps)
    ):
        logged = torch.log_softmax(drafter.base_logits(hidden), dim=-1)
        wanted = softcapped(
            case["last_hidden"] @ case["target_head"].t(), drafter.config.logit_softcap
        ).softmax(-1)
        for row in range(BATCH):
            for i in range(LENGTH):
                if kind == "eagle3":
                    if i + step + 1 >= lengths[row] or not case["loss_mask"][row, i + step]:
                        continue
                    term = -(wanted[row, i + 1 + step] * logged[row, i]).sum() / lengths[row]
                else:  # the mask of the label itself
                    if i + step + 2 >= lengths[row] or not case["loss_mask"][row, i + step + 2]:
                        continue
                    term = -logged[row, i, case["input_ids"][row, i + 2 + step]]
                plain = plain + 0.8**step * term
                counts[step] += 1
                off = wanted[row, i + 1 + step] - logged[row, i].detach().exp()
                accepted[step] += 1.0 - 0.5 * float(off.abs().sum())
    plain = plain / (BATCH if kind == "eagle3" else sum(counts))
    assert lean.sums.slots.tolist() == counts
    assert lean.sums.accepted.tolist() == pytest.approx(accepted, rel=1e-4)
    assert torch.allclose(lean.objective / lean.sums.denominator, plain, rtol=1e-5)
    assert torch.allclose(lean.sums.ce, lean.objective)
    plain.backward()
    expected = {name: p.grad for name, p in drafter.named_parameters() if p.grad is not None}
    assert found.keys() == expected.keys()
    for name, wanted_grad in expected.items():
        torch.testing.assert_close(found[name], wanted_grad, rtol=1e-4, atol=1e-6)


def test_a_language_models_loss_is_the_formula_and_reaches_its_head() -> None:
    drafter = family_drafter("lm", "qwen3").train()
    assert isinstance(drafter, LanguageDrafter)
    case = _case(drafter)
    lean = step_loss(drafter, _batch(case, (LENGTH,) * BATCH), case["target_head"])
    (lean.objective / lean.sums.denominator).backward()
    found = {name: p.grad.clone() for name, p in drafter.named_parameters()}
    drafter.zero_grad()
    logits = drafter.base_logits(drafter.forward_tokens(case["input_ids"]))[:, :-1]
    judged = case["loss_mask"][:, 1:] > 0
    plain = torch.nn.functional.cross_entropy(logits[judged], case["input_ids"][:, 1:][judged])
    assert torch.allclose(lean.objective / lean.sums.denominator, plain, rtol=1e-5)
    assert torch.allclose(lean.sums.ce, lean.objective)
    plain.backward()
    for name, parameter in drafter.named_parameters():
        torch.testing.assert_close(found[name], parameter.grad, rtol=1e-4, atol=1e-6)


def test_acceptance_of_a_block_is_that_of_its_tokens_one_after_the_other() -> None:
    drafter = family_drafter("lm", "qwen3")
    case = _case(drafter)
    sums = step_loss(drafter, _batch(case, (LENGTH,) * BATCH), case["target_head"]).sums
    logits = drafter.base_logits(drafter.forward_tokens(case["input_ids"]))
    wanted = (case["last_hidden"] @ case["target_head"].t()).softmax(-1)
    rate = 1 - 0.5 * (logits.softmax(-1) - wanted).abs().sum(-1)
    tau, slots = 0.0, [0] * drafter.config.block_size
    for row in range(BATCH):
        for i in range(LENGTH - 1):
            alive = 1.0
            for slot in range(drafter.config.block_size):
                if i + slot + 1 >= LENGTH or not case["loss_mask"][row, i + slot + 1]:
                    break
                alive *= rate[row, i + slot].item()
                tau += alive
                slots[slot] += 1
    assert int(sums.blocks) == slots[0]
    assert sums.slots.tolist() == slots
    assert float(sums.tau) == pytest.approx(tau + slots[0], rel=1e-5)
