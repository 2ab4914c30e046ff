"""The rows, their programs and how long they may take. A new one is a line here and a module."""

from dataclasses import dataclass


@dataclass(frozen=True)
class Entry:
    """One program. words: a module of `tests/faults/rows` and its options."""

    words: str
    usual_s: float  # it may take four times as long
    statements: int = 1  # rows that it prints
    alone: bool = False  # it measures time, or wants both processors

    @property
    def row(self) -> str:
        return self.words[1:3].lstrip("0")

    @property
    def command(self) -> list[str]:
        """Behind `python -m`."""
        return ["tests.faults.rows", *self.words.split(), "--json"]


QUICK: tuple[Entry, ...] = (
    Entry("r01_simulated_kills", 90),
    Entry("r01_real_kills", 60, alone=True),
    Entry("r02_exact_law", 60),
    Entry("r03_mutants", 100),
    Entry("r04_malformed", 90, statements=2, alone=True),
    Entry("r05_hung_peer", 90, alone=True),
    Entry("r06_listeners", 40),
    Entry("r07_foreign_code", 70),
    Entry("r09_cancel_storm", 40, alone=True),
    Entry("r10_scarce_pages", 40),
    Entry("r11_lying_drafter", 20),
    Entry("r12_drafters_gone", 50),
    Entry("r13_rolling_restart", 60, alone=True),
    Entry("r15_every_message", 180),
    Entry("r16_random_commands", 90),
    Entry("r17_leaving", 30),
    Entry("r17_real_leaving", 40, alone=True),
    Entry("r18_stalled", 60, alone=True),
    Entry("r19_oversize", 60),
    Entry("r20_same_ids", 90),
    Entry("r21_coordinator_kill", 60, alone=True),
    Entry("r24_retry_storm", 15),
    Entry("r26_bad_checkpoints", 70),
    Entry("r28_canary", 40),
    Entry("r29_keys", 40),
    Entry("r32_pings", 90),
    Entry("r33_health", 30, alone=True),
    Entry("r35_watchdog", 60),
    Entry("r36_forms", 60, alone=True),
)

LONG: tuple[Entry, ...] = (
    Entry("r01_simulated_kills --long", 1200),
    Entry("r01_real_kills --long", 1800, alone=True),
    Entry("r03_mutants --long", 300, alone=True),
    Entry("r04_malformed --long", 7200, statements=2, alone=True),
    Entry("r05_hung_peer --long", 5400, alone=True),
    Entry("r08_overload --long", 900, alone=True),
    Entry("r10_scarce_pages --long", 900),
    Entry("r11_lying_drafter --long", 300),
    Entry("r12_drafters_gone --long", 600),
    Entry("r13_rolling_restart --long", 900, alone=True),
    Entry("r14_partitions --long", 7200, alone=True),
    Entry("r15_every_message --long", 900),
    Entry("r16_random_commands --long", 7200),
    Entry("r17_leaving --long", 1200),
    Entry("r17_real_leaving --long", 600, alone=True),
    Entry("r18_stalled --long", 600, alone=True),
    Entry("r20_same_ids --long", 3600),
    Entry("r21_coordinator_kill --long", 900, alone=True),
    Entry("r22_head_kill --kills 20", 3600, alone=True),
    Entry("r23_tenants --long", 900),
    Entry("r25_eavesdropper --long", 3600, alone=True),
    Entry("r26_bad_checkpoints --long", 14400),
    Entry("r27_cache_probe --long", 3600, alone=True),
    Entry("r30_soak", 2400, alone=True),
    Entry("r31_monitor --long", 1200),
    Entry("r34_shipped_pair --long", 3600, alone=True),
    Entry("r35_watchdog --long", 600),
    Entry("r36_forms --long", 900, alone=True),
)
