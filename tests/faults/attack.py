"""Real workers under malformed commands and rows, while an honest stream beside them decodes.

Everything is spoiled by its own schema (`spoiler`), one field at a time, and sent as a coordinator
or a verifier would. A command that breaks the protocol ends its stream and frees what was opened
through it; one that makes no sense for its sequence is refused. Behind each comes a prompt or a
context that cannot be, whose refusal says that nothing hangs.
"""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import grpc

from dspark.client import AsyncClient
from dspark.rounds.control import Admission, DrafterAt
from dspark.rounds.events import Acknowledged, Admit, KeepSequences, Release, ReleaseMode
from dspark.rounds.plan import BlockTerms, Plan, PlanKind
from dspark.runtime.channel import open_channel
from dspark.types import SamplingParams
from dspark.wire import codec
from dspark.wire.control_down import write_down
from dspark.wire.v1 import (
    draft_pb2,
    draft_pb2_grpc,
    features_pb2,
    features_pb2_grpc,
    types_pb2,
    verify_pb2_grpc,
)
from tests.faults.processes import FaultCell
from tests.faults.rows.program import quantile
from tests.faults.spoiler import Spoiler

PROMPT = [3, 17, 90, 41, 5]
WIDTH = 64  # of a feature row of the pair
DEADLINE_S = 30.0  # a command without an answer for so long hangs
GREEDY = SamplingParams(temperature=0.0)
SAMPLING = codec.write_sampling(GREEDY)
LONGEST = 450  # tokens of a neighbour's sequence
ALONE = 10_000  # messages at the end of a crowd's, whose refusals are timed
CROSSED = "Internal error from Core"  # what grpc.aio says where a write met a refusal
PLAN = Plan(BlockTerms(PlanKind.OFF, 0))  # a round begins when the one before is acknowledged


class Ended(Exception):
    """The worker ended the stream."""


class _Stream:
    """One end of a stream that is begun anew whenever the worker has ended it."""

    def __init__(self, endpoint: str) -> None:
        self.channel = open_channel(endpoint)
        self._call: Any = None
        self.ends = Counter[str]()  # by how they ended
        self._fences = 1 << 62

    async def write(self, message: Any) -> None:
        with contextlib.suppress(asyncio.InvalidStateError, grpc.aio.AioRpcError):
            # it has ended: `read` says so
            await self._call.write(message)

    async def read(self) -> Any:
        """The next event. Raises Ended."""
        event: Any = grpc.aio.EOF
        with contextlib.suppress(grpc.aio.AioRpcError):
            event = await asyncio.wait_for(self._call.read(), DEADLINE_S)
        if event is grpc.aio.EOF:
            crossed = await self._call.details() == CROSSED
            self.ends["crossed" if crossed else (await self._call.code()).name] += 1
            raise Ended
        return event

    async def close(self) -> None:
        with contextlib.suppress(asyncio.InvalidStateError, grpc.aio.AioRpcError, Ended):
            await self._call.done_writing()
            while True:
                await self.read()
        await self.channel.close()


class ControlEnd(_Stream):
    """A coordinator's."""

    def __init__(self, endpoint: str, incarnation: int) -> None:
        super().__init__(endpoint)
        self.stub = verify_pb2_grpc.VerifyStub(self.channel)
        self._incarnation = incarnation

    async def begin(self) -> None:
        self._call = self.stub.Control()
        await self.tell(PLAN)

    def message(self, *orders: Any) -> Any:
        return write_down(self._incarnation, orders)

    async def tell(self, *orders: Any) -> None:
        await self.write(self.message(*orders))

    async def fence(self) -> int:
        """Until everything before it was looked at; how many other sequences were refused
        meanwhile. Raises Ended."""
        self._fences += 1
        await self.tell(Admission(Admit(self._fences, 0, 0, 8), [], GREEDY, 8, False))
        refused = 0
        while True:
            for news in (await self.read()).news:
                if news.released.HasField("refusal"):
                    if news.released.sequence == self._fences:
                        return refused
                    refused += 1


class RoundsEnd(_Stream):
    """A verifier's."""

    def __init__(self, endpoint: str, incarnation: int, projection: str, source: int) -> None:
        super().__init__(endpoint)
        self.stub = draft_pb2_grpc.DraftStub(self.channel)
        self.hello = draft_pb2.RoundsHello(
            drafter_incarnation=incarnation, verifier_incarnation=source, projection=projection
        )

    async def begin(self) -> None:
        self._call = self.stub.Rounds()
        await self.write(draft_pb2.RoundsCommand(hello=self.hello))

    async def fence(self) -> int:
        """As above; how many contexts were refused, or blocks empty."""
        self._fences += 1
        opening = draft_pb2.OpenContext(sequence=self._fences, sampling=SAMPLING)
        await self.write(draft_pb2.RoundsCommand(open=opening))
        refused = 0
        while True:
            event = await self.read()
            opened = event.opened if event.HasField("opened") else None
            if opened is not None and opened.sequence == self._fences:
                return refused
            refused += event.opened.HasField("refusal") or any(event.blocks.empty_reasons)


class Victim:
    """Honest commands about sequences of its own, each to be spoiled."""

    def __init__(self, control: ControlEnd, rounds: RoundsEnd, number: int) -> None:
        self.control, self.rounds = control, rounds
        self.streams: dict[str, ControlEnd | RoundsEnd] = {"verify": control, "draft": rounds}
        self.number = number << 32  # of its sequence
        self._orders = 0
        self.turned_away = 0  # honest prompts and contexts that were refused
        down, up = control.message, draft_pb2.RoundsCommand
        ref, keeps = types_pb2.SequenceRef, draft_pb2.KeepContexts
        other = ref(sequence=1 << 50, epoch=1)
        # (stream, command) -> an honest one, in turn
        self.commands: dict[tuple[str, str], Callable[[], Any]] = {
            ("verify", "admission"): lambda: down(self._admission((1 << 40) + self.number)),
            ("verify", "plan"): lambda: down(Plan(BlockTerms(PlanKind.FIXED, 4))),
            ("verify", "drafter"): lambda: down(DrafterAt(1, "127.0.0.1:9", 5)),
            ("verify", "acknowledged"): lambda: down(Acknowledged(self.number, 1, 0)),
            ("verify", "released"): lambda: down(Release(1 << 50, 1, ReleaseMode.DROP)),
            ("verify", "kept"): lambda: down(
                KeepSequences(frozenset({(self.number, 1), (1 << 50, 1)}))
            ),
            ("draft", "order"): self._order,
            ("draft", "open"): lambda: up(open=self._opening((1 << 40) + self.number)),
            ("draft", "close"): lambda: up(close=draft_pb2.CloseContexts(sequences=[other])),
            ("draft", "keep"): lambda: up(
                keep=keeps(sequences=[ref(sequence=self.number, epoch=1), other])
            ),
        }

    async def renew(self) -> None:
        """A sequence that is held, and a context for it; whatever was there before is let go."""
        self.number += 1
        for stream in self.streams.values():
            if stream._call is None or stream._call.done():
                await stream.begin()
        await self.let_go()
        await self.control.tell(PLAN, self._admission(self.number))
        await self.rounds.write(draft_pb2.RoundsCommand(open=self._opening(self.number)))
        for stream in self.streams.values():
            try:
                self.turned_away += await stream.fence()
            except Ended:  # of what was sent before
                await stream.begin()

    async def let_go(self) -> None:
        """Of everything, at both workers: a list of what is wanted names nobody."""
        await self.control.tell(KeepSequences(frozenset()))
        await self.rounds.write(draft_pb2.RoundsCommand(keep=draft_pb2.KeepContexts()))

    def _order(self) -> draft_pb2.RoundsCommand:
        self._orders += 1
        order = draft_pb2.Order(
            order=self._orders, sequence=[self.number, 1 << 50], epoch=[1, 1], round=[1, 1],
            committed_len=[6, 6],
            anchors=[7, 7], slots=[4, 4], rows=[5, 0], token_ids=PROMPT, features=_rows(),
        )  # fmt: skip
        return draft_pb2.RoundsCommand(order=order)

    def _admission(self, number: int) -> Admission:
        return Admission(Admit(number, 1, len(PROMPT), 20), PROMPT, GREEDY, 80, True)

    def _opening(self, number: int) -> draft_pb2.OpenContext:
        return draft_pb2.OpenContext(sequence=number, epoch=1, reserve_tokens=80, sampling=SAMPLING)

    def chunk(self) -> features_pb2.FeatureChunk:
        said = self.rounds.hello
        return features_pb2.FeatureChunk(
            sink_incarnation=said.drafter_incarnation,
            source_incarnation=said.verifier_incarnation,
            projection=said.projection,
            sequence=self.number,
            epoch=1,
            token_ids=PROMPT,
            rows=_rows(),
        )


def _rows() -> types_pb2.TensorChunk:
    return types_pb2.TensorChunk(dtype="bfloat16", shape=[5, WIDTH], data=bytes(5 * WIDTH * 2))


@dataclass
class Tally:
    """What attackers sent, and what came of it."""

    took: list[float] = field(default_factory=list)  # s, to refuse a command
    honest: list[float] = field(default_factory=list)  # s, for one with nothing to do
    kinds: Counter[str] = field(default_factory=Counter)  # of what was refused
    hung: int = 0
    sent: int = 0  # bytes


class Attacker:
    """One peer that sends malformed messages, each after the answer to the one before it."""

    neighbour: Neighbour | None = None

    def __init__(self, victim: Victim, push: Any, seed: str) -> None:
        self.victim, self._push = victim, push
        self._spoiler = Spoiler(seed, spare=("incarnation",))
        self._acks = asyncio.create_task(self._count_acks())
        self._number = self._chunks = 0
        self._commands = list(victim.commands.items())

    async def send(self, count: int, tally: Tally) -> None:
        """So many messages, the neighbour, if it has one, doing a round for every hundred."""
        for _ in range(count):
            if self._number % 20 == 0:
                await self.victim.renew()
                began = time.monotonic()
                await self.victim.streams["draft"].fence()
                tally.honest.append(time.monotonic() - began)
            if self.neighbour is not None and self._number % 100 == 0:
                await self.neighbour.step()
            if self._number % 11 == 10:
                await self._rows(tally)
            else:
                await self._command(tally)
            self._number += 1

    async def settle(self) -> int:
        """Every chunk of rows is answered, everything let go; how many chunks were not answered."""
        await self._push.done_writing()
        answered = await asyncio.wait_for(self._acks, DEADLINE_S)
        await self.victim.renew()  # whatever state its streams are in
        await self.victim.let_go()
        for stream in self.victim.streams.values():
            await stream.fence()
        return self._chunks - answered

    async def _count_acks(self) -> int:
        most = 0
        while (ack := await self._push.read()) is not grpc.aio.EOF:
            most = ack.chunks
        return most

    async def _rows(self, tally: Tally) -> None:
        chunk = self.victim.chunk()
        self._spoiler.spoil(chunk)
        tally.sent += chunk.ByteSize()
        self._chunks += 1
        await self._push.write(chunk)

    async def _command(self, tally: Tally) -> None:
        (where, kind), command = self._commands[self._number % len(self._commands)]
        spoiled = command()
        self._spoiler.spoil(spoiled)
        tally.sent += spoiled.ByteSize()
        stream = self.victim.streams[where]
        began = time.monotonic()
        await stream.write(spoiled)
        try:
            refused = await stream.fence()
        except TimeoutError:
            tally.hung += 1
            return
        except Ended:
            refused = 1
            tally.took.append(time.monotonic() - began)
            await stream.begin()
        tally.kinds[kind] += bool(refused)


class Neighbour:
    """An honest coordinator of one sequence after the other, a token a round."""

    def __init__(self, stream: ControlEnd, first: int) -> None:
        self.stream, self.said = stream, list[int]()
        self._number, self._round, self._left = first, 0, 0

    async def leave(self) -> None:
        await self.stream.tell(Release(self._number, 1, ReleaseMode.DROP))

    async def step(self) -> None:
        """One round; of a new sequence where the one before has its length."""
        if not self._left:
            await self.leave()
            self._number, self._round, self._left = self._number + 1, 0, LONGEST - len(PROMPT)
            admit = Admit(self._number, 1, len(PROMPT), self._left)
            await self.stream.tell(Admission(admit, PROMPT, GREEDY, LONGEST, False))
        else:
            await self.stream.tell(Acknowledged(self._number, 1, self._round))
            self._round += 1
        while True:
            for news in (await self.stream.read()).news:
                if news.HasField("report"):
                    self.said += news.report.token_ids
                    self._left -= len(news.report.token_ids)
                    return


async def attack(cell: FaultCell, count: int, crowd: int = 1) -> dict[str, Any]:
    """Sends so many messages, all but the last 10,000 by so many attackers at a time; what came of
    them.

    Refusals are timed while one attacker is alone: the others of a crowd would be what its messages
    wait for."""
    verifier, drafter = cell.children["verify/0"], cell.children["draft/0"]
    room = LONGEST - len(PROMPT)
    options: Any = {"max_tokens": room, "temperature": 0.0, "ignore_eos": True, "policy": "off"}
    async with AsyncClient(cell.endpoint) as client:
        calm = (await client.complete(PROMPT, **options)).token_ids
    beside = ControlEnd(verifier.endpoint, verifier.incarnation)
    await beside.begin()
    neighbour = Neighbour(beside, 1 << 60)
    projection = (await beside.stub.Describe(types_pb2.DescribeRequest())).projection
    attackers = []
    for number in range(crowd):
        rounds = RoundsEnd(drafter.endpoint, drafter.incarnation, projection, number + 1)
        control = ControlEnd(verifier.endpoint, verifier.incarnation)
        victim = Victim(control, rounds, number)
        push = features_pb2_grpc.FeaturesStub(rounds.channel).Push()
        attackers.append(Attacker(victim, push, f"messages/{count}/{number}"))
    attackers[0].neighbour = neighbour
    warm_up = min(count // 5, 20_000)
    alone = count - warm_up if crowd == 1 else min(ALONE, count - warm_up)
    single, crowded = Tally(), Tally()
    await attackers[0].send(warm_up, single)
    warm = {name: cell.resources(name)["rss"] for name in ("verify/0", "draft/0")}
    each = [(count - warm_up - alone) // crowd] * crowd
    each[0] += count - warm_up - alone - sum(each)
    await asyncio.gather(*(a.send(n, crowded) for a, n in zip(attackers, each, strict=True)))
    await attackers[0].send(alone, single)

    grown = max((cell.resources(name)["rss"] - before) / 2**20 for name, before in warm.items())
    unanswered = sum([await attacker.settle() for attacker in attackers])
    await neighbour.leave()
    await beside.fence()
    # while every stream lives: their ends would free what was lost
    held = await asyncio.to_thread(cell.held)
    ends = [end for attacker in attackers for end in attacker.victim.streams.values()]
    for stream in (*ends, beside):
        await stream.close()
    kinds = single.kinds + crowded.kinds
    honest_ms = [1e3 * seconds for seconds in single.honest]
    return {
        "messages": count,
        "attackers": crowd,
        "refused": kinds.total(),
        "refused_by_kind": dict(kinds),
        "streams_ended": dict(sum((end.ends for end in ends), Counter[str]())),
        "hung": single.hung + crowded.hung + unanswered,
        "deaths": sum(not cell.alive(name) for name in ("verify/0", "draft/0", "coordinator/0")),
        "honest_refused": sum(attacker.victim.turned_away for attacker in attackers),
        "held_at_the_end": held,
        "neighbour_rounds": len(neighbour.said),
        "neighbour_unchanged": bool(neighbour.said)
        and all(token == calm[at % room] for at, token in enumerate(neighbour.said)),
        "p50_refusal_ms": round(1e3 * quantile(single.took, 0.5), 3),
        "p99_refusal_ms": round(1e3 * quantile(single.took, 0.99), 3),
        "honest_round_trip_ms": {f"p{p}": round(quantile(honest_ms, p / 100), 3) for p in (50, 99)},
        "rss_growth_mb": round(grown, 1),
        "sent_mb": round((single.sent + crowded.sent) / 2**20, 1),
    }
