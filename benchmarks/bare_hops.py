"""Two bare hops: one process orders blocks from another one, with the messages of real rounds.

The lower bound for `benchmarks.two_hops`: blocking gRPC, the project's own columns built and read,
passes of the same pace. No state, no checks, no engine, no reports.
"""

from __future__ import annotations

import queue
import subprocess
import sys
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from typing import Any

import grpc
import numpy as np

from dspark.rounds.events import OrderRow
from dspark.runtime.channel import sync_channel
from dspark.runtime.process import keep_freed_memory
from dspark.synthetic.pace import DevicePace
from dspark.wire import orders
from dspark.wire.v1 import draft_pb2, draft_pb2_grpc, types_pb2

SLOTS, ENTRIES = 7, 64  # of a sequence and round
VOCABULARY = 32_000


class BareDrafter(draft_pb2_grpc.DraftServicer):
    """A drafter that waits for as long as a draft takes and sends fixed blocks."""

    def __init__(self, draft_s: float) -> None:
        self._draft_s = draft_s

    def Rounds(self, request_iterator: Any, context: Any) -> Iterator[draft_pb2.RoundsEvent]:
        missing, order = 0, None
        for command in request_iterator:
            if command.WhichOneof("command") == "order":
                order = orders.read_order(command.order)
                missing = sum(order.rows) - _rows(command.order.features)
            else:
                missing -= _rows(command.rows.features)
            if order is not None and not missing:
                _pass(self._draft_s)
                yield draft_pb2.RoundsEvent(blocks=_blocks(order.number, len(order.sequences)))


def _pass(seconds: float) -> None:
    """Waits `seconds`. A sleep alone would end late, by a tenth of what is measured."""
    DevicePace.sleep_until(time.perf_counter_ns() + int(seconds * 1e9))


def _rows(features: types_pb2.TensorChunk) -> int:
    return len(np.frombuffer(features.data, "<u2").reshape(features.shape[0], -1))


def _blocks(number: int, sequences: int) -> draft_pb2.Blocks:
    slots = sequences * SLOTS
    ids = np.arange(slots * ENTRIES, dtype="<u4") % VOCABULARY
    probs = np.full(slots * ENTRIES, 1.0 / ENTRIES, "<f4")
    return draft_pb2.Blocks(
        order=number,
        lengths=[SLOTS] * sequences,
        token_ids=ids[:slots].tolist(),
        confidence=[0.5] * slots,
        q_entries=[ENTRIES] * sequences,
        q_ids=ids.tobytes(),
        q_probs=probs.tobytes(),
        empty_reasons=["EMPTY_REASON_UNSPECIFIED"] * sequences,
        watermarks=[100] * sequences,
    )


def measure(
    sequences: int, width: int, rows: int, verify_s: float, draft_s: float, seconds: float
) -> list[float]:
    """Seconds of each round. rows: feature rows that a round sends, of all sequences together."""
    keep_freed_memory()  # as workers do
    unsent: queue.SimpleQueue[Any] = queue.SimpleQueue()
    rounds: list[float] = []
    with _drafter(draft_s) as endpoint, sync_channel(endpoint) as channel:
        call = draft_pb2_grpc.DraftStub(channel).Rounds(iter(unsent.get, None))  # type: ignore[no-untyped-call]
        counts = [rows // sequences + (row < rows % sequences) for row in range(sequences)]
        asked = [OrderRow(row, 0, 1, 101, 5, SLOTS, 100 - own) for row, own in enumerate(counts)]
        ids = [5] * rows
        began, number = time.perf_counter(), 0
        until = began + seconds
        while began < until:
            number += 1
            data = np.zeros((rows, width), "<u2").tobytes()
            packed = orders.PackedRows("bfloat16", rows, width, data)
            for message in orders.write_order(number, asked, counts, ids, packed):
                unsent.put(message)
            blocks = next(call).blocks
            np.array(blocks.token_ids[:]), np.array(blocks.confidence[:])
            np.frombuffer(blocks.q_ids, "<u4"), np.frombuffer(blocks.q_probs, "<f4")
            _pass(verify_s)
            now = time.perf_counter()
            rounds.append(now - began)
            began = now
        unsent.put(None)
        call.cancel()
    return rounds


@contextmanager
def _drafter(draft_s: float) -> Iterator[str]:
    """Context: the address of a `BareDrafter` in a process of its own."""
    command = [sys.executable, "-m", "benchmarks.bare_hops", str(draft_s)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        try:
            assert process.stdout is not None
            yield process.stdout.readline().strip()
        finally:
            process.kill()


def _serve(draft_s: float) -> None:
    keep_freed_memory()
    server = grpc.server(ThreadPoolExecutor(2))
    draft_pb2_grpc.add_DraftServicer_to_server(BareDrafter(draft_s), server)  # type: ignore[no-untyped-call]
    print(f"127.0.0.1:{server.add_insecure_port('127.0.0.1:0')}", flush=True)
    server.start()
    server.wait_for_termination()


if __name__ == "__main__":
    _serve(float(sys.argv[1]))
