"""When pools may change their own size: section `autoscale` of the configuration file. Torch-free, Ray-free."""

from __future__ import annotations

from dataclasses import dataclass, field

from dspark.errors import ConfigError


@dataclass(frozen=True)
class AutoscaleConfig:
    """Bounds, targets and patience of the two pools. Times are seconds unless the name says otherwise."""

    enabled: bool = field(default=False, metadata={"doc": "Let the pools follow the load."})
    min_verifiers: int = field(default=1, metadata={"doc": "Fewest verifiers."})
    max_verifiers: int = field(default=4, metadata={"doc": "Most verifiers."})
    min_drafters: int = field(default=0, metadata={"doc": "Fewest drafters; 0 lets an idle cell have none."})
    max_drafters: int = field(default=8, metadata={"doc": "Most drafters."})
    drafter_busy: float = field(
        default=0.7, metadata={"doc": "Share of the time a drafter should compute at most; above, one more is wanted."}
    )
    draft_wait_ms: float = field(
        default=10.0, metadata={"doc": "Mean wait of a cohort for a busy drafter; above, one more is wanted."}
    )
    verifier_pages: float = field(
        default=0.8, metadata={"doc": "Share of the verifiers' pages in use; above, one more is wanted."}
    )
    queue_s: float = field(
        default=1.0, metadata={"doc": "95th percentile of the wait for admission; above, one more verifier is wanted."}
    )
    slo_ttft_ms: float = field(default=0.0, metadata={"doc": "95th percentile of time to first token; 0: none."})
    slo_itl_ms: float = field(default=0.0, metadata={"doc": "95th percentile of time per token; 0: none."})
    headroom: float = field(
        default=0.8, metadata={"doc": "A pool shrinks only if what is left would stand below this share of its target."}
    )
    look_s: float = field(default=2.0, metadata={"doc": "Between two looks at the cell."})
    window_s: float = field(default=10.0, metadata={"doc": "What shares and percentiles are taken over."})
    up_after_s: float = field(default=6.0, metadata={"doc": "How long a pool must be too small before it grows."})
    down_after_s: float = field(default=60.0, metadata={"doc": "How long it must be too large before it shrinks."})
    zero_after_s: float = field(default=300.0, metadata={"doc": "Idle time after which the last drafter goes."})
    cool_down_s: float = field(default=20.0, metadata={"doc": "Rest of a pool after a change of its size."})

    def __post_init__(self) -> None:
        if not 1 <= self.min_verifiers <= self.max_verifiers:
            raise ConfigError(
                f"autoscale.min_verifiers: {self.min_verifiers} to {self.max_verifiers} is no range that begins at 1"
            )
        if not 0 <= self.min_drafters <= self.max_drafters:
            raise ConfigError(f"autoscale.min_drafters: {self.min_drafters} to {self.max_drafters} is no range")
        for key in ("drafter_busy", "verifier_pages", "headroom"):
            if not 0.0 < getattr(self, key) <= 1.0:
                raise ConfigError(f"autoscale.{key}: {getattr(self, key)} is not in (0, 1]")
        for key in ("draft_wait_ms", "queue_s", "look_s", "window_s"):
            if not getattr(self, key) > 0:
                raise ConfigError(f"autoscale.{key}: {getattr(self, key)} is not above 0")
        for key in ("slo_ttft_ms", "slo_itl_ms", "up_after_s", "down_after_s", "zero_after_s", "cool_down_s"):
            if getattr(self, key) < 0:
                raise ConfigError(f"autoscale.{key}: {getattr(self, key)} is negative")
