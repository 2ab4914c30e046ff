"""Many values told to a histogram at once are what they are told one by one."""

from __future__ import annotations

from collections.abc import Sequence

import pytest

from dspark.runtime.telemetry import Metrics, observe_all


@pytest.mark.parametrize("values", [[], [3], [0, 1, 1, 7, 8, 9, 16, 17, 1000], [0.5, 2.0, 2.5]])
def test_a_histogram_told_at_once_equals_one_told_one_by_one(values: Sequence[float]) -> None:
    once, each = Metrics(), Metrics()
    observe_all(once.scheduled_verify_length, values)
    for value in values:
        each.scheduled_verify_length.observe(value)

    def samples(metrics: Metrics) -> list[tuple[str, str, float]]:
        (family,) = metrics.scheduled_verify_length.collect()
        return [
            (s.name, s.labels.get("le", ""), s.value)
            for s in family.samples
            if not s.name.endswith("_created")
        ]

    assert samples(once) == samples(each)
