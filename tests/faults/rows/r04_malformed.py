"""Row 4: malformed commands, rows and events between services: refused where they arrive, and nobody else notices.

First real processes: a verifier and a drafter are sent commands and feature rows spoiled by their schema, over
sessions beside which an honest one decodes. Then a coordinator, in simulated time, whose workers' events are spoiled.
"""

from __future__ import annotations

import asyncio
import os
import sys
import time
from collections import Counter
from pathlib import Path
from typing import Any

import grpc
from google.protobuf.message_factory import GetMessageClass

from benchmarks.row import Row, note
from dspark.types import Cursor, Law
from dspark.wire import codec
from dspark.wire.v1 import draft_pb2, features_pb2, features_pb2_grpc, types_pb2, verify_pb2
from faults.boundaries import methods
from faults.plan import Message, Plan
from faults.processes import FaultCell
from faults.rows.program import arguments, quantile
from faults.simulated import Answer, SimulatedCell, simulate
from faults.spoiler import Spoiler

sys.path.insert(0, str(Path(__file__).resolve().parents[2] / "services"))

from worker_stream import DraftStream, VerifyStream, draft_cohort, draft_item, verify_cohort, verify_item

PROMPT = [3, 17, 90, 41, 5]
WIDTH = 64  # of a feature row of the pair
REFUSAL_S = 0.002
GROWTH = 2.0  # resident bytes, in what was sent, beyond what a process takes to warm up
WARM_UP_MB = 64.0
DEADLINE_S = 30.0  # a command without an answer for so long hangs
GREEDY = Law(temperature=0.0)


class Victim:
    """Honest commands about sequences of its own, each to be spoiled."""

    def __init__(self, verify: VerifyStream, draft: DraftStream, drafter_incarnation: int, projection: str) -> None:
        self.verify, self.draft = verify, draft
        self._incarnation, self._projection = drafter_incarnation, projection
        self._number = 0

    async def renew(self) -> None:
        """A sequence that is held, with its first anchor, and a context for it."""
        self._number += 1
        self.cursor = Cursor(self._number, 1, 0, len(PROMPT))
        prefilled = await self.verify.prefill(self.cursor, PROMPT)
        self.anchor, self.at = prefilled.anchor, Cursor(self._number, 1, 1, len(PROMPT) + 1)
        await self.draft.open(self.cursor)

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
    ends = {name: child.endpoint for name, child in cell.children.items()}
    verify, draft = VerifyStream(ends["verify/0"]), DraftStream(ends["draft/0"])
    honest = VerifyStream(ends["verify/0"])
    described = await verify.stub.Describe(types_pb2.DescribeRequest())
    victim = Victim(verify, draft, cell.children["draft/0"].incarnation, described.projection)
    push = features_pb2_grpc.FeaturesStub(draft.channel).Push()
    acks = asyncio.create_task(_count_acks(push))
    neighbour, expected = await _begin(honest, 1 << 60), await _plain(honest, 1 << 61, count // 100 + 2)
    spoiler = Spoiler(count, spare=("tag",))
    took: list[float] = []
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
            took.append(time.monotonic() - began)
            kinds[kind] += 1
    await push.done_writing()
    answered = await asyncio.wait_for(acks, DEADLINE_S)
    for stream in (verify, draft, honest):
        await stream.end()
    grown = max((cell.resources(name)["rss"] - before) / 2**20 for name, before in warm.items())
    return {
        "messages": count,
        "refused": len(took),
        "refused_by_kind": dict(kinds),
        "hung": hung + (chunks - answered),
        "deaths": sum(not cell.alive(name) for name in ("verify/0", "draft/0", "coordinator/0")),
        "neighbour_unchanged": said == expected[: len(said)] and len(said) > 2,
        "p99_refusal_ms": round(1e3 * quantile(took, 0.99), 3),
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


def _refused(event: Any) -> bool:
    """Whether any part of the command was."""
    part = getattr(event, event.WhichOneof("event"))
    if part.DESCRIPTOR.name == "Blocks":
        return any(part.empty_reasons) or not part.cursors.sequence
    return bool(getattr(part, "refusals", ())) or (
        "refusal" in part.DESCRIPTOR.fields_by_name and part.HasField("refusal")
    )


# The coordinator's side.


def spoiled_events(seed: int, share: float) -> tuple[Plan, Counter[str]]:
    """A plan under which a share of what workers say is malformed."""
    plan, done = Plan(), Counter[str]()
    spoiler = Spoiler(f"events/{seed}", legal=False, spare=("tag", "incarnation"))
    draw = spoiler._draw

    def tamper(message: Message, data: bytes) -> bytes:
        if message.source[:1] not in "vd" or "Event." not in message.kind or draw.random() >= share:
            return data
        event: Any = GetMessageClass(methods()[message.method][1])()
        event.ParseFromString(data)
        spoiler.spoil(getattr(event, event.WhichOneof("event")))
        done[message.kind] += 1
        return bytes(event.SerializeToString())

    plan.tampers.append(tamper)
    return plan, done


async def several(cell: SimulatedCell) -> list[Answer]:
    prompts = [[5, 9, 17, 33], [64, 3], [2, 3, 4]]
    answers = list(await asyncio.gather(*(cell.ask(p, max_tokens=30, policy="fixed:4") for p in prompts)))
    cell.network.plan.tampers.clear()
    await cell.connected(3)
    answers.append(await cell.ask([8, 8], max_tokens=20))
    await cell.until(lambda: not cell.left_over(), within_s=60.0)
    return answers


def hear(stories: int) -> dict[str, Any]:
    settings: dict[str, Any] = {"verifiers": 2, "synthetic": True, "coordinator": {"verify_deadline_s": 1.0}}
    plain = [answer.ids for answer in simulate(several, **settings)]
    spoiled: Counter[str] = Counter()
    wrong: list[str] = []
    ended = errors = 0
    for seed in range(stories):
        plan, done = spoiled_events(seed, 0.03)
        try:
            answers = simulate(several, plan=plan, seed=seed, **settings)
        except Exception as error:
            wrong.append(f"seed {seed}: {type(error).__name__}: {error}")
            continue
        spoiled += done
        for answer, ids in zip(answers, plain, strict=True):
            ended, errors = ended + (answer.error is None), errors + (answer.error is not None)
            if answer.error is None and answer.ids != ids:
                wrong.append(f"seed {seed}: other ids")
        if answers[-1].error is not None:
            wrong.append(f"seed {seed}: a request after the trouble: {answers[-1].error}")
    return {
        "stories": stories,
        "spoiled_events": sum(spoiled.values()),
        "kinds": len(spoiled),
        "answers_as_ever": ended,
        "definite_errors": errors,
        "wrong": wrong[:5],
        "wrong_in_all": len(wrong),
    }


def main() -> int:
    args = arguments(__doc__)
    count = 1_000_000 if args.long else 10_000
    with FaultCell() as cell:
        pids = {name: child.pid for name, child in cell.children.items()}
        value = asyncio.run(attack(cell, count))
        value["same_pids"] = all(os.path.exists(f"/proc/{pid}") for pid in pids.values())
    holds = (
        not value["hung"]
        and not value["deaths"]
        and value["neighbour_unchanged"]
        and value["p99_refusal_ms"] < 1e3 * REFUSAL_S
        and value["rss_growth_mb"] <= GROWTH * value["sent_mb"] + WARM_UP_MB
    )
    bar = f"0 deaths, 0 hangs, neighbour's ids unchanged, p99 refusal < 2 ms, resident + 2 x sent (+ {WARM_UP_MB:g} MB)"
    code = Row("4", "malformed commands and rows at workers", value, bar, holds).show(as_json=args.json)
    note("events at the coordinator")
    heard = hear(2000 if args.long else 40)
    holds = not heard["wrong_in_all"] and heard["spoiled_events"] > heard["stories"]
    bar = "every request ends: with its ids, or with an error; nothing held afterwards, later requests as ever"
    return code | Row("4", "malformed events at the coordinator", heard, bar, holds).show(as_json=args.json)


if __name__ == "__main__":
    sys.exit(main())
