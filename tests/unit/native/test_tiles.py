"""Products by the matrix unit are those of fp32 for any shape, whatever rows stand beside a row; others are refused."""

from __future__ import annotations

import pytest
import torch

from dspark.native import tiles
from dspark.native.tiles import MOST_ROWS, PAIR, Tiles, available, exact

needs_unit = pytest.mark.skipif(not available(), reason="no matrix unit, or no C compiler has built the kernels")
SHAPES = ((1, 1), (PAIR, 32), (PAIR + 1, 33), (40, 300), (150, 64), (15, 31))  # outputs, inputs


def weight_of(outs: int, ins: int, seed: int = 1) -> torch.Tensor:
    return torch.randn(outs, ins, generator=torch.Generator().manual_seed(seed)).bfloat16().float()


@needs_unit
@pytest.mark.parametrize("rows", [1, 2, 15, 16, 17, 31, 32, 33, 70, MOST_ROWS, MOST_ROWS + 1, 2 * MOST_ROWS + 40])
def test_products_are_those_of_fp32(rows: int) -> None:
    draw = torch.Generator().manual_seed(rows)
    for outs, ins in SHAPES:
        weight = weight_of(outs, ins)
        x = torch.randn(rows, ins, generator=draw) * 10.0 ** torch.randint(-6, 7, (rows, 1), generator=draw)
        bias, residual = torch.randn(outs, generator=draw), torch.randn(rows, outs, generator=draw)
        right = x.double() @ weight.double().t()
        # fp32 rounds a sum of n terms by at most n halves of its last place; a product of bf16 weights in three pieces
        # that were cut too short would be off by 2^-16 of its terms.
        bound = 2.0**-21 * (x.double().abs() @ weight.double().abs().t() + 8.0)
        product = Tiles(weight)
        assert ((product(x) - right).abs() <= bound).all()
        assert ((product(x, bias) - (right + bias)).abs() <= bound).all()
        assert ((product.plus(x, residual) - (right + residual)).abs() <= bound).all()


@needs_unit
def test_what_is_given_stays_as_it_was() -> None:
    product = Tiles(weight_of(40, 64))
    x, bias, residual = torch.randn(1, 64), torch.randn(40), torch.randn(1, 40)
    before = [each.clone() for each in (x, bias, residual)]
    product(x, bias)
    product.plus(x, residual)
    assert all(torch.equal(one, two) for one, two in zip(before, (x, bias, residual), strict=True))


@needs_unit
def test_a_row_is_the_same_whoever_stands_beside_it_and_whoever_computes() -> None:
    product, x = Tiles(weight_of(600, 256)), torch.randn(300, 256)
    whole = product(x)
    for rows in (1, 5, 16, 17, 40):
        assert torch.equal(product(x[:rows]), whole[:rows])
    threads = torch.get_num_threads()
    try:
        torch.set_num_threads(3)
        assert torch.equal(product(x), whole)
    finally:
        torch.set_num_threads(threads)


@needs_unit
def test_rows_may_have_any_leading_shape_and_none() -> None:
    product, x = Tiles(weight_of(40, 64)), torch.randn(4, 3, 128)[..., ::2]
    torch.testing.assert_close(product(x), product(x.reshape(12, 64)).view(4, 3, 40), rtol=0, atol=0)
    assert product(torch.empty(0, 64)).shape == (0, 40)


@needs_unit
def test_other_forms_are_refused() -> None:
    product = Tiles(weight_of(40, 64))
    for x in (torch.zeros(2, 63), torch.zeros(2, 64, dtype=torch.float64), torch.zeros(2, 64, dtype=torch.bfloat16)):
        with pytest.raises(NotImplementedError):
            product(x)
    with pytest.raises(NotImplementedError):
        product.plus(torch.zeros(2, 64), torch.zeros(3, 40))
    with pytest.raises(NotImplementedError):
        product.plus(torch.zeros(2, 64), torch.zeros(40, 2))
    with pytest.raises(ValueError, match="matrix unit"):
        Tiles(weight_of(40, 64) + 1e-3)


def test_only_weights_that_bf16_holds_count() -> None:
    weight = weight_of(8, 8)
    assert exact(weight)
    for changed in (weight.bfloat16(), weight.double(), weight[0], weight[:0], weight.where(weight < 9, weight * 0)):
        assert exact(changed) is (changed.dtype == torch.float32 and changed.dim() == 2 and changed.numel() > 0)
    for number in (0.1, float("nan"), float("inf"), 1e-39):  # bf16 holds the last two, the unit loses them
        weight[3, 3] = number
        assert not exact(weight)


@needs_unit
def test_where_the_trial_comes_out_wrong_it_is_not_used(monkeypatch: pytest.MonkeyPatch) -> None:
    available.cache_clear()
    try:
        monkeypatch.setattr(Tiles, "plus", lambda self, x, residual: residual)
        assert not available()
    finally:
        available.cache_clear()


def test_without_the_system_s_leave_there_is_none(monkeypatch: pytest.MonkeyPatch) -> None:
    available.cache_clear()
    try:
        monkeypatch.setattr(tiles, "_permitted", lambda: None)
        assert not available()
        with pytest.raises(ValueError, match="matrix unit"):
            Tiles(weight_of(8, 8))
    finally:
        monkeypatch.undo()
        available.cache_clear()
