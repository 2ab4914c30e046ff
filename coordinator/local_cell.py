"""The coordinator as front ends see it: makes tracks of orders and hands them to admission. Holds none."""

from __future__ import annotations

import itertools
import secrets
from collections.abc import Sequence
from dataclasses import dataclass, replace

from coordinator.admission import Admission
from coordinator.answer import Answer
from coordinator.cell import Order, Terms
from coordinator.commit_log import CommitLog
from coordinator.membership import Membership
from coordinator.outlet import Sink
from coordinator.policy import Policy
from coordinator.request import Request
from coordinator.sequence import Sequence as Life
from coordinator.tally import Tally
from coordinator.track import Track
from coordinator.validation import Limits
from dspark.errors import Unavailable
from dspark.types import Rule


@dataclass(frozen=True, slots=True)
class Offer:
    """Defaults of the deployment."""

    policy: Policy
    rule: Rule = Rule.BLOCK


@dataclass(frozen=True, slots=True)
class LocalCall:
    """The tracks of one request, one per answer."""

    admission: Admission
    tracks: tuple[Track, ...]

    def finish(self, index: int) -> None:
        self.admission.finish(self.tracks[index])

    def cut(self, error: Exception) -> None:
        for track in self.tracks:
            self.admission.ended(track, error)


class LocalCell:
    """The one way in, whatever the front end."""

    def __init__(self, admission: Admission, membership: Membership, offer: Offer) -> None:
        self.admission, self.membership, self.offer = admission, membership, offer
        # Drafters may serve several coordinators, so numbers of two of them must not meet.
        self._numbers = itertools.count(secrets.randbits(47) << 16)

    def terms(self) -> Terms:
        """By what the connected workers said of themselves."""
        verifiers = self.membership.verifiers
        if not verifiers:
            raise Unavailable("no verifier is connected")
        capacities = [facts.capacity for facts in verifiers]
        limits = Limits(
            vocab_size=verifiers[0].vocab_size,
            context_length=min(facts.context_length for facts in verifiers),
            capacity=max(capacities) if all(capacities) else 0,
            stop_token_ids=verifiers[0].stop_token_ids,
            has_tokenizer=False,
            policy=self.offer.policy,
            rule=self.offer.rule,
        )
        drafter = next(iter(self.membership.drafters), None)
        return Terms(verifiers[0].model, drafter.model if drafter else "", drafter.block_size if drafter else 0, limits)

    def check_capacity(self) -> None:
        self.admission.check_capacity()

    def submit(self, order: Order, sink: Sink) -> LocalCall:
        """A track per answer, with one sink for all."""
        request = order.request
        tracks = tuple(self._track(request, choice, order.arrived, sink) for choice in range(request.choices))
        self.admission.submit(*tracks)
        return LocalCall(self.admission, tracks)

    async def abort(self, request_ids: Sequence[str]) -> list[str]:
        return [name for name in request_ids if self.admission.abort(name)]

    def _track(self, request: Request, choice: int, arrived: float, sink: Sink) -> Track:
        if choice:
            request = replace(request, law=replace(request.law, choice=choice))
        log = CommitLog(request.prompt)
        answer = Answer(log, max_tokens=request.max_tokens, stop_ids=request.stop_ids, index=choice)
        return Track(request, Life(next(self._numbers), log), answer, Tally(arrived), sink)
