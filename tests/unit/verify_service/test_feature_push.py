"""Pushing features: queues have bounds, every lost row is counted, and nobody waits."""

from __future__ import annotations

import torch

from dspark.runtime.telemetry import Metrics
from verify_service.feature_push import FeaturePush, Sink
from verify_service.feature_store import FeatureRows

NOWHERE = Sink("127.0.0.1:9", 5)


def rows(count: int) -> FeatureRows:
    return FeatureRows(1, 1, 0, list(range(count)), torch.zeros(count, 64, dtype=torch.bfloat16))


def pusher(metrics: Metrics, queue_rows: int) -> FeaturePush:
    return FeaturePush(incarnation=1, projection="p", token=None, queue_rows=queue_rows, metrics=metrics)


async def test_what_does_not_fit_is_dropped_and_counted_at_once() -> None:
    metrics = Metrics()
    push = pusher(metrics, queue_rows=10)
    assert push.push(NOWHERE, [rows(8)]) == 8
    assert push.push(NOWHERE, [rows(8)]) == 0
    assert metrics.value("dropped_total", kind="feature_rows", reason="queue_full") == 8
    await push.close()
    lost = [
        metrics.value("dropped_total", kind="feature_rows", reason=r) for r in ("closed", "broken", "unacknowledged")
    ]
    assert sum(lost) == 8


async def test_a_long_prompt_travels_in_several_messages() -> None:
    metrics = Metrics()
    push = pusher(metrics, queue_rows=5000)
    assert push.push(NOWHERE, [rows(1200)]) == 1200
    link = push._links[NOWHERE]
    assert link._queue._chunks.qsize() == 3
    await push.close()
