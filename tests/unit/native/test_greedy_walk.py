"""The greedy walk in one call comes to the ids that its steps come to, and refuses what it would misread."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor

from dspark.native import compiled, tiles
from dspark.native.markov import GreedyWalk
from dspark.native.tiles import Tiles

pytestmark = pytest.mark.skipif(
    compiled.kernels() is None or not tiles.available(), reason="no kernels here, or no matrix unit for them"
)


def random(*shape: int, seed: int = 0) -> Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed))


def head(vocab: int, rank: int) -> tuple[Tensor, Tiles]:
    return random(vocab, rank, seed=1), Tiles(random(vocab, rank, seed=2).bfloat16().float())


def by_steps(w1: Tensor, w2: Tiles, base: Tensor, anchors: Tensor) -> Tensor:
    ids = [anchors]
    for slot in range(base.shape[1]):
        ids.append((base[:, slot] + w2(w1[ids[-1]])).argmax(dim=-1))
    return torch.stack(ids[1:], dim=1)


@pytest.mark.parametrize(("n", "slots", "vocab", "rank"), [(1, 1, 40, 8), (3, 11, 1000, 64), (33, 4, 257, 33)])
def test_it_comes_to_the_ids_of_its_steps(n: int, slots: int, vocab: int, rank: int) -> None:
    w1, w2 = head(vocab, rank)
    base, anchors = 3 * random(n, slots + 2, vocab, seed=3), torch.arange(n) * 7 % vocab
    walk = GreedyWalk(w1, w2)
    for given in (base[:, :slots], base[:, 2:]):
        assert torch.equal(walk(given, anchors), by_steps(w1, w2, given, anchors))


def test_of_equals_it_is_the_first() -> None:
    walk = GreedyWalk(torch.zeros(50, 8), head(50, 8)[1])
    base = torch.zeros(2, 3, 50)
    base[1, :, [20, 49]] = 1.0
    assert walk(base, torch.tensor([0, 1])).tolist() == [[0, 0, 0], [20, 20, 20]]


def test_what_is_no_number_comes_to_some_id() -> None:
    w1, w2 = head(50, 8)
    ids = GreedyWalk(w1, w2)(torch.full((2, 3, 50), torch.nan), torch.tensor([0, 1]))
    assert bool(((ids >= 0) & (ids < 50)).all())


def test_other_forms_are_refused() -> None:
    w1, w2 = head(50, 8)
    walk, base, anchors = GreedyWalk(w1, w2), torch.zeros(2, 3, 50), torch.tensor([0, 1])
    calls: list[tuple[Any, ...]] = [
        (base.double(), anchors),
        (base[..., :49], anchors),
        (base.transpose(1, 2).contiguous().transpose(1, 2), anchors),
        (base, anchors.int()),
        (base, anchors[:1]),
    ]
    for call in calls:
        with pytest.raises(NotImplementedError):
            walk(*call)
    for outside in (-1, 50):
        with pytest.raises(IndexError):
            walk(base, torch.tensor([0, outside]))
    for wrong in (w1.double(), w1[:49], w1.t().contiguous().t()):
        with pytest.raises(NotImplementedError):
            GreedyWalk(wrong, w2)
