"""`dspark status --explain REQUEST`: the rounds of a running request, one line each, as they are settled."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from dspark.client import Client
    from dspark.wire.v1.control_pb2 import RoundExplanation

_WHY = {
    "NO_DRAFT": "no draft",
    "WHOLE": "the block was over",
    "ROOM": "no room for more",
    "FIXED": "the policy's number",
    "THRESHOLD": "the next one's confidence is too low",
    "PRICE": "the next one brings less than it costs",
    "BUDGET": "the step's budget",
}


def explain(client: Client, request_id: str, *, rounds: int, as_json: bool) -> int:
    """Until the request ends, or so many rounds were told; one JSON object a line with `as_json`."""
    for told in client.explain(request_id, rounds=rounds):
        print(json.dumps(shape(told)) if as_json else line(told), flush=True)
    return 0


def shape(told: RoundExplanation) -> dict[str, Any]:
    """The message as it is in JSON, with the names of enumerations."""
    from google.protobuf.json_format import MessageToDict

    made: dict[str, Any] = MessageToDict(
        told, preserving_proto_field_name=True, always_print_fields_with_no_presence=True
    )
    return made


def line(told: RoundExplanation) -> str:
    """Of one round: `+` accepted, `x` rejected, `-` behind it, `.` not verified."""
    from dspark.wire.v1 import control_pb2

    signs = {
        control_pb2.FATE_ACCEPTED: "+",
        control_pb2.FATE_REJECTED: "x",
        control_pb2.FATE_VOID: "-",
        control_pb2.FATE_UNVERIFIED: ".",
        control_pb2.FATE_CUT: "|",
    }
    why = control_pb2.PrefixEnd.Name(told.why).removeprefix("PREFIX_END_")
    words = _WHY.get(why, why.lower())
    if told.empty_because:
        words += f": {told.empty_because}"
    if why == "PRICE" and told.HasField("price"):
        words += f" ({told.slots[told.prefix].gain:.2f} tokens against {told.price:.2f})"
    if told.late:
        words += f"; late: {', '.join(told.late)}"
    block = "".join(signs[slot.fate] for slot in told.slots)
    return (
        f"{told.offset:5d}  {block:<12}  verified {told.prefix}, accepted {told.accepted}, "
        f"committed {len(told.token_ids)}  step of {told.sequences}: {told.step_tokens} tokens  "
        f"{told.round_ms:.2f} ms = draft {told.draft_ms:.2f} ({told.draft_pass_ms:.2f} computing)"
        f" + verify {told.verify_ms:.2f} ({told.verify_pass_ms:.2f} computing)"
        f" + {max(told.round_ms - told.draft_ms - told.verify_ms, 0.0):.2f}  {words}"
    )
