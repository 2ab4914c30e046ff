"""Real workers under malformed commands and rows, while an honest session beside them decodes.

Everything is spoiled by its own schema (`spoiler`), one field at a time, and sent as a coordinator or a verifier would.
"""

from __future__ import annotations

import asyncio
import sys
import time
from collections import Counter
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


class Victim:
    """Honest commands about sequences of its own, each to be spoiled."""

    def __init__(self, verify: VerifyStream, draft: DraftStream, drafter_incarnation: int, projection: str) -> None:
        self.verify, self.draft = verify, draft
        self._incarnation, self._projection = drafter_incarnation, projection
        self._number = 0

    async def renew(self) -> None:
        """A sequence that is held, with its first anchor, and a context for it; the one before it is released."""
        await self.release(self._number, 1)
        self._number += 1
        self.cursor = Cursor(self._number, 1, 0, len(PROMPT))
        prefilled = await self.verify.prefill(self.cursor, PROMPT)
        self.anchor, self.at = prefilled.anchor, Cursor(self._number, 1, 1, len(PROMPT) + 1)
        await self.draft.open(self.cursor)

    async def release(self, sequence: int, epoch: int) -> None:
        """At both workers."""
        ref = types_pb2.SequenceRef(sequence=sequence, epoch=epoch)
        await self.verify.ask(release=verify_pb2.VerifyRelease(sequences=[ref]))
        await self.draft.ask(release=draft_pb2.DraftRelease(sequences=[ref]))

    def commands(self) -> list[tuple[str, Any]]:
        """(stream, honest message) of every kind."""
        ids = [7, 8, 9]
        sink = types_pb2.FeatureSink(endpoint="127.0.0.1:9", incarnation=5)
        ref = types_pb2.SequenceRef(sequence=1 << 50, epoch=1)
        cursor, law = codec.write_cursor(Cursor((1 << 40) + self._number, 1, 0, 5)), codec.write_law(GREEDY)
        prefill = verify_pb2.Prefill(
            cursor=cursor, token_ids=PROMPT, law=law, reserve_tokens=80, sink=sink, keep_features=True
        )
        resend = verify_pb2.Resend(cursor=codec.write_cursor(self.at), sink=sink)
        opening = draft_pb2.Open(cursor=cursor, reserve_tokens=80, law=law)
        cohort = verify_cohort(verify_item(self.at, self.anchor, ids), verify_item(self.at._replace(sequence=9), 3))
        return [
            ("verify", verify_pb2.VerifyCommand(verify=cohort)),
            ("verify", verify_pb2.VerifyCommand(verify=cohort)),
            ("verify", verify_pb2.VerifyCommand(prefill=prefill)),
            ("verify", verify_pb2.VerifyCommand(resend=resend)),
            ("verify", verify_pb2.VerifyCommand(release=verify_pb2.VerifyRelease(sequences=[ref]))),
            ("draft", draft_pb2.DraftCommand(draft=draft_cohort(draft_item(self.at, self.anchor)))),
            ("draft", draft_pb2.DraftCommand(open=opening)),
            ("draft", draft_pb2.DraftCommand(release=draft_pb2.DraftRelease(sequences=[ref]))),
        ]

    def chunk(self) -> features_pb2.FeatureChunk:
        return features_pb2.FeatureChunk(
            sink_incarnation=self._incarnation,
            projection=self._projection,
            runs=[features_pb2.FeatureRun(sequence=self._number, epoch=1, token_ids=PROMPT)],
            rows=types_pb2.TensorChunk(dtype="bfloat16", shape=[5, WIDTH], data=bytes(5 * WIDTH * 2)),
        )


async def attack(cell: FaultCell, count: int) -> dict[str, Any]:
    """Sends so many messages; what came of them."""
    ends = {name: child.endpoint for name, child in cell.children.items()}
    verify, draft = VerifyStream(ends["verify/0"]), DraftStream(ends["draft/0"])
    honest = VerifyStream(ends["verify/0"])
    described = await verify.stub.Describe(types_pb2.DescribeRequest())
    victim = Victim(verify, draft, cell.children["draft/0"].incarnation, described.projection)
    push = features_pb2_grpc.FeaturesStub(draft.channel).Push()
    acks = asyncio.create_task(_count_acks(push))
    neighbour, expected = await _begin(honest, 1 << 60), await _plain(honest, 1 << 61, count // 100 + 2)
    spoiler = Spoiler(count, spare=("tag",))
    took: list[float] = []  # to refuse a command of which nothing could be done
    beside: list[float] = []  # to refuse a row of a cohort whose other row was computed
    kinds: Counter[str] = Counter()
    hung = sent = chunks = 0
    said: list[int] = []
    warm: dict[str, int] = {}
    for number in range(count):
        if number % 20 == 0:
            await victim.renew()
        if number % 100 == 0:
            neighbour = await _step(honest, neighbour, said)
        if number == count // 5:
            warm = {name: cell.resources(name)["rss"] for name in ("verify/0", "draft/0")}
            sent = 0
        if number % 10 == 9:
            chunk = victim.chunk()
            spoiler.spoil(chunk)
            sent += chunk.ByteSize()
            chunks += 1
            await push.write(chunk)
            continue
        commands = victim.commands()
        where, command = commands[number % len(commands)]
        kind = command.WhichOneof("command")
        spoiler.spoil(getattr(command, kind))
        sent += command.ByteSize()
        stream = verify if where == "verify" else draft
        began = time.monotonic()
        try:
            async with asyncio.timeout(DEADLINE_S):
                event = await stream.ask(**{kind: getattr(command, kind)})
        except TimeoutError:
            hung += 1
            continue
        if _refused(event):
            (beside if _also_worked(event) else took).append(time.monotonic() - began)
            kinds[kind] += 1
        elif kind in ("prefill", "open"):  # it was meant after all
            cursor = getattr(command, kind).cursor
            await victim.release(cursor.sequence, cursor.epoch)
    await push.done_writing()
    answered = await asyncio.wait_for(acks, DEADLINE_S)
    for stream in (verify, draft, honest):
        await stream.end()
    grown = max((cell.resources(name)["rss"] - before) / 2**20 for name, before in warm.items())
    return {
        "messages": count,
        "refused": len(took) + len(beside),
        "refused_by_kind": dict(kinds),
        "hung": hung + (chunks - answered),
        "deaths": sum(not cell.alive(name) for name in ("verify/0", "draft/0", "coordinator/0")),
        "neighbour_unchanged": said == expected[: len(said)] and len(said) > 2,
        "p99_refusal_ms": round(1e3 * quantile(took, 0.99), 3),
        "p99_beside_a_pass_ms": round(1e3 * quantile(beside, 0.99), 3) if beside else None,
        "rss_growth_mb": round(grown, 1),
        "sent_mb": round(sent / 2**20, 1),
    }


async def _count_acks(push: Any) -> int:
    most = 0
    while (ack := await push.read()) is not grpc.aio.EOF:
        most = ack.chunks
    return most


async def _begin(stream: VerifyStream, number: int) -> tuple[Cursor, int]:
    cursor = Cursor(number, 1, 0, len(PROMPT))
    prefilled = await stream.prefill(cursor, PROMPT, reserve=500)
    return Cursor(number, 1, 1, len(PROMPT) + 1), prefilled.anchor


async def _step(stream: VerifyStream, held: tuple[Cursor, int], said: list[int]) -> tuple[Cursor, int]:
    """One round of an honest sequence."""
    cursor, anchor = held
    if cursor.committed_len > 450:
        return held
    (verdict,) = (await stream.verify(verify_item(cursor, anchor))).items
    said.append(verdict.next_token)
    return Cursor(cursor.sequence, 1, cursor.round + 1, cursor.committed_len + 1), verdict.next_token


async def _plain(stream: VerifyStream, number: int, count: int) -> list[int]:
    held, said = await _begin(stream, number), []
    for _ in range(count):
        held = await _step(stream, held, said)
    await stream.release(number)
    return said


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
