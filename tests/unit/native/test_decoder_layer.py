"""A layer in one call gives what its parts give, one after the other, and refuses what it would misread."""

from __future__ import annotations

from dataclasses import replace
from typing import Any, NamedTuple
from weakref import ref

import pytest
import torch
from torch import Tensor

from dspark.native import compiled, tiles
from dspark.native.attention import PagedAttention, Tables
from dspark.native.decoder_layer import OnePass, Weights, WholeLayer
from dspark.native.layer import NativeLayer
from dspark.native.tiles import Tiles

pytestmark = pytest.mark.skipif(
    compiled.kernels() is None or not tiles.available(), reason="no kernels here, or no matrix unit for them"
)

PAGE, PAGES = 4, 12


class Shape(NamedTuple):
    width: int = 48
    heads: int = 4
    kv_heads: int = 2
    size: int = 16
    wide: int = 72
    normed: bool = True
    window: int | None = None


def random(*shape: int, seed: int = 0) -> Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed))


def weights_of(shape: Shape) -> Weights:
    def product(outs: int, ins: int, seed: int) -> Tiles:
        return Tiles((0.1 * random(outs, ins, seed=seed)).bfloat16().float())

    queries, joined = shape.heads * shape.size, (shape.heads + 2 * shape.kv_heads) * shape.size
    return Weights(
        first=1 + 0.1 * random(shape.width, seed=1),
        first_eps=1e-6,
        second=1 + 0.1 * random(shape.width, seed=2),
        second_eps=1e-5,
        heads_norm=1 + 0.1 * random(shape.heads + shape.kv_heads, shape.size, seed=3) if shape.normed else None,
        heads_eps=1e-6,
        qkv=product(joined, shape.width, 4),
        out=product(shape.width, queries, 5),
        gate_up=product(2 * shape.wide, shape.width, 6),
        down=product(shape.width, shape.wide, 7),
    )


class Cohort(NamedTuple):
    """Sequences of some committed tokens and some new ones, on pages of their own, the last ones first."""

    slots: Tensor
    tables: Tables

    @staticmethod
    def of(used: tuple[int, ...], queries: tuple[int, ...]) -> Cohort:
        each = PAGES // len(used)
        blocks = torch.arange(PAGES - 1, -1, -1)[: each * len(used)].view(len(used), each).int()
        slots = [
            int(blocks[n, place // PAGE]) * PAGE + place % PAGE
            for n, (past, new) in enumerate(zip(used, queries, strict=True))
            for place in range(past, past + new)
        ]
        ends = torch.tensor([0, *torch.tensor(queries).cumsum(0).tolist()]).int()
        lengths = torch.tensor([past + new for past, new in zip(used, queries, strict=True)]).int()
        return Cohort(torch.tensor(slots), Tables(ends, lengths, blocks, max(queries), int(lengths.max())))


def pools_of(shape: Shape, *, by_head: bool = True) -> tuple[Tensor, Tensor]:
    slots = PAGE * PAGES
    made = [random(shape.kv_heads, slots, shape.size, seed=seed).transpose(0, 1) for seed in (8, 9)]
    return (made[0], made[1]) if by_head else (made[0].contiguous(), made[1].contiguous())


def rotation_of(tokens: int, size: int) -> tuple[Tensor, Tensor]:
    angle = random(tokens, size // 2, seed=10).repeat(1, 2)[None]
    return angle.cos(), angle.sin()


def halves_of(tokens: int, size: int) -> tuple[Tensor, Tensor]:
    """As a pass is told them."""
    cos, sin = rotation_of(tokens, size)
    return cos[0, :, : size // 2], sin[0, :, : size // 2]


def whole(shape: Shape, weights: Weights | None = None) -> WholeLayer:
    own = weights or weights_of(shape)
    return WholeLayer(own, heads=shape.heads, kv_heads=shape.kv_heads, scale=None, window=shape.window)


def by_parts(shape: Shape, own: Weights, x: Tensor, keys: Tensor, values: Tensor, cohort: Cohort) -> Tensor:
    native, attention = NativeLayer.found(x), PagedAttention.found()
    assert native is not None
    assert attention is not None
    rotation = rotation_of(len(x), shape.size)
    qkv = own.qkv(native.norm(x, own.first, own.first_eps)).view(len(x), -1, shape.size)
    q = native.spread(qkv, own.heads_norm, own.heads_eps, rotation, keys, values, cohort.slots, shape.heads)
    paged = (-1, PAGE, shape.kv_heads, shape.size)
    mixed = attention(q, keys.view(paged), values.view(paged), cohort.tables, None, shape.window)
    x = own.out.plus(mixed.flatten(1), x)
    return own.down.plus(native.gate(own.gate_up(native.norm(x, own.second, own.second_eps))), x)


@pytest.mark.parametrize(
    "shape",
    [
        Shape(),
        Shape(width=40, heads=3, kv_heads=1, size=40, wide=33),
        Shape(heads=2, kv_heads=2, size=64, normed=False),
        Shape(window=5),
    ],
)
@pytest.mark.parametrize(("used", "queries"), [((0,), (1,)), ((9, 0, 11), (1, 4, 2)), ((3, 20), (16, 1))])
@pytest.mark.parametrize("by_head", [True, False])
def test_it_is_what_its_parts_give(
    shape: Shape, used: tuple[int, ...], queries: tuple[int, ...], by_head: bool
) -> None:
    cohort, own, x = Cohort.of(used, queries), weights_of(shape), random(sum(queries), shape.width, seed=11)
    pools, others = pools_of(shape, by_head=by_head), pools_of(shape, by_head=by_head)
    told = OnePass(cohort.slots, cohort.tables, PAGE, halves_of(len(x), shape.size))
    layer, before = whole(shape, own), x.clone()
    made = layer(x, *pools, told)
    assert torch.equal(made, by_parts(shape, own, x, *others, cohort))
    assert all(torch.equal(one, other) for one, other in zip(pools, others, strict=True))
    assert torch.equal(x, before)
    assert torch.equal(layer(x, *pools_of(shape), told), made), "the same again, in pools of another kind"


def blocks_by_parts(shape: Shape, own: Weights, x: Tensor, keys: Tensor, values: Tensor, tables: Tables) -> Tensor:
    native, attention = NativeLayer.found(x), PagedAttention.found()
    assert native is not None
    assert attention is not None
    assert own.heads_norm is not None
    both = shape.heads + shape.kv_heads
    qkv = own.qkv(native.norm(x, own.first, own.first_eps)).view(len(x), -1, shape.size)
    qk = native.turn(qkv, own.heads_norm, own.heads_eps, torch.cat(halves_of(len(x), shape.size), dim=-1))
    paged = (-1, PAGE, shape.kv_heads, shape.size)
    seen = (qk[:, shape.heads :], qkv[:, both:])
    mixed = attention(qk[:, : shape.heads], keys.view(paged), values.view(paged), tables, own=seen)
    x = own.out.plus(mixed.flatten(1), x)
    return own.down.plus(native.gate(own.gate_up(native.norm(x, own.second, own.second_eps))), x)


@pytest.mark.parametrize("shape", [Shape(), Shape(width=40, heads=3, kv_heads=1, size=40, wide=33)])
@pytest.mark.parametrize(("used", "blocks"), [((7,), (5,)), ((9, 0, 11), (4, 4, 4)), ((0, 20), (16, 1))])
def test_tokens_without_slots_see_each_other_and_are_not_kept(
    shape: Shape, used: tuple[int, ...], blocks: tuple[int, ...]
) -> None:
    own, x, pools = weights_of(shape), random(sum(blocks), shape.width, seed=11), pools_of(shape, by_head=False)
    cohort, before = Cohort.of(used, blocks), [pool.clone() for pool in pools]
    tables = cohort.tables._replace(used_k=torch.tensor(used).int(), max_k=max(used))
    told = OnePass(None, tables, PAGE, halves_of(len(x), shape.size))
    assert torch.equal(whole(shape, own)(x, *pools, told), blocks_by_parts(shape, own, x, *pools, tables))
    assert all(torch.equal(one, other) for one, other in zip(pools, before, strict=True))
    if max(used):
        elsewhere = OnePass(None, tables._replace(blocks=tables.blocks + PAGES), PAGE, halves_of(len(x), shape.size))
        with pytest.raises(IndexError):
            whole(shape, own)(x, *pools, elsewhere)


def test_pools_that_are_let_go_of_are_gone() -> None:
    shape, cohort = Shape(), Cohort.of((2, 5), (3, 1))
    told = OnePass(cohort.slots, cohort.tables, PAGE, halves_of(4, shape.size))
    pools, layer = pools_of(shape), whole(shape)
    layer(random(4, shape.width), *pools, told)
    kept = [ref(pool) for pool in pools]
    del pools
    assert [pool() for pool in kept] == [None, None]


def test_a_wider_layer_of_the_same_pass_gets_its_room() -> None:
    narrow, wide = Shape(wide=16), Shape(wide=400)
    cohort = Cohort.of((2, 5), (3, 1))
    told = OnePass(cohort.slots, cohort.tables, PAGE, halves_of(4, narrow.size))
    for shape in (narrow, wide, narrow):
        own, x = weights_of(shape), random(4, shape.width, seed=11)
        expected = by_parts(shape, own, x, *pools_of(shape), cohort)
        assert torch.equal(whole(shape, own)(x, *pools_of(shape), told), expected)


def test_what_is_not_there_is_said() -> None:
    shape, cohort = Shape(), Cohort.of((2, 5), (3, 1))
    x, rotation = random(4, shape.width), halves_of(4, shape.size)
    layer = whole(shape)
    for slots, tables in (
        (torch.tensor([0, 1, 2, PAGE * PAGES]), cohort.tables),
        (torch.tensor([0, 1, -1, 3]), cohort.tables),
        (cohort.slots, cohort.tables._replace(blocks=cohort.tables.blocks + PAGES)),
        (cohort.slots, cohort.tables._replace(cu_q=torch.tensor([0, 3, 5]).int())),
        (cohort.slots, cohort.tables._replace(max_k=2)),
    ):
        with pytest.raises(IndexError):
            layer(x, *pools_of(shape), OnePass(slots, tables, PAGE, rotation))


def test_other_forms_are_refused() -> None:
    shape, cohort = Shape(), Cohort.of((2, 5), (3, 1))
    x, (cos, sin), (keys, values) = random(4, shape.width), halves_of(4, shape.size), pools_of(shape)
    layer, told = whole(shape), OnePass(cohort.slots, cohort.tables, PAGE, (cos, sin))
    calls: list[tuple[Any, ...]] = [
        (x.double(), keys, values, told),
        (x[:3], keys, values, told),
        (x.t().contiguous().t(), keys, values, told),
        (x, keys, values.contiguous(), told),
        (x, keys.bfloat16(), values.bfloat16(), told),
        (x, keys[:, :1], values[:, :1], told),
        (x, keys, values, OnePass(cohort.slots, cohort.tables, PAGE, halves_of(4, 2 * shape.size))),
    ]
    for call in calls:
        with pytest.raises(NotImplementedError):
            layer(*call)
    for slots, tables, rotation in (
        (cohort.slots.int(), cohort.tables, (cos, sin)),
        (cohort.slots, cohort.tables._replace(used_k=cohort.tables.used_k.long()), (cos, sin)),
        (cohort.slots, cohort.tables, (cos[:3], sin[:3])),
        (cohort.slots, cohort.tables, (cos.t().contiguous().t(), sin.t().contiguous().t())),
        (cohort.slots, cohort.tables, (cos.double(), sin.double())),
    ):
        with pytest.raises(NotImplementedError):
            OnePass(slots, tables, PAGE, rotation)
    windowed, block = Shape(window=5), OnePass(None, cohort.tables, PAGE, (cos, sin))
    with pytest.raises(NotImplementedError):
        whole(windowed)(x, keys, values, block)
    with pytest.raises(NotImplementedError):
        WholeLayer(weights_of(Shape(heads=3)), heads=3, kv_heads=2, scale=None, window=None)
    own = weights_of(shape)
    for wrong in ({"first": own.first[1:]}, {"out": own.qkv}, {"down": own.gate_up}, {"second": own.second.double()}):
        with pytest.raises(NotImplementedError):
            whole(shape, replace(own, **wrong))
