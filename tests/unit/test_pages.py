"""The page table: nothing is lost, nothing is handed out twice."""

import random

import pytest

from dspark.pages import PageTable


def test_slots_of_a_fresh_reservation_are_consecutive() -> None:
    table = PageTable(pages=4, page_size=16)
    table.reserve("a", 40)
    assert table.held == 3
    assert table.slots("a", 5, 20) == range(5, 20)
    assert table.base("a") == 0


def test_asking_for_more_than_is_free_changes_nothing() -> None:
    table = PageTable(pages=4, page_size=16)
    table.reserve("a", 40)
    assert not table.reserve("b", 17)
    assert (table.held, table.sequences) == (3, 1)
    assert table.reserve("b", 16)


def test_scattered_pages_are_used_when_no_run_is_long_enough() -> None:
    table = PageTable(pages=6, page_size=2)
    for key in "abcdef":
        table.reserve(key, 2)
    for key in "ace":
        table.release(key)
    table.reserve("long", 6)
    assert table.base("long") is None
    assert list(table.slots("long", 0, 6)) == [0, 1, 4, 5, 8, 9]
    assert list(table.slots("long", 1, 5)) == [1, 4, 5, 8]
    assert [list(table.pages("long", tokens)) for tokens in (0, 1, 4, 5)] == [[], [0], [0, 2], [0, 2, 4]]


def test_the_shortest_fitting_run_is_taken() -> None:
    table = PageTable(pages=10, page_size=1)
    for key, length in (("a", 3), ("b", 1), ("c", 2), ("d", 1)):
        table.reserve(key, length)
    table.release("a")
    table.release("c")  # free: 0..2, 4..5, 7..9
    table.reserve("two", 2)
    assert table.slots("two", 0, 2) == range(4, 6)


def test_random_life_never_loses_or_doubles_a_page() -> None:
    draw = random.Random(7)
    table = PageTable(pages=37, page_size=4)
    alive: dict[int, int] = {}
    for step in range(2000):
        tokens = draw.randint(1, 40)
        if draw.random() < 0.6 and table.reserve(step, tokens):
            alive[step] = tokens
        elif alive:
            key = draw.choice(sorted(alive))
            assert table.release(key) == table.pages_for(alive.pop(key))
        slots = [slot for key in alive for slot in table.slots(key, 0, table.capacity(key))]
        assert len(slots) == len(set(slots)) == table.held * 4
    for key in alive:
        table.release(key)
    assert (table.held, table.sequences) == (0, 0)
    table.reserve("all", 37 * 4)
    assert table.base("all") == 0


def test_tokens_outside_the_reservation_have_no_slots() -> None:
    table = PageTable(pages=2, page_size=8)
    table.reserve("a", 8)
    with pytest.raises(ValueError, match="outside"):
        table.slots("a", 0, 9)
    assert table.release("unknown") == 0
