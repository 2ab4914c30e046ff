"""Writes and reads the commits, errors and terms that a coordinator and a front end exchange. Pure.

Commits travel as columns: writing and reading them takes half a microsecond per commit; one message
per commit would take ten.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any, cast

from coordinator.answers.answer import CommittedTokens, End, FirstCommit, Reason, Round
from coordinator.cells.cell import CellTerms
from coordinator.requests.validation import Limits
from dspark.client.fields import copied
from dspark.errors import (
    ContextExceeded,
    Expired,
    InvalidRequest,
    Overloaded,
    PeerError,
    RequestCancelled,
    Unavailable,
    Unsupported,
)
from dspark.rounds.policy import parse_policy
from dspark.types import Rule
from dspark.wire import codec
from dspark.wire.v1 import frontend_pb2, generate_pb2, types_pb2

FINISH_REASONS: dict[Reason, Any] = {
    reason: generate_pb2.FinishReason.Value(f"FINISH_REASON_{reason.name}") for reason in Reason
}
_ENDS = {number: reason for reason, number in FINISH_REASONS.items()}
_MOST_MS = 2**32 - 1


class InOrder:
    """Checks the message numbers of one stream: skips repeated messages, refuses gaps."""

    def __init__(self, heard: int = 0) -> None:
        self._heard = heard

    def takes(self, number: int) -> bool:
        """Whether message `number` is new; 0 is not counted. Raises PeerError when an earlier
        message is missing."""
        if number == 0:
            return True
        if number > self._heard + 1:
            raise PeerError(f"number: {number} after {self._heard}: a message was lost")
        news = number == self._heard + 1
        self._heard = max(number, self._heard)
        return news


def write_commits(
    batch: frontend_pb2.CellBatch, said: Sequence[tuple[int, CommittedTokens]]
) -> None:
    """Appends pairs of (call number, piece) to the columns of `batch`, in order."""
    commits = [(call, piece) for call, piece in said if piece.tokens]
    rounds = [piece.round or _NO_ROUND for _, piece in commits]
    batch.calls.extend([call for call, _ in commits])
    if any(piece.index for _, piece in commits):
        batch.indices.extend([piece.index for _, piece in commits])
    batch.lengths.extend([len(piece.tokens) for _, piece in commits])
    batch.rounds.extend([int(piece.round is not None) for _, piece in commits])
    batch.drafted.extend([one.drafted for one in rounds])
    batch.verified.extend([one.verified for one in rounds])
    batch.accepted.extend([one.accepted for one in rounds])
    batch.token_ids.extend([token for _, piece in commits for token in piece.tokens])
    for place, (_, piece) in enumerate(commits):
        if piece.logprobs:
            batch.logprobs.add(commit=place, tokens=codec.write_logprobs(piece.logprobs))
    for call, piece in said:
        if piece.started is not None:
            scored = piece.started.prompt_logprobs
            batch.started.add(
                call=call,
                index=piece.index,
                queue_us=max(int(piece.started.queue_s * 1e6), 0),
                cached_tokens=piece.started.cached_tokens,
                prompt_logprobs=None if scored is None else codec.write_prompt_logprobs(scored),
            )
        if piece.end is not None:
            batch.ended.add(
                call=call,
                index=piece.index,
                reason=FINISH_REASONS[piece.end.reason],
                matched_token_id=piece.end.token_id,
            )


_NO_ROUND = Round(0, 0, 0)


def read_commits(batch: frontend_pb2.CellBatch) -> Iterator[tuple[int, CommittedTokens]]:
    """Yields pairs of (call number, piece) in order of commit. Raises PeerError."""
    calls, lengths, tokens = list(batch.calls), list(batch.lengths), list(batch.token_ids)
    count = len(calls)
    indices = list(batch.indices) or [0] * count
    columns = (indices, lengths, batch.rounds, batch.drafted, batch.verified, batch.accepted)
    if any(len(column) != count for column in columns) or sum(lengths) != len(tokens):
        raise PeerError("columns of unequal length")
    started = {(one.call, one.index): _read_started(one) for one in batch.started}
    logprobs = {one.commit: tuple(codec.read_logprobs(one.tokens)) for one in batch.logprobs}
    ends = {(one.call, one.index): _read_end(one) for one in batch.ended}
    last = {(calls[at], indices[at]): at for at in range(count)} if ends else {}
    start = 0
    for at, (call, index, length, judged, drafted, verified, accepted) in enumerate(
        zip(calls, *columns, strict=True)
    ):
        stop = start + length
        yield (
            call,
            CommittedTokens(
                tuple(tokens[start:stop]),
                ends.pop((call, index), None) if last.get((call, index)) == at else None,
                index,
                logprobs.get(at, ()),
                Round(drafted, verified, accepted) if judged else None,
                started.pop((call, index), None) if started else None,
            ),
        )
        start = stop
    for (call, index), end in ends.items():  # answers that ended without a commit
        yield call, CommittedTokens((), end, index, started=started.pop((call, index), None))


def _read_started(one: frontend_pb2.Started) -> FirstCommit:
    scored = None
    if one.HasField("prompt_logprobs"):
        scored = codec.read_prompt_logprobs(one.prompt_logprobs)
    return FirstCommit(one.queue_us / 1e6, one.cached_tokens, scored)


def _read_end(ended: frontend_pb2.Ended) -> End:
    reason = _ENDS.get(ended.reason)
    if reason is None:
        raise PeerError(f"an answer ended for no known reason: {ended.reason}")
    return End(
        reason, token_id=ended.matched_token_id if ended.HasField("matched_token_id") else None
    )


_Failed = frontend_pb2.Failed
# the first matching type counts
_FAILURES: tuple[tuple[frontend_pb2.Failed.Kind, type[Exception]], ...] = (
    (_Failed.KIND_UNSUPPORTED, Unsupported),
    (_Failed.KIND_CONTEXT_EXCEEDED, ContextExceeded),
    (_Failed.KIND_INVALID, InvalidRequest),
    (_Failed.KIND_OVERLOADED, Overloaded),
    (_Failed.KIND_UNAVAILABLE, Unavailable),
    (_Failed.KIND_EXPIRED, Expired),
    (_Failed.KIND_CANCELLED, RequestCancelled),
    (_Failed.KIND_INTERNAL, Exception),
)


def write_failure(call: int, error: Exception) -> frontend_pb2.Failed:
    """Encodes the error of a call, so that the other side can raise the same error."""
    kind = next(kind for kind, errors in _FAILURES if isinstance(error, errors))
    failed = frontend_pb2.Failed(call=call, kind=kind, message=str(error))
    if isinstance(error, InvalidRequest):
        failed.field, failed.message = error.field, error.problem
    if isinstance(error, Overloaded):
        failed.retry_after_ms = min(max(int(error.retry_after_s * 1000), 0), _MOST_MS)
    return failed


def read_failure(failed: frontend_pb2.Failed) -> Exception:
    kind = dict(_FAILURES).get(failed.kind, Exception)
    if issubclass(kind, InvalidRequest):
        return kind(failed.field, failed.message)
    if issubclass(kind, Overloaded):
        return kind(failed.message, failed.retry_after_ms / 1000)
    return PeerError(failed.message) if kind is Exception else kind(failed.message)


def write_terms(terms: CellTerms) -> frontend_pb2.Terms:
    limits = terms.limits
    return frontend_pb2.Terms(
        model=terms.model,
        drafter=terms.drafter,
        block_size=terms.block_size,
        vocab_size=limits.vocab_size,
        context_length=limits.context_length,
        capacity=limits.capacity,
        stop_token_ids=limits.stop_token_ids,
        policy=str(limits.policy),
        rule=cast("types_pb2.Rule", int(limits.rule)),
        fingerprint=terms.fingerprint,
        starting=not terms.ready,
    )


def read_terms(message: frontend_pb2.Terms) -> CellTerms:
    try:
        policy, rule = parse_policy(message.policy, field="terms.policy"), Rule(message.rule)
    except (InvalidRequest, ValueError) as error:
        raise PeerError(f"terms cannot be read: {error}") from error
    limits = copied(Limits, message, policy=policy, rule=rule)
    return copied(CellTerms, message, limits=limits, ready=not message.starting)
