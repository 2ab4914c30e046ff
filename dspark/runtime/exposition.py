"""Metrics as they are shown: with the labels that every sample of a process has, and without `_created` series."""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterator, Mapping

from prometheus_client import CollectorRegistry, Metric

UNKNOWN = "unknown"  # an empty label would be none


class Exposed:
    """A registry with labels of the process on every sample; they are asked for at every scrape."""

    def __init__(self, registry: CollectorRegistry, labels: Callable[[], Mapping[str, str]]) -> None:
        self._registry, self._labels = registry, labels

    def collect(self) -> Iterator[Metric]:
        mine = {name: value or UNKNOWN for name, value in self._labels().items()}
        for family in self._registry.collect():
            shown = copy.copy(family)
            shown.samples = [
                sample._replace(labels={**mine, **sample.labels})
                for sample in family.samples
                if not sample.name.endswith("_created")
            ]
            yield shown
