"""Spans reach a collector: over real gRPC, with the names a dashboard of traces goes by."""

from concurrent import futures
from typing import Any

import grpc
from opentelemetry.proto.collector.trace.v1 import trace_service_pb2, trace_service_pb2_grpc

from coordinator.watching.tracing import open_provider


class Collector(trace_service_pb2_grpc.TraceServiceServicer):
    def __init__(self) -> None:
        self.requests: list[Any] = []

    def Export(self, request: Any, context: grpc.ServicerContext) -> Any:
        self.requests.append(request)
        return trace_service_pb2.ExportTraceServiceResponse()


def test_spans_arrive_with_the_service_s_name_when_the_process_ends() -> None:
    collector = Collector()
    server = grpc.server(futures.ThreadPoolExecutor(1))
    trace_service_pb2_grpc.add_TraceServiceServicer_to_server(collector, server)
    port = server.add_insecure_port("127.0.0.1:0")
    server.start()
    try:
        provider = open_provider(
            f"127.0.0.1:{port}", service="dspark-coordinator", instance="coordinator/0"
        )
        provider.get_tracer("dspark").start_span("round", start_time=10).end(end_time=20)
        provider.shutdown()
    finally:
        server.stop(0).wait()
    (spans,) = [each for request in collector.requests for each in request.resource_spans]
    resource = {each.key: each.value.string_value for each in spans.resource.attributes}
    assert resource["service.name"] == "dspark-coordinator"
    assert resource["service.instance.id"] == "coordinator/0"
    (span,) = spans.scope_spans[0].spans
    assert (span.name, span.start_time_unix_nano, span.end_time_unix_nano) == ("round", 10, 20)
