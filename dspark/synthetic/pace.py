"""Times of synthetic passes: their jitter, and the device thread's sleep until a pass is over,
however long its bookkeeping took."""

from __future__ import annotations

import math
import select
import time

import numpy as np

from dspark.synthetic.oracle import KeyPurpose, keyed, mix, uniform

# seconds that are spun at the end, because even the shortest sleep ends late by nearly this much
SPIN_S = 0.0001


class DevicePace:
    """Keyed jitter and the sleep of one device."""

    def __init__(self, jitter: float, key: int) -> None:
        self._jitter = jitter
        self._key = np.array([key], np.uint64)
        self._passes = 0

    def take(self, seconds: float) -> float:
        """Seconds of the next pass: log-normal about `seconds` with the file's relative deviation,
        mean kept."""
        self._passes += 1
        if not self._jitter:
            return seconds
        hashes = keyed(self._key, KeyPurpose.JITTER, np.array([self._passes]))
        radius = math.sqrt(-2.0 * math.log1p(-float(uniform(hashes)[0])))
        normal = radius * math.cos(2.0 * math.pi * float(uniform(mix(hashes))[0]))
        deviation = math.sqrt(math.log1p(self._jitter**2))
        return seconds * math.exp(deviation * normal - deviation**2 / 2)

    @staticmethod
    def sleep_until(ends_ns: int) -> None:
        """Sleeps until `ends_ns`, by the clock of `perf_counter_ns`."""
        left_s = (ends_ns - time.perf_counter_ns()) * 1e-9
        if left_s > SPIN_S:
            time.sleep(left_s - SPIN_S)
        while time.perf_counter_ns() < ends_ns:
            select.select((), (), (), 0)  # lets other threads run, without a sleep
