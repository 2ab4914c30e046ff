"""Codec of what the rounds of a verifier report to their coordinator (`dspark.rounds.control`).
Without torch.

A report is columns, with a row for each sequence of a pass. An invalid field breaks the protocol:
PeerError names it.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from itertools import chain
from typing import Any, cast

from dspark.errors import PeerError
from dspark.rounds.control import Draining, PassReport, PrefillStats, Timing, Up
from dspark.rounds.events import DrafterEvent, GoneReason, Released, Report, RoundReport
from dspark.rounds.plan import MAX_SLOTS
from dspark.types import ScoredToken
from dspark.wire import codec
from dspark.wire.cohorts import (
    MAX_ROWS,
    bounds,
    chances,
    fit,
    labels_in,
    parts,
    read_draws,
    write_draws,
)
from dspark.wire.v1 import types_pb2, verify_pb2

_News = verify_pb2.ControlUp.News
# by their numbers on the wire
_WHYS = (
    None,
    GoneReason.NO_PAGES,
    GoneReason.OUT_OF_PAGES,
    GoneReason.FAILED,
    GoneReason.STALE_EPOCH,
)


# of a `RoundReport`, those that are columns of the message under the same name
_SAME = ("sequence", "epoch", "round", "committed_before", "accepted", "verified", "drafter")


def write_up(incarnation: int, news: Sequence[Up], lease_ms: int = 0) -> verify_pb2.ControlUp:
    """Writes news. incarnation: the sending process. lease_ms: set in the first message."""
    return verify_pb2.ControlUp(
        incarnation=incarnation, lease_ms=lease_ms, news=[_WRITE[type(each)](each) for each in news]
    )


def read_up(message: verify_pb2.ControlUp) -> list[Up]:
    """Reads the news, in their sequence."""
    told: list[Up] = []
    for news in message.news:
        match news.WhichOneof("news"):
            case "report":
                told.append(_read_report(news.report))
            case "released":
                told.append(_read_released(news.released))
            case "drafter":
                told.append(DrafterEvent(news.drafter.drafter, news.drafter.what))
            case "draining":
                told.append(Draining(news.draining.finish_within_ms / 1e3))
            case _:
                raise PeerError("news: one is empty")
    return told


# Passes.


def _report(told: PassReport) -> verify_pb2.ControlUp.News:
    rounds, timing = told.report.rounds, told.timing
    of = dict(zip(RoundReport._fields, zip(*rounds, strict=True), strict=True))
    reasons: dict[str, int] = {"": 0}
    message = verify_pb2.PassReport(
        **{name: of[name] for name in _SAME},
        tokens=map(len, of["tokens"]),
        token_ids=chain.from_iterable(of["tokens"]),
        drafted=map(len, of["confidence"]),
        confidence=chain.from_iterable(of["confidence"]),
        why_empty=[reasons.setdefault(each, len(reasons)) for each in of["why_empty"]],
        reasons=list(reasons)[1:],
        logprobs=[
            verify_pb2.RowLogprobs(row=row, tokens=codec.write_logprobs(each))
            for row, each in enumerate(told.logprobs)
            if each
        ],
        labels=b"" if told.labels is None else told.labels.astype("<f4").tobytes(),
        draws=list(map(write_draws, told.draws)),
        forward_s=timing.forward_s,
        round_s=timing.round_s,
        draft_s=timing.draft_s,
        waited_s=timing.waited_s,
        context=told.context,
        batch_tokens=told.tokens,
        prefill_tokens=told.prefill_tokens,
        pages_free=told.pages_free,
        started=None if told.started is None else _started(told.started),
        forced=chain.from_iterable([each.forced or (False,) * len(each.tokens) for each in rounds])
        if any(of["forced"])
        else (),
        forbidden=of["forbidden"] if any(of["forbidden"]) else (),
    )
    setattr(message, "pass", told.report.number)  # a keyword of Python
    return _News(report=message)


def _started(started: PrefillStats) -> verify_pb2.PrefillStarted:
    scored = started.prompt_logprobs
    return verify_pb2.PrefillStarted(
        cached_tokens=started.cached_tokens,
        prompt_logprobs=None if scored is None else codec.write_prompt_logprobs(scored),
    )


def _read_report(message: verify_pb2.PassReport) -> PassReport:
    rounds = _read_rounds(message)
    timing = Timing(message.forward_s, message.round_s, message.draft_s, message.waited_s)
    if not all(0.0 <= each < math.inf for each in (*timing, message.context)):
        raise PeerError("report.forward_s: a time or the context is not finite, or negative")
    logprobs: list[Sequence[ScoredToken]] = []
    if message.logprobs:
        logprobs = [()] * len(rounds)
        for row in message.logprobs:
            if row.row >= len(rounds) or len(row.tokens) != len(rounds[row.row].tokens):
                raise PeerError(
                    f"report.logprobs: {len(row.tokens)} tokens in row {row.row} of {len(rounds)}"
                )
            logprobs[row.row] = codec.read_logprobs(row.tokens)
    started = None
    if message.HasField("started"):
        if len(rounds) != 1 or rounds[0].round != 0:
            raise PeerError("report.started: of what is no prefill")
        scored = None
        if message.started.HasField("prompt_logprobs"):
            scored = codec.read_prompt_logprobs(message.started.prompt_logprobs)
        started = PrefillStats(message.started.cached_tokens, scored)
    return PassReport(
        Report(getattr(message, "pass"), rounds),
        timing,
        message.context,
        message.batch_tokens,
        message.prefill_tokens,
        started,
        logprobs,
        labels_in(message.labels, sum(message.verified)),
        read_draws(message.draws),
        message.pages_free,
    )


def _read_rounds(message: verify_pb2.PassReport) -> list[RoundReport]:
    count = len(message.sequence)
    if not 0 < count <= MAX_ROWS:
        raise PeerError(f"report.sequence: {count} are not in 1..{MAX_ROWS}")
    of = {name: getattr(message, name)[:] for name in (*_SAME, "tokens", "drafted", "why_empty")}
    fit(count, of="report.", **of)
    tokens, accepted, verified, why = of["tokens"], of["accepted"], of["verified"], of["why_empty"]
    if min(tokens) < 1 or max(tokens) > MAX_SLOTS + 1:
        raise PeerError(
            f"report.tokens: {min(tokens)} to {max(tokens)} are not in 1..{MAX_SLOTS + 1}"
        )
    if any(
        not kept <= seen <= made
        for kept, seen, made in zip(accepted, verified, of["drafted"], strict=True)
    ):
        raise PeerError("report.verified: not between what was accepted and what was drafted")
    if any(said > kept + 1 for said, kept in zip(tokens, accepted, strict=True)):
        raise PeerError("report.tokens: more than were accepted and one")
    if max(why) > len(message.reasons):
        raise PeerError(f"report.why_empty: {max(why)} of {len(message.reasons)} reasons")
    token_ends, slot_ends = bounds(tokens), bounds(of["drafted"])
    fit(token_ends[-1], of="report.", token_ids=message.token_ids)
    confidence = tuple(message.confidence[:])
    fit(slot_ends[-1], of="report.", confidence=confidence)
    if not chances(confidence):
        raise PeerError("report.confidence: a chance is not in [0, 1]")
    if message.forced:
        fit(token_ends[-1], of="report.", forced=message.forced)
    if message.forbidden:
        fit(count, of="report.", forbidden=message.forbidden)
    reasons = ["", *message.reasons]
    return list(
        map(
            RoundReport,
            of["sequence"],
            of["epoch"],
            of["round"],
            of["committed_before"],
            parts(tuple(message.token_ids[:]), token_ends),
            accepted,
            verified,
            parts(confidence, slot_ends),
            [reasons[place] for place in why],
            of["drafter"],
            parts(tuple(message.forced[:]), token_ends) if message.forced else [()] * count,
            message.forbidden[:] or [False] * count,
        )
    )


# Everything else.


def _released(told: Released) -> verify_pb2.ControlUp.News:
    return _News(
        released=verify_pb2.SequenceReleased(
            sequence=told.sequence,
            epoch=told.epoch,
            rounds=told.rounds,
            why=cast("verify_pb2.SequenceReleased.Why", _WHYS.index(told.why)),
            refusal=codec.write_refusal(told.refusal) if told.refusal is not None else None,
        )
    )


def _read_released(message: verify_pb2.SequenceReleased) -> Released:
    if not 0 <= message.why < len(_WHYS):
        raise PeerError(f"released.why: {message.why} is no reason")
    refusal = codec.read_refusal(message.refusal) if message.HasField("refusal") else None
    return Released(message.sequence, message.epoch, message.rounds, _WHYS[message.why], refusal)


def _health(told: DrafterEvent) -> verify_pb2.ControlUp.News:
    return _News(drafter=verify_pb2.DrafterHealth(drafter=told.drafter, what=told.what))


def _draining(told: Draining) -> verify_pb2.ControlUp.News:
    return _News(draining=types_pb2.Draining(finish_within_ms=int(told.finish_within_s * 1e3)))


_WRITE: dict[type, Callable[[Any], verify_pb2.ControlUp.News]] = {
    PassReport: _report,
    Released: _released,
    DrafterEvent: _health,
    Draining: _draining,
}
