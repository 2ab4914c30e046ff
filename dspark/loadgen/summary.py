"""What a measurement says, in numbers: one flat dictionary for JSON, tables and plots.

tok_s: tokens that arrived inside the window, per second of it. tok_s_user: tokens a second after the first message,
mean over answers. itl_ms: per token, each message's gap shared among its tokens; gap_ms: between messages. tau: tokens
committed per verification round. verified_per_token: drafted tokens verified per token of the answers; budget: the same
per round and sequence. bytes_per_token: `client` is what this client received, the others are what the cell's processes
sent to each other, by kind, for prompts and answers together.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from typing import Any

from dspark.loadgen.answer import MeasuredAnswer
from dspark.loadgen.run import CUT, Outcome

QUANTILES = {"p50": 0.5, "p90": 0.9, "p99": 0.99}


def quantile(values: list[float], share: float) -> float:
    """The value below which `share` of the sorted `values` lie, interpolated."""
    place = share * (len(values) - 1)
    low = int(place)
    high = min(low + 1, len(values) - 1)
    return values[low] + (values[high] - values[low]) * (place - low)


def spread(seconds: Iterable[float]) -> dict[str, float] | None:
    """Mean and quantiles in milliseconds; None without any."""
    values = sorted(seconds)
    if not values:
        return None
    found = {"mean": sum(values) / len(values)} | {name: quantile(values, q) for name, q in QUANTILES.items()}
    return {name: round(1000 * value, 3) for name, value in found.items()}


def summarise(outcome: Outcome, *, series: str, counted_by: str = "ids") -> dict[str, Any]:
    """The dictionary of one measurement."""
    plan, measured = outcome.plan, outcome.measured
    whole = [answer for answer in measured if not answer.error]
    window = max(outcome.closed - outcome.opened, 1e-9)
    tokens = sum(
        max(count, 0)
        for answer in outcome.answers
        for when, count in zip(answer.times, answer.counts, strict=True)
        if outcome.opened <= when <= outcome.closed
    )
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
        "tok_s_user": round(sum(rates) / len(rates), 2) if rates else 0.0,
        "tok_s_user_p50": round(quantile(sorted(rates), 0.5), 2) if rates else 0.0,
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
    """From the answers where they say it, else from the server's counters (rounds with a draft alone, then)."""
    told = [answer.speculation for answer in whole if answer.speculation is not None]
    rounds = sum(spec.rounds for spec in told)
    if rounds:
        verified = sum(spec.verified for spec in told)
        tokens = sum(answer.tokens for answer in whole if answer.speculation is not None)
        return {
            "tau": round(sum(spec.committed_by_rounds for spec in told) / rounds, 4),
            "tau_over": "all rounds",
            "verified_per_token": round(verified / max(tokens, 1), 4),
            "budget": round(verified / rounds, 4),
        }
    drafts = outcome.counters.get("drafts", 0.0)
    if drafts:
        drafted, accepted = (outcome.counters.get(name, 0.0) for name in ("draft_tokens", "accepted_tokens"))
        tokens = int(outcome.counters.get("generation_tokens", 0.0))
        return {
            "tau": round(1 + accepted / drafts, 4),
            "tau_over": "rounds with a draft",
            "verified_per_token": round(drafted / max(tokens, 1), 4),
            "budget": round(drafted / drafts, 4),
        }
    return {"tau": None, "tau_over": None, "verified_per_token": None, "budget": None}


def _bytes(whole: list[MeasuredAnswer], outcome: Outcome) -> dict[str, float]:
    received = sum(answer.tokens for answer in whole)
    found = {"client": round(sum(answer.size for answer in whole) / received, 2)} if received else {}
    tokens = sum(answer.tokens for answer in outcome.answers)  # the counters saw them all
    for name, value in outcome.counters.items():
        if name.startswith("bytes_") and tokens:
            found[name.removeprefix("bytes_")] = round(value / tokens, 2)
    return found
