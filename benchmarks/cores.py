"""Both sides of a comparison on the same cores: this process and all it starts, client included."""

from __future__ import annotations

import os


def pin(count: int = 2) -> tuple[int, ...]:
    """Keeps this process and its future children on the first `count` of the cores it may use; returns those."""
    allowed = sorted(os.sched_getaffinity(0))
    if len(allowed) < count:
        raise SystemExit(f"{count} CPU cores are needed, {len(allowed)} may be used")
    os.sched_setaffinity(0, allowed[:count])
    return tuple(allowed[:count])
