"""Rows on their way to a drafter: who waits for room, and when nobody waits any longer."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any

import pytest
from engine_steps import take_in
from synthetic_file import synthetic_document

from dspark.rounds.events import DrafterLost, DrafterReady, SendRows, Told
from dspark.runtime.telemetry import Metrics
from dspark.synthetic.spec import read_spec
from dspark.wire.v1 import features_pb2
from verify_service import row_feeds
from verify_service.batch_runner import FeatureRun
from verify_service.config import VerifyConfig
from verify_service.feature_push import BULK_ROWS, FeaturePush, Sink
from verify_service.row_feeds import PATIENCE_S, RowFeeds
from verify_service.synthetic import SyntheticVerifyEngine

SPEC = synthetic_document([0.9], feature_width=1024, vocabulary=500, context_length=1 << 14)
SINK, DRAFTER, ROWS = Sink("127.0.0.1:1", 7), 1, 16 * BULK_ROWS


class Feeds:
    """Of two prompts, the first of which takes all the room there is, at a time that the test
    sets."""

    def __init__(self, loop: asyncio.AbstractEventLoop, **settings: Any) -> None:
        self.now = 100.0
        self.told: list[Told] = []
        engine = SyntheticVerifyEngine(
            read_spec(SPEC), VerifyConfig(prefill_chunk=ROWS, kv_tokens=4 * ROWS, **settings)
        )
        worker: Any = SimpleNamespace(engine=engine, incarnation=1, metrics=Metrics())
        push = FeaturePush(worker)
        self.feeds = RowFeeds(engine, push, loop, lambda came: self.told.extend(came()))
        for sequence in (1, 2):
            take_in(engine, sequence, [5] * ROWS, epoch=0, longest=ROWS + 1)
            self.feeds.opened(DRAFTER, (sequence, 0))

    def send(self, sequence: int) -> None:
        self.feeds.send(SendRows(DRAFTER, sequence, 0, 0, ROWS - 1), SINK)

    def came(self, sequence: int, rows: int) -> None:
        mark = features_pb2.Watermark(sequence=sequence, epoch=0, rows=rows)
        self.feeds.rows_came(SINK, features_pb2.FeatureAck(watermarks=[mark]))


@pytest.fixture
def feeds(monkeypatch: pytest.MonkeyPatch) -> Iterator[Feeds]:
    loop = asyncio.new_event_loop()  # never run: a test says itself what becomes of pieces
    monkeypatch.setattr(row_feeds, "time", SimpleNamespace(monotonic=lambda: made.now))
    try:
        made = Feeds(loop)
        yield made
    finally:
        loop.close()


def test_rows_go_in_pieces_without_a_gap_and_their_drafter_is_ready_once_all_have_come(
    feeds: Feeds,
) -> None:
    pieces: list[tuple[int, int]] = []

    def hand_over(job: object, sink: Sink, run: FeatureRun) -> None:
        pieces.append((run.start, run.start + len(run.token_ids)))

    feeds.feeds._loop = SimpleNamespace(call_soon_threadsafe=hand_over)  # type: ignore[assignment]
    feeds.send(1)
    while not feeds.told and len(pieces) <= ROWS // BULK_ROWS:
        feeds.came(1, pieces[-1][1])
    assert [start for start, _ in pieces] == [0, *(stop for _, stop in pieces[:-1])]
    assert pieces[-1][1] == ROWS - 1
    assert max(stop - start for start, stop in pieces) <= BULK_ROWS
    assert feeds.told == [DrafterReady(DRAFTER, 1, 0, ROWS - 1)]


def test_a_drafter_that_takes_rows_is_kept_although_some_wait_behind_others(feeds: Feeds) -> None:
    feeds.send(1), feeds.send(2)
    for rows in range(BULK_ROWS, ROWS, BULK_ROWS):
        feeds.now += 0.9 * PATIENCE_S
        feeds.came(1, rows)
        assert feeds.feeds.overdue(feeds.now) == []
    feeds.came(1, ROWS - 1)
    assert feeds.told == [DrafterReady(DRAFTER, 1, 0, ROWS - 1)]
    assert feeds.feeds.overdue_at() == feeds.now + PATIENCE_S


def test_a_drafter_that_takes_nothing_is_given_up_although_more_is_sent_to_it(feeds: Feeds) -> None:
    feeds.send(1)
    feeds.now += 0.9 * PATIENCE_S
    feeds.send(2)
    assert feeds.feeds.overdue(feeds.now) == []
    feeds.now += 0.1 * PATIENCE_S
    assert feeds.feeds.overdue(feeds.now) == [DrafterLost(DRAFTER, "lost: it takes no rows")]


def test_no_more_rows_are_on_their_way_than_the_queue_takes() -> None:
    """Rows without bytes, those of a language model, are bounded by nothing else."""
    loop, sent = asyncio.new_event_loop(), list[int]()
    feeds = Feeds(loop, push_queue_rows=4 * BULK_ROWS)
    feeds.feeds._loop = SimpleNamespace(  # type: ignore[assignment]
        call_soon_threadsafe=lambda job, sink, run: sent.append(len(run.token_ids))
    )
    for sequence in (1, 2):
        feeds.send(sequence)
    loop.close()
    assert sum(sent) == 2 * BULK_ROWS
