"""What a verifier takes of a drafter's blocks: the answer to an order of its own to that drafter,
once."""

import queue
import time
from collections.abc import Callable, Iterable, Iterator
from types import SimpleNamespace
from typing import Any

import pytest

from dspark.rounds.control import DrafterAt
from dspark.rounds.events import BlocksCame, DrafterLost, OrderRow, PassRow, SendOrder, Told
from dspark.runtime.telemetry import Metrics
from dspark.synthetic.spec import read_spec
from dspark.types import Rule, SamplingParams
from dspark.wire.v1 import draft_pb2
from tests.engine_steps import line_up, take_in
from tests.services.fake_drafter import INCARNATION, ThreadedDrafter, sound
from tests.synthetic_file import synthetic_document
from verify_service.config import VerifyConfig
from verify_service.drafters import MALFORMED_ORDERS, Drafters
from verify_service.synthetic import SyntheticVerifyEngine

SPEC = synthetic_document([0.9], vocabulary=500)
PROMPT = [5, 6, 7]
LAW = SamplingParams(temperature=1.0, seed=3, rule=Rule.TOKEN)


Pair = tuple[ThreadedDrafter, ThreadedDrafter]


class Verifier:
    """One sequence, decoded by the drafters 1 and 2."""

    def __init__(self, *drafters: ThreadedDrafter) -> None:
        self.engine = engine = SyntheticVerifyEngine(read_spec(SPEC), VerifyConfig())
        self.anchor = take_in(engine, 1, PROMPT, params=LAW, epoch=0, longest=100)
        self.came: queue.SimpleQueue[Callable[[], Iterable[Told]]] = queue.SimpleQueue()
        self.metrics = Metrics()
        security = SimpleNamespace(token=None, tls=None)
        worker: Any = SimpleNamespace(
            engine=engine, security=security, incarnation=1, metrics=self.metrics
        )
        # no rows move here, and no news
        loop: Any = None
        news: Any = SimpleNamespace(add=lambda *_: None, orders_left=lambda: None)
        self.drafters = Drafters(worker, loop, self.came.put, self.came.put, news)
        for number, drafter in enumerate(drafters, 1):
            self.drafters.told_of(DrafterAt(number, drafter.endpoint, INCARNATION))
            assert self.drafters.open(number, 1, 0) == []

    @property
    def opened(self) -> list[tuple[int, int]]:
        """Contexts that drafter 1 has opened, by sequence and epoch."""
        contexts = self.drafters._links[1].rows.contexts
        return [key for key, opened in contexts.items() if opened]

    def order(self, number: int, drafter: int) -> None:
        asked = SendOrder(
            number, drafter, [OrderRow(1, 0, 0, len(PROMPT) + 1, self.anchor, 4, len(PROMPT))]
        )
        assert self.drafters.order(asked) == []

    def next(self) -> Told:
        """What the loop is told next."""
        while True:
            for told in self.came.get(timeout=20)():
                return told


def blocks(order: int) -> draft_pb2.Blocks:
    """One slot of token 1."""
    return sound(draft_pb2.Order(order=order, sequence=[1], committed_len=[len(PROMPT) + 1]))


@pytest.fixture
def pair() -> Iterator[Pair]:
    both = ThreadedDrafter(), ThreadedDrafter()
    yield both
    for each in both:
        each.stop()


def test_blocks_answer_the_order_that_they_name(pair: Pair) -> None:
    verifier = Verifier(*pair)
    verifier.order(3, 1)
    verifier.order(4, 2)
    answer = blocks(4)
    answer.forward_ns = 1 << 62
    pair[1].said.put(answer)
    told = verifier.next()
    done = told.answer
    assert told.order == done.order == 4
    assert 0.0 < done.draft_s <= done.came - done.sent, "whatever it says of itself"
    pair[0].said.put(blocks(3))
    told = verifier.next()
    assert told.order == told.answer.order == 3


@pytest.mark.parametrize(
    "order", [0, 5, 4], ids=["of nobody", "not given yet", "given to somebody else"]
)
def test_blocks_for_an_order_that_was_not_given_are_nobodys(pair: Pair, order: int) -> None:
    verifier = Verifier(*pair)
    verifier.order(3, 1)
    verifier.order(4, 2)
    pair[0].said.put(blocks(order))
    told = verifier.next()
    assert told.drafter == 1
    assert f"blocks.order: {order} was not asked" in told.why
    assert verifier.metrics.value("dropped_total", kind="block", reason="malformed") == 1
    pair[1].said.put(blocks(4))  # the other one is asked and answers as before
    assert isinstance(verifier.next(), BlocksCame)


def test_blocks_of_an_order_that_was_answered_are_nobodys(pair: Pair) -> None:
    verifier = Verifier(*pair)
    verifier.order(3, 1)
    pair[0].said.put(blocks(3))
    assert isinstance(verifier.next(), BlocksCame)
    pair[0].said.put(blocks(3))
    told = verifier.next()
    assert "was answered" in told.why


@pytest.mark.parametrize(
    "change", [{"token_ids": [500]}, {"confidence": [float("nan")]}], ids=["id", "confidence"]
)
def test_values_that_are_none_are_counted_and_end_like_what_cannot_be_drafted(
    pair: Pair, change: dict[str, Any]
) -> None:
    verifier = Verifier(*pair)
    for number in range(1, MALFORMED_ORDERS + 1):
        verifier.order(number, 1)
        wrong = blocks(number)
        for name, value in change.items():
            getattr(wrong, name)[:] = value
        pair[0].said.put(wrong)
        told = verifier.next()
        assert verifier.metrics.value("dropped_total", kind="block", reason="malformed") == number
        assert isinstance(told, DrafterLost if number == MALFORMED_ORDERS else BlocksCame)
        if isinstance(told, BlocksCame):
            assert (told.confidence, told.why_empty) == ([()], ["invalid"])
            assert verifier.drafters.judged([], []) == [], "a pass without its slots changes none"


def test_so_are_those_that_a_pass_finds_out_unless_others_come_between(pair: Pair) -> None:
    verifier = Verifier(*pair)
    kinds = [True, True, False, True, True, True]
    for number, wrong in enumerate(kinds, 1):
        verifier.order(number, 1)
        pair[0].said.put(blocks(number))
        told = verifier.next()
        assert isinstance(told, BlocksCame)
        row = PassRow(1, 0, 0, len(PROMPT) + 1, verifier.anchor, 1, told.answer, 0)
        told = verifier.drafters.judged([row] if wrong else [], [] if wrong else [row])
        assert [type(each) for each in told] == ([DrafterLost] if number == len(kinds) else [])
    assert verifier.metrics.value("dropped_total", kind="block", reason="malformed") == sum(kinds)


def test_rows_wait_for_the_answer_of_an_opening_again_too(pair: Pair) -> None:
    verifier = Verifier(*pair)
    for order in (1, 2):
        pair[0].said.put(draft_pb2.ContextOpened(sequence=1, epoch=0))
        verifier.order(order, 1)
        pair[0].said.put(blocks(order))
        assert isinstance(verifier.next(), BlocksCame)
        assert verifier.opened == [(1, 0)]
        assert verifier.drafters.open(1, 1, 0) == []  # it has forgotten it
        assert verifier.opened == []


def test_a_drafter_that_takes_no_rows_for_too_long_is_lost(pair: Pair) -> None:
    drafters, now = Verifier(*pair).drafters, time.monotonic()
    rows: Any = drafters._links[1].rows
    rows._away.append(8)
    rows._since = now - 4.0
    assert drafters.overdue(now) == []
    assert now < (drafters.next_at() or 0.0) <= now + 1.0
    rows._since = now - 5.0
    assert drafters.overdue(now) == [DrafterLost(1, "lost: it takes no rows")]
    assert list(drafters._links) == [2]


def test_only_contexts_that_are_wanted_are_taken_for_open(pair: Pair) -> None:
    """Else those of a drafter that goes on telling of them would pile up."""
    verifier = Verifier(*pair)
    line_up(verifier.engine, 2, PROMPT, epoch=5)
    assert verifier.drafters.open(1, 2, 5) == []
    verifier.drafters.close(1, 2, 5)
    for sequence, epoch in ((1, 0), (2, 5), (1, 1), (9, 0)):
        pair[0].said.put(draft_pb2.ContextOpened(sequence=sequence, epoch=epoch))
    verifier.order(3, 1)
    pair[0].said.put(blocks(3))
    assert isinstance(verifier.next(), BlocksCame)
    assert verifier.opened == [(1, 0)]
    assert verifier.metrics.value("dropped_total", kind="context", reason="stale") == 3
