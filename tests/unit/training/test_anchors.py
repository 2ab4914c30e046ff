"""Anchor candidates, their draw, and the labels of a block."""

import torch

from dspark.training.anchors import candidates, draw_anchors, label_blocks, slots_after


def marks(length: int, *runs: tuple[int, int]) -> torch.Tensor:
    made = torch.zeros(length, dtype=torch.bool)
    for start, stop in runs:
        made[start:stop] = True
    return made


def test_an_anchor_and_its_next_token_are_both_supervised() -> None:
    assert candidates(marks(8, (1, 4), (5, 6), (7, 8))).nonzero().flatten().tolist() == [1, 2]


def test_the_draw_is_ascending_without_repeats_and_of_candidates_alone() -> None:
    generator = torch.Generator().manual_seed(0)
    assert draw_anchors(marks(20, (5, 9)), 6, generator=generator).tolist() == [5, 6, 7]
    drawn = draw_anchors(marks(20, (0, 20)), 6, generator=generator).tolist()
    assert len(drawn) == 6
    assert drawn == sorted(set(drawn))
    assert not len(draw_anchors(marks(20), 6, generator=generator))


def test_the_draw_is_uniform() -> None:
    generator = torch.Generator().manual_seed(0)
    counts = torch.zeros(10)
    for _ in range(4000):
        counts[draw_anchors(marks(11, (0, 11)), 3, generator=generator)] += 1
    expected = 4000 * 3 / 10
    assert (counts - expected).abs().max() < 5 * (expected * 0.7) ** 0.5


def test_the_first_unsupervised_slot_ends_a_block() -> None:
    supervised = marks(40, (10, 30), (32, 36))  # supervised again, but behind a gap
    anchors = torch.tensor([20, 25, 28])
    labels = label_blocks(
        input_ids=torch.arange(40), supervised=supervised, anchors=anchors, block_size=7
    )
    assert labels.eval_mask.sum(-1).tolist() == [7, 4, 1]
    assert labels.target_ids[1].tolist() == [26, 27, 28, 29, 30, 31, 32]


def test_a_block_over_the_end_of_the_text_is_clamped_and_masked() -> None:
    anchors = torch.tensor([4])
    labels = label_blocks(
        input_ids=torch.arange(6), supervised=marks(6, (0, 6)), anchors=anchors, block_size=4
    )
    assert labels.target_ids.tolist() == [[5, 5, 5, 5]]
    assert labels.eval_mask.tolist() == [[True, False, False, False]]
    assert slots_after(anchors, 4, 6).tolist() == [[4, 5, 5, 5]]
