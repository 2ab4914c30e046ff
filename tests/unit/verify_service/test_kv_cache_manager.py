"""Whatever is shared, kept or given back, and however the pool lies: who reads a slot finds what
its own tokens wrote there."""

import numpy as np
import psutil
import pytest
import torch

from dspark.types import SamplingParams
from verify_service.kv_cache_manager import KVCacheManager
from verify_service.kv_pool import ALIGNMENT, KeyValuePool
from verify_service.sequences import CachedSequence

SIZE = 4
# salt, and every token up to this one: what keys and values depend on
Written = tuple[str, tuple[int, ...]]


class Memory:
    """A pool whose slots say what was written to them."""

    def __init__(self, pages: int) -> None:
        self.said: list[Written | None] = [None] * (pages * SIZE)
        self.kv_cache = KVCacheManager(pages=pages, page_size=SIZE, most=64, store=None, kept=pages)
        self.spared = 0

    def take_in(
        self, sequence: int, prompt: list[int], salt: str, longest: int
    ) -> CachedSequence | None:
        """Admits and runs a prompt."""
        state = CachedSequence(
            sequence, 1, 0, SamplingParams(temperature=0.0), len(prompt), False, salt=salt
        )
        if self.kv_cache.admit(state, longest, prompt) is not None:
            return None
        self.spared += state.spared
        self.run(state, prompt[state.cached :])
        self.kv_cache.keep_prefix(state)
        state.token_ids.append(int(prompt[-1]) ^ 1)  # the anchor, whose keys nobody has written yet
        return state

    def run(self, state: CachedSequence, tokens: list[int]) -> None:
        """Writes the keys of tokens, which are committed."""
        state.token_ids = [*state.token_ids[: state.cached], *tokens]
        slots = list(self.kv_cache.slots(state, state.cached, state.cached + len(tokens)))
        for offset, slot in enumerate(slots, start=state.cached + 1):
            self.said[slot] = (state.salt or "", tuple(state.token_ids[:offset]))
        state.cached += len(tokens)

    def check(self, state: CachedSequence) -> None:
        """What its next pass would read."""
        for position, slot in enumerate(list(self.kv_cache.slots(state, 0, state.cached))):
            assert self.said[slot] == (state.salt or "", tuple(state.token_ids[: position + 1])), (
                position
            )


@pytest.mark.parametrize("seed", range(6))
def test_everybody_reads_what_its_own_tokens_wrote(seed: int) -> None:
    draw = np.random.default_rng(seed)
    memory = Memory(40)
    prompts = [[int(token) for token in draw.integers(0, 3, 24)] for _ in range(3)]
    prompts.append([token + 256 for token in prompts[0]])  # alike in their last byte alone
    living: dict[int, CachedSequence] = {}
    for number in range(150):
        if draw.random() < 0.4:
            prompt = prompts[draw.integers(4)][: int(draw.integers(2, 25))]
            longest = len(prompt) + int(draw.integers(1, 40))
            state = memory.take_in(number, prompt, "ab"[draw.integers(2)], longest)
            if state is not None:
                living[number] = state
        elif living and draw.random() < 0.3:
            memory.kv_cache.drop(living.pop(int(draw.choice(list(living)))))
        else:
            for state in living.values():
                drafted = [int(token) for token in draw.integers(0, 3, draw.integers(0, 6))]
                room = memory.kv_cache.grow_within(state, state.cached + 1, len(drafted))
                if room is None:
                    continue
                anchor, kept = state.token_ids[-1], int(draw.integers(0, room + 1))
                memory.run(state, [anchor, *drafted[:room]])
                # what was not kept is taken back, and its slots are written again
                state.cached -= room - kept
                state.token_ids = [*state.token_ids[: state.cached], 2]
        for state in living.values():
            memory.check(state)
    assert memory.spared, "no prefix was ever found"
    for state in living.values():
        memory.kv_cache.drop(state)
    memory.kv_cache.prefixes.clear()
    assert memory.kv_cache.pool.free == memory.kv_cache.pool.total


HEADS, WIDTH, SLOTS = 2, 4, 24


@pytest.mark.parametrize("by_head", [False, True])
def test_gathered_rows_are_those_of_the_slots_member_by_member(by_head: bool) -> None:
    """Also where room for them grows, and is used again."""
    pool = KeyValuePool(SLOTS, by_head=by_head)
    rows = torch.randn(SLOTS, HEADS, WIDTH)
    keys, values = pool.layer(0, rows[:1], rows[:1])
    keys.index_copy_(0, torch.arange(SLOTS), rows)
    values[3:9] = rows[3:9]
    assert torch.equal(values[3:9], rows[3:9])
    for slots in ([5, 6], [5, 6, 7, 20, 21, 20], [*range(12)], [3, 2, 1, 0]):
        index = torch.tensor(slots)
        found = pool.gather("keys", keys, index, 2)
        assert torch.equal(found, rows[index].view(2, -1, HEADS, WIDTH).transpose(1, 2))


def test_a_heads_keys_lie_side_by_side_where_attention_reads_them_so() -> None:
    like = torch.randn(1, HEADS, WIDTH)
    keys, _ = KeyValuePool(SLOTS, by_head=True).layer(0, like, like)
    assert keys.transpose(0, 1).is_contiguous()


def test_a_pool_takes_memory_of_a_host_only_where_tokens_are_written() -> None:
    like = torch.ones(1, HEADS, WIDTH, dtype=torch.bfloat16)
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
