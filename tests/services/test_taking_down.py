"""What `dspark down` waits for: requests that are under way, also where their coordinator has no
time to say so."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager

import grpc
import pytest

from deploy import down
from dspark.client.cell import Cell
from dspark.wire.v1 import control_pb2, control_pb2_grpc


class _Coordinator(control_pb2_grpc.ControlServicer):
    """Says so, or nothing for long, or with `refuses` that it has no time."""

    def __init__(self, reply: control_pb2.GetStatusReply | None, *, refuses: bool = False) -> None:
        self.refuses = refuses
        self._reply = reply
        self.over = threading.Event()

    def GetStatus(
        self, request: control_pb2.GetStatusRequest, context: grpc.ServicerContext
    ) -> object:
        if self.refuses:
            context.abort(grpc.StatusCode.RESOURCE_EXHAUSTED, "too many calls")
        if self._reply is None:
            self.over.wait(20)  # as a process does that others keep from its core
        return self._reply or control_pb2.GetStatusReply()


@contextmanager
def coordinator(
    reply: control_pb2.GetStatusReply | None, *, refuses: bool = False
) -> Iterator[Cell]:
    with ThreadPoolExecutor(1) as threads:
        server, servicer = grpc.server(threads), _Coordinator(reply, refuses=refuses)
        control_pb2_grpc.add_ControlServicer_to_server(servicer, server)  # type: ignore[no-untyped-call]
        port = server.add_insecure_port("127.0.0.1:0")
        server.start()
        try:
            yield Cell(f"127.0.0.1:{port}", "c", "", "", 0, "", "", "")
        finally:
            servicer.over.set()
            server.stop(None).wait()


def test_requests_are_waited_for_and_so_is_who_has_no_time_to_count_them(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(down, "ASK_S", 0.5)
    lane = control_pb2.LaneStatus(running=2, waiting=1)
    replies = (
        control_pb2.GetStatusReply(queued=1, lanes=[lane]),
        control_pb2.GetStatusReply(),
        None,
    )
    said = []
    for reply in replies:
        with coordinator(reply) as cell:
            said.append(down.under_way(cell))
    assert said == ["4 requests", "", "requests"]
    with coordinator(None, refuses=True) as cell:
        assert down.under_way(cell) == "requests"
    assert down.under_way(cell) == "", "nobody listens there any more"
