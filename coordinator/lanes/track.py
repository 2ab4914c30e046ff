"""Everything the coordinator holds about one running request. A plain record; its parts keep their own invariants."""

from __future__ import annotations

import enum
from collections.abc import Callable
from dataclasses import dataclass

from coordinator.answers.answer import Answer
from coordinator.answers.commit_log import End
from coordinator.answers.outlet import Sink
from coordinator.answers.tally import Tally
from coordinator.lanes.ports import Declined, DrafterPort
from coordinator.lanes.sequence import Sequence
from coordinator.requests.request import Request
from dspark.rounds.policy import Off


class Feed(enum.Enum):
    """How far a drafter is from drafting for a sequence."""

    NONE = "none"  # it has no drafter
    OPENING = "opening"  # room was asked for
    OPENED = "opened"  # room is there, the rows are not: a resend is due between rounds
    RESENDING = "resending"  # kept rows are on their way
    FED = "fed"  # rows flow: drafts are asked for
    RESTING = "resting"  # no draft is near: rows stay with the verifier meanwhile


def unnoted(epoch: int) -> None:
    """Of a request that nobody can resume."""


@dataclass(slots=True, eq=False)
class Track:
    request: Request
    sequence: Sequence
    answer: Answer
    tally: Tally
    outlet: Sink
    note_epoch: Callable[[int], object] = unnoted  # keeps an epoch before anything is drawn under it
    end: End | None = None  # set when the answer is complete

    drafter: DrafterPort | None = None
    feed: Feed = Feed.NONE
    attach_at: float = 0.0  # clock time before which no drafter is asked again
    missing: int = 0  # rounds in a row in which no missing row arrived
    watermark: int = 0  # rows the drafter said it holds
    resend_at: float = 0.0  # clock time before which rows are not asked for again
    resend_wait: float = 0.5  # seconds to the next such request, growing while nothing arrives
    rested_from: int = 0  # first row the drafter was not sent
    row: int = -1  # in the lane's evidence
    too_long: bool = False  # past what the drafter was trained for
    drafted: tuple[int, int] | None = None  # (epoch, committed_len) of the one draft attempt at this anchor

    last_verifier: str = ""  # replica that had it last; empty while it never left the queue
    last_drafter: str = ""  # likewise
    handovers: int = 0  # verifiers lost under it
    refused: Declined | None = None  # what a verifier said that lets it go now, and is there
    moved: bool = False  # in order, from one that was about to leave

    @property
    def speculates(self) -> bool:
        return not isinstance(self.request.policy, Off) and self.request.max_tokens > 1

    @property
    def scores(self) -> int | None:
        """Likeliest tokens that its prefill tells of the prompt: once for a request, before anything is said."""
        return None if self.answer.index or self.answer.log.answered else self.request.prompt_logprobs
