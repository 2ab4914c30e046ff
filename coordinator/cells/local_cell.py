"""The coordinator's `CellPort`: makes request states of submitted requests and hands them to
admission. Keeps none of them."""

from __future__ import annotations

import itertools
import secrets
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import partial

from coordinator.answers.answer import Answer, RequestStats
from coordinator.answers.output_queue import OutputSink
from coordinator.cells.cell import CellTerms, SubmitRequest
from coordinator.cells.journal import Journal, JournaledAnswer
from coordinator.cells.resumption import Journaled, look_up, tell_again
from coordinator.lanes.request_state import RequestState
from coordinator.lanes.request_state import SequenceLife as Life
from coordinator.queue.scheduler import Scheduler
from coordinator.requests.request import Request, inside, owned
from coordinator.requests.validation import Limits
from coordinator.workers.membership import Membership
from dspark.errors import RequestCancelled, Unavailable
from dspark.rounds.policy import Policy
from dspark.types import Rule


@dataclass(frozen=True, slots=True)
class LocalHandle:
    """The states of one request by answer, without those that were complete when it was resumed."""

    admission: Scheduler
    states: dict[int, RequestState]
    kept: Journaled | None = None

    def finish(self, index: int) -> None:
        if self.kept is not None:
            self.kept.finished(index)
        if index in self.states:
            self.admission.finish(self.states[index])

    def cut(self, error: Exception) -> None:
        for state in self.states.values():
            self.admission.ended(state, error)


class LocalCell:
    """The coordinator that every front end submits to. policy, rule: defaults of a request."""

    def __init__(
        self,
        admission: Scheduler,
        membership: Membership,
        policy: Policy,
        rule: Rule = Rule.BLOCK,
        journal: Journal | None = None,
    ) -> None:
        self.admission, self.membership, self.journal = admission, membership, journal
        self.policy, self._rule = policy, rule
        # Drafters may serve several coordinators, so their sequence numbers must not collide.
        self._numbers = itertools.count(secrets.randbits(47) << 16)

    @property
    def draining(self) -> bool:
        return self.admission.draining

    @draining.setter
    def draining(self, draining: bool) -> None:
        self.admission.draining = draining

    async def emptied(self, longest_s: float) -> None:
        await self.admission.emptied(longest_s)

    def cut_all(self) -> None:
        self.admission.cut_all()

    async def close(self) -> None:
        await self.membership.close()
        if self.journal is not None:
            self.journal.close()
        if self.admission.tracing is not None:
            await self.admission.tracing.close()

    def terms(self) -> CellTerms:
        """Terms from the descriptions of the workers. Raises Unavailable without a verifier."""
        verifiers, drafters = self.membership.verifiers, self.membership.drafters
        if not verifiers:
            raise Unavailable("no verifier is connected")
        # 0 for a verifier that does not report it
        capacities = [facts.page_size * facts.pages_total for facts in verifiers]
        # With no trusted drafter the default rule is one that no draft can bias.
        distrusted = self.membership.monitor.distrusts_all(
            [facts.fingerprint for facts in drafters]
        )
        limits = Limits(
            vocab_size=verifiers[0].vocab_size,
            context_length=min([facts.context_length for facts in verifiers]),
            capacity=max(capacities) if all(capacities) else 0,
            stop_token_ids=verifiers[0].stop_token_ids,
            policy=self.policy,
            rule=Rule.COUPLED if distrusted else self._rule,
        )
        drafter = drafters[0] if drafters else None
        return CellTerms(
            verifiers[0].model,
            drafter.model if drafter else "",
            drafter.block_size if drafter else 0,
            limits,
            verifiers[0].fingerprint,
            self.membership.ready,
        )

    def check_capacity(self, tenant: str = "", resumed: str = "") -> None:
        if not (resumed and self._knows(inside(tenant, resumed))):
            self.admission.check_capacity(tenant=tenant)

    def _knows(self, request_id: str) -> bool:
        """Whether the request runs, or its answers are in the journal."""
        kept = self.journal is not None and self.journal.find(request_id) is not None
        return kept or self.admission.find(request_id) is not None

    def submit(self, order: SubmitRequest, sink: OutputSink) -> LocalHandle:
        """Submits a state per answer, with one sink for all; for a resumed request, a state per
        answer that is not complete."""
        order = replace(order, request=owned(order.request))
        request, resumed = order.request, order.message.HasField("resume")
        known = [JournaledAnswer() for _ in range(request.choices)]
        if resumed:
            request, known = look_up(order, self.journal)
            if all(said.end is not None for said in known):  # nothing is left to do
                tell_again(sink, known)
                sink.close()
                return LocalHandle(self.admission, {})
            self.admission.check_open()  # before its earlier reader is cut off
        if not resumed or not self._take_over(request.id):
            self.admission.check(request)
        kept = None
        if self.journal is not None:
            kept = Journaled(self.journal, self.journal.open(request, known), sink)
        shown = {index for index, said in enumerate(known) if said.tokens or said.end}
        states = {
            choice: self._state(request, choice, order.arrived, kept or sink, said)
            for choice, said in enumerate(known)
            if said.end is None
        }
        for choice, state in states.items():
            state.shown, state.begun = shown, bool(shown)
            if resumed:
                state.sequence.epoch = known[choice].epoch + 1
                state.why_prefilled, state.target = "resumed", known[choice].target
            if kept is not None:
                state.note_epoch = partial(kept.note_epoch, choice)
        # nothing is committed before this turn of the loop is over
        self.admission.submit(*states.values())
        if resumed:
            tell_again(sink, known)
        return LocalHandle(self.admission, states, kept)

    def _take_over(self, request_id: str) -> bool:
        """Ends the request if it runs, and says whether it did: the client that resumes it replaces
        its earlier reader, and needs no room in the queue."""
        state = self.admission.find(request_id)
        if state is not None:  # an error of one answer ends them all
            self.admission.ended(state, RequestCancelled("its client resumed it elsewhere"))
        return state is not None

    async def abort(self, request_ids: Sequence[str]) -> list[str]:
        return [name for name in request_ids if self.admission.abort(name)]

    def _state(
        self, request: Request, choice: int, arrived: float, sink: OutputSink, said: JournaledAnswer
    ) -> RequestState:
        if choice:
            request = replace(request, params=replace(request.params, choice=choice))
        answer = Answer(
            request.prompt,
            resumed=said.tokens,
            max_tokens=request.max_tokens,
            stop_ids=request.stop_ids,
            index=choice,
        )
        life = Life(next(self._numbers))
        return RequestState(request, life, answer, RequestStats(arrived), sink)
