"""The pool's two layouts: what is written is found, by slot and by member, wherever a head's keys
lie."""

from __future__ import annotations

import pytest
import torch

from verify_service.kv_pool import KeyValuePool

HEADS, SIZE, SLOTS = 2, 4, 24


@pytest.mark.parametrize("by_head", [False, True])
def test_gathered_rows_are_those_of_the_slots_member_by_member(by_head: bool) -> None:
    pool = KeyValuePool(SLOTS, by_head=by_head)
    rows = torch.randn(SLOTS, HEADS, SIZE)
    keys, values = pool.layer(0, rows[:1], rows[:1])
    keys.index_copy_(0, torch.arange(SLOTS), rows)
    values[3:9] = rows[3:9]
    index = torch.tensor([5, 6, 7, 20, 21, 20])
    found = pool.gather("keys", keys, index, 2)
    assert found.shape == (2, HEADS, 3, SIZE)
    assert torch.equal(found, rows[index].view(2, 3, HEADS, SIZE).transpose(1, 2))
    assert torch.equal(values[3:9], rows[3:9])


def test_a_heads_keys_lie_side_by_side_where_attention_reads_them_so() -> None:
    like = torch.randn(1, HEADS, SIZE)
    keys, _ = KeyValuePool(SLOTS, by_head=True).layer(0, like, like)
    assert keys.transpose(0, 1).is_contiguous()


@pytest.mark.parametrize("by_head", [False, True])
def test_room_for_gathered_rows_grows_and_is_used_again(by_head: bool) -> None:
    pool = KeyValuePool(SLOTS, by_head=by_head)
    like = torch.randn(1, HEADS, SIZE)
    keys, _ = pool.layer(0, like, like)
    keys[:] = torch.randn(SLOTS, HEADS, SIZE)
    for count in (2, 12, 4):
        index = torch.arange(count)
        expected = keys[index].view(2, -1, HEADS, SIZE).transpose(1, 2)
        assert torch.equal(pool.gather("keys", keys, index, 2), expected)
