"""A verifier and a drafter made of arithmetic, a clock turned by hand, and the talk between them as text.

The toy target says, after token t at position p, the token (3 t + p) mod 97; so after the prompt 5 6 (positions 0, 1)
come 3*6+1 = 19, 3*19+2 = 59, 3*59+3 = 83, ... The toy drafter says the same, except where the position of the drafted
token is a multiple of `wrong_every`: there it says one more. Both keep what the real ones keep, refuse what the real
ones refuse, and hold replies back while told to.
"""

from __future__ import annotations

import asyncio
import heapq
import itertools
from collections import Counter
from collections.abc import Callable, Sequence
from typing import Any

from coordinator.answers.answer import Answer
from coordinator.answers.commit_log import CommitLog
from coordinator.answers.outlet import Outlet
from coordinator.answers.tally import Tally
from coordinator.lanes.explain import Explain
from coordinator.lanes.lane import Conduct, Lane
from coordinator.lanes.ports import (
    Declined,
    Drafted,
    DrafterFacts,
    DrafterPort,
    DraftOrder,
    Judged,
    Lost,
    Prefilled,
    PrefillOrder,
    Sink,
    VerifierFacts,
    VerifyOrder,
)
from coordinator.lanes.sequence import Sequence as Sequence_
from coordinator.lanes.track import Track
from coordinator.queue.admission import Admission, Bounds
from coordinator.requests.request import Request
from coordinator.scheduling.cost_curve import CostCurve
from dspark.rounds.policy import parse_policy
from dspark.runtime.telemetry import Metrics
from dspark.types import Block, Cursor, EmptyReason, Law, RefusalReason, SparseQ, Verdict

VOCAB = 97
STEP_S = 0.001  # device seconds that every toy pass claims


def after(token: int, position: int) -> int:
    """What the toy target says after `token` at `position`."""
    return (3 * token + position) % VOCAB


def answer_of(prompt: Sequence[int], tokens: int) -> list[int]:
    """Plain decoding with the toy target."""
    ids = list(prompt)
    for _ in range(tokens):
        ids.append(after(ids[-1], len(ids) - 1))
    return ids[len(prompt) :]


class ManualClock:
    """Time that passes when a test says so."""

    def __init__(self) -> None:
        self.now = 0.0
        self._order = itertools.count()
        self._timers: list[tuple[float, int, ManualTimer]] = []

    def time(self) -> float:
        return self.now

    def call_later(self, delay: float, callback: Callable[..., object], *args: Any) -> ManualTimer:
        timer = ManualTimer(callback, args)
        heapq.heappush(self._timers, (self.now + delay, next(self._order), timer))
        return timer

    async def advance(self, seconds: float) -> None:
        """Fires what is due, in order, and lets everything that follows from it happen."""
        until = self.now + seconds
        while self._timers and self._timers[0][0] <= until:
            self.now, _, timer = heapq.heappop(self._timers)
            if not timer.cancelled:
                timer.callback(*timer.args)
                await calm()
        self.now = until
        await calm()


class ManualTimer:
    def __init__(self, callback: Callable[..., object], args: tuple[Any, ...]) -> None:
        self.callback, self.args, self.cancelled = callback, args, False

    def cancel(self) -> None:
        self.cancelled = True


async def calm(turns: int = 200) -> None:
    """Lets the event loop run until nothing is left that needs no time."""
    for _ in range(turns):
        await asyncio.sleep(0)


class Talk:
    """What was said between the coordinator and its workers, line by line."""

    def __init__(self) -> None:
        self.lines: list[str] = []
        self._numbers: dict[int, int] = {}

    def say(self, text: str) -> None:
        self.lines.append(text)

    def at(self, cursor: Cursor) -> str:
        """A cursor for people; sequences are counted in order of appearance."""
        number = self._numbers.setdefault(cursor.sequence, len(self._numbers) + 1)
        return f"s{number}.{cursor.epoch}.{cursor.round} len={cursor.committed_len}"


class _Worker:
    """Replies at the next turn of the loop, or when released; fails everything at once when lost."""

    def __init__(self, talk: Talk, name: str) -> None:
        self.talk, self.name = talk, name
        self.alive = True
        self.holding: set[str] = set()  # kinds of replies that wait for `let_go`
        self.held: list[tuple[str, asyncio.Future[Any], Any]] = []
        self._open: set[asyncio.Future[Any]] = set()
        self.closed_because = ""
        self.on_close: Callable[[], object] = lambda: None  # membership hears of it

    def reply(self, kind: str, value: Any) -> asyncio.Future[Any]:
        loop = asyncio.get_running_loop()
        future: asyncio.Future[Any] = loop.create_future()
        if not self.alive:
            future.set_exception(Lost(f"{self.name} is gone"))
            return future
        self._open.add(future)
        future.add_done_callback(self._open.discard)
        if kind in self.holding:
            self.held.append((kind, future, value))
        else:
            loop.call_soon(self._answer, future, value)
        return future

    def let_go(self, kind: str) -> None:
        """Stops holding this kind of reply back."""
        self.holding.discard(kind)
        for held in [each for each in self.held if each[0] == kind]:
            self.held.remove(held)
            self._answer(held[1], held[2])

    def die(self) -> None:
        """As a killed process: every reply it owes fails, and what it held is gone."""
        self.talk.say(f"{self.name} dies")
        self.alive = False
        self.forget_all()
        self._fail_all(f"{self.name} is gone")

    def forget_all(self) -> None:
        """What the session opened goes with it."""

    def close(self, why: str) -> None:
        self.talk.say(f"{self.name} is let go: {why}")
        self.forget_all()
        self.closed_because = why
        self.alive = False
        self._fail_all(why)
        self.on_close()

    def _fail_all(self, why: str) -> None:
        for future in list(self._open):
            if not future.done():
                future.set_exception(Lost(why))

    @staticmethod
    def _answer(future: asyncio.Future[Any], value: Any) -> None:
        if not future.done():
            future.set_result(value() if callable(value) else value)


class FakeDrafter(_Worker):
    """Drafts by the toy rule for sequences whose rows it has."""

    def __init__(
        self, talk: Talk, name: str = "draft/0", *, wrong_every: int = 5, block_size: int = 4, incarnation: int = 11
    ) -> None:
        super().__init__(talk, name)
        self.wrong_every = wrong_every
        self.confidence = 0.9
        self.step_s = STEP_S
        self.full = False  # no room for anybody
        self.rows: dict[int, dict[int, int]] = {}  # sequence -> position -> token
        self.epochs: dict[int, int] = {}
        self.facts = DrafterFacts(
            name,
            f"{name}:1",
            incarnation,
            0,
            "toy drafter",
            f"toy-{name}",
            VOCAB,
            8,
            "toy-projection",
            block_size,
            4096,
            None,
        )

    def open(self, cursor: Cursor, reserve_tokens: int, law: Law) -> asyncio.Future[Declined | None]:
        self.talk.say(f"{self.name} <- open {self.talk.at(cursor)} reserve={reserve_tokens}")
        if self.epochs.get(cursor.sequence, -1) < cursor.epoch:
            self.rows[cursor.sequence] = {}
            self.epochs[cursor.sequence] = cursor.epoch
        return self.reply("open", Declined(cursor, RefusalReason.NO_PAGES) if self.full else None)

    def draft(self, orders: Sequence[DraftOrder], wait_us: int) -> asyncio.Future[Drafted]:
        asked = ", ".join(f"{self.talk.at(o.cursor)} anchor={o.anchor} slots={o.max_slots}" for o in orders)
        self.talk.say(f"{self.name} <- draft [{asked}]")
        return self.reply("draft", lambda: Drafted(tuple(self._block(order) for order in orders), self.step_s))

    def release(self, cursor: Cursor) -> None:
        self.talk.say(f"{self.name} <- release {self.talk.at(cursor)}")
        self.rows.pop(cursor.sequence, None)
        self.epochs.pop(cursor.sequence, None)

    def forget_all(self) -> None:
        self.rows.clear()
        self.epochs.clear()

    def ingest(self, sequence: int, epoch: int, start: int, tokens: Sequence[int]) -> None:
        """Rows from a verifier."""
        if self.alive and self.epochs.get(sequence) == epoch:
            self.rows[sequence].update(enumerate(tokens, start))

    def watermark(self, sequence: int) -> int:
        rows = self.rows.get(sequence, {})
        return next(position for position in itertools.count() if position not in rows)

    def _block(self, order: DraftOrder) -> Block:
        cursor = order.cursor
        if self.epochs.get(cursor.sequence) != cursor.epoch:
            return Block(cursor, empty_reason=EmptyReason.UNKNOWN_SEQUENCE)
        watermark = self.watermark(cursor.sequence)
        if watermark < cursor.committed_len - 1:
            return Block(cursor, empty_reason=EmptyReason.FEATURES_MISSING, watermark=watermark)
        ids: list[int] = []
        token, position = order.anchor, cursor.committed_len - 1
        for _ in range(min(order.max_slots, self.facts.block_size)):
            token, position = after(token, position), position + 1
            if position % self.wrong_every == 0:
                token = (token + 1) % VOCAB
            ids.append(token)
        q = SparseQ(1, b"".join(i.to_bytes(4, "little") for i in ids), b"\0\0\x80?" * len(ids))
        return Block(cursor, tuple(ids), (self.confidence,) * len(ids), q, EmptyReason.NONE, watermark)


class FakeVerifier(_Worker):
    """Decodes by the toy rule, keeps rows, pushes them to drafters."""

    def __init__(
        self,
        talk: Talk,
        drafters: Sequence[FakeDrafter] = (),
        name: str = "verify/0",
        *,
        pages: int = 1000,
        cost: CostCurve | None = None,
        stop_token_ids: tuple[int, ...] = (),
        incarnation: int = 21,
    ) -> None:
        super().__init__(talk, name)
        self.drafters = list(drafters)
        self.sequences: dict[int, tuple[int, list[int]]] = {}  # sequence -> (epoch, committed ids)
        self.seen: dict[int, object] = {}  # laws by sequence
        self.prompts: list[PrefillOrder] = []  # every one that was ordered
        self.prefills = 0
        self.decline: Declined | None = None  # answers the next item with this
        self.declines_all: Declined | None = None  # every item
        self.no_pages = False
        self.loses_replies = 0  # so many verdicts get lost on their way
        self._last: dict[int, Verdict] = {}  # of every sequence, to be said again
        self.tampers: Callable[[Verdict], Verdict] = lambda verdict: verdict
        self.tampers_first: Callable[[Prefilled], Prefilled] = lambda prefilled: prefilled
        self.facts = VerifierFacts(
            name=name,
            endpoint=f"{name}:1",
            incarnation=incarnation,
            pid=0,
            model="toy target",
            fingerprint="toy-target",
            vocab_size=VOCAB,
            context_length=512,
            hidden_size=8,
            projection="toy-projection",
            page_size=16,
            pages_total=pages,
            attention_path="paged",
            stop_token_ids=stop_token_ids,
            cost=cost,
        )

    def prefill(self, order: PrefillOrder) -> asyncio.Future[Prefilled | Declined]:
        to = f" rows->{order.sink.endpoint}" if order.sink else ""
        keep = " keep" if order.keep_features else ""
        cursor = order.cursor
        self.talk.say(f"{self.name} <- prefill {self.talk.at(cursor)} reserve={order.reserve_tokens}{to}{keep}")
        if self.no_pages:
            return self.reply("prefill", Declined(cursor, RefusalReason.NO_PAGES))
        self.prefills += 1
        self.prompts.append(order)
        ids = list(order.token_ids)
        self.sequences[cursor.sequence] = (cursor.epoch, ids)
        self.seen[cursor.sequence] = order.law

        def done() -> Prefilled:
            anchor = after(ids[-1], len(ids) - 1)
            self._push(order.sink, cursor.sequence, 0, len(ids))
            ids.append(anchor)
            return self.tampers_first(Prefilled(cursor, anchor, STEP_S))

        return self.reply("prefill", done)

    def verify(self, orders: Sequence[VerifyOrder]) -> asyncio.Future[Judged]:
        asked = ", ".join(
            f"{self.talk.at(o.cursor)} anchor={o.anchor} draft={list(o.draft_ids)}{'' if o.sink else ' no-sink'}"
            for o in orders
        )
        self.talk.say(f"{self.name} <- verify [{asked}]")
        tokens = sum(1 + len(order.draft_ids) for order in orders)
        if self.loses_replies:
            self.loses_replies -= 1
            asyncio.get_running_loop().call_soon(lambda: [self._judge(order) for order in orders])
            lost: asyncio.Future[Judged] = asyncio.get_running_loop().create_future()
            self._open.add(lost)
            return lost
        return self.reply("verify", lambda: Judged(tuple(map(self._judge, orders)), STEP_S, tokens))

    def resend(self, cursor: Cursor, sink: Sink, from_position: int) -> asyncio.Future[Declined | None]:
        self.talk.say(f"{self.name} <- resend {self.talk.at(cursor)} from={from_position} rows->{sink.endpoint}")

        def done() -> None:
            self._push(sink, cursor.sequence, from_position, cursor.committed_len - 1)

        return self.reply("resend", done)

    def release(self, cursor: Cursor) -> None:
        self.talk.say(f"{self.name} <- release {self.talk.at(cursor)}")
        self.sequences.pop(cursor.sequence, None)

    def forget_all(self) -> None:
        self.sequences.clear()

    def _judge(self, order: VerifyOrder) -> Verdict | Declined:
        cursor = order.cursor
        declined, self.decline = self.decline or self.declines_all, None
        if declined is not None:
            return Declined(cursor, declined.why, declined.message)
        epoch, ids = self.sequences.get(cursor.sequence, (-1, []))
        if epoch != cursor.epoch:
            return Declined(cursor, RefusalReason.UNKNOWN_SEQUENCE)
        last = self._last.get(cursor.sequence)
        if last is not None and last.cursor == cursor:
            return last
        assert cursor.committed_len == len(ids), "one cursor"
        assert order.anchor == ids[-1], "one anchor"
        assert order.q.entries * len(order.draft_ids) * 4 == len(order.q.ids), "q is cut to the prefix"
        accepted = 0
        token, position = order.anchor, len(ids) - 1
        for drafted in order.draft_ids:
            if drafted != after(token, position):
                break
            token, position, accepted = drafted, position + 1, accepted + 1
        ids += [*order.draft_ids[:accepted], after(token, position)]
        self._push(order.sink, cursor.sequence, cursor.committed_len - 1, len(ids) - 1)
        verdict = self._last[cursor.sequence] = Verdict(cursor, accepted, ids[-1], len(ids) - 1, len(order.draft_ids))
        return self.tampers(verdict)

    def _push(self, sink: Sink | None, sequence: int, start: int, stop: int) -> None:
        epoch, ids = self.sequences.get(sequence, (-1, []))
        for drafter in self.drafters:
            if sink is not None and drafter.facts.sink == sink and epoch >= 0:
                drafter.ingest(sequence, epoch, start, ids[start:stop])


class ToyCell:
    """Admission, one lane or more, and toy workers, without ports, sleeps or real time."""

    def __init__(
        self,
        *,
        drafters: int = 1,
        waits: Conduct | None = None,
        bounds: Bounds | None = None,
        outlet: int = 64,
        write: Callable[[], None] = lambda: None,
        **verifier: Any,
    ) -> None:
        self.talk = Talk()
        self.clock = ManualClock()
        self.metrics = Metrics()
        self.explain = Explain()
        self.drafters = [FakeDrafter(self.talk, f"draft/{i}", incarnation=11 + i) for i in range(drafters)]
        self.admission = Admission(bounds or Bounds(), self.clock, self.metrics)
        self._waits, self._outlet, self._write = waits or Conduct(), outlet, write
        self._load: Counter[DrafterPort] = Counter()
        self._numbers = itertools.count(1)
        self._loops: set[asyncio.Task[None]] = set()
        self.verifier = FakeVerifier(self.talk, self.drafters, **verifier)
        self.lane = self.add_lane(self.verifier)

    def add_lane(self, verifier: FakeVerifier) -> Lane:
        lane = Lane(
            verifier,
            self.admission,
            load=self._load,
            waits=self._waits,
            clock=self.clock,
            metrics=self.metrics,
            explain=self.explain,
            write=self._write,
        )
        verifier.on_close = lambda: (lane.close(), self.admission.lane_left(lane))
        for drafter in self.drafters:
            if drafter.alive:
                self.join(lane, drafter)
        self._loops.add(asyncio.get_running_loop().create_task(lane.run()))
        self.admission.lane_joined(lane)
        return lane

    def join(self, lane: Lane, drafter: FakeDrafter) -> None:
        """What membership does when a drafter fits a lane."""
        drafter.on_close = lambda: lane.drafter_left(drafter)
        lane.drafter_joined(drafter)

    def lose_verifier(self) -> None:
        """What membership does when a verifier's stream breaks."""
        self.verifier.die()
        self.lane.close()
        self.admission.lane_left(self.lane)

    def lose_drafter(self, drafter: FakeDrafter) -> None:
        drafter.die()
        self.lane.drafter_left(drafter)

    def new_drafter(self, incarnation: int) -> FakeDrafter:
        """Another process under the first drafter's name."""
        drafter = FakeDrafter(self.talk, "draft/0", incarnation=incarnation)
        self.drafters.append(drafter)
        self.verifier.drafters.append(drafter)
        self.join(self.lane, drafter)
        return drafter

    def ask(self, prompt: Sequence[int] = (5, 6), max_tokens: int = 8, policy: str = "greedy", **more: Any) -> Track:
        number = next(self._numbers)
        request = Request(f"r{number}", tuple(prompt), Law(temperature=0.0), max_tokens, parse_policy(policy), **more)
        log = CommitLog(request.prompt)
        answer = Answer(log, max_tokens=max_tokens, stop_ids=request.stop_ids)
        track = Track(request, Sequence_(number, log), answer, Tally(self.clock.time()), Outlet(self._outlet))
        self.admission.submit(track)
        return track

    async def finish(self, *tracks: Track) -> None:
        """Until these are over."""
        for _ in range(100):
            if all(track.sequence.finished for track in tracks):
                return
            await calm(20)
        raise AssertionError(f"not over: {[track.sequence.state for track in tracks]}; {self.talk.lines[-5:]}")

    async def close(self) -> None:
        for loop in self._loops:
            loop.cancel()
        await asyncio.gather(*self._loops, return_exceptions=True)

    def clean(self) -> bool:
        """Whether neither pool holds anything."""
        return not self.verifier.sequences and not any(drafter.rows for drafter in self.drafters)


async def read(track: Track) -> list[int]:
    """The tokens a client got; raises the error that ended the answer."""
    tokens: list[int] = []
    while (waiting := await track.outlet.take()) is not None:
        for piece, _ in waiting:
            tokens += piece.tokens
    return tokens
