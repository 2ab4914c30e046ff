"""The rounds of one verifier: takes events, returns actions. Pure: no IO, time is passed in.

A round: an order for a block leaves with the rows of what was committed, the block comes back, its
prefix is fixed by the terms that were frozen with the order, a pass judges it, the verdict is
reported, and the next order leaves. The coordinator has no part in this: it plans rounds to come,
acknowledges what it has committed, and releases sequences.

Invariants, beside those of `plan`, `orders`, `passes`, `feeding` and `bounds`:
R1. Nothing that follows from a block leaves before its prefix is fixed.
R4. A sequence asks for one block per anchor. An empty one uses the anchor up, whatever made it
    empty.
R6. What was drawn is reported, or lost with its session. Sequences that are taken out settle; DROP
    is for sequences that ended and clients that left.
R8. No round begins while more than `window` rounds are reported and not acknowledged.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from typing import Any

from dspark.rounds import feeding
from dspark.rounds.events import (
    Acknowledged,
    Action,
    Admit,
    BlocksCame,
    DrafterEvent,
    DrafterLost,
    DrafterReady,
    GoneReason,
    KeepSequences,
    PassEnded,
    Prefill,
    Prefilled,
    PrefillRefused,
    Release,
    Released,
    ReleaseMode,
    Report,
    RoundReport,
    Told,
)
from dspark.rounds.leaving import Leaving
from dspark.rounds.orders import OpenOrders, OrderTimeouts
from dspark.rounds.passes import KVCache, Passes
from dspark.rounds.plan import BlockTerms, Plan
from dspark.rounds.state import (
    BLOCK_CAME,
    BLOCK_LOST,
    FAILED,
    GONE,
    HELD,
    HELD_BACK,
    IDLE,
    JUDGED,
    LEFT_PLAIN,
    LET_GO_ON,
    ORDERED,
    PREFILLED,
    READY,
    REFUSED,
    RUNNING,
    SETTLE,
    SETTLING,
    SequenceState,
)
from dspark.types import Verdict

BETWEEN = (IDLE, HELD)  # states between rounds
# Why a block is empty: its drafter forgot the whole context, or lost rows that were sent.
FORGOTTEN, LOST = "unknown sequence", "rows lost"
REMEMBERED = 1 << 16  # sequences whose last epoch is remembered after they are gone


class RoundLoop:
    """The loop of a verifier for one coordinator's stream, with which it ends: `feed_all` takes
    events and returns actions to carry out in order."""

    def __init__(self, cache: KVCache, waits: OrderTimeouts | None = None) -> None:
        self.plan = Plan()
        self.counts: Counter[str] = Counter()  # events that were of no use, by kind
        self._waits = waits or OrderTimeouts()
        self._live: dict[int, SequenceState] = {}
        self._epochs: dict[int, int] = {}  # the highest seen of each sequence, latest last
        self._orders, self._passes = OpenOrders(self._waits), Passes(cache)
        self._out: list[Action] = []
        # when a cohort goes on without sequences that wait for an acknowledgement
        self._patient_until: float | None = None
        self._leaving = Leaving(self._live, cache, self._passes, self._ask)
        self._handlers: dict[type, Callable[[Any], None]] = {
            Admit: self._admit,
            Prefilled: self._prefilled,
            PrefillRefused: self._prefill_refused,
            Acknowledged: self._acknowledged,
            Release: self._release,
            KeepSequences: self._keep,
            BlocksCame: self._blocks_came,
            DrafterLost: self._drafter_lost,
            DrafterReady: self._drafter_ready,
            PassEnded: self._pass_ended,
            Plan: self._planned,
        }

    def feed_all(self, told: Sequence[Told | Plan], now: float) -> list[Action]:
        """Handles events that arrived together, or none, so that sequences they set free go on
        together; returns the actions. now: seconds, never falling."""
        self._out = []
        for each in told:
            self._handlers[type(each)](each)
        self._look_at_the_clock(now)
        self._go_on(now)
        return self._out

    def _ask(self, action: Action) -> None:
        self._out.append(action)

    def next_at(self) -> float | None:
        """When to call `feed_all` again, if no event arrives before; None: never."""
        due = [at for at in (self._orders.next_at(), self._patient_until) if at is not None]
        return min(due, default=None)

    def __len__(self) -> int:
        return len(self._live)

    def sequence(self, number: int) -> SequenceState | None:
        """The state of a sequence, to read only; None where it is not here."""
        return self._live.get(number)

    # From the coordinator.

    def _admit(self, told: Admit) -> None:
        number, epoch = told.sequence, told.epoch
        if (live := self._live.get(number)) is not None and live.epoch == epoch:
            # what runs goes on: a `Released` would tell its coordinator that it is gone
            self.counts["admission of a live sequence"] += 1
            return
        if number in self._live or epoch <= self._epochs.get(number, -1):
            self._ask(Released(number, epoch, 0, GoneReason.STALE_EPOCH))
            return
        self._epochs.pop(number, None)
        self._epochs[number] = epoch
        while len(self._epochs) > max(REMEMBERED, 2 * len(self._live)):
            self._epochs.pop(next(iter(self._epochs)))
        sequence = SequenceState(number, epoch, told.prompt_len, told.room, told.stop_ids)
        self._live[number] = sequence
        self._ask(Prefill(number, epoch))
        if told.drafter:
            self._name(sequence, told.drafter)

    def _planned(self, plan: Plan) -> None:
        self.plan = plan
        for number, own in plan.sequences.items():
            sequence = self._live.get(number)
            if sequence is not None and own.drafter is not None and sequence.state is not SETTLING:
                self._name(sequence, own.drafter)

    def _name(self, sequence: SequenceState, drafter: int) -> None:
        drafts = self.plan.terms_of(sequence.number).drafts
        feeding.name(sequence, drafter, self._waits.inline_rows, self._ask, drafts=drafts)

    def _acknowledged(self, told: Acknowledged) -> None:
        sequence = self._find(told.sequence, told.epoch, "acknowledgement")
        if sequence is None:
            return
        if told.through_round >= sequence.round:
            self.counts["acknowledgement of an unreported round"] += 1
            return
        sequence.acked = max(sequence.acked, told.through_round + 1)

    def _release(self, told: Release) -> None:
        sequence = self._find(told.sequence, told.epoch, "release")
        if sequence is None:
            return
        if told.how is ReleaseMode.DROP:
            self._leaving.drop(sequence)
        elif sequence.lists(SETTLE):
            self._leaving.settle(sequence)
        else:
            self.counts["release of a settling sequence"] += 1

    def _keep(self, told: KeepSequences) -> None:
        for sequence in [
            each for each in self._live.values() if (each.number, each.epoch) not in told.wanted
        ]:
            self.counts["unwanted sequence"] += 1
            self._leaving.drop(sequence)

    # From the engine.

    def _prefilled(self, told: Prefilled) -> None:
        sequence = self._find(told.sequence, told.epoch, "prefill")
        if sequence is None:
            return
        before = sequence.committed_len
        sequence.apply(PREFILLED)
        said = RoundReport(told.sequence, told.epoch, 0, before, sequence.commit((told.token,)))
        self._ask(Report(0, [said]))
        if sequence.state is SETTLING:
            self._leaving.settled(sequence)
        elif sequence.feeding:
            feeding.send_rows(sequence, 0, self._waits.inline_rows, self._ask)

    def _prefill_refused(self, told: PrefillRefused) -> None:
        sequence = self._find(told.sequence, told.epoch, "prefill")
        if sequence is None:
            return
        sequence.refusal = told.refusal
        if sequence.state is SETTLING:
            self._leaving.settled(sequence)
            return
        sequence.apply(REFUSED)
        self._leaving.gone(sequence, GoneReason.NO_PAGES)

    def _pass_ended(self, told: PassEnded) -> None:
        rounds, settled = [], []
        for sequence, drawn in zip(self._passes.ended(told.number), told.drawn, strict=True):
            if sequence.state is GONE:
                self.counts["verdict of a dropped sequence"] += 1
                self._leaving.free(sequence)
                continue
            if not isinstance(drawn, Verdict):
                sequence.refusal = drawn
                if sequence.state is RUNNING:
                    sequence.apply(FAILED)
                    sequence.leaving = GoneReason.FAILED
                settled.append(sequence)
                continue
            rounds.append(self._judged(sequence, drawn))
            if sequence.state is SETTLING:
                settled.append(sequence)
        if rounds:
            self._ask(Report(told.number, rounds))
        for sequence in settled:
            self._leaving.settled(sequence)

    def _judged(self, sequence: SequenceState, drawn: Verdict) -> RoundReport:
        number, epoch, round, before = (
            sequence.number,
            sequence.epoch,
            sequence.round,
            sequence.committed_len,
        )
        if drawn.spoilt:
            sequence.left_empty("invalid")
        verified, block, why = sequence.prefix, sequence.block, sequence.why_empty
        drafter = sequence.asked or sequence.drafter
        sequence.apply(JUDGED)
        said = sequence.commit(drawn.tokens)
        forced, forbidden = drawn.form
        forced = (*forced, *[False] * len(said))[: len(said)] if any(forced) else ()
        return RoundReport(
            number,
            epoch,
            round,
            before,
            said,
            drawn.accepted,
            verified,
            block,
            why,
            drafter,
            forced,
            forbidden,
        )

    # From drafters.

    def _blocks_came(self, told: BlocksCame) -> None:
        rows = self._orders.answered(told.order)
        if rows is None:
            self.counts["late block"] += len(told.confidence)
            return
        reasons = told.why_empty or [""] * len(rows)
        for place, sequence in enumerate(rows):
            if sequence.state is not ORDERED or sequence.order != told.order:
                self.counts["block of a sequence that left"] += 1
            elif told.watermarks[place] != sequence.rows_sent:
                self._without_block(sequence, FORGOTTEN if reasons[place] == FORGOTTEN else LOST)
                if reasons[place] == FORGOTTEN:
                    feeding.reopen(sequence, self._waits.inline_rows, self._ask)
                else:
                    start = min(max(told.watermarks[place], 0), sequence.rows_sent)
                    feeding.resend(sequence, start, self._waits.inline_rows, self._ask)
            else:
                slots, sequence.rows_held = sequence.terms.slots, sequence.rows_sent
                sequence.block, sequence.why_empty = told.confidence[place][:slots], reasons[place]
                sequence.answer, sequence.place = told.answer, place
                sequence.apply(BLOCK_CAME)

    def _without_block(self, sequence: SequenceState, why: str) -> None:
        sequence.left_empty(why)
        sequence.apply(BLOCK_LOST)

    def _drafter_lost(self, told: DrafterLost) -> None:
        for number, rows in self._orders.lost(told.drafter):
            self._lose_blocks(number, rows, "drafter lost")
        for sequence in self._live.values():
            feeding.lost(sequence, told.drafter)
        self._ask(DrafterEvent(told.drafter, told.why))

    def _lose_blocks(self, number: int, rows: Sequence[SequenceState], why: str) -> None:
        for sequence in rows:
            if sequence.state is ORDERED and sequence.order == number:
                self._without_block(sequence, why)
                sequence.rows_sent = sequence.rows_held  # those of the order may be lost with it

    def _drafter_ready(self, told: DrafterReady) -> None:
        sequence = self._find(told.sequence, told.epoch, "rows")
        if sequence is not None and not feeding.came(sequence, told):
            self.counts["unused rows"] += 1

    def _look_at_the_clock(self, now: float) -> None:
        for number, drafter, rows in self._orders.late(now):
            self._lose_blocks(number, rows, "late")
            self._ask(DrafterEvent(drafter, "late"))
        for drafter in self._orders.silent(now):
            self._drafter_lost(DrafterLost(drafter, "silent"))

    # Rounds.

    def _go_on(self, now: float) -> None:
        """Begins the rounds that may begin, and the passes of cohorts that are complete."""
        again = True
        while again:
            self._leaving.given_back, self._patient_until = False, None
            self._step(now)
            for cohort in range(self.plan.cohorts):
                self._begin(cohort, now)
            again = self._leaving.given_back  # sequences without pages can ask again

    def _step(self, now: float) -> None:
        plan, asked = self.plan, dict[int, list[tuple[SequenceState, BlockTerms]]]()
        for sequence in self._live.values():
            if sequence.state not in BETWEEN or sequence.starved:
                continue
            if sequence.full or sequence.ahead > plan.window:
                if sequence.state is IDLE:
                    sequence.apply(HELD_BACK)
                    sequence.held_at = now
                continue
            if sequence.state is HELD:
                sequence.apply(LET_GO_ON)
            terms = plan.terms_of(sequence.number)
            unfed = sequence.named and not (sequence.drafter or sequence.feeding)
            if unfed and terms.drafts and sequence.room > 1:
                feeding.feed_by(sequence, sequence.named, self._waits.inline_rows, self._ask)
            feeding.take_over(sequence, self._waits.inline_rows, self._ask)
            why = self._why_plain(sequence, terms)
            if why:
                sequence.left_empty(why)
                sequence.apply(LEFT_PLAIN)
            else:
                asked.setdefault(sequence.drafter, []).append((sequence, terms))
        until = now + self._waits.order_s(plan.draft_s)
        for drafter, rows in asked.items():
            self._ask(self._orders.send(drafter, rows, until))

    def _why_plain(self, sequence: SequenceState, terms: BlockTerms) -> str:
        """Why no block is ordered, "" if one is. Sends rows in bulk that are too many for an
        order."""
        if sequence.ordered_len == sequence.committed_len:
            return sequence.why_empty or "anchor used"
        if not terms.drafts:
            # If rows never arrive the coordinator has to learn it, though nothing is drafted.
            return "rows missing" if sequence.feeding and not sequence.drafter else "off"
        if sequence.room < 2:
            return "last token"  # the target's own fills the answer
        if not sequence.drafter:
            return "rows missing" if sequence.feeding else "no drafter"
        if closed := self._orders.closed(sequence.drafter):
            return closed
        if sequence.committed_len - 1 - sequence.rows_sent > self._waits.inline_rows:
            if not sequence.feeding:  # else another drafter takes over soon
                feeding.resend(sequence, sequence.rows_sent, self._waits.inline_rows, self._ask)
            return "rows missing"
        return ""

    def _begin(self, cohort: int, now: float) -> None:
        """Begins the pass of a cohort that has nothing to wait for: no pass, block or
        acknowledgement."""
        if self._passes.busy(cohort, self.plan.cohorts):
            return
        ready, until = [], now
        for sequence in self._live.values():
            if self.plan.cohort(sequence.number) != cohort:
                continue
            if sequence.state is READY:
                ready.append(sequence)
            elif sequence.state is ORDERED:
                return
            elif sequence.state is HELD and not sequence.full:
                # held by the window alone: waited for as long as for a block
                until = max(until, sequence.held_at + self._waits.deadline_s)
        if ready and until > now:
            self._patient_until = min(until, self._patient_until or until)
        elif ready:
            run = self._passes.begin(cohort, ready, self._leaving.make_room)
            if run is not None:
                self._ask(run)

    def _find(self, number: int, epoch: int, what: str) -> SequenceState | None:
        sequence = self._live.get(number)
        if sequence is None or sequence.epoch != epoch:
            self.counts[f"{what} of a gone sequence"] += 1
            return None
        return sequence
