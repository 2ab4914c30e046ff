"""Which rows there are, by which programs, and how long they may take. A new row is a line here and
a program there."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Entry:
    """One program. words: a module of `tests/faults/rows` and its options."""

    row: str
    words: str
    share_s: float  # kept for it whatever those before it take
    statements: int = 1  # rows that it prints
    alone: bool = False  # it measures time, or wants both processors

    @property
    def command(self) -> list[str]:
        """Behind `python -m`."""
        return ["faults.rows", *self.words.split(), "--json"]


QUICK: tuple[Entry, ...] = (
    Entry("1", "r01_simulated_kills", 90),
    Entry("1", "r01_real_kills", 60, alone=True),
    Entry("2", "r02_exact_law", 60),
    Entry("3", "r03_mutants", 100),
    Entry("4", "r04_malformed", 90, statements=2, alone=True),
    Entry("5", "r05_hung_peer", 90, alone=True),
    Entry("6", "r06_listeners", 40),
    Entry("7", "r07_foreign_code", 70),
    Entry("9", "r09_cancel_storm", 40, alone=True),
    Entry("10", "r10_scarce_pages", 40),
    Entry("11", "r11_lying_drafter", 20),
    Entry("12", "r12_drafters_gone", 50),
    Entry("13", "r13_rolling_restart", 60, alone=True),
    Entry("15", "r15_every_message", 180),
    Entry("16", "r16_random_commands", 90),
    Entry("17", "r17_leaving", 30),
    Entry("17", "r17_real_leaving", 40, alone=True),
    Entry("18", "r18_stalled", 60, alone=True),
    Entry("19", "r19_oversize", 60),
    Entry("20", "r20_same_ids", 90),
    Entry("21", "r21_coordinator_kill", 60, alone=True),
    Entry("24", "r24_retry_storm", 15),
    Entry("26", "r26_bad_checkpoints", 70),
    Entry("28", "r28_canary", 40),
    Entry("29", "r29_keys", 40),
    Entry("32", "r32_pings", 90),
    Entry("33", "r33_health", 30, alone=True),
    Entry("35", "r35_watchdog", 60),
    Entry("36", "r36_forms", 60, alone=True),
)

LONG: tuple[Entry, ...] = (
    Entry("1", "r01_simulated_kills --long", 1200),
    Entry("1", "r01_real_kills --long", 1800, alone=True),
    Entry("3", "r03_mutants --long", 300, alone=True),
    Entry("4", "r04_malformed --long", 7200, statements=2, alone=True),
    Entry("5", "r05_hung_peer --long", 5400, alone=True),
    Entry("8", "r08_overload --long", 900, alone=True),
    Entry("10", "r10_scarce_pages --long", 900),
    Entry("11", "r11_lying_drafter --long", 300),
    Entry("12", "r12_drafters_gone --long", 600),
    Entry("13", "r13_rolling_restart --long", 900, alone=True),
    Entry("14", "r14_partitions --long", 7200, alone=True),
    Entry("15", "r15_every_message --long", 900),
    Entry("16", "r16_random_commands --long", 7200),
    Entry("17", "r17_leaving --long", 1200),
    Entry("17", "r17_real_leaving --long", 600, alone=True),
    Entry("18", "r18_stalled --long", 600, alone=True),
    Entry("20", "r20_same_ids --long", 3600),
    Entry("21", "r21_coordinator_kill --long", 900, alone=True),
    Entry("22", "r22_head_kill --kills 20", 3600, alone=True),
    Entry("23", "r23_tenants --long", 900),
    Entry("25", "r25_eavesdropper --long", 3600, alone=True),
    Entry("26", "r26_bad_checkpoints --long", 14400),
    Entry("27", "r27_cache_probe --long", 3600, alone=True),
    Entry("30", "r30_soak", 2400, alone=True),
    Entry("36", "r36_forms --long", 900, alone=True),
    Entry("31", "r31_monitor --long", 1200),
    Entry("34", "r34_shipped_pair --long", 3600, alone=True),
    Entry("35", "r35_watchdog --long", 600),
)
