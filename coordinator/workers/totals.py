"""What the metrics count, for those who ask over gRPC: counters summed over labels, latencies bucket by bucket."""

from __future__ import annotations

import math

from dspark.runtime.telemetry import Metrics
from dspark.wire.v1 import control_pb2

LATENCIES = (
    "dspark_time_to_first_token_seconds",
    "dspark_request_time_per_output_token_seconds",
    "dspark_e2e_request_latency_seconds",
    "dspark_request_queue_time_seconds",
    "dspark_draft_rpc_seconds",
    "dspark_verify_rpc_seconds",
    "dspark_pipeline_bubble_seconds",
)


def write_totals(metrics: Metrics, reply: control_pb2.GetStatusReply) -> None:
    """Fills in `totals` and `distributions`; a counter nobody touched is left out."""
    for family in metrics.registry.collect():
        if family.type == "counter":
            total = sum(sample.value for sample in family.samples if sample.name.endswith("_total"))
            if total:
                reply.totals[f"{family.name}_total"] = total
        elif family.type == "histogram" and family.name in LATENCIES:
            added = reply.distributions.add(name=family.name)
            below = 0.0
            for sample in family.samples:
                if sample.name.endswith("_bucket"):
                    bound = float(sample.labels["le"])
                    if not math.isinf(bound):
                        added.bounds.append(bound)
                    added.counts.append(int(sample.value - below))
                    below = sample.value
                elif sample.name.endswith("_sum"):
                    added.sum = sample.value
