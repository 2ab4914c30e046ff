"""The pool's two layouts: what is written is found, by slot and by member, wherever a head's keys
lie."""

import psutil
import pytest
import torch

from verify_service.kv_pool import ALIGNMENT, KeyValuePool

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


def test_a_pool_takes_memory_of_a_host_only_where_tokens_are_written() -> None:
    like = torch.ones(1, HEADS, SIZE, dtype=torch.bfloat16)
    whole = 1 << 28  # bytes of the keys
    process = psutil.Process()
    before = process.memory_info().rss
    keys, values = KeyValuePool(whole // like.nbytes, by_head=True).layer(0, like, like)
    assert keys.nbytes == whole
    assert keys.transpose(0, 1).data_ptr() % ALIGNMENT == 0
    keys[7] = like
    assert keys[6:9].count_nonzero() == like.numel()
    assert values[-1].count_nonzero() == 0
    assert process.memory_info().rss - before < whole / 8
