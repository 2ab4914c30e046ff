"""What a front end tells its coordinator fits into messages that are let in."""

import asyncio

from coordinator.frontend.link import BATCH_BYTES, CoordinatorConnection
from dspark.runtime.telemetry import Metrics
from dspark.wire.v1 import frontend_pb2, generate_pb2


async def test_requests_share_a_message_only_up_to_its_bound() -> None:
    link = CoordinatorConnection(
        frontend_pb2.FrontendHello(name="frontend/0"), asyncio.get_running_loop(), Metrics()
    )
    sizes = [BATCH_BYTES // 2, BATCH_BYTES // 3, BATCH_BYTES // 2, 2 * BATCH_BYTES, 10, 10]
    for number, size in enumerate(sizes):
        request = generate_pb2.GenerateRequest(text="x" * size)
        link.send("submits", frontend_pb2.Submit(call=number, request=request))
    told = aiter(link)
    batches = [await anext(told) for _ in range(4)]
    calls = [[submit.call for submit in batch.submits] for batch in batches]
    assert calls == [[0, 1], [2], [3], [4, 5]]
    assert [batch.number for batch in batches] == [1, 2, 3, 4]
