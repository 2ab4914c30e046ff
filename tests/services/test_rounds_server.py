"""A listener of threads: what a peer does not read is bounded, and ends its stream."""

import gc
import queue
import threading
from collections.abc import Callable

import grpc
import pytest

from draft_service.rounds_server import METHOD, RoundsServer
from dspark.errors import Overloaded
from dspark.runtime.outbox import MAX_EVENTS
from dspark.runtime.security import Security
from dspark.runtime.telemetry import Metrics
from dspark.wire.v1 import draft_pb2

WIDE = draft_pb2.RoundsEvent(blocks=draft_pb2.Blocks(q_probs=bytes(64 << 10)))  # some fill a window

Say = Callable[[draft_pb2.RoundsEvent], None]


class Quiet:
    """A stream that waits."""

    def hear(self, command: draft_pb2.RoundsCommand) -> None: ...

    def left_s(self) -> float:
        return 60.0

    def close(self) -> None: ...


def _refusals() -> int:
    return sum(type(each) is Overloaded for each in gc.get_objects())


def test_a_peer_that_reads_nothing_is_kept_a_bounded_number_of_events_and_told_why_it_ends() -> (
    None
):
    said: queue.SimpleQueue[Say] = queue.SimpleQueue()

    def opened(say: Say, _: Callable[[Exception], None]) -> Quiet:
        said.put(say)
        return Quiet()

    metrics, read = Metrics(), draft_pb2.RoundsCommand.FromString
    server = RoundsServer("127.0.0.1:0", Security(), metrics, read, opened)  # type: ignore[arg-type]
    over = threading.Event()
    try:
        with grpc.insecure_channel(f"127.0.0.1:{server.port}") as channel:
            rounds = channel.stream_stream(
                METHOD,
                draft_pb2.RoundsCommand.SerializeToString,
                lambda data: len(data),
            )
            call = rounds(iter(over.wait, True), timeout=60)
            say = said.get(timeout=20)
            before = _refusals()
            for _ in range(3 * MAX_EVENTS):
                say(WIDE)
            assert _refusals() - before == 1
            dropped = metrics.value("dropped_total", kind="event", reason="not_read")
            sizes = []
            with pytest.raises(grpc.RpcError) as caught:
                sizes.extend(call)
            assert caught.value.code() is grpc.StatusCode.RESOURCE_EXHAUSTED
            assert MAX_EVENTS <= len(sizes) < 2 * MAX_EVENTS
            assert dropped == 3 * MAX_EVENTS - len(sizes)
    finally:
        over.set()
        server.close()
