"""One sequence in a lane: how far it is, and who drafts for it."""

from __future__ import annotations

from coordinator.lanes.request_state import LifeEvent, RequestState
from dspark.errors import DsparkError, InvalidRequest, PeerError, Unsupported
from dspark.rounds.control import Admission
from dspark.rounds.events import Admit, Released, Why
from dspark.types import Refusal, RefusalReason

GONE: dict[Why | None, tuple[RefusalReason, str]] = {
    Why.FAILED: (RefusalReason.INTERNAL, "a pass of its own failed"),
    Why.STALE_EPOCH: (RefusalReason.STALE_CURSOR, "the verifier has seen its epoch before"),
}


class Placed:
    """From `take` until it has left the lane."""

    __slots__ = (
        "admitted",
        "drafter",
        "epoch",
        "fed",
        "heard",
        "key",
        "leaving",
        "not_before",
        "number",
        "prefilled",
        "refused",
        "round",
        "rows_missing_since",
        "settled_by",
        "since",
        "speculates",
        "track",
        "turn",
    )

    def __init__(self, track: RequestState) -> None:
        self.track, self.number, self.epoch = track, track.sequence.number, track.sequence.epoch
        self.round = 0  # of the next report
        self.admitted = False  # the verifier was told of it
        self.prefilled = False
        self.speculates = False
        self.since = self.heard = 0.0  # clock times: it was admitted, its last report came
        self.turn = 0  # among those whose prompts were asked for
        self.drafter = 0  # whom plans name; 0: nobody
        self.fed = False  # a block of it came
        self.key = 0  # drafter and bucket
        self.not_before = 0.0  # clock time before which no drafter is looked for again
        self.rows_missing_since: float | None = None
        self.leaving: LifeEvent | None = None  # what becomes of it once it is settled
        self.settled_by = 0.0  # clock time
        self.refused: Refusal | None = None  # what the verifier said of it

    @property
    def why_prefilled(self) -> str:
        """What its prompt is run for, as metrics name it."""
        track = self.track
        if track.handovers or track.moved:
            return "handover"
        if track.sequence.epoch > track.sequence.born + track.sequence.turned_away:
            return "preempted"
        return "resumed" if track.sequence.born else "new"

    def admission(self) -> Admission:
        """What a verifier needs to run its prompt, and its rounds from then on."""
        answer, request = self.track.answer, self.track.request
        ids = answer.log.ids()
        return Admission(
            Admit(self.number, self.epoch, len(ids), max(answer.room, 1), request.stop_ids, self.drafter),
            ids,
            request.law,
            request.longest,
            self.speculates,
            request.cache_salt,
            self.track.scores,
            request.seeded,
        )

    def fate(self, said: Released) -> LifeEvent | None:
        """What becomes of it, now that the verifier let it go; None: it is refused for good."""
        in_order = said.rounds == self.round
        if self.prefilled:  # else it may have been refused before anybody looked at its prompt
            in_order = in_order and said.committed_len == len(self.track.answer.log)
        if in_order and said.why is None and self.leaving is not None:
            return self.leaving
        if in_order and said.why is Why.OUT_OF_PAGES:
            return LifeEvent.PREEMPTED
        if in_order and said.why is Why.NO_PAGES and self.refused is None and not self.prefilled:
            return self.leaving or LifeEvent.TURNED_AWAY
        if in_order and self.refused is not None and self.refused.reason is RefusalReason.INVALID:
            return None
        if self.refused is None and said.why in GONE:
            self.refused = Refusal(*GONE[said.why])
        self.track.refused = self.refused
        return LifeEvent.ORPHANED

    def refusal(self) -> DsparkError:
        """Why it is refused for good: for its constraint, which is its client's, or for anything else."""
        said = self.refused.message if self.refused is not None else ""
        if said.startswith("constraint: unsupported: "):
            return Unsupported("constraint", said.removeprefix("constraint: unsupported: "))
        if said.startswith("constraint: "):
            return InvalidRequest("constraint", said.removeprefix("constraint: "))
        return PeerError(f"the verifier refused a prompt: {said}")
