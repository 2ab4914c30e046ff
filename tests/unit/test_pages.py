"""Pages are given all or none, shared pages are counted, and nobody's slots are anybody else's."""

from typing import Any

import numpy as np
import pytest

from dspark.pages import SPARE, KVBlockPool, _runs
from verify_service.prefix_cache import PrefixCache


def slots(pool: KVBlockPool, key: object, count: int) -> list[int]:
    return list(pool.slots(key, 0, count))  # type: ignore[arg-type]


def test_who_shares_the_pages_of_another_leaves_it_the_next_one() -> None:
    pool = KVBlockPool(12, 1)
    assert pool.open("a", 2, 4)
    assert pool.open("b", 3, 4, shared=pool.pages("a"))
    assert pool.grow("a", 4)
    assert [pool.pages(key) for key in "ab"] == [[0, 1, 2, 3], [0, 1, 4]]


def test_a_step_gets_all_the_pages_it_asks_for_or_none() -> None:
    pool = KVBlockPool(4, 8)
    assert pool.open("a", 16, 64)
    assert pool.open("b", 1, 64)
    assert not pool.grow("a", 33)
    assert (pool.free, len(pool.pages("a"))) == (1, 2)
    assert not pool.open("c", 9, 9)
    assert "c" not in pool
    assert pool.grow("a", 24)
    assert (pool.free, pool.missing("b", 9)) == (0, 1)
    assert pool.release("b") == 1
    assert pool.release("b") == 0
    assert pool.grow("a", 32)
    with pytest.raises(ValueError, match="outside"):
        pool.slots("a", 0, 33)


def test_while_memory_is_plentiful_everybody_grows_in_a_row() -> None:
    pool = KVBlockPool(64, 4)
    for key in range(4):
        assert pool.open(key, 5, 60)
    for tokens in range(6, 61):
        for key in range(4):
            assert pool.grow(key, tokens)
    assert all(isinstance(pool.slots(key, 0, 60), range) for key in range(4))


def test_a_wish_is_no_reservation() -> None:
    pool = KVBlockPool(8, 4)
    assert pool.open("a", 4, 32)  # would like all of it
    assert pool.open("b", 20, 20)
    assert pool.grow("a", 12)
    assert pool.free == 0
    assert sorted(slots(pool, "a", 12) + slots(pool, "b", 20)) == list(range(32))
    pool = KVBlockPool(1024, 1)
    for key in "ab":
        assert pool.open(key, 1, 1024)
    assert pool.grow("a", 1024 - SPARE)
    assert isinstance(pool.slots("a", 0, 1024 - SPARE), range), "what it loses is the far end"
    assert pool.open("c", 2, 2)
    pool.release("a")
    assert pool.open("d", 900, 900)
    assert isinstance(pool.slots("d", 0, 900), range), "and is wished for no more"


def test_the_shortest_run_that_fits_is_taken_and_parts_of_it_are_found() -> None:
    def with_holes(size: int = 1) -> KVBlockPool:
        """Free are pages 0 to 2, 4 and 5, 8 to 10, `size` times as many of each."""
        pool = KVBlockPool(11 * size, 1)
        for key, pages in (("a", 3), ("b", 1), ("c", 2), ("d", 1), ("e", 1)):
            assert pool.open(key, pages * size, pages * size)
        pool.release("a")
        pool.release("c")
        return pool

    pool = with_holes()
    assert pool.open("life of two", 1, 2)
    assert pool.grow("life of two", 2)
    assert pool.slots("life of two", 0, 2) == range(4, 6)
    assert pool.slots("life of two", 1, 2) == range(5, 6)
    pool = with_holes()
    assert pool.grow("d", 3)
    assert slots(pool, "d", 3) == [6, 4, 5]
    assert list(pool.slots("d", 1, 3)) == [4, 5]
    pool = with_holes(SPARE)
    assert pool.grow("d", SPARE + 2)
    assert list(pool.slots("d", SPARE, SPARE + 2)) == [4 * SPARE, 4 * SPARE + 1]


@pytest.mark.parametrize("full", [False, True], ids=["wished for", "kept"])
def test_pages_are_searched_for_many_at_once(full: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """A search takes as long as the pool is large, and every round needs some pages."""
    pool = KVBlockPool(1024, 1)
    if full:
        assert pool.open("ended", 1000, 1000)
        kept = list(pool.pages("ended"))
        pool.keep(kept)
        pool.release("ended")
    for key in "abc":
        assert pool.open(key, 1, 1024)
    searches = 0

    def counted(*given: Any) -> Any:
        nonlocal searches
        searches += 1
        return _runs(*given)

    monkeypatch.setattr("dspark.pages._runs", counted)
    for tokens in range(2, 2 + 4 * SPARE):
        for key in "bc":
            if full and not pool.free:
                pool.give_up(kept.pop(len(kept) // 2))
            assert pool.grow(key, tokens)
    assert searches <= 2 * 8 + 2, "two for as many pages as are found"


@pytest.mark.parametrize("seed", range(8))
def test_whatever_happens_no_slot_has_two_owners_and_none_is_lost(seed: int) -> None:
    draw = np.random.default_rng(seed)
    pool = KVBlockPool(23, 4)
    held: dict[int, int] = {}
    for step in range(400):
        key = int(draw.integers(0, 9))
        if key not in held:
            tokens = int(draw.integers(1, 30))
            before = pool.free
            if pool.open(key, tokens, tokens + int(draw.integers(0, 40))):
                held[key] = tokens
            else:
                assert pool.free == before < pool.pages_for(tokens)
        elif draw.random() < 0.2:
            pool.release(key)
            del held[key]
        elif pool.grow(key, held[key] + 3):
            held[key] += 3
        taken = [slot for each, tokens in held.items() for slot in slots(pool, each, tokens)]
        assert len(taken) == len(set(taken)), step
        assert pool.free == pool.total - sum(pool.pages_for(tokens) for tokens in held.values())


def test_prefixes_are_found_by_content_and_salt_up_to_the_last_full_page() -> None:
    pool = KVBlockPool(16, 4)
    cache = PrefixCache(pool, pool.total)
    ids = list(range(100, 111))
    pool.open("a", 11, 20)
    cache.enter(ids, "tenant", pool.pages("a"), rows=True)
    assert cache.match(ids, "tenant", needs_rows=True) == pool.pages("a")[:2]
    assert cache.match(ids[:8], "tenant", needs_rows=True) == pool.pages("a")[:1], "one is to run"
    assert cache.match([*ids[:5], 1, *ids[6:]], "tenant", needs_rows=True) == pool.pages("a")[:1]
    assert cache.match([1, *ids[1:]], "tenant", needs_rows=True) == []
    assert cache.match(ids, "another", needs_rows=True) == []
    assert PrefixCache(pool, 0).match(ids, "tenant", needs_rows=True) == []


def test_pages_without_rows_serve_only_who_needs_none_and_are_replaced_by_better_ones() -> None:
    pool = KVBlockPool(16, 4)
    cache = PrefixCache(pool, pool.total)
    ids = list(range(9))
    pool.open("plain", 9, 9)
    cache.enter(ids, "", pool.pages("plain"), rows=False)
    assert cache.match(ids, "", needs_rows=True) == []
    assert len(cache.match(ids, "", needs_rows=False)) == 2
    pool.open("fed", 9, 9)
    cache.enter(ids, "", pool.pages("fed"), rows=True)
    assert cache.match(ids, "", needs_rows=True) == pool.pages("fed")[:2]
    pool.release("plain")
    pool.release("fed")
    assert pool.idle == 2
    assert pool.free == 14


def test_kept_pages_give_way_oldest_first_ends_before_beginnings_and_never_those_in_use() -> None:
    pool = KVBlockPool(8, 2)
    cache = PrefixCache(pool, pool.total)
    first, second = [1, 2, 3, 4, 5], [6, 7, 8, 9, 10]
    for key, ids in (("a", first), ("b", second)):
        pool.open(key, 5, 5)
        cache.enter(ids[:4], "", pool.pages(key), rows=True)
    pool.release("a")
    assert (pool.free, pool.idle) == (3, 2)
    assert len(cache.match(first, "", needs_rows=True)) == 2
    assert cache.reclaim(1) == 1
    assert len(cache.match(first, "", needs_rows=True)) == 1, "the beginning is still there"
    assert cache.reclaim(5) == 1, "what b holds stays"
    assert len(cache.match(second, "", needs_rows=True)) == 2
    pool.release("b")
    cache.clear()
    assert pool.free == pool.total
