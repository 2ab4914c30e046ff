"""Everything the coordinator holds about one running request. A plain record; its parts keep their own invariants."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from coordinator.answers.answer import Answer
from coordinator.answers.commit_log import End
from coordinator.answers.outlet import Sink
from coordinator.answers.tally import Tally
from coordinator.lanes.facts import Drafter
from coordinator.lanes.sequence import Sequence
from coordinator.requests.request import Request
from dspark.rounds.policy import Off
from dspark.types import Refusal


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

    drafter: Drafter | None = None
    last_verifier: str = ""  # replica that had it last; empty while it never left the queue
    last_drafter: str = ""  # likewise
    handovers: int = 0  # verifiers lost under it
    refused: Refusal | None = None  # what a verifier said that lets it go now, and is there
    moved: bool = False  # in order, from one that was about to leave

    @property
    def speculates(self) -> bool:
        return not isinstance(self.request.policy, Off) and self.request.max_tokens > 1

    @property
    def scores(self) -> int | None:
        """Likeliest tokens that its prefill tells of the prompt: once for a request, before anything is said."""
        return None if self.answer.index or self.answer.log.answered else self.request.prompt_logprobs
