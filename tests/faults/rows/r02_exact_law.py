"""Row 2: what several rounds emit is the target's law, whatever is drafted and however little of it
is verified.

Coins are integrated, not drawn: the real acceptance code of each rule, with the plans that
verifiers go by deciding how much of every block it sees. Tables of eight kinds, adversarial ones,
ties and zeros among them.
"""

from __future__ import annotations

import sys
import time
from pathlib import Path

import numpy as np

from benchmarks.row import Row, note
from faults.rows.program import Args, Rows

sys.path.insert(0, str(Path(__file__).resolve().parents[2] / "unit" / "decoding"))

from enumeration import (
    KINDS,
    Machine,
    coupled_law,
    dyadic_world,
    emitted,
    exact,
    older_price,
    random_world,
    real_plan,
    variation,
)
from test_exact_law import CELLS, RULES, policy_of

BOUND = 1e-9
LEAST = 500


def rows(args: Args) -> Rows:
    each = 100 if args.long else 9
    began, worst, tables = time.monotonic(), 0.0, 0
    for policy, rule, kind in CELLS:
        for seed in range(each):
            world = random_world(kind, seed)
            rng = np.random.default_rng((seed, 1))
            prefix = real_plan(policy_of(policy, rng), world, rng)
            price = older_price(world, rng) if "older" in policy else None
            law = emitted(world, Machine(prefix, price=price, rounds=RULES[rule]))
            worst = max(worst, variation(law, exact(world)), abs(sum(law.values()) - 1.0))
            tables += 1
        note(f"{policy} {rule} {kind}: worst {worst:.1e} of {tables} tables")
    for seed, policy in enumerate(("fixed", "threshold", "adaptive", "adaptive, by older rounds")):
        rng = np.random.default_rng((seed, 4))
        world = dyadic_world(rng)
        prefix = real_plan(policy_of(policy, rng), world, rng)
        price = older_price(world, rng) if "older" in policy else None
        worst = max(
            worst, variation(coupled_law(world, Machine(prefix, price=price), 8), exact(world))
        )
        tables += 1
    value = {
        "tables": tables,
        "kinds": len(KINDS),
        "worst_total_variation": float(f"{worst:.2e}"),
        "seconds": round(time.monotonic() - began, 1),
    }
    bar = f"total variation <= {BOUND:g} on {LEAST} tables or more, plans in the loop"
    yield Row(
        "2",
        "what is emitted follows the target's law",
        value,
        bar,
        worst <= BOUND and tables >= LEAST,
    )
