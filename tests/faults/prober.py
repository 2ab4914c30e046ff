"""A client in a process of its own that asks now and then and says how long refusals took: floods
keep theirs busy.

python -m faults.prober ENDPOINT SECONDS      prints one JSON list of milliseconds
"""

from __future__ import annotations

import json
import sys
import time

import grpc

from dspark.wire.v1 import generate_pb2_grpc
from faults.synthetic_cell import message

EACH_S = 0.05


def main(endpoint: str, seconds: float) -> int:
    took: list[float] = []
    with grpc.insecure_channel(endpoint) as channel:
        grpc.channel_ready_future(channel).result(20.0)
        stub = generate_pb2_grpc.GenerationStub(channel)
        ends = time.monotonic() + seconds
        while time.monotonic() < ends:
            began = time.monotonic()
            call = stub.Generate(message(64), timeout=20.0)
            try:
                next(iter(call))
                call.cancel()  # it was taken in
            except grpc.RpcError as error:
                if error.code() is grpc.StatusCode.RESOURCE_EXHAUSTED:
                    took.append(1e3 * (time.monotonic() - began))
            time.sleep(max(began + EACH_S - time.monotonic(), 0.0))
    print(json.dumps(took))
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1], float(sys.argv[2])))
