"""Orders of several verifiers in one pass: who is in it, whose turn it is, and what a failed pass
tells."""

from collections.abc import Callable, Sequence
from types import SimpleNamespace
from typing import Any

import pytest

from draft_service.drafting import Drafted, Drafting
from draft_service.interface import DraftItem
from dspark.runtime.telemetry import Metrics
from dspark.types import Block, Cursor, SamplingParams


class Engine:
    """Says which sequences are in a pass."""

    def __init__(self, most: int) -> None:
        self.config = SimpleNamespace(max_batch_sequences=most)
        self.passes: list[list[int]] = []
        self.breaks = False

    def draft(self, items: Sequence[DraftItem]) -> list[Block]:
        self.passes.append([item.cursor.sequence for item in items])
        if self.breaks:
            raise RuntimeError("broken")
        return [Block(item.cursor, (item.cursor.sequence,)) for item in items]


class Bench:
    def __init__(self, most: int) -> None:
        self.engine, self.jobs = Engine(most), list[Callable[[], None]]()
        self.metrics = Metrics()
        self.drafting = Drafting(self.engine, self.metrics, self.jobs.append)  # type: ignore[arg-type]
        self.told: list[tuple[str, list[int] | None]] = []

    def ask(self, owner: int, name: str, *sequences: int) -> None:
        items = [DraftItem(Cursor(each, 0, 1, 5), 1, 4, SamplingParams()) for each in sequences]

        def answer(drafted: Drafted) -> None:
            ids = (
                None if drafted.blocks is None else [block.token_ids[0] for block in drafted.blocks]
            )
            self.told.append((name, ids))

        self.drafting.ask(owner, items, answer)

    def run(self) -> None:
        while self.jobs:
            self.jobs.pop(0)()


@pytest.mark.parametrize(
    ("most", "asked", "passes", "answered"),
    [
        (8, [(1, "a", 1, 2), (2, "b", 3)], [[1, 2, 3]], "ab"),
        (3, [(1, "a", 1, 2), (1, "b", 3), (1, "c", 4), (2, "d", 5)], [[1, 2, 5], [3, 4]], "adbc"),
        (2, [(1, "a", 1), (2, "b", 2, 3, 4), (3, "c", 5)], [[1], [2, 3, 4], [5]], "abc"),
    ],
    ids=["all that waits", "verifiers take turns", "an order larger than a pass"],
)
def test_orders_share_passes_and_everybody_gets_its_own_blocks(
    most: int, asked: list[Any], passes: list[list[int]], answered: str
) -> None:
    bench = Bench(most)
    for order in asked:
        bench.ask(*order)
    assert len(bench.jobs) == 1, "one job for all that waits"
    bench.run()
    assert bench.engine.passes == passes
    assert bench.told == [(n, list(ids)) for at in answered for _, n, *ids in asked if n == at]
    assert bench.drafting.waits == len(asked)


def test_one_with_many_orders_never_goes_twice_before_another() -> None:
    bench = Bench(1)
    for number in range(1, 5):
        bench.ask(1, f"mine {number}", number)
    bench.jobs.pop(0)()
    bench.ask(2, "theirs", 9)
    bench.run()
    assert [name for name, _ in bench.told] == ["mine 1", "mine 2", "theirs", "mine 3", "mine 4"]


def test_a_stream_that_is_over_is_not_drafted_for() -> None:
    bench = Bench(8)
    bench.ask(1, "gone", 1)
    bench.ask(2, "there", 2)
    bench.drafting.forget(1)
    bench.run()
    assert bench.told == [("there", [2])]
    bench.ask(1, "alone", 1)
    bench.drafting.forget(1)
    bench.run()
    assert bench.engine.passes == [[2]], "a pass for nobody is none"


def test_a_pass_that_fails_is_told_to_all_of_it_and_the_next_one_runs() -> None:
    bench: Any = Bench(2)
    bench.ask(1, "a", 1)
    bench.ask(2, "b", 2)
    bench.ask(3, "c", 3)
    bench.engine.breaks = True
    with pytest.raises(RuntimeError, match="broken"):
        bench.jobs.pop(0)()
    assert bench.told == [("a", None), ("b", None)]
    bench.engine.breaks = False
    bench.run()
    assert bench.told[2:] == [("c", [3])]
