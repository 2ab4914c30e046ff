"""Rows that are kept and rows that are owed: whoever asks gets what was written last."""

from types import SimpleNamespace

import pytest
import torch
from torch import Tensor

from verify_service.feature_store import PART, ROW_DTYPE, FeatureStore

TAPS, WIDTH, SLOTS = 6, 2, 4 * PART


class Sums:
    """A row is the sums of two halves of its taps; counts what it is asked for."""

    width = WIDTH

    def __init__(self) -> None:
        self.asked: list[int] = []

    def project(self, features: Tensor) -> Tensor:
        self.asked.append(len(features))
        return features.reshape(len(features), WIDTH, -1).sum(dim=-1)


@pytest.fixture
def projection() -> Sums:
    return Sums()


@pytest.fixture
def store(projection: Sums) -> FeatureStore:
    return FeatureStore(SLOTS, projection)


def taps(*values: float) -> Tensor:
    return torch.tensor(values)[:, None].expand(-1, TAPS).clone()


def rows(*values: float) -> Tensor:
    return torch.tensor(values, dtype=ROW_DTYPE)[:, None].expand(-1, WIDTH) * (TAPS // WIDTH)


def test_owed_rows_are_projected_when_they_are_read_and_no_others(
    store: FeatureStore, projection: Sums
) -> None:
    for slot in range(10):
        store.put_later([slot], taps(float(slot)))
    assert not projection.asked
    assert store.get([7, 3]).equal(rows(7.0, 3.0))
    assert store.get(range(3, 8)).equal(rows(*map(float, range(3, 8))))
    assert store.get(range(3, 8)).equal(rows(*map(float, range(3, 8))))
    assert projection.asked == [2, 3]


def test_what_was_written_last_counts(store: FeatureStore, projection: Sums) -> None:
    store.put_later([1, 2], taps(1.0, 2.0))
    store.put([1], rows(9.0))  # another sequence has the slot now
    store.put_later([2], taps(8.0))
    assert store.get([1, 2]).equal(rows(9.0, 8.0))
    store.put_later([1], taps(7.0))
    assert store.get([1, 2]).equal(rows(7.0, 8.0))
    assert projection.asked == [1, 1], "what was written over is not projected"


def test_many_owed_rows_are_projected_part_by_part(store: FeatureStore, projection: Sums) -> None:
    values = [float(slot % 50) for slot in range(2 * PART + 1)]
    store.put_later(range(2 * PART + 1), taps(*values))
    assert store.get(range(2 * PART + 1)).equal(rows(*values))
    assert projection.asked == [PART, PART, 1], "a copy of all their taps could fill the memory"


def test_a_projection_that_fails_leaves_its_rows_owed(
    store: FeatureStore, projection: Sums, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(features: Tensor) -> Tensor:
        raise RuntimeError("out of memory")

    store.put_later([1], taps(1.0))
    with monkeypatch.context() as broken:
        broken.setattr(projection, "project", fail)
        with pytest.raises(RuntimeError):
            store.get([1])
    assert store.get([1]).equal(rows(1.0))


def test_taps_may_be_overwritten_once_they_are_owed(store: FeatureStore) -> None:
    of_a_pass = taps(3.0, 4.0)
    store.put_later([0, 1], of_a_pass)
    of_a_pass.zero_()  # the next pass writes where this one did
    assert store.get([0, 1]).equal(rows(3.0, 4.0))


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
def test_owed_taps_are_of_the_targets_dtype_and_may_be_part_of_more(
    store: FeatureStore, dtype: torch.dtype
) -> None:
    part = taps(3.0, 4.0).to(dtype).repeat(1, 2)[:, :TAPS]
    assert not part.is_contiguous()
    store.put_later([0, 5], part)
    assert store.get([5, 0]).equal(rows(4.0, 3.0))


def test_rows_without_a_width_are_kept_too() -> None:
    store = FeatureStore(8, SimpleNamespace(width=0))
    store.put_later([2, 3], None)
    assert store.get([2, 3]).shape == (2, 0)
