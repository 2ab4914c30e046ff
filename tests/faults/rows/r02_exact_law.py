"""Row 2: what several rounds emit is the target's law, whatever is drafted and however little of it
is verified.

Coins are integrated, not drawn: the real acceptance code of each rule, with the plans that
verifiers go by deciding how much of every block it sees. Tables of eight kinds, adversarial ones,
ties and zeros among them.
"""

import time
from collections import Counter

from benchmarks.row import note
from tests.faults.rows.program import Args, Rows, statement
from tests.unit.decoding.enumeration import KINDS, variation
from tests.unit.decoding.test_exact_law import CELLS, found, found_coupled

BOUND = 1e-9
LEAST = 500


def rows(args: Args) -> Rows:
    each = 100 if args.long else 9
    began, worst, tables = time.monotonic(), 0.0, 0
    for policy, rule, kind in CELLS:
        for seed in range(each):
            law, own = found(policy, rule, kind, seed, Counter())
            worst = max(worst, variation(law, own), abs(sum(law.values()) - 1.0))
            tables += 1
        note(f"{policy} {rule} {kind}: worst {worst:.1e} of {tables} tables")
    for seed, policy in enumerate(("fixed", "threshold", "adaptive", "adaptive, by older rounds")):
        worst = max(worst, variation(*found_coupled(policy, seed, Counter())))
        tables += 1
    value = {
        "tables": tables,
        "kinds": len(KINDS),
        "worst_total_variation": float(f"{worst:.2e}"),
        "seconds": round(time.monotonic() - began, 1),
    }
    bars = {
        f"total variation <= {BOUND:g}, plans in the loop": worst <= BOUND,
        f"{LEAST} tables or more": tables >= LEAST,
    }
    yield statement("2", "what is emitted follows the target's law", value, bars)
