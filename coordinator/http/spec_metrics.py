"""`metrics` of a reply that asked for them: what speculation did and where the time went, under vLLM's names.

`num_draft_tokens` counts drafted tokens that were sent to verification, as vLLM does; all that were drafted stand in
`num_proposed_draft_tokens`. Identities: the acceptance histogram sums to `num_spec_steps` and weighted by its index to
`num_accepted_draft_tokens`; `mean_acceptance_length` counts the target's own token.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, Literal

from coordinator.answers.answer import Piece
from coordinator.answers.tally import Tally
from coordinator.http.asking import Asking
from coordinator.reception.reading import Reading

Detail = Literal["none", "summary", "detailed"]


def metrics_of(asking: Asking, block_size: int, *, detailed: bool) -> dict[str, Any]:
    """Of all answers together. block_size: slots of a full block."""
    readings = [(index, each) for index, one in enumerate(asking.answerings) for each in one.reader.readings]
    tally = Tally.together([reading.tally for _, reading in readings])
    steps = [step for index, reading in readings for step in _steps(asking.pieces[index], reading)]
    by_length: dict[int, list[int]] = {}
    for drafted, accepted in steps:
        counts = by_length.setdefault(drafted, [0] * (drafted + 1))
        counts[accepted] += 1
    verified = tally.verified
    speculative: dict[str, Any] = {
        "mean_acceptance_length": tally.mean_acceptance_length,
        "draft_acceptance_rate": tally.accepted / verified if verified else 0.0,
        "acceptance_histogram": _padded(tally.acceptance_histogram, block_size + 1),
        "acceptance_histogram_by_draft_length": {str(length): by_length[length] for length in sorted(by_length)},
        "num_spec_steps": tally.rounds,
        "num_accepted_draft_tokens": tally.accepted,
        "num_draft_tokens": verified,
        "num_proposed_draft_tokens": tally.drafted,
        "num_spec_tokens": block_size,
    }
    if detailed:
        speculative["per_step_accepted"] = [accepted for _, accepted in steps]
        speculative["per_step_drafted"] = [drafted for drafted, _ in steps]
    generation_s = tally.total_s() - tally.first_token_s()
    said = sum(reading.answered for _, reading in readings)
    return {
        "speculative_decoding": speculative,
        "time_to_first_token_ms": 1e3 * tally.first_token_s(),
        "generation_time_ms": 1e3 * generation_s,
        "queue_time_ms": 1e3 * tally.queue_s(),
        "mean_itl_ms": 1e3 * _per_token_s(reading for _, reading in readings),
        "tokens_per_second": said / tally.total_s() if tally.total_s() else 0.0,
    }


def _steps(pieces: Iterable[Piece], reading: Reading) -> list[tuple[int, int]]:
    """(drafted tokens verified, of these shown) per round of one answer, in order."""
    left, steps = reading.answered, list[tuple[int, int]]()
    for piece in pieces:
        if piece.index != reading.index or left <= 0:
            continue
        kept = min(len(piece.tokens), left)
        left -= kept
        if piece.round is not None:
            steps.append((piece.round.verified, min(piece.round.accepted, kept)))
    return steps


def _per_token_s(readings: Iterable[Reading]) -> float:
    """Mean time per token after the first of each answer."""
    told = [(reading.tally.per_token_s(reading.answered), reading.answered - 1) for reading in readings]
    tokens = sum(count for _, count in told if count > 0)
    return sum(each * count for each, count in told if count > 0) / tokens if tokens else 0.0


def _padded(histogram: list[int], length: int) -> list[int]:
    return histogram + [0] * (length - len(histogram))
