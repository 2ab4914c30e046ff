"""Pushing features: queues have bounds, every lost row is counted, and nobody waits."""

from __future__ import annotations

from dspark.runtime.telemetry import Metrics
from dspark.wire.orders import PackedRows
from verify_service.batch_runner import FeatureRun
from verify_service.feature_push import FeaturePush, Sink

NOWHERE = Sink("127.0.0.1:9", 5)


def rows(count: int) -> FeatureRun:
    return FeatureRun(1, 1, 0, list(range(count)), PackedRows("bfloat16", count, 64, bytes(128 * count)))


def pusher(metrics: Metrics, queue_rows: int) -> FeaturePush:
    return FeaturePush(incarnation=1, projection="p", token=None, queue_rows=queue_rows, metrics=metrics)


async def test_what_does_not_fit_is_dropped_and_counted_at_once() -> None:
    metrics = Metrics()
    push = pusher(metrics, queue_rows=10)
    assert push.push(NOWHERE, rows(8))
    assert not push.push(NOWHERE, rows(8))
    assert metrics.value("dropped_total", kind="feature_rows", reason="queue_full") == 8
    await push.close()
    lost = [
        metrics.value("dropped_total", kind="feature_rows", reason=r) for r in ("closed", "broken", "unacknowledged")
    ]
    assert sum(lost) == 8
