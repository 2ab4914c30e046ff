"""Measures a sweep: every series (policy) at every load (concurrency or rate), one by one.

Policies take turns at each load, so that a disturbance of the machine hits all of them alike.
"""

from __future__ import annotations

import itertools
import sys
from collections.abc import Sequence
from typing import Any

from dspark.loadgen import prompts
from dspark.loadgen.answer import Endpoint
from dspark.loadgen.prompts import Question
from dspark.loadgen.run import LoadPlan, run
from dspark.loadgen.summary import summarise
from dspark.progress import progress


async def sweep(
    endpoints: Sequence[Endpoint], questions: Sequence[Question], plans: Sequence[LoadPlan]
) -> list[dict[str, Any]]:
    """Runs every plan at every endpoint; returns the summaries."""
    points = []
    for plan, endpoint in itertools.product(plans, endpoints):
        point = await _measured(endpoint, questions, plan)
        points.append(point)
        if point["errors"] and not point["answers"]:
            print(f"no request succeeded: {point['errors']}", file=sys.stderr)
    return points


async def _measured(
    endpoint: Endpoint, questions: Sequence[Question], plan: LoadPlan
) -> dict[str, Any]:
    load = f"{plan.concurrency} users" if plan.concurrency else f"{plan.rate:g} a second"
    total = plan.requests + plan.warmup if plan.requests else None
    with progress(f"{endpoint.name}, {load}", total, shown=sys.stderr.isatty()) as tell:

        def told(answers: int, tokens: int) -> None:
            tell(completed=answers, note=f"{tokens:,} tokens")

        outcome = await run(endpoint, prompts.cycle(questions, plan.seed), plan, told)
    return summarise(outcome, series=endpoint.name, counted_by=endpoint.counted_by)
