"""Sums a measurement up in one flat dictionary for JSON, tables and plots.

tok_s: tokens that arrived inside the window, per second of it. tok_s_user: tokens a second after
the first message, mean over answers. itl_ms: per token, each message's gap shared among its tokens;
gap_ms: between messages. tau: tokens committed per verification round. verified_per_token: drafted
tokens verified per token of the answers; budget: the same per round and sequence. bytes_per_token:
`client` is what this client received, the others are what the cell's processes sent to each other,
by kind, for prompts and answers together.
"""

from __future__ import annotations

import statistics
from collections import Counter
from collections.abc import Iterable
from typing import Any

from dspark.loadgen.answer import MeasuredAnswer
from dspark.loadgen.run import CUT, Outcome


def spread(seconds: Iterable[float]) -> dict[str, float] | None:
    """Mean and quantiles in milliseconds; None if there are no values."""
    values = list(seconds)
    if not values:
        return None
    # Cut at every hundredth, interpolated between neighbours.
    cuts = (
        statistics.quantiles(values, n=100, method="inclusive") if len(values) > 1 else 99 * values
    )
    found = {"mean": statistics.fmean(values), "p50": cuts[49], "p90": cuts[89], "p99": cuts[98]}
    return {name: round(1000 * value, 3) for name, value in found.items()}


def summarise(outcome: Outcome, *, series: str, counted_by: str = "ids") -> dict[str, Any]:
    """The dictionary of one measurement."""
    plan, measured = outcome.plan, outcome.measured
    whole = [answer for answer in measured if not answer.error]
    window = max(outcome.closed - outcome.opened, 1e-9)
    tokens = outcome.tokens(outcome.opened, outcome.closed)
    rates = [answer.rate for answer in whole if answer.rate > 0]
    errors = Counter(answer.error for answer in measured if answer.error and answer.error != CUT)
    return {
        "series": series,
        "loop": "closed" if plan.concurrency else "open",
        "concurrency": plan.concurrency or None,
        "rate": plan.rate or None,
        "answers": len(whole),
        "cut": sum(answer.error == CUT for answer in measured),
        "errors": dict(errors),
        "window_s": round(window, 3),
        "tokens": tokens,
        "tok_s": round(tokens / window, 2),
        "tok_s_user": round(statistics.fmean(rates), 2) if rates else 0.0,
        "tok_s_user_p50": round(statistics.median(rates), 2) if rates else 0.0,
        "ttft_ms": spread(answer.ttft_s for answer in whole),
        "itl_ms": spread(gap for answer in whole for gap in answer.token_gaps()),
        "gap_ms": spread(gap for answer in whole for gap in answer.gaps()),
        "latency_ms": spread(answer.latency_s for answer in whole),
        "late_ms": spread(answer.sent - answer.intended for answer in whole),
        "counted_by": counted_by,
        **_speculation(whole, outcome),
        "bytes_per_token": _bytes(whole, outcome),
    }


def _speculation(whole: list[MeasuredAnswer], outcome: Outcome) -> dict[str, Any]:
    """Figures of speculation from the answers if they report them, else from the server's counters,
    which count rounds with a draft only."""
    told = [
        (answer.tokens, answer.speculation) for answer in whole if answer.speculation is not None
    ]
    over, tokens = "all rounds", float(sum(count for count, _ in told))
    rounds = float(sum(spec.rounds for _, spec in told))
    verified = float(sum(spec.verified_tokens for _, spec in told))
    committed = sum(spec.mean_acceptance_length * spec.rounds for _, spec in told)
    if not rounds:
        count = outcome.counters.get
        over, tokens = "rounds with a draft", count("generation_tokens", 0.0)
        rounds, verified = count("drafts", 0.0), count("draft_tokens", 0.0)
        committed = rounds + count("accepted_tokens", 0.0)
    if not rounds:
        return {"tau": None, "tau_over": None, "verified_per_token": None, "budget": None}
    return {
        "tau": round(committed / rounds, 4),
        "tau_over": over,
        "verified_per_token": round(verified / max(tokens, 1), 4),
        "budget": round(verified / rounds, 4),
    }


def _bytes(whole: list[MeasuredAnswer], outcome: Outcome) -> dict[str, float]:
    received = sum(answer.tokens for answer in whole)
    found = (
        {"client": round(sum(answer.size for answer in whole) / received, 2)} if received else {}
    )
    tokens = sum(answer.tokens for answer in outcome.answers)  # counters include all of them
    for name, value in outcome.counters.items():
        if name.startswith("bytes_") and tokens:
            found[name.removeprefix("bytes_")] = round(value / tokens, 2)
    return found
