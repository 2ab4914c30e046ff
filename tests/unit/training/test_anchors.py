"""Anchor candidates, their draw, and the labels of a block."""

from __future__ import annotations

import torch

from dspark.training.anchors import Anchors, candidates, draw_anchors, gather_slots, label_blocks


def test_an_anchor_and_its_next_token_are_both_supervised() -> None:
    mask = torch.tensor([[0, 1, 1, 1, 0, 1, 0, 1]])
    assert candidates(mask).nonzero()[:, 1].tolist() == [1, 2]


def test_the_last_position_is_never_an_anchor() -> None:
    assert candidates(torch.ones(1, 4)).tolist() == [[True, True, True, False]]


def test_the_draw_is_sorted_without_repeats_and_padded_with_dummies() -> None:
    mask = torch.zeros(2, 20)
    mask[0, 5:9], mask[1] = 1, 1
    anchors = draw_anchors(mask, 6, generator=torch.Generator().manual_seed(0))
    assert anchors.positions[0].tolist() == [5, 6, 7, 0, 0, 0]
    assert anchors.keep[0].tolist() == [True, True, True, False, False, False]
    drawn = anchors.positions[1].tolist()
    assert drawn == sorted(set(drawn))
    assert anchors.keep[1].all()


def test_the_draw_is_uniform() -> None:
    generator = torch.Generator().manual_seed(0)
    counts = torch.zeros(10)
    for _ in range(40):
        positions = draw_anchors(torch.ones(100, 11), 3, generator=generator).positions
        counts += torch.bincount(positions.flatten(), minlength=10)
    expected = 40 * 100 * 3 / 10
    assert (counts - expected).abs().max() < 5 * (expected * 0.7) ** 0.5


def test_more_anchors_than_positions_are_fewer_anchors() -> None:
    anchors = draw_anchors(torch.ones(1, 4), 100)
    assert anchors.positions[anchors.keep].tolist() == [0, 1, 2]


def test_the_first_unsupervised_slot_ends_a_block() -> None:
    ids = torch.arange(40)[None]
    mask = torch.zeros(1, 40)
    mask[0, 10:30] = 1
    mask[0, 32:36] = 1  # supervised again, but behind a gap
    anchors = Anchors(torch.tensor([[20, 25, 28, 0]]), torch.tensor([[True, True, True, False]]))
    labels = label_blocks(input_ids=ids, loss_mask=mask, anchors=anchors, block_size=7)
    assert labels.eval_mask.sum(-1).tolist() == [[7, 4, 1, 0]]
    assert labels.target_ids[0, 1].tolist() == [26, 27, 28, 29, 30, 31, 32]


def test_a_block_over_the_end_of_the_row_is_clamped_and_masked() -> None:
    anchors = Anchors(torch.tensor([[4]]), torch.tensor([[True]]))
    labels = label_blocks(input_ids=torch.arange(6)[None], loss_mask=torch.ones(1, 6), anchors=anchors, block_size=4)
    assert labels.target_ids.tolist() == [[[5, 5, 5, 5]]]
    assert labels.eval_mask.tolist() == [[[True, False, False, False]]]


def test_slot_k_is_judged_by_the_row_before_its_token() -> None:
    rows = torch.arange(10).view(1, 10, 1)
    assert gather_slots(rows, torch.tensor([[3]]), 3)[0, 0, :, 0].tolist() == [3, 4, 5]
