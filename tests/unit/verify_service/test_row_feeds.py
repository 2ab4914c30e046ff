"""Rows on their way to a drafter: who waits for room, and when nobody waits any longer."""

from types import SimpleNamespace
from typing import Any

import pytest

from dspark.rounds.control import DrafterAt
from dspark.rounds.events import DrafterLost, DrafterReady, Told
from dspark.runtime.telemetry import Metrics
from dspark.synthetic.spec import read_spec
from dspark.wire.v1 import features_pb2, types_pb2
from tests.engine_steps import take_in
from tests.synthetic_file import synthetic_document
from verify_service import row_feeds
from verify_service.batch_runner import FeatureRun
from verify_service.config import VerifyConfig
from verify_service.row_feeds import BULK_ROWS, PATIENCE_S, RowFeed
from verify_service.synthetic import SyntheticVerifyEngine

SPEC = synthetic_document([0.9], feature_width=1024, vocabulary=500, context_length=1 << 14)
DRAFTER, ROWS = 1, 16 * BULK_ROWS
SINK = DrafterAt(DRAFTER, "127.0.0.1:1", 7)


class Stream:
    """To a drafter; a test says itself what becomes of what is pushed."""

    def __init__(self, *ends: Any) -> None:
        *_, self.came, self.lost = ends
        self.pushed: list[FeatureRun] = []
        self.taken = 0
        self.stuck = 0  # of those pushed, how many wait
        self.closed = False

    def push(self, run: FeatureRun) -> None:
        self.pushed.append(run)

    @property
    def sent(self) -> int:
        return len(self.pushed) - self.stuck

    def close(self) -> None:
        self.closed = True


class Feeds:
    """Of two prompts, the first of which takes all the room there is, at a time that the test
    sets."""

    def __init__(self, **settings: Any) -> None:
        self.now = 100.0
        self.streams: list[Stream] = []
        self.metrics = Metrics()
        self.told: list[Told] = []
        engine = SyntheticVerifyEngine(
            read_spec(SPEC), VerifyConfig(prefill_chunk=ROWS, kv_tokens=4 * ROWS, **settings)
        )
        worker: Any = SimpleNamespace(engine=engine, metrics=self.metrics)
        loop: Any = None
        self.feed = RowFeed(worker, loop, SINK, lambda came: self.told.extend(came()))
        for sequence in (1, 2):
            take_in(engine, sequence, [5] * ROWS, epoch=0, longest=ROWS + 1)
            self.feed.opened((sequence, 0))

    def send(self, sequence: int) -> None:
        self.feed.send((sequence, 0), 0, ROWS - 1)

    def came(self, sequence: int, rows: int) -> None:
        """The drafter took one message more."""
        stream = self.streams[-1]
        stream.taken += 1
        mark = features_pb2.Watermark(sequence=sequence, epoch=0, rows=rows)
        stream.came(stream, features_pb2.FeatureAck(chunks=stream.taken, watermarks=[mark]))

    @property
    def overdue(self) -> bool:
        at = self.feed.overdue_at
        return at is not None and self.now >= at

    def stream(self, *ends: Any) -> Stream:
        self.streams.append(Stream(*ends))
        return self.streams[-1]


@pytest.fixture
def feeds(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Feeds:
    made = Feeds(**getattr(request, "param", {}))
    monkeypatch.setattr(row_feeds, "time", SimpleNamespace(monotonic=lambda: made.now))
    monkeypatch.setattr(row_feeds, "RowStream", made.stream)
    return made


def test_rows_go_in_pieces_without_a_gap_and_their_drafter_is_ready_once_all_have_come(
    feeds: Feeds,
) -> None:
    feeds.send(1)
    (stream,) = feeds.streams
    for _ in range(ROWS // BULK_ROWS):
        feeds.came(1, stream.pushed[-1].start + len(stream.pushed[-1].token_ids))
    pieces = [(run.start, run.start + len(run.token_ids)) for run in stream.pushed]
    assert [start for start, _ in pieces] == [0, *(stop for _, stop in pieces[:-1])]
    assert pieces[-1][1] == ROWS - 1
    assert max(stop - start for start, stop in pieces) <= BULK_ROWS
    assert feeds.told == [DrafterReady(DRAFTER, 1, 0, ROWS - 1)]


def test_a_drafter_that_takes_rows_is_kept_although_some_wait_behind_others(feeds: Feeds) -> None:
    feeds.send(1), feeds.send(2)
    for rows in range(BULK_ROWS, ROWS, BULK_ROWS):
        feeds.now += 0.9 * PATIENCE_S
        feeds.came(1, rows)
        assert not feeds.overdue
    feeds.came(1, ROWS - 1)
    assert feeds.told == [DrafterReady(DRAFTER, 1, 0, ROWS - 1)]
    assert feeds.feed.overdue_at == feeds.now + PATIENCE_S


def test_a_drafter_that_takes_nothing_is_given_up_although_more_is_sent_to_it(feeds: Feeds) -> None:
    feeds.send(1)
    feeds.now += 0.9 * PATIENCE_S
    feeds.send(2)
    assert not feeds.overdue
    feeds.now += 0.1 * PATIENCE_S
    assert feeds.overdue


def test_a_drafter_that_takes_nothing_is_given_up_though_all_sequences_leave(feeds: Feeds) -> None:
    for sequence in (1, 2, 1):
        feeds.feed.opened((sequence, 0))
        feeds.send(sequence)
        feeds.now += 0.4 * PATIENCE_S
        feeds.feed.close((sequence, 0))
    assert feeds.overdue


@pytest.mark.parametrize("feeds", [{"push_queue_rows": 2 * BULK_ROWS}], indirect=True)
def test_no_more_rows_are_on_their_way_than_may_wait(feeds: Feeds) -> None:
    """Rows without bytes, those of a language model, are bounded by nothing else; rows of a
    sequence that left are on their way like others."""
    pushed = []
    for sequence in (1, 2):
        feeds.send(sequence)
        pushed.append(sum(len(run.token_ids) for run in feeds.streams[0].pushed))
        feeds.feed.close((sequence, 0))
    assert pushed == [2 * BULK_ROWS, 2 * BULK_ROWS]
    feeds.feed.opened((2, 0)), feeds.send(2)
    feeds.came(1, BULK_ROWS)
    assert len(feeds.streams[0].pushed) == 3, "as much as was taken"
    feeds.streams[0].stuck, feeds.streams[0].taken = 2, 99
    feeds.came(1, BULK_ROWS)
    assert len(feeds.streams[0].pushed) == 3, "whatever it says that it took"
    feeds.feed.end()
    dropped = {"kind": "feature_rows", "reason": "unacknowledged"}
    assert feeds.metrics.value("dropped_total", **dropped) == 2 * BULK_ROWS


def test_a_stream_that_breaks_loses_the_drafter_once_and_its_rows_are_counted(feeds: Feeds) -> None:
    feeds.send(1)
    (broken,) = feeds.streams
    for _ in range(2):
        broken.lost(broken, "UNAVAILABLE")
    assert feeds.told == [DrafterLost(DRAFTER, "lost: UNAVAILABLE")]
    away = sum(len(run.token_ids) for run in broken.pushed)
    dropped = {"kind": "feature_rows", "reason": "unacknowledged"}
    assert feeds.metrics.value("dropped_total", **dropped) == away > 0
    feeds.send(1)
    broken.came(broken, features_pb2.FeatureAck())
    broken.lost(broken, "late")
    assert len(feeds.streams) == 2, "the next rows have a stream of their own"
    assert len(feeds.told) == 1, "and what the former one says is of no more use"
    feeds.feed.end()
    assert feeds.streams[1].closed


def test_rows_that_a_drafter_refuses_are_given_up_and_counted(feeds: Feeds) -> None:
    feeds.send(1)
    (stream,) = feeds.streams
    refused = [types_pb2.SequenceRef(sequence=1, epoch=0)]
    stream.came(stream, features_pb2.FeatureAck(chunks=len(stream.pushed), refused=refused))
    dropped = {"kind": "feature_chunk", "reason": "refused_by_sink"}
    assert feeds.metrics.value("dropped_total", **dropped) == 1
    assert feeds.feed.overdue_at is None, "nobody waits for them"


def test_rows_of_a_context_that_was_refused_wait_for_nobody(feeds: Feeds) -> None:
    feeds.feed.close((1, 0))
    feeds.send(1)
    assert feeds.feed.overdue_at is None
