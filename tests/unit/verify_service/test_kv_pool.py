"""The pool's two layouts: what is written is found, by slot and by member, wherever a head's keys
lie."""

import pytest
import torch

from verify_service.kv_pool import KeyValuePool

HEADS, SIZE, SLOTS = 2, 4, 24


@pytest.mark.parametrize("by_head", [False, True])
def test_gathered_rows_are_those_of_the_slots_member_by_member(by_head: bool) -> None:
    """Also where room for them grows, and is used again."""
    pool = KeyValuePool(SLOTS, by_head=by_head)
    rows = torch.randn(SLOTS, HEADS, SIZE)
    keys, values = pool.layer(0, rows[:1], rows[:1])
    keys.index_copy_(0, torch.arange(SLOTS), rows)
    values[3:9] = rows[3:9]
    assert torch.equal(values[3:9], rows[3:9])
    for slots in ([5, 6], [5, 6, 7, 20, 21, 20], [*range(12)], [3, 2, 1, 0]):
        index = torch.tensor(slots)
        found = pool.gather("keys", keys, index, 2)
        assert torch.equal(found, rows[index].view(2, -1, HEADS, SIZE).transpose(1, 2))


def test_a_heads_keys_lie_side_by_side_where_attention_reads_them_so() -> None:
    like = torch.randn(1, HEADS, SIZE)
    keys, _ = KeyValuePool(SLOTS, by_head=True).layer(0, like, like)
    assert keys.transpose(0, 1).is_contiguous()
