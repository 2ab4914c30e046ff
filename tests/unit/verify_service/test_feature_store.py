"""Rows that are kept: whoever asks gets a copy of what was written last."""

from types import SimpleNamespace

import pytest
import torch
from torch import Tensor

from dspark.wire import tensors
from dspark.wire.v1 import types_pb2
from verify_service.feature_store import ROW_DTYPE, FeatureStore

TAPS, WIDTH, SLOTS = 6, 2, 16


class Sums:
    """A row is the sums of two halves of its taps."""

    width = WIDTH

    def project(self, features: Tensor) -> Tensor:
        return features.reshape(len(features), WIDTH, -1).sum(dim=-1)


@pytest.fixture
def store() -> FeatureStore:
    return FeatureStore(SLOTS, Sums())


def taps(*values: float) -> Tensor:
    return torch.tensor(values)[:, None].expand(-1, TAPS).clone()


def rows(*values: float) -> Tensor:
    return torch.tensor(values, dtype=ROW_DTYPE)[:, None].expand(-1, WIDTH) * (TAPS // WIDTH)


def test_what_was_written_last_counts_wherever_its_slots_lie(store: FeatureStore) -> None:
    store.put([1, 7, 2], rows(1.0, 7.0, 2.0))
    store.put(range(3, 5), rows(3.0, 4.0))
    store.put([1], rows(9.0))  # another sequence has the slot now
    assert store.get([7, 2]).equal(rows(7.0, 2.0))
    assert store.get(range(1, 5)).equal(rows(9.0, 2.0, 3.0, 4.0))


@pytest.mark.parametrize("slots", [range(1, 3), [1, 2]], ids=["in a row", "scattered"])
def test_what_was_read_stays_as_it_is(store: FeatureStore, slots: range | list[int]) -> None:
    store.put(slots, rows(1.0, 2.0))
    read = store.get(slots)
    store.put(slots, rows(3.0, 4.0))
    assert read.equal(rows(1.0, 2.0))


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
def test_rows_are_of_one_dtype_whatever_that_of_the_taps(
    store: FeatureStore, dtype: torch.dtype
) -> None:
    part = taps(3.0, 4.0).to(dtype).repeat(1, 2)[:, :TAPS]
    assert not part.is_contiguous()
    for made in (store.project(part, 2), store.under_way(part)):
        assert made.dtype == ROW_DTYPE
        assert made.equal(rows(3.0, 4.0))


@pytest.mark.parametrize("form", ["bfloat16", tensors.FP8])
@pytest.mark.parametrize("wrong", [float("nan"), float("inf"), -float("inf")])
def test_a_row_that_is_not_finite_is_sent_as_zeros(form: str, wrong: float) -> None:
    store = FeatureStore(SLOTS, Sums(), form)
    store.put([3, 1, 2], rows(1.0, wrong, 2.0))
    sent = store.packed([3, 1, 2])
    chunk = types_pb2.TensorChunk(**sent.chunk())
    read = tensors.read_tensor(chunk, width=WIDTH, max_rows=3)
    assert read.to(ROW_DTYPE).equal(rows(1.0, 0.0, 2.0))
    assert sent.zeroed == 1
    assert store.packed([2]).zeroed == 0


def test_rows_without_a_width_are_kept_too() -> None:
    store = FeatureStore(8, SimpleNamespace(width=0))
    store.put([2, 3], store.project(None, 2))
    assert store.get([2, 3]).shape == (2, 0)
    assert store.packed([2, 3]).zeroed == 0
