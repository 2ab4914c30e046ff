"""A listener of threads: what a peer does not read is bounded, and ends its stream."""

import contextlib
import gc
import queue
import threading
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import grpc
import pytest

from draft_service.rounds_server import METHOD, RoundsServer
from dspark.errors import Overloaded
from dspark.runtime.outbox import MAX_EVENTS
from dspark.runtime.security import Security
from dspark.runtime.telemetry import Metrics
from dspark.wire.v1 import draft_pb2

WIDE = draft_pb2.RoundsEvent(blocks=draft_pb2.Blocks(q_probs=bytes(64 << 10)))  # some fill a window


def _refusals() -> int:
    return sum(type(each) is Overloaded for each in gc.get_objects())


def test_a_peer_that_reads_nothing_is_kept_a_bounded_number_of_events_and_told_why_it_ends() -> (
    None
):
    said: queue.SimpleQueue[Callable[[draft_pb2.RoundsEvent], None]] = queue.SimpleQueue()

    def opened(say: Callable[[draft_pb2.RoundsEvent], None], _: object) -> Any:
        said.put(say)
        return SimpleNamespace(hear=lambda _: None, left_s=lambda: 60.0, close=lambda: None)

    metrics, read = Metrics(), draft_pb2.RoundsCommand.FromString
    server = RoundsServer("127.0.0.1:0", Security(), metrics, read, opened)  # type: ignore[arg-type]
    over = threading.Event()
    with (
        contextlib.closing(server),
        grpc.insecure_channel(f"127.0.0.1:{server.port}") as channel,
    ):
        rounds = channel.stream_stream(METHOD, draft_pb2.RoundsCommand.SerializeToString, len)
        call = rounds(iter(over.wait, True), timeout=60)
        say = said.get(timeout=20)
        before = _refusals()
        for _ in range(3 * MAX_EVENTS):
            say(WIDE)
        assert _refusals() - before == 1
        dropped = metrics.value("dropped_total", kind="event", reason="not_read")
        sizes: list[int] = []
        with pytest.raises(grpc.RpcError) as caught:
            sizes.extend(call)
        over.set()
        assert caught.value.code() is grpc.StatusCode.RESOURCE_EXHAUSTED
        assert MAX_EVENTS <= len(sizes) < 2 * MAX_EVENTS
        assert dropped == 3 * MAX_EVENTS - len(sizes)
