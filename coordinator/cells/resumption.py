"""Resumes a request whose stream the client lost: sends again what was committed, and continues its
answers from there.

Invariant 6: a client is sent exactly what was committed, and what follows is drawn under a higher
epoch, so that no draw is used twice. Where the parameters fix the ids (temperature 0, or coupled
with a seed of the client), an answer can also be computed again and needs no journal.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from coordinator.answers.answer import CommittedTokens, End, Reason
from coordinator.answers.output_queue import OutputSink
from coordinator.cells.cell import SubmitRequest
from coordinator.cells.journal import Journal, JournaledAnswer, JournalEntry, digest, nothing_said
from coordinator.requests.request import Request
from dspark.errors import InvalidRequest
from dspark.types import Rule
from dspark.wire.v1 import types_pb2


def look_up(order: SubmitRequest, journal: Journal | None) -> tuple[Request, list[JournaledAnswer]]:
    """(the request that `order` resumes, with the seed and the rule it began with; its answers so
    far). Raises InvalidRequest when it cannot be resumed."""
    request, held = order.request, tuple(order.message.resume.offsets)
    entry = journal.find(request.id) if journal is not None else None
    if entry is not None and entry.opened.digest != digest(request):
        raise InvalidRequest("resume", "another request had this id")
    if entry is not None:
        seed = entry.opened.seed
        if order.message.sampling_params.HasField("seed") and seed != request.params.seed:
            raise InvalidRequest("sampling_params.seed", "the request began with another one")
        if _names_rule(order) and entry.rule is not request.params.rule:
            raise InvalidRequest("speculation.rule", "the request began with another one")
        params = replace(request.params, seed=seed, rule=entry.rule)
        request = replace(request, params=params)
    answers = entry.answers if entry is not None else nothing_said(request.choices)
    short = any(offset > len(said.tokens) for offset, said in zip(held, answers, strict=False))
    if short and not _repeatable(order, request, entry):
        why = (
            "nothing is known of this request"
            if entry is None
            else "less is known of it than you hold"
        )
        raise InvalidRequest("resume.offsets", f"{why}, and its draws cannot be repeated")
    return request, answers


def _names_rule(order: SubmitRequest) -> bool:
    """Whether the client fixed the rule: by name, or by a seed."""
    message = order.message
    named = message.speculation.rule != types_pb2.RULE_UNSPECIFIED
    return named or message.sampling_params.HasField("seed")


def _repeatable(order: SubmitRequest, request: Request, entry: JournalEntry | None) -> bool:
    """Whether computing the answers again gives the same ids."""
    params = request.params
    seeded = entry is not None or order.message.sampling_params.HasField("seed")
    return params.temperature == 0 or (params.rule is Rule.COUPLED and seeded)


class Journaled:
    """Sink that notes a request's commits in the journal and passes them on to another sink."""

    def __init__(self, journal: Journal, entry: JournalEntry, to: OutputSink) -> None:
        self._journal, self._entry, self._to = journal, entry, to

    def push(self, piece: CommittedTokens) -> None:
        self._journal.committed(self._entry, piece)
        self._to.push(piece)

    def close(self, error: Exception | None = None) -> None:
        self._journal.left(self._entry)
        self._to.close(error)

    def note_epoch(self, index: int, epoch: int, target: str) -> None:
        """Notes in the journal that an answer may be drawn under this epoch, by this target, from
        now on."""
        self._journal.begins(self._entry, index, epoch, target)

    def finished(self, index: int) -> None:
        """Notes in the journal that the text of an answer ended it."""
        self._journal.committed(self._entry, CommittedTokens((), End(Reason.STOP), index))


def tell_again(sink: OutputSink, known: Sequence[JournaledAnswer]) -> None:
    """Pushes everything committed before to `sink`, each answer in one piece."""
    for index, said in enumerate(known):
        # an abort follows the last token in a piece of its own
        alone = said.end is not None and (said.end.reason is Reason.ABORT or not said.tokens)
        if said.tokens:
            end = None if alone else said.end
            sink.push(CommittedTokens(tuple(said.tokens), end, index, tuple(said.logprobs)))
        if alone:
            sink.push(CommittedTokens((), said.end, index))
