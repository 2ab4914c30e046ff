"""`dspark status --explain REQUEST`: the rounds of a running request, one line each, as they are settled."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from dspark.client import Client, RoundExplanation

_WHY = {
    "no_draft": "no draft",
    "whole": "the block was over",
    "room": "no room for more",
    "fixed": "the policy's number",
    "threshold": "the next one's confidence is too low",
    "price": "the next one brings less than it costs",
    "budget": "the step's budget",
}
_SIGNS = {"accepted": "+", "rejected": "x", "void": "-", "unverified": ".", "cut": "|"}


def explain(client: Client, request_id: str, *, rounds: int, as_json: bool) -> int:
    """Until the request ends, or so many rounds were told; one JSON object a line with `as_json`."""
    for told in client.explain(request_id, rounds=rounds):
        print(json.dumps(shape(told)) if as_json else line(told), flush=True)
    return 0


def shape(told: RoundExplanation) -> dict[str, Any]:
    """As one JSON object; what is not there is left out."""
    from dataclasses import asdict

    return {name: value for name, value in asdict(told).items() if value is not None}


def line(told: RoundExplanation) -> str:
    """Of one round: `+` accepted, `x` rejected, `-` behind it, `.` not verified."""
    words = _WHY.get(told.why, told.why)
    if told.empty_because:
        words += f": {told.empty_because}"
    if told.why == "price" and told.price is not None:
        words += f" ({told.slots[told.prefix].gain:.2f} tokens against {told.price:.2f})"
    if told.late:
        words += f"; late: {', '.join(told.late)}"
    block = "".join(_SIGNS.get(slot.fate, "?") for slot in told.slots)
    return (
        f"{told.offset:5d}  {block:<12}  verified {told.prefix}, accepted {told.accepted}, "
        f"committed {len(told.token_ids)}  step of {told.sequences}: {told.step_tokens} tokens  "
        f"{told.round_ms:.2f} ms = draft {told.draft_ms:.2f} ({told.draft_pass_ms:.2f} computing)"
        f" + verify {told.verify_ms:.2f} ({told.verify_pass_ms:.2f} computing)"
        f" + {max(told.round_ms - told.draft_ms - told.verify_ms, 0.0):.2f}  {words}"
    )
