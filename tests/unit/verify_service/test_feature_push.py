"""Pushing features: queues have bounds, every lost row is counted, and nobody waits."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

from dspark.runtime.telemetry import Metrics
from dspark.wire.orders import PackedRows
from verify_service.batch_runner import FeatureRun
from verify_service.config import VerifyConfig
from verify_service.feature_push import FeaturePush, Sink

NOWHERE = Sink("127.0.0.1:9", 5)


def rows(count: int) -> FeatureRun:
    return FeatureRun(
        1, 1, 0, list(range(count)), PackedRows("bfloat16", count, 64, bytes(128 * count))
    )


def pusher(metrics: Metrics, queue_rows: int) -> FeaturePush:
    engine = SimpleNamespace(projection="p", config=VerifyConfig(push_queue_rows=queue_rows))
    security = SimpleNamespace(token=None, tls=None)
    worker: Any = SimpleNamespace(engine=engine, security=security, incarnation=1, metrics=metrics)
    return FeaturePush(worker)


async def test_what_does_not_fit_is_dropped_and_counted_at_once() -> None:
    metrics = Metrics()
    push = pusher(metrics, queue_rows=10)
    for _ in range(2):
        push.push(NOWHERE, rows(8))
    assert metrics.value("dropped_total", kind="feature_rows", reason="queue_full") == 8
    await push.close()
    lost = [
        metrics.value("dropped_total", kind="feature_rows", reason=r)
        for r in ("closed", "broken", "unacknowledged")
    ]
    assert sum(lost) == 8
