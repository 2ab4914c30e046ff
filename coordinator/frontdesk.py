"""Between the client's interface and admission: checks a request, makes a track of it, and knows what is served.

The one way in, whatever the entry: everything that serves clients goes through `accept`.
"""

from __future__ import annotations

import asyncio
import itertools
import secrets
from dataclasses import dataclass, replace

from coordinator.admission import Admission
from coordinator.answer import Answer
from coordinator.clock import Clock
from coordinator.commit_log import CommitLog
from coordinator.membership import Membership
from coordinator.outlet import Outlet
from coordinator.policy import Policy
from coordinator.request import Request
from coordinator.sequence import Sequence
from coordinator.tally import Tally
from coordinator.tokenizer import Tokenizer
from coordinator.track import Track
from coordinator.validation import MAX_TEXT, Limits, check_head, read_request
from dspark.errors import InvalidRequest, Unavailable
from dspark.types import Rule
from dspark.wire.v1 import generate_pb2

LONG_TEXT = 4096  # characters above which text is tokenized beside the event loop


@dataclass(frozen=True, slots=True)
class Offer:
    """Defaults of the deployment."""

    policy: Policy
    max_unread: int
    rule: Rule = Rule.TOKEN


class FrontDesk:
    """Makes tracks; holds none."""

    def __init__(
        self, admission: Admission, membership: Membership, tokenizer: Tokenizer | None, offer: Offer, clock: Clock
    ) -> None:
        self.admission, self.membership, self.tokenizer, self.offer = admission, membership, tokenizer, offer
        self._clock = clock
        # Drafters may serve several coordinators, so numbers of two of them must not meet.
        self._numbers = itertools.count(secrets.randbits(47) << 16)

    def limits(self) -> Limits:
        """What the connected verifiers allow."""
        verifiers = self.membership.verifiers
        if not verifiers:
            raise Unavailable("no verifier is connected")
        capacities = [facts.capacity for facts in verifiers]
        return Limits(
            vocab_size=verifiers[0].vocab_size,
            context_length=min(facts.context_length for facts in verifiers),
            capacity=max(capacities) if all(capacities) else 0,
            stop_token_ids=verifiers[0].stop_token_ids,
            has_tokenizer=self.tokenizer is not None,
            policy=self.offer.policy,
            rule=self.offer.rule,
        )

    async def accept(self, message: generate_pb2.GenerateRequest) -> tuple[Track, ...]:
        """A submitted track per answer, with one outlet for all, or an error that says whose fault it is."""
        arrived = self._clock.time()
        check_head(message, self.tokenizer is not None)
        self.admission.check_capacity()
        prompt = await self._prompt(message)
        request = read_request(
            message,
            prompt,
            self.limits(),
            make_id=lambda: secrets.token_hex(8),
            draw_seed=lambda: secrets.randbits(64),
        )
        outlet = Outlet(self.offer.max_unread, request.choices)
        tracks = tuple(self._track(request, choice, arrived, outlet) for choice in range(request.choices))
        self.admission.submit(*tracks)
        return tracks

    async def _prompt(self, message: generate_pb2.GenerateRequest) -> tuple[int, ...]:
        if message.WhichOneof("input") != "text" or self.tokenizer is None:
            ids = message.tokenized.input_ids
            limit = self.limits().context_length
            if len(ids) >= limit:  # before anything is copied
                raise InvalidRequest(
                    "tokenized.input_ids", f"{len(ids)} tokens leave no room for an answer in a context of {limit}"
                )
            return tuple(ids)
        if len(message.text) > MAX_TEXT:
            raise InvalidRequest("text", f"{len(message.text)} characters, at most {MAX_TEXT} are allowed")
        try:
            if len(message.text) > LONG_TEXT:
                return await asyncio.to_thread(self.tokenizer.encode, message.text)
            return self.tokenizer.encode(message.text)
        except Exception as error:  # the library raises bare Exception
            raise InvalidRequest("text", "cannot be tokenized") from error

    def _track(self, request: Request, choice: int, arrived: float, outlet: Outlet) -> Track:
        if choice:
            request = replace(request, law=replace(request.law, choice=choice))
        log = CommitLog(request.prompt)
        text = self.tokenizer.stream(request.prompt, skip_special=request.skip_special) if self.tokenizer else None
        answer = Answer(
            log,
            max_tokens=request.max_tokens,
            stop_ids=request.stop_ids,
            text=text,
            stops=request.stops,
            show_stop=request.show_stop,
            min_tokens=request.law.min_tokens,
            index=choice,
        )
        return Track(request, Sequence(next(self._numbers), log), answer, Tally(arrived), outlet)
