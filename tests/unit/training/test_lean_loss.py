"""The lean loss in mixed precision stays close to the exact one."""

import math
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import Tensor

from dspark.model.checkpoint import load_drafter
from dspark.model.config import HeadType
from dspark.model.drafter import BlockDrafter
from dspark.model.families import as_block
from dspark.model.formats.vocabulary import DraftVocabulary
from dspark.training.anchors import Labels, draw_anchors, label_blocks, slots_after
from dspark.training.lean_loss import LeanLoss, LossSlots, lean_block_loss, slot_terms
from dspark.training.loss import LossWeights, figures, slot_weights, sum_terms
from tests.operations import Watched
from tests.unit.model.tiny import dense, text, tiny_drafter

WEIGHTS = LossWeights(confidence=0.5, decay=3.0)  # others than by default


@pytest.mark.parametrize("head", ["none", "vanilla", "gated", "rnn"])
def test_bf16_gradients_point_the_same_way(head: HeadType) -> None:
    exact, rounded = _gradients(head, mixed=False), _gradients(head, mixed=True)
    assert exact.keys() == rounded.keys()
    for name, wanted in exact.items():
        similarity = torch.cosine_similarity(wanted.flatten(), rounded[name].flatten(), dim=0)
        assert similarity > 0.98, name


@pytest.mark.parametrize("kind", ["qwen3", "deepseek_v4"])
def test_it_is_the_loss_of_what_is_served(kind: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Heads read a state before or after the final norm, as the family has it; slots of many blocks
    share a judge, in slices."""
    monkeypatch.setattr("dspark.training.lean_loss.SLICE_ROWS", 7)
    shipped = Path(__file__).parents[2] / "data" / "dspark_deepseek_v4"
    drafter = as_block(load_drafter(shipped)) if kind == "deepseek_v4" else tiny_drafter("vanilla")
    supervised, generator = torch.ones(20, dtype=torch.bool), torch.Generator().manual_seed(3)
    lean = _loss(drafter, supervised)
    # drawn as there
    ids, features, anchors, labels, last_hidden = _text(drafter, supervised, generator)
    size, mask = drafter.config.block_size, labels.eval_mask
    places = slots_after(anchors, size, len(ids))
    hidden = drafter.forward_hidden(features=features, input_ids=ids, anchors=anchors)
    logits, confidence = dense(drafter, hidden, ids[places])
    judge = last_hidden[places] @ drafter.lm_head.weight.t()
    ce = torch.nn.functional.cross_entropy(
        logits.flatten(0, -2), labels.target_ids.flatten(), reduction="none"
    )
    plain = sum_terms(
        ce=ce.view(mask.shape),
        l1=(torch.softmax(logits, -1) - torch.softmax(judge, -1)).abs().sum(-1),
        confidence_logits=confidence,
        weights=slot_weights(size, WEIGHTS.decay, device=mask.device) * mask,
        eval_mask=mask,
    )
    torch.testing.assert_close(tuple(lean.sums), tuple(plain), atol=1e-3, rtol=1e-4)
    objective = sum(weight * term for weight, term in zip(WEIGHTS, plain[:3], strict=False))
    torch.testing.assert_close(lean.objective, objective, atol=1e-3, rtol=1e-4)
    learned = [parameter for parameter in drafter.parameters() if parameter.requires_grad]
    found, wanted = (
        torch.autograd.grad(each, learned, allow_unused=True)
        for each in (lean.objective, objective)
    )
    torch.testing.assert_close(found, wanted, atol=1e-4, rtol=1e-3)


def test_terms_and_figures_are_of_the_slots_that_count() -> None:
    sums = sum_terms(
        ce=torch.tensor([[1.0, 2.0], [3.0, 4.0]]),
        l1=torch.tensor([[0.4, 1.0], [0.2, 0.6]]),
        confidence_logits=torch.tensor([[0.0, 5.0], [5.0, 5.0]]),
        weights=torch.tensor([[0.5, 0.0], [0.0, 0.0]]),
        eval_mask=torch.tensor([[True, False], [False, False]]),
    )
    found = figures(sums, WEIGHTS)
    wanted = {
        "loss": WEIGHTS.ce * 1.0 + WEIGHTS.l1 * 0.4 + WEIGHTS.confidence * math.log(2),
        "tau": 1.8, "ce_loss": 1.0, "l1_loss": 0.4, "confidence_loss": math.log(2),
        "accept_rate@0": 0.8, "accept_rate@1": 0.0,
    }  # fmt: skip
    assert found == pytest.approx(wanted, rel=1e-4)
    assert sums.confidence_error.item() == pytest.approx(0.3)


def test_blocks_without_any_label_are_zero_and_finite() -> None:
    drafter = tiny_drafter("vanilla")
    loss = _loss(drafter, torch.ones(12, dtype=torch.bool), labelled=False)
    assert loss.objective.item() == 0
    assert loss.sums.denominator.item() == 0
    loss.objective.backward()
    assert drafter.fc.weight.grad is not None
    assert torch.isfinite(drafter.fc.weight.grad).all()


@pytest.mark.parametrize("soft", [False, True])
@pytest.mark.parametrize("few", [False, True])
@pytest.mark.parametrize("softcap", [None, 3.0])
def test_a_trained_head_and_a_cap_have_the_gradients_of_the_plain_form(
    softcap: float | None, few: bool, soft: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With `few` the head says eleven of thirty tokens: the others have no chance, and are no
    labels. `soft` labels are the target's whole law."""
    monkeypatch.setattr("dspark.training.lean_loss.SLICE_ROWS", 4)
    kept = torch.arange(1, 30, 3)[:11] if few else None
    size = 30 if kept is None else len(kept)
    generator = torch.Generator().manual_seed(7)

    def leaf(*shape: int) -> torch.Tensor:
        return torch.randn(*shape, generator=generator).requires_grad_()

    hidden, head, codes, w2 = leaf(11, 6), leaf(size, 6), leaf(11, 3), leaf(size, 3)
    wanted = torch.randn(11, 8, generator=generator)
    target_head = torch.randn(30, 8, generator=generator)
    ids = torch.randint(0, 30, (11,), generator=generator)
    scale, weights = torch.rand(11, generator=generator), LossWeights(ce=0.3, l1=0.7)

    def capped(logits: torch.Tensor) -> torch.Tensor:
        return logits if softcap is None else torch.tanh(logits / softcap) * softcap

    logits = capped(hidden @ head.t()) + codes @ w2.t()
    said = torch.ones(11, dtype=torch.bool)
    if kept is not None:
        logits = DraftVocabulary(kept, 30).spread(logits)
        said = torch.isin(ids, kept)
        assert 0 < said.sum() < 11
    law = torch.softmax(capped(wanted @ target_head.t()), dim=-1)
    if soft:
        own = slice(None) if kept is None else kept
        ce = -(law[:, own] * torch.log_softmax(logits, dim=-1)[:, own]).sum(dim=-1)
    else:
        ce = torch.zeros(11).masked_scatter(
            said, torch.nn.functional.cross_entropy(logits[said], ids[said], reduction="none")
        )
    l1 = (torch.softmax(logits, dim=-1) - law).abs().sum(dim=-1)
    plain = (scale * (weights.ce * ce + weights.l1 * l1)).sum()
    leaves = (hidden, head, codes, w2)
    expected = torch.autograd.grad(plain, leaves)
    lean, lean_ce, lean_l1 = slot_terms(
        _headed(head, softcap, kept),
        LossSlots(hidden, ids, torch.ones(11, dtype=torch.bool), torch.arange(11), scale),
        last_hidden=wanted, target_head=target_head, weights=weights, codes=codes, markov_w2=w2,
        soft_labels=soft,
    )  # fmt: skip
    torch.testing.assert_close((lean, lean_ce, lean_l1), (plain, ce, l1))
    found = torch.autograd.grad(lean, leaves, retain_graph=True)
    torch.testing.assert_close(found, expected, atol=1e-6, rtol=1e-4)
    with pytest.raises(RuntimeError, match="differentiated once"):
        torch.autograd.grad(lean, leaves)


def _headed(head: Tensor, softcap: float | None = None, kept: Tensor | None = None) -> Any:
    """What the loss reads of a drafter."""
    config = SimpleNamespace(logit_softcap=softcap)
    return SimpleNamespace(lm_head=SimpleNamespace(weight=head), config=config, kept_tokens=kept)


def _gradients(head: HeadType, *, mixed: bool) -> dict[str, torch.Tensor]:
    drafter = tiny_drafter(head)
    with torch.autocast("cpu", torch.bfloat16, enabled=mixed):
        loss = _loss(drafter, torch.ones(160, dtype=torch.bool))
    (loss.objective / loss.sums.denominator).backward()
    return {name: p.grad for name, p in drafter.named_parameters() if p.grad is not None}


def _text(
    drafter: BlockDrafter, supervised: Tensor, generator: torch.Generator
) -> tuple[Tensor, Tensor, Tensor, Labels, Tensor]:
    """ids [T], features [T, m*H], anchors [A] and their labels, last hidden states [T, H]."""
    config = drafter.config
    features, ids = text(drafter, len(supervised))
    anchors = draw_anchors(supervised, 12, generator=generator)
    labels = label_blocks(
        input_ids=ids, supervised=supervised, anchors=anchors, block_size=config.block_size
    )
    return (
        ids,
        features,
        anchors,
        labels,
        torch.randn(len(supervised), config.hidden_size, generator=generator),
    )


def _loss(drafter: BlockDrafter, supervised: Tensor, *, labelled: bool = True) -> LeanLoss:
    ids, features, anchors, labels, last_hidden = _text(
        drafter, supervised, torch.Generator().manual_seed(3)
    )
    return lean_block_loss(
        drafter,
        hidden=drafter.forward_hidden(features=features, input_ids=ids, anchors=anchors),
        input_ids=ids,
        anchors=anchors,
        labels=labels
        if labelled
        else labels._replace(eval_mask=torch.zeros_like(labels.eval_mask)),
        last_hidden=last_hidden,
        target_head=drafter.lm_head.weight,
        weights=WEIGHTS,
    )


def test_no_more_than_a_slice_of_the_vocabulary_is_held(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("dspark.training.lean_loss.SLICE_ROWS", 5)
    rows, width, vocabulary = 60, 4, 2000
    generator = torch.Generator().manual_seed(2)
    head, ids = torch.randn(vocabulary, width, generator=generator), torch.arange(rows)
    hidden, wanted = (
        torch.randn(rows, width, generator=generator).requires_grad_() for _ in range(2)
    )

    def peak(objective: Callable[[], torch.Tensor]) -> int:
        sizes: list[int] = []

        def saw(_: str, args: Any, made: Any) -> None:
            each = made if isinstance(made, tuple | list) else [made]
            sizes.extend(one.numel() for one in each if isinstance(one, torch.Tensor))

        with Watched(saw):
            torch.autograd.grad(objective(), hidden)
        return max(sizes)

    def plain() -> torch.Tensor:
        law = torch.softmax(wanted.detach() @ head.t(), dim=-1)
        logits = hidden @ head.t()
        return (
            torch.nn.functional.cross_entropy(logits, ids)
            + (torch.softmax(logits, dim=-1) - law).abs().sum()
        )

    slots = LossSlots(hidden, ids, torch.ones(rows, dtype=torch.bool), ids, torch.ones(rows))
    given = {"last_hidden": wanted.detach(), "target_head": head, "weights": LossWeights()}
    lean = peak(lambda: slot_terms(_headed(head), slots, **given)[0])
    assert lean <= 5 * vocabulary < 12 * 5 * vocabulary == peak(plain)


def test_an_evaluation_computes_no_gradient() -> None:
    """The same terms, by the products with the heads alone."""
    rows, width, rank, vocabulary = 60, 4, 3, 2000
    generator = torch.Generator().manual_seed(2)
    hidden, codes, wanted, head, w2, target_head = (
        torch.randn(count, size, generator=generator).requires_grad_()
        for count, size in ((rows, width), (rows, rank), (rows, width), (vocabulary, width),
                            (vocabulary, rank), (vocabulary, width))
    )  # fmt: skip
    ids, scale = torch.arange(rows), torch.ones(rows)
    slots = LossSlots(hidden, ids, torch.ones(rows, dtype=torch.bool), ids, scale)

    def terms() -> tuple[Tensor, ...]:
        return slot_terms(
            _headed(head), slots, last_hidden=wanted.detach(), target_head=target_head.detach(),
            weights=LossWeights(), codes=codes, markov_w2=w2,
        )  # fmt: skip

    made: list[str] = []
    with torch.no_grad(), Watched(lambda name, *_: made.append(name)):
        found = terms()
    torch.testing.assert_close(found, terms())
    assert sum("mm" in name for name in made) == 3, "the target's, the drafter's, the codes'"
    assert "zeros_like" not in made, "of a head's gradient"
