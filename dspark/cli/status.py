"""`dspark status`: shows every process and lane, as the coordinator sees them.

`--explain REQUEST` shows the rounds of a running request, one line each, as they are committed;
then, or for a request that has ended lately, how its answers ended.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from dspark.cli.options import add_endpoint, natural, open_client
from dspark.errors import DsparkError, Expired, Unavailable
from dspark.tables import aligned

if TYPE_CHECKING:
    from dspark.client import CellStatus, Client, EndedAnswer, MeasuredCost, RoundExplanation

OF_LOAD = ("busy_s", "wait_s", "waits")  # totals of which `top` shows shares

_WHY = {
    "no_draft": "no draft",
    "whole": "the block was over",
    "room": "no room for more",
    "fixed": "the policy's number",
    "threshold": "the next one's confidence is too low",
    "price": "the next one brings less than it costs",
}
_SIGNS = {
    "accepted": "+",
    "rejected": "x",
    "forbidden": "!",
    "void": "-",
    "unverified": ".",
    "cut": "|",
}


def add_commands(commands: Any) -> None:
    parser = commands.add_parser("status", help="list every process and lane")
    add = parser.add_argument
    add("--json", action="store_true", help="one JSON object")
    add("--explain", metavar="REQUEST", help="rounds and end of a request (a tenant's: TENANT/ID)")
    add("--rounds", type=natural, default=0, help="with --explain: so many; 0: until it ends")
    add_endpoint(parser)
    parser.set_defaults(run=_status)


def _status(args: argparse.Namespace) -> int:
    with open_client(args) as client:
        if args.explain:
            return explain(client, args.explain, rounds=args.rounds, as_json=args.json)
        try:
            reply = client.status()
        except (Unavailable, Expired) as error:
            raise _unreachable(
                client.coordinator, error, by_hand=args.endpoint is not None
            ) from None
    if args.json:
        print(json.dumps(as_json(client.endpoint, reply), indent=2))
    else:
        _print(reply)
    return 0


def _unreachable(endpoint: str, error: DsparkError, *, by_hand: bool) -> DsparkError:
    """The error for a coordinator that does not answer, with what is known about the cause."""
    said = f"the coordinator at {endpoint} is unreachable ({error})"
    if by_hand:
        return Unavailable(said)
    from deploy.process_tags import own
    from dspark.client.cell import find_cell

    cell = find_cell()
    if cell.ray_pid and not own(cell.ray_pid, cell.cell_id):
        return Unavailable(
            f"the cluster of this state folder is gone (its process {cell.ray_pid} has ended); "
            "`dspark down` clears what is left"
        )
    if not cell.ray_pid:
        why = (
            ": it may be restarting, or serve on another node by now (`dspark scale` with the "
            f"present sizes finds it), or the Ray cluster at {cell.ray_address} may be gone"
        )
    elif cell.leaving:
        why = ": a `dspark down` ends it; if that was broken off, run it again"
    else:
        logs = f"; logs are under {cell.ray_dir}" if cell.ray_dir else ""
        why = f", while its Ray cluster still runs: it may be restarting{logs}"
    return Unavailable(said + why)


def as_json(endpoint: str, reply: CellStatus) -> dict[str, Any]:
    """The object that `--json` prints; its shape is stable."""
    from dataclasses import asdict

    lanes = [asdict(lane) for lane in reply.lanes]
    return {
        "endpoint": endpoint,
        "version": reply.version,
        "queued": reply.queued,
        "queue_limit": reply.queue_limit,
        "processes": [
            {name: value for name, value in asdict(process).items() if name not in OF_LOAD}
            for process in reply.processes
        ],
        "lanes": [
            {"tau" if name == "mean_acceptance_length" else name: each[name] for name in each}
            for each in lanes
        ],
    }


def _print(reply: CellStatus) -> None:
    head = ("role", "name", "endpoint", "pid", "incarnation", "sequences", "pages", "state")
    rows: list[tuple[str, ...]] = [head]
    for one in reply.processes:
        numbers = map(str, (one.pid, one.incarnation, one.sequences))
        pages = f"{one.pages_held}/{one.pages_total}"
        # the condition last, as it may be a sentence
        rows.append((one.role, one.name, one.endpoint, *numbers, pages, one.condition))
    print(*aligned(rows), sep="\n")
    for lane in reply.lanes:
        print()
        print(
            f"lane of {lane.verifier}: drafters {', '.join(lane.drafters) or 'none'}; policy "
            f"{lane.policy}"
        )
        print(
            f"  running {lane.running}, waiting {lane.waiting}; {lane.rounds} rounds, "
            f"tau {lane.mean_acceptance_length:.2f}; attention {lane.attention_path or 'unknown'}"
        )
        if not lane.cost_curve_in_force:
            print("  no cost curve in force: adaptive sequences verify everything")
        for kind, unit, curve in (
            ("verify", "tokens", lane.verify_cost),
            ("draft", "sequences", lane.draft_cost),
        ):
            if curve is not None:
                print(f"  {kind} cost, ms a step ({curve.source}; rows {unit}, columns context)")
                print(*aligned(_cost_rows(curve), indent=4), sep="\n")
                if curve.borrowed:
                    print("    * not measured: a neighbour's value")
    print(f"\n{reply.queued} of at most {reply.queue_limit} requests wait for admission")


def _cost_rows(curve: MeasuredCost) -> list[tuple[str, ...]]:
    borrowed, width = set(curve.borrowed), len(curve.contexts)
    rows: list[tuple[str, ...]] = [("", *map(str, curve.contexts))]
    for index, (tokens, row) in enumerate(zip(curve.tokens, curve.seconds, strict=True)):
        marks = ("*" * (index * width + column in borrowed) for column in range(width))
        cells = (f"{1000 * value:.2f}{mark}" for value, mark in zip(row, marks, strict=True))
        rows.append((str(tokens), *cells))
    return rows


def explain(client: Client, request_id: str, *, rounds: int, as_json: bool) -> int:
    """Prints a request's rounds and how it ended, or only its next `rounds` rounds; with `as_json`
    one JSON object a line. InvalidRequest for an unknown id."""
    from dspark.client import InvalidRequest

    told, runs = 0, True
    try:
        for one in client.explain(request_id, rounds=rounds):
            told += 1
            print(json.dumps(shape(one)) if as_json else line(one), flush=True)
    except InvalidRequest:  # the request is not running
        runs = False
    if told == rounds > 0:
        return 0
    ended = client.ended(request_id)
    if not ended and not runs:
        raise InvalidRequest(
            "request_id",
            "no running request has this id, nor any of the last that ended; a tenant's is "
            "TENANT/ID",
        )
    for answer in ended:
        print(json.dumps(shape(answer)) if as_json else lines(answer), flush=True)
    return 0


def lines(answer: EndedAnswer) -> str:
    """An ended answer as lines of text: outcome, tokens, workers, times, rounds."""
    which = f" answer {answer.index}" if answer.index else ""
    pools = ", ".join(filter(None, (answer.verifier, answer.drafter))) or "never placed"
    first = f"first token after {answer.ttft_ms:.1f} ms" if answer.ttft_ms else "no token"
    said = [
        f"{_one_line(answer.request_id)}{which} ended: "
        f"{answer.outcome}{f' ({_one_line(answer.error)})' if answer.error else ''}",
        f"{answer.completion_tokens} tokens after {answer.prompt_tokens} of the prompt; policy "
        f"{answer.policy}, rule {answer.rule}; {pools}",
        f"{first} ({answer.queue_ms:.1f} ms queued), all after {answer.total_ms:.1f} ms",
    ]
    if rounds := sum(answer.accepted_histogram):
        said.append(
            f"{rounds} rounds, tau {answer.mean_acceptance_length:.2f}; "
            f"rounds by slots verified: {_spread(answer.verified_histogram)}; "
            f"by drafted tokens committed: {_spread(answer.accepted_histogram)}"
        )
    return "\n  ".join(said)


def _one_line(text: str) -> str:
    """Text that a client may have chosen, which must not look like another line."""
    return text if text.isprintable() else json.dumps(text)


def _spread(histogram: Sequence[int]) -> str:
    return ", ".join(f"{size}: {count}" for size, count in enumerate(histogram) if count)


def shape(told: RoundExplanation | EndedAnswer) -> dict[str, Any]:
    """A round or an ended answer as one JSON object, without fields that are None."""
    from dataclasses import asdict

    return asdict(
        told,
        dict_factory=lambda fields: {name: value for name, value in fields if value is not None},
    )


def line(told: RoundExplanation) -> str:
    """A round as one line. Slots: `+` accepted, `x` rejected, `!` forbidden by the answer's form,
    `-` behind one of these, `.` not verified, `|` accepted behind the answer's end."""
    words = _WHY.get(told.why, told.why)
    if told.empty_because:
        words += f": {told.empty_because}"
    if told.why == "price" and told.price is not None:
        words += f" ({told.slots[told.prefix].gain:.2f} tokens against {told.price:.2f})"
    if told.late:
        words += f"; late: {', '.join(told.late)}"
    forced = f" ({sum(told.forced)} forced)" if any(told.forced) else ""
    block = "".join(_SIGNS.get(slot.fate, "?") for slot in told.slots)
    return (
        f"{told.offset:5d}  {block:<12}  verified {told.prefix}, accepted {told.accepted}, "
        f"committed {len(told.token_ids)}{forced}  step of {told.sequences}: {told.step_tokens} "
        f"tokens  {told.round_ms:.2f} ms = "
        f"draft {told.draft_ms:.2f} ({told.draft_pass_ms:.2f} computing)"
        f" + verify {told.verify_pass_ms:.2f}"
        f" + {max(told.round_ms - told.draft_ms - told.verify_pass_ms, 0.0):.2f}  {words}"
    )
