"""Real workers under malformed commands and rows, while an honest session beside them decodes.

Everything is spoiled by its own schema (`spoiler`), one field at a time, and sent as a coordinator or a verifier would.
"""

from __future__ import annotations

import asyncio
import sys
import time
from collections import Counter
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import grpc

from dspark.types import Cursor, Law
from dspark.wire import codec
from dspark.wire.v1 import draft_pb2, features_pb2, features_pb2_grpc, types_pb2, verify_pb2
from faults.processes import FaultCell
from faults.rows.program import quantile
from faults.spoiler import Spoiler

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "services"))

from worker_stream import DraftStream, VerifyStream, draft_cohort, draft_item, verify_cohort, verify_item

PROMPT = [3, 17, 90, 41, 5]
WIDTH = 64  # of a feature row of the pair
DEADLINE_S = 30.0  # a command without an answer for so long hangs
GREEDY = Law(temperature=0.0)
SINK = types_pb2.FeatureSink(endpoint="127.0.0.1:9", incarnation=5)
LONGEST = 450  # tokens of a neighbour's sequence
ALONE = 10_000  # messages at the end of a crowd's, whose refusals are timed
KINDS = (  # (stream, command) of the messages, in turn
    ("verify", "verify"),
    ("verify", "verify"),
    ("verify", "prefill"),
    ("verify", "resend"),
    ("verify", "release"),
    ("draft", "draft"),
    ("draft", "open"),
    ("draft", "release"),
)
RELEASE = KINDS.index(("verify", "release"))  # of a sequence that nobody holds


class Victim:
    """Honest commands about sequences of its own, each to be spoiled."""

    def __init__(
        self, verify: VerifyStream, draft: DraftStream, number: int, drafter_incarnation: int, projection: str
    ) -> None:
        self.verify, self.draft = verify, draft
        self._incarnation, self._projection = drafter_incarnation, projection
        self.number = number << 32  # of its sequence
        self.turned_away = 0  # honest prompts and contexts that were refused

    async def renew(self) -> None:
        """A sequence that is held, with its first anchor, and a context for it; the one before it is released."""
        await self.release(self.number, 1)
        self.number += 1
        self.cursor = Cursor(self.number, 1, 0, len(PROMPT))
        prefilled = await self.verify.prefill(self.cursor, PROMPT)
        self.anchor, self.at = prefilled.anchor, Cursor(self.number, 1, 1, len(PROMPT) + 1)
        opened = await self.draft.open(self.cursor)
        self.turned_away += prefilled.HasField("refusal") + opened.HasField("refusal")

    async def release(self, sequence: int, epoch: int) -> None:
        """At both workers."""
        ref = types_pb2.SequenceRef(sequence=sequence, epoch=epoch)
        await self.verify.ask(release=verify_pb2.VerifyRelease(sequences=[ref]))
        await self.draft.ask(release=draft_pb2.DraftRelease(sequences=[ref]))

    def command(self, number: int) -> Any:
        """An honest message of the numbered kind."""
        ref = types_pb2.SequenceRef(sequence=1 << 50, epoch=1)
        match KINDS[number]:
            case "verify", "verify":
                ids = [7, 8, 9]
                return verify_cohort(
                    verify_item(self.at, self.anchor, ids), verify_item(self.at._replace(sequence=1 << 52), 3)
                )
            case "verify", "prefill":
                return verify_pb2.Prefill(
                    cursor=self._new(),
                    token_ids=PROMPT,
                    law=codec.write_law(GREEDY),
                    reserve_tokens=80,
                    sink=SINK,
                    keep_features=True,
                )
            case "verify", "resend":
                return verify_pb2.Resend(cursor=codec.write_cursor(self.at), sink=SINK)
            case "verify", "release":
                return verify_pb2.VerifyRelease(sequences=[ref])
            case "draft", "draft":
                return draft_cohort(draft_item(self.at, self.anchor))
            case "draft", "open":
                return draft_pb2.Open(cursor=self._new(), reserve_tokens=80, law=codec.write_law(GREEDY))
            case _:
                return draft_pb2.DraftRelease(sequences=[ref])

    def _new(self) -> types_pb2.Cursor:
        return codec.write_cursor(Cursor((1 << 40) + self.number, 1, 0, 5))

    def chunk(self) -> features_pb2.FeatureChunk:
        return features_pb2.FeatureChunk(
            sink_incarnation=self._incarnation,
            projection=self._projection,
            runs=[features_pb2.FeatureRun(sequence=self.number, epoch=1, token_ids=PROMPT)],
            rows=types_pb2.TensorChunk(dtype="bfloat16", shape=[5, WIDTH], data=bytes(5 * WIDTH * 2)),
        )


@dataclass
class Tally:
    """What attackers sent, and what came of it."""

    took: list[float] = field(default_factory=list)  # s, to refuse a command of which nothing could be done
    honest: list[float] = field(default_factory=list)  # s, to answer an honest command for which there is nothing to do
    beside: list[float] = field(default_factory=list)  # s, to refuse a row of a cohort whose other row was computed
    kinds: Counter[str] = field(default_factory=Counter)  # of what was refused
    hung: int = 0
    sent: int = 0  # bytes


class Attacker:
    """One peer that sends malformed messages, each after the answer to the one before it."""

    def __init__(self, victim: Victim, push: Any, seed: str) -> None:
        self.victim, self._push = victim, push
        self._spoiler = Spoiler(seed, spare=("tag",))
        self._acks = asyncio.create_task(_count_acks(push))
        self._number = self._chunks = 0

    async def send(self, count: int, tally: Tally, neighbour: Neighbour | None = None) -> None:
        """So many messages, the neighbour doing a round for every hundred."""
        for _ in range(count):
            if self._number % 20 == 0:
                await self.victim.renew()
                began = time.monotonic()
                await self.victim.verify.ask(release=self.victim.command(RELEASE))
                tally.honest.append(time.monotonic() - began)
            if neighbour is not None and self._number % 100 == 0:
                await neighbour.step()
            if self._number % 10 == 9:
                await self._rows(tally)
            else:
                await self._command(self._number % len(KINDS), tally)
            self._number += 1

    async def settle(self) -> int:
        """Every chunk of rows is answered, the last sequence released; how many chunks were not answered."""
        await self._push.done_writing()
        answered = await asyncio.wait_for(self._acks, DEADLINE_S)
        await self.victim.release(self.victim.number, 1)
        return self._chunks - answered

    async def end(self) -> None:
        await self.victim.verify.end()
        await self.victim.draft.end()

    async def _rows(self, tally: Tally) -> None:
        chunk = self.victim.chunk()
        self._spoiler.spoil(chunk)
        tally.sent += chunk.ByteSize()
        self._chunks += 1
        await self._push.write(chunk)

    async def _command(self, number: int, tally: Tally) -> None:
        where, kind = KINDS[number]
        honest = self.victim.command(number)
        self._spoiler.spoil(honest)
        tally.sent += honest.ByteSize()
        stream = self.victim.verify if where == "verify" else self.victim.draft
        began = time.monotonic()
        try:
            async with asyncio.timeout(DEADLINE_S):
                event = await stream.ask(**{kind: honest})
        except TimeoutError:
            tally.hung += 1
            return
        if _refused(event):
            (tally.beside if _also_worked(event) else tally.took).append(time.monotonic() - began)
            tally.kinds[kind] += 1
        elif kind in ("prefill", "open"):  # it was meant after all
            await self.victim.release(honest.cursor.sequence, honest.cursor.epoch)


class Neighbour:
    """An honest session of one sequence after the other, a token a round."""

    def __init__(self, stream: VerifyStream, first: int) -> None:
        self.stream, self.said = stream, list[int]()
        self._number, self._held = first, (Cursor(first, 1, 0, LONGEST), 0)

    async def leave(self) -> None:
        await self.stream.release(self._number)

    async def step(self) -> None:
        """One round; of a new sequence where the one before has its length."""
        cursor, anchor = self._held
        if cursor.committed_len >= LONGEST:
            await self.leave()
            self._number += 1
            cursor = Cursor(self._number, 1, 0, len(PROMPT))
            anchor = (await self.stream.prefill(cursor, PROMPT, reserve=LONGEST + 50)).anchor
            cursor = cursor._replace(round=1, committed_len=len(PROMPT) + 1)
        (verdict,) = (await self.stream.verify(verify_item(cursor, anchor))).items
        self.said.append(verdict.next_token)
        following = cursor._replace(round=cursor.round + 1, committed_len=cursor.committed_len + 1)
        self._held = following, verdict.next_token


async def attack(cell: FaultCell, count: int, crowd: int = 1) -> dict[str, Any]:
    """Sends so many messages, all but the last 10,000 by so many attackers at a time; what came of them.

    Refusals are timed while one attacker is alone: the others of a crowd would be what its messages wait for."""
    ends = {name: child.endpoint for name, child in cell.children.items()}
    honest = VerifyStream(ends["verify/0"])
    projection = (await honest.stub.Describe(types_pb2.DescribeRequest())).projection
    attackers = []
    for number in range(crowd):
        verify, draft = VerifyStream(ends["verify/0"]), DraftStream(ends["draft/0"])
        victim = Victim(verify, draft, number, cell.children["draft/0"].incarnation, projection)
        attackers.append(
            Attacker(victim, features_pb2_grpc.FeaturesStub(draft.channel).Push(), f"messages/{count}/{number}")
        )
    calm = Neighbour(honest, 1 << 61)
    for _ in range(min(LONGEST, count // 100 + 1)):
        await calm.step()
    neighbour = Neighbour(honest, 1 << 60)

    warm_up = min(count // 5, 20_000)
    alone = count - warm_up if crowd == 1 else min(ALONE, count - warm_up)
    early, crowded, timed = Tally(), Tally(), Tally()
    await attackers[0].send(warm_up, early, neighbour)
    warm = {name: cell.resources(name)["rss"] for name in ("verify/0", "draft/0")}
    each = [(count - warm_up - alone) // crowd] * crowd
    each[0] += count - warm_up - alone - sum(each)
    await asyncio.gather(
        *(a.send(n, crowded, neighbour if a is attackers[0] else None) for a, n in zip(attackers, each, strict=True))
    )
    await attackers[0].send(alone, timed, neighbour)

    grown = max((cell.resources(name)["rss"] - before) / 2**20 for name, before in warm.items())
    unanswered = sum([await attacker.settle() for attacker in attackers])
    for each in (calm, neighbour):
        await each.leave()
    held = await asyncio.to_thread(cell.held)  # while every stream lives: their ends would free what was lost
    for attacker in attackers:
        await attacker.end()
    await honest.end()
    tallies = (early, crowded, timed)
    took = timed.took + early.took
    beside = timed.beside + early.beside
    honest_ms = [1e3 * seconds for seconds in timed.honest + early.honest]
    period = calm.said[: LONGEST - len(PROMPT) - 1]
    return {
        "messages": count,
        "attackers": crowd,
        "refused": sum(len(tally.took) + len(tally.beside) for tally in tallies),
        "refused_by_kind": dict(sum((tally.kinds for tally in tallies), Counter[str]())),
        "hung": sum(tally.hung for tally in tallies) + unanswered,
        "deaths": sum(not cell.alive(name) for name in ("verify/0", "draft/0", "coordinator/0")),
        "honest_refused": sum(attacker.victim.turned_away for attacker in attackers),
        "held_at_the_end": held,
        "neighbour_rounds": len(neighbour.said),
        "neighbour_unchanged": bool(period)
        and all(token == period[at % len(period)] for at, token in enumerate(neighbour.said)),
        "p50_refusal_ms": round(1e3 * quantile(took, 0.5), 3),
        "p99_refusal_ms": round(1e3 * quantile(took, 0.99), 3),
        "honest_round_trip_ms": {f"p{p}": round(quantile(honest_ms, p / 100), 3) for p in (50, 99)},
        "p99_beside_a_pass_ms": round(1e3 * quantile(beside, 0.99), 3) if beside else None,
        "rss_growth_mb": round(grown, 1),
        "sent_mb": round((crowded.sent + timed.sent) / 2**20, 1),
    }


async def _count_acks(push: Any) -> int:
    most = 0
    while (ack := await push.read()) is not grpc.aio.EOF:
        most = ack.chunks
    return most


def _also_worked(event: Any) -> bool:
    """Whether another row of the command went through the device: its answer comes with that row's."""
    part = getattr(event, event.WhichOneof("event"))
    if part.DESCRIPTOR.name == "Verdicts":
        return not part.HasField("refusal") and len(part.refusals) < len(part.cursors.sequence)
    return part.DESCRIPTOR.name == "Blocks" and not all(part.empty_reasons)


def _refused(event: Any) -> bool:
    """Whether any part of the command was."""
    part = getattr(event, event.WhichOneof("event"))
    if part.DESCRIPTOR.name == "Blocks":
        return any(part.empty_reasons) or not part.cursors.sequence
    return bool(getattr(part, "refusals", ())) or (
        "refusal" in part.DESCRIPTOR.fields_by_name and part.HasField("refusal")
    )
