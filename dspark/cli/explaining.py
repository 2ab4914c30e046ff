"""`dspark status --explain REQUEST`: the rounds of a running request, one line each, as they are settled; then, or of
one that has ended lately, what became of its answers."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from dspark.client import Client, EndedAnswer, RoundExplanation

_WHY = {
    "no_draft": "no draft",
    "whole": "the block was over",
    "room": "no room for more",
    "fixed": "the policy's number",
    "threshold": "the next one's confidence is too low",
    "price": "the next one brings less than it costs",
}
_SIGNS = {"accepted": "+", "rejected": "x", "void": "-", "unverified": ".", "cut": "|"}


def explain(client: Client, request_id: str, *, rounds: int, as_json: bool) -> int:
    """Until the request ends, or so many rounds were told; one JSON object a line with `as_json`."""
    from dspark.client import InvalidRequest

    told, runs = 0, True
    try:
        for one in client.explain(request_id, rounds=rounds):
            told += 1
            print(json.dumps(shape(one)) if as_json else line(one), flush=True)
    except InvalidRequest:  # it does not run
        runs = False
    if told == rounds > 0:
        return 0
    ended = client.ended(request_id)
    if not ended and not runs:
        raise InvalidRequest("request_id", "no running request has this id, nor any of the last that ended")
    for answer in ended:
        print(json.dumps(shape(answer)) if as_json else lines(answer), flush=True)
    return 0


def lines(answer: EndedAnswer) -> str:
    """Of an answer that ended: how, with what, and when."""
    which = f" answer {answer.index}" if answer.index else ""
    pools = ", ".join(filter(None, (answer.verifier, answer.drafter))) or "never placed"
    said = [
        f"{answer.request_id}{which} ended: {answer.outcome}{f' ({answer.error})' if answer.error else ''}",
        f"{answer.completion_tokens} tokens after {answer.prompt_tokens} of the prompt; policy {answer.policy}, "
        f"rule {answer.rule}; {pools}",
        f"first token after {answer.ttft_ms:.1f} ms ({answer.queue_ms:.1f} queued), all after {answer.total_ms:.1f} ms",
    ]
    if rounds := sum(answer.accepted_histogram):
        said.append(
            f"{rounds} rounds, tau {answer.mean_acceptance_length:.2f}; "
            f"rounds by slots verified: {_spread(answer.verified_histogram)}; "
            f"by drafted tokens committed: {_spread(answer.accepted_histogram)}"
        )
    return "\n  ".join(said)


def _spread(histogram: Sequence[int]) -> str:
    return ", ".join(f"{size}: {count}" for size, count in enumerate(histogram) if count)


def shape(told: RoundExplanation | EndedAnswer) -> dict[str, Any]:
    """As one JSON object; what is not there is left out."""
    from dataclasses import asdict

    return asdict(told, dict_factory=lambda fields: {name: value for name, value in fields if value is not None})


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
