"""Blocks of queries that see all kept keys and each other say what the formula says; without the
library none does."""

from collections.abc import Iterator

import numpy as np
import pytest
import torch

from dspark.native import attention, compiled
from dspark.native.attention import PagedAttention, Tables

needs_kernels = pytest.mark.skipif(
    compiled.kernels() is None, reason="no C compiler has built the kernels"
)


@pytest.fixture(params=[1, 3], ids=["one thread", "three threads"])
def kernel(request: pytest.FixtureRequest) -> Iterator[PagedAttention]:
    before = torch.get_num_threads()
    torch.set_num_threads(request.param)
    found = PagedAttention.for_blocks()
    assert found is not None
    yield found
    torch.set_num_threads(before)


@needs_kernels
@pytest.mark.parametrize("seed", range(24))
def test_any_shape_comes_out_as_by_formula(kernel: PagedAttention, seed: int) -> None:
    draw = np.random.default_rng(seed)
    size = int(draw.choice([6, 16, 20, 64, 80, 128, 256]))
    kv_heads, ratio, members, queries = (int(draw.integers(1, most + 1)) for most in (3, 4, 5, 13))
    page_size = int(draw.choice([1, 4, 16]))
    lengths = draw.integers(0, 90, members)
    pages = max(int(-(-lengths.max() // page_size)), 1)
    blocks = torch.from_numpy(draw.permutation(members * pages)).view(members, pages).int()
    first = torch.arange(0, members * queries + 1, queries).int()
    tables = Tables(first, torch.from_numpy(lengths).int(), blocks, queries, int(lengths.max()))
    # views, as layers hand them over
    qkv = torch.randn(members * queries, kv_heads * (ratio + 2), size)
    query, own_k, own_v = qkv.split([kv_heads * ratio, kv_heads, kv_heads], dim=1)
    keys, values = (torch.randn(members * pages, page_size, kv_heads, size) for _ in "kv")
    made = kernel(query, keys, values, tables, 1.5 * size**-0.5, own=(own_k, own_v))
    for n, length in enumerate(lengths.tolist()):
        rows = slice(n * queries, (n + 1) * queries)
        seen_k, seen_v = (
            torch.cat((pool[blocks[n].long()].flatten(0, 1)[:length], own[rows])).repeat_interleave(
                ratio, 1
            )
            for pool, own in ((keys, own_k), (values, own_v))
        )
        weights = (torch.einsum("qhd,khd->hqk", query[rows], seen_k) * 1.5 * size**-0.5).softmax(-1)
        expected = torch.einsum("hqk,khd->qhd", weights, seen_v)
        torch.testing.assert_close(made[rows], expected, rtol=1e-5, atol=1e-5)


@needs_kernels
def test_other_forms_are_refused(kernel: PagedAttention) -> None:
    tables = Tables(
        torch.tensor([0, 2]).int(), torch.tensor([3]).int(), torch.tensor([[1]]).int(), 2, 4
    )
    q, own, pool = torch.randn(2, 4, 8), torch.randn(2, 2, 8), torch.randn(2, 4, 2, 8)
    kernel(q, pool, pool, tables, own=(own, own))
    with pytest.raises(NotImplementedError):
        kernel(q, pool, pool, tables, own=(own[:1], own[:1]))
    with pytest.raises(NotImplementedError):
        kernel(q, pool, pool, tables, window=2, own=(own, own))
    with pytest.raises(NotImplementedError):
        kernel(q, pool, pool, tables, own=(own.double(), own.double()))
    for other in (
        (q.double(), pool, pool),
        (q, pool.bfloat16(), pool.bfloat16()),
        (q, pool, pool.bfloat16()),
        (q, pool[..., :4], pool[..., :4]),
        (q[:, :3], pool, pool),
    ):
        with pytest.raises(NotImplementedError):
            kernel(*other, tables)
    for table in (
        {"used_k": torch.tensor([3])},
        {"used_k": torch.tensor([3, 3]).int()},
        {"blocks": torch.tensor([[1, 0], [1, 0]]).int()[:, :1]},
    ):
        with pytest.raises(NotImplementedError):
            kernel(q, pool, pool, tables._replace(**table), own=(own, own))


@needs_kernels
def test_where_the_trial_comes_out_wrong_it_is_not_used(monkeypatch: pytest.MonkeyPatch) -> None:
    honest = PagedAttention.__call__
    monkeypatch.setattr(
        PagedAttention, "__call__", lambda *given, **named: honest(*given, **named) * 1.01
    )
    assert PagedAttention.for_blocks() is None


def test_without_the_library_there_is_none(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(attention, "kernels", lambda: None)
    assert PagedAttention.for_blocks() is None
