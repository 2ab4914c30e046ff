"""The compiled loops of a layer say what their formulas say, for any width, and refuse what they would misread."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from torch.nn.functional import rms_norm, silu

from dspark.model.rotary import rotate
from dspark.native import compiled, layer
from dspark.native.layer import NativeLayer

needs_kernels = pytest.mark.skipif(compiled.kernels() is None, reason="no C compiler has built the kernels")
LIKE = torch.empty(1)


@pytest.fixture
def native() -> NativeLayer:
    built = compiled.kernels()
    assert built is not None
    return NativeLayer(built)


@needs_kernels
def test_it_is_found_for_fp32_and_only_if_it_computes_rightly(
    native: NativeLayer, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert NativeLayer.found(LIKE) is not None
    layer._native.cache_clear()
    monkeypatch.setattr(NativeLayer, "gate", lambda self, both: 1.01 * silu(both[:, :20]) * both[:, 20:])
    assert NativeLayer.found(LIKE) is None
    layer._native.cache_clear()


@needs_kernels
def test_other_formats_are_refused_by_each_function(native: NativeLayer) -> None:
    x, weight = torch.zeros(2, 8), torch.zeros(8)
    for call in (
        lambda: native.norm(x.bfloat16(), weight, 1e-6),
        lambda: native.norm(x, weight.half(), 1e-6),
        lambda: native.norm(x, weight[:4], 1e-6),
        lambda: native.gate(x.half()),
        lambda: native.turn(torch.zeros(2, 3, 4).half(), torch.zeros(2, 4), 1e-6, torch.zeros(2, 4)),
        lambda: native.turn(torch.zeros(2, 3, 8), torch.zeros(2, 4), 1e-6, torch.zeros(2, 4)),
    ):
        with pytest.raises(NotImplementedError):
            call()


@needs_kernels
@pytest.mark.parametrize(("rows", "width"), [(1, 256), (3, 7), (16, 250), (5, 1)])
def test_norm_and_gate_for_any_width(native: NativeLayer, rows: int, width: int) -> None:
    torch.manual_seed(rows)
    x, weight = torch.randn(2, rows, width) * 3, torch.randn(width)
    torch.testing.assert_close(native.norm(x, weight, 1e-6), rms_norm(x, (width,), weight, 1e-6))
    both = torch.randn(rows, 2 * width) * 20
    torch.testing.assert_close(native.gate(both), silu(both[:, :width]) * both[:, width:], rtol=1e-5, atol=1e-5)


@needs_kernels
def test_extreme_gates_neither_overflow_nor_vanish(native: NativeLayer) -> None:
    gate = torch.tensor([[-1e4, -100.0, -1e-8, 0.0, 1e-8, 100.0, 1e4]])
    ones = torch.ones_like(gate)
    made = native.gate(torch.cat((gate, ones), dim=1))
    torch.testing.assert_close(made, silu(gate), rtol=1e-6, atol=1e-30)


@needs_kernels
@pytest.mark.parametrize("by_head", [False, True])
@pytest.mark.parametrize("normed", [False, True])
@pytest.mark.parametrize("size", [64, 6])
def test_spread_norms_turns_and_stores(native: NativeLayer, by_head: bool, normed: bool, size: int) -> None:
    torch.manual_seed(size)
    tokens, heads, kv_heads = 5, 4, 2
    qkv = torch.randn(tokens, heads + 2 * kv_heads, size)
    weights = torch.randn(heads + kv_heads, size) if normed else None
    angle = torch.randn(1, tokens, size // 2)
    rotation = (torch.cos(angle).repeat(1, 1, 2), torch.sin(angle).repeat(1, 1, 2))
    keys, values = (
        torch.zeros(kv_heads, 30, size).transpose(0, 1) if by_head else torch.zeros(30, kv_heads, size) for _ in "kv"
    )
    slots = torch.tensor([29, 0, 7, 8, 3])
    query = native.spread(qkv, weights, 1e-6, rotation, keys, values, slots, heads)
    expected = qkv[:, : heads + kv_heads]
    if weights is not None:
        expected = rms_norm(expected, (size,), None, 1e-6) * weights
    pairs = torch.complex(expected[..., : size // 2], expected[..., size // 2 :])
    expected = torch.view_as_real(pairs * torch.complex(*(torch.cos(angle), torch.sin(angle)))[0][:, None]).flatten(-2)
    torch.testing.assert_close(query, expected[:, :heads])
    torch.testing.assert_close(keys[slots], expected[:, heads:])
    assert torch.equal(values[slots], qkv[:, heads + kv_heads :])
    untouched = torch.ones(30, dtype=torch.bool)
    untouched[slots] = False
    assert not keys[untouched].any()
    assert not values[untouched].any()


@needs_kernels
@pytest.mark.parametrize("size", [64, 6])
def test_turn_norms_and_turns_the_first_heads_where_they_stand(native: NativeLayer, size: int) -> None:
    torch.manual_seed(size)
    rows, weights = torch.randn(2, 3, 8, size), torch.randn(6, size)
    angle = torch.randn(2, 3, size // 2)
    angles = torch.cat((angle.cos(), angle.sin()), dim=-1)
    expected = rotate(rms_norm(rows[:, :, :6], (size,), None, 1e-6) * weights, angles)
    torch.testing.assert_close(native.turn(rows, weights, 1e-6, angles), expected)
    with pytest.raises(NotImplementedError):
        native.turn(rows, weights, 1e-6, angles[:1])
    with pytest.raises(NotImplementedError):
        native.turn(rows[:, :, :5], weights, 1e-6, angles)


@needs_kernels
@pytest.mark.parametrize("by_head", [False, True])
@pytest.mark.parametrize("size", [64, 6])
def test_store_norms_and_turns_keys_where_they_stand(native: NativeLayer, by_head: bool, size: int) -> None:
    torch.manual_seed(size)
    kv, weights, angle = torch.randn(5, 4, size), torch.randn(2, size), torch.randn(5, size // 2)
    angles = torch.cat((angle.cos(), angle.sin()), dim=-1)
    keys, values = (torch.zeros(2, 30, size).transpose(0, 1) if by_head else torch.zeros(30, 2, size) for _ in range(2))
    slots = torch.tensor([29, 0, 7, 8, 3])
    native.store(kv, weights, 1e-6, angles, keys, values, slots)
    torch.testing.assert_close(keys[slots], rotate(rms_norm(kv[:, :2], (size,), None, 1e-6) * weights, angles))
    assert torch.equal(values[slots], kv[:, 2:])
    untouched = torch.ones(30, dtype=torch.bool)
    untouched[slots] = False
    assert not keys[untouched].any()
    assert not values[untouched].any()


@needs_kernels
def test_store_refuses_what_it_would_misread(native: NativeLayer) -> None:
    kv, weights, angles, slots = torch.ones(2, 4, 8), torch.ones(2, 8), torch.ones(2, 8), torch.tensor([0, 1])
    pool = torch.zeros(4, 2, 8)
    sound: dict[str, Any] = {
        **{"kv": kv, "weights": weights, "angles": angles},
        **{"keys": pool, "values": pool, "slots": slots},
    }
    for wrong in (
        {"kv": kv.half()},
        {"kv": torch.ones(2, 8, 4).transpose(1, 2)},
        {"weights": weights[:1]},
        {"angles": angles[:, :4]},
        {"keys": pool[:, :1]},
        {"values": torch.zeros(2, 4, 8).transpose(0, 1)},
        {"slots": slots.int()},
        {"slots": slots[:1]},
    ):
        with pytest.raises(NotImplementedError):
            native.store(**(sound | wrong), eps=1e-6)
    for outside in (-1, 4):
        with pytest.raises(IndexError, match="not among the 4"):
            native.store(kv, weights, 1e-6, angles, pool, pool, torch.tensor([0, outside]))
    assert not pool.any(), "a slot outside leaves all others as they were"


@needs_kernels
def test_what_it_would_misread_is_refused(native: NativeLayer) -> None:
    qkv, slots = torch.zeros(2, 4, 8), torch.tensor([0, 1])
    whole, part = torch.zeros(1, 2, 8), torch.zeros(1, 2, 4)
    pool, other = torch.zeros(4, 1, 8), torch.zeros(1, 4, 8).transpose(0, 1)
    for rotation, keys, values in (
        ((part, part), pool, pool),
        ((whole.half(), whole.half()), pool, pool),
        ((whole, whole), pool, other[:, :, ::2]),
        ((whole, whole), pool.half(), pool.half()),
    ):
        with pytest.raises(NotImplementedError):
            native.spread(qkv, None, 1e-6, rotation, keys, values, slots, 2)
    for weights, at in ((torch.zeros(1), slots), (None, slots.int()), (None, slots[:1])):
        with pytest.raises(NotImplementedError):
            native.spread(qkv, weights, 1e-6, (whole, whole), pool, pool, at, 2)
    for outside in (-1, 4):
        with pytest.raises(IndexError, match="not among the 4"):
            native.spread(qkv, None, 1e-6, (whole, whole), pool, pool, torch.tensor([0, outside]), 2)


def test_it_is_for_fp32_and_may_be_missing(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    assert NativeLayer.found(LIKE.half()) is None
    compiled.kernels.cache_clear()
    monkeypatch.setattr(compiled, "__file__", str(tmp_path / "compiled.py"))
    assert compiled.kernels() is None, "nothing was built"
    (tmp_path / f"_kernels{compiled.EXTENSION_SUFFIXES[0]}").write_bytes(b"of another machine")
    compiled.kernels.cache_clear()
    assert compiled.kernels() is None
    monkeypatch.undo()
    compiled.kernels.cache_clear()
