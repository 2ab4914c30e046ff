"""The largest of rows are those that a stable sort finds, whatever the rows hold."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from dspark.native import compiled, ranking
from dspark.native.ranking import top

needs_kernels = pytest.mark.skipif(compiled.kernels() is None, reason="no C compiler has built the kernels")


@needs_kernels
@pytest.mark.parametrize("seed", range(30))
def test_they_are_those_of_a_stable_sort(seed: int) -> None:
    draw = np.random.default_rng(seed)
    count, width = int(draw.integers(1, 5)), int(draw.choice([1, 2, 63, 64, 65, 130, 1000, 4096, 40_000]))
    k = int(draw.integers(1, min(width, 300) + 1))
    rows = draw.normal(size=(count, width)).astype(np.float32)
    match seed % 6:
        case 1:
            rows = np.round(rows)  # many equals
        case 2:
            rows[:, draw.random(width) < 0.7] = -np.inf  # as bans leave them
        case 3:
            rows.sort(axis=1)
        case 4:
            rows[:] = 1.5
        case 5:
            rows[0, :] *= 1e30
    values, places = top(torch.from_numpy(rows), k)
    expected = np.argsort(-rows, axis=1, kind="stable")[:, :k]
    assert (places.numpy() == expected).all()
    assert (values.numpy() == np.take_along_axis(rows, expected, 1)).all()


@needs_kernels
@pytest.mark.parametrize("share", [0.001, 0.5, 1.0])
def test_rows_with_what_is_no_number_give_some_of_theirs(share: float) -> None:
    rows = torch.randn(4, 700, generator=torch.Generator().manual_seed(1))
    rows[2, torch.rand(700, generator=torch.Generator().manual_seed(2)) < share] = torch.nan
    values, places = top(rows, 64)
    assert values.shape == places.shape == (4, 64)
    assert bool(((places >= 0) & (places < 700)).all())
    torch.testing.assert_close(values, rows.gather(1, places), equal_nan=True)
    assert torch.equal(places[[0, 1, 3]], rows[[0, 1, 3]].topk(64).indices)


def test_other_forms_and_none_at_all(monkeypatch: pytest.MonkeyPatch) -> None:
    rows = torch.randn(3, 50, dtype=torch.float64)
    expected = rows.topk(5, dim=-1)
    for given in (rows, rows.T.contiguous().T):
        values, places = top(given, 5)
        assert torch.equal(values, expected.values)
        assert torch.equal(places, expected.indices)
    assert top(rows.float()[:0], 5)[0].shape == (0, 5)
    monkeypatch.setattr(ranking, "kernels", lambda: None)
    ranking.available.cache_clear()
    assert torch.equal(top(rows.float(), 5)[1], rows.float().topk(5, dim=-1).indices)
    ranking.available.cache_clear()


@needs_kernels
def test_what_is_learned_from_keeps_its_gradient() -> None:
    rows = torch.randn(2, 300, requires_grad=True)
    top(rows, 3)[0].sum().backward()
    assert rows.grad is not None
    assert int(rows.grad.sum()) == 6


@needs_kernels
def test_where_the_trial_comes_out_wrong_it_is_not_used(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ranking, "_found", lambda rows, k: (rows[:, :k], torch.zeros(len(rows), k).long()))
    ranking.available.cache_clear()
    assert not ranking.available()
    ranking.available.cache_clear()
