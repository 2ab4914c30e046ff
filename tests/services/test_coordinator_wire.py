"""What a drafter may do wrong on the wire, against a real verifier: it costs speed, never an id."""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import Any

import pytest
import pytest_asyncio
from tokenizers import Tokenizer as Backend
from tokenizers import models, pre_tokenizers

from coordinator import process as coordinator_process
from coordinator.config import CoordinatorConfig
from coordinator.lanes.ports import DraftOrder, Lost
from coordinator.workers.clients import MALFORMED_COHORTS, DrafterClient, drafter_facts
from dspark.runtime.channel import open_channel
from dspark.runtime.server import GrpcServer
from dspark.runtime.telemetry import Metrics
from dspark.types import Cursor, Law
from dspark.wire.v1 import draft_pb2, draft_pb2_grpc, generate_pb2, generate_pb2_grpc, types_pb2
from verify_service import process as verify_process
from verify_service.config import VerifyConfig

pytestmark = pytest.mark.services

INCARNATION = 77
Reply = Callable[[draft_pb2.DraftCommand], list[draft_pb2.DraftEvent] | None]


def blocks(command: draft_pb2.DraftCommand, **fields: Any) -> list[draft_pb2.DraftEvent]:
    """One block with these fields for a cohort of one, with columns that fit unless told otherwise."""
    slots = len(fields.get("token_ids", ()))
    columns = {"lengths": [slots], "q_entries": [0], "empty_reasons": [0], "watermarks": [0]} | fields
    return [draft_pb2.DraftEvent(blocks=draft_pb2.Blocks(cursors=command.draft.cursors, forward_ns=1000, **columns))]


def one_slot(command: draft_pb2.DraftCommand, token: int = 5) -> list[draft_pb2.DraftEvent]:
    """A well-formed block of one token."""
    q = {"q_entries": [1], "q_ids": token.to_bytes(4, "little"), "q_probs": b"\0\0\x80?"}
    return blocks(command, token_ids=[token], confidence=[0.9], **q)


class WildDrafter(draft_pb2_grpc.DraftServicer):
    """Answers Draft as told, and everything else as it should. None ends the stream; [] stays silent."""

    def __init__(self, reply: Reply, projection: str) -> None:
        self.reply, self.projection = reply, projection
        self.sessions = 0
        self.drafts = 0

    async def Describe(self, request: types_pb2.DescribeRequest, context: Any) -> draft_pb2.DrafterDescription:
        return draft_pb2.DrafterDescription(
            incarnation=INCARNATION,
            model="wild",
            fingerprint="wild",
            projection=self.projection,
            vocab_size=128,
            hidden_size=64,
            block_size=7,
            context_length=512,
        )

    async def Session(self, request_iterator: Any, context: Any) -> AsyncIterator[draft_pb2.DraftEvent]:
        self.sessions += 1
        async for command in request_iterator:
            events: list[draft_pb2.DraftEvent] | None
            match command.WhichOneof("command"):
                case "open":
                    events = [draft_pb2.DraftEvent(opened=draft_pb2.Opened(cursor=command.open.cursor))]
                case "release":
                    events = [draft_pb2.DraftEvent(released=draft_pb2.DraftReleased(sequences=1))]
                case _:
                    self.drafts += 1
                    events = self.reply(command)
            if events is None:
                return
            for event in events:
                event.tag = event.tag or command.tag
                event.incarnation = event.incarnation or INCARNATION
                yield event


class Stage:
    """A verifier, a wild drafter, a coordinator between them."""

    def __init__(self, target: Path, drafter: Path) -> None:
        self._target, self._drafter = str(target), str(drafter)
        self._ends: list[Callable[[], Any]] = []

    async def set(self, reply: Reply, **settings: Any) -> tuple[Any, WildDrafter]:
        config = VerifyConfig(target=self._target, drafter=self._drafter, measure_cost=False)
        verifier = await verify_process.start(config)
        wild = WildDrafter(reply, verifier.engine.projection.fingerprint)
        _, port = await self.serve(wild)
        coordinator = await coordinator_process.start(
            CoordinatorConfig(
                verify=(verifier.endpoint,),
                draft=(f"127.0.0.1:{port}",),
                policy="fixed:7",
                **{"warm_up_s": 0.0, **settings},
            )
        )
        self._ends += [lambda: verifier.stop(0.1), lambda: coordinator.stop(0.1)]
        return coordinator, wild

    async def serve(self, wild: WildDrafter) -> tuple[GrpcServer, int]:
        server = GrpcServer(bind="127.0.0.1:0")
        server.add(draft_pb2_grpc.add_DraftServicer_to_server, wild, "dspark.wire.v1.Draft")
        port = await server.start()
        self._ends.append(lambda: server.drain(0.0))
        return server, port

    async def ask(self, coordinator: Any, policy: str = "", tokens: int = 30, **fields: Any) -> tuple[list[int], str]:
        message = generate_pb2.GenerateRequest(
            sampling_params=generate_pb2.SamplingParams(
                temperature=0, max_tokens=tokens, ignore_eos=True, stop=fields.pop("stop", ())
            ),
            speculation=generate_pb2.SpeculationParams(policy=policy),
            **(fields or {"tokenized": generate_pb2.TokenizedInput(input_ids=[3, 17, 42])}),
        )
        channel = open_channel(coordinator.endpoint)
        tokens_got: list[int] = []
        text = ""
        async for response in generate_pb2_grpc.GenerationStub(channel).Generate(message, timeout=30):
            tokens_got += response.chunk.token_ids
            text += response.chunk.text
        await channel.close()
        return tokens_got, text

    async def close(self) -> None:
        for end in reversed(self._ends):
            await end()


@pytest_asyncio.fixture
async def stage(golden_target: Path, golden_drafter: Path) -> AsyncIterator[Stage]:
    stage = Stage(golden_target, golden_drafter)
    yield stage
    await stage.close()


MALFORMED: dict[str, dict[str, Any]] = {
    "an id past the vocabulary": {"token_ids": [128], "confidence": [0.5], "q_entries": [1], "q_ids": b"1234"},
    "no confidence": {"token_ids": [5], "q_entries": [1], "q_ids": b"1234", "q_probs": b"1234"},
    "a confidence that is no number": {"token_ids": [5], "confidence": [float("nan")], "q_entries": [1]},
    "q of another size": {"token_ids": [5], "confidence": [0.5], "q_entries": [2], "q_ids": b"1", "q_probs": b"1"},
    "a column that is missing": {"token_ids": [5], "confidence": [0.5], "lengths": []},
    "no q": {"token_ids": [5], "confidence": [0.5]},
    "more slots than wanted": {
        "token_ids": [5] * 9,
        "confidence": [0.5] * 9,
        "q_entries": [1],
        "q_ids": (5).to_bytes(4, "little") * 9,
        "q_probs": b"\0\0\x80?" * 9,
    },
    "a reason nobody knows": {"empty_reasons": [42]},
}


@pytest.mark.parametrize("what", MALFORMED)
async def test_a_malformed_block_is_an_empty_block(stage: Stage, what: str) -> None:
    coordinator, wild = await stage.set(lambda command: blocks(command, **MALFORMED[what]))
    expected = await stage.ask(coordinator, policy="off", tokens=200)
    assert await stage.ask(coordinator, tokens=200) == expected
    metrics = coordinator.metrics
    assert metrics.value("empty_blocks_total", reason="invalid") == wild.drafts >= MALFORMED_COHORTS
    assert metrics.value("spec_decode_num_accepted_tokens_total") == 0
    if MALFORMED[what].get("token_ids"):  # a block without a slot hurts nobody
        assert wild.sessions > 1, "it was let go and tried again"
        assert wild.drafts <= MALFORMED_COHORTS * wild.sessions
        assert metrics.value("worker_losses_total", pool="draft") >= 1


async def test_one_malformed_block_among_good_ones_costs_that_block(stage: Stage) -> None:
    numbers = itertools.count()

    def reply(command: draft_pb2.DraftCommand) -> list[draft_pb2.DraftEvent]:
        return one_slot(command) if next(numbers) % 2 else blocks(command, **MALFORMED["no q"])

    coordinator, wild = await stage.set(reply)
    expected = await stage.ask(coordinator, policy="off")
    assert await stage.ask(coordinator) == expected
    assert wild.drafts > 2 * MALFORMED_COHORTS
    assert wild.sessions == 1
    assert coordinator.metrics.value("empty_blocks_total", reason="invalid") == (wild.drafts + 1) // 2


async def test_a_q_the_verifier_refuses_costs_a_round_trip_and_no_id(stage: Stage) -> None:
    def reply(command: draft_pb2.DraftCommand) -> list[draft_pb2.DraftEvent]:
        q = {"q_entries": [1], "q_ids": b"\x07\0\0\0", "q_probs": b"\0\0\xc0\x7f"}  # another token, and NaN
        return blocks(command, token_ids=[5], confidence=[0.9], **q)

    coordinator, _ = await stage.set(reply)
    expected = await stage.ask(coordinator, policy="off")
    assert await stage.ask(coordinator) == expected
    assert coordinator.metrics.value("refusals_total", reason="invalid") > 10


async def test_replies_of_another_process_or_to_nobody_are_dropped_and_counted(stage: Stage) -> None:
    def reply(command: draft_pb2.DraftCommand) -> list[draft_pb2.DraftEvent]:
        good = one_slot(command)
        stranger = draft_pb2.DraftEvent(incarnation=5, blocks=good[0].blocks)
        unasked = draft_pb2.DraftEvent(tag=999_999_999, blocks=good[0].blocks)
        return [stranger, unasked, *good, *one_slot(command)]

    coordinator, wild = await stage.set(reply)
    expected = await stage.ask(coordinator, policy="off")
    assert await stage.ask(coordinator) == expected
    metrics = coordinator.metrics
    assert metrics.value("dropped_total", kind="event", reason="wrong_incarnation") == wild.drafts
    assert metrics.value("dropped_total", kind="event", reason="unknown_tag") == 2 * wild.drafts
    assert metrics.value("spec_decode_num_draft_tokens_total") > 0


@pytest.mark.parametrize(
    "reply",
    [
        lambda command: None,
        lambda command: [draft_pb2.DraftEvent(blocks=draft_pb2.Blocks())],
        lambda command: [draft_pb2.DraftEvent(opened=draft_pb2.Opened())],
    ],
    ids=["ends the stream", "too few blocks", "another kind of reply"],
)
async def test_a_drafter_that_breaks_the_protocol_is_let_go_and_tried_again(stage: Stage, reply: Reply) -> None:
    coordinator, wild = await stage.set(reply)
    expected = await stage.ask(coordinator, policy="off", tokens=200)
    assert await stage.ask(coordinator, tokens=200) == expected
    assert wild.sessions > 1
    assert coordinator.metrics.value("worker_losses_total", pool="draft") >= 1


async def test_a_silent_drafter_costs_one_deadline(stage: Stage) -> None:
    coordinator, wild = await stage.set(lambda command: [], draft_deadline_s=0.2, drafter_patience_s=60.0)
    expected = await stage.ask(coordinator, policy="off")
    assert await stage.ask(coordinator) == expected
    assert wild.drafts == 1
    assert coordinator.metrics.value("empty_blocks_total", reason="late") == 1


async def test_a_stale_cursor_is_dropped_and_counted(stage: Stage) -> None:
    def reply(command: draft_pb2.DraftCommand) -> list[draft_pb2.DraftEvent]:
        events = one_slot(command)
        events[0].blocks.cursors.round[0] += 1
        return events

    coordinator, wild = await stage.set(reply)
    expected = await stage.ask(coordinator, policy="off")
    assert await stage.ask(coordinator) == expected
    assert coordinator.metrics.value("dropped_total", kind="block", reason="stale") == wild.drafts > 0


async def test_a_broken_stream_fails_everything_that_waits_at_once(stage: Stage) -> None:
    server, port = await stage.serve(WildDrafter(lambda command: [], "p"))
    channel = open_channel(f"127.0.0.1:{port}")
    losses: list[str] = []
    said = await draft_pb2_grpc.DraftStub(channel).Describe(types_pb2.DescribeRequest(), timeout=5)
    client = DrafterClient(drafter_facts("draft/0", "x:1", said), channel, None, Metrics(), losses.append)
    cursor = Cursor(1, 0, 1, 5)
    assert await client.open(cursor, 10, Law()) is None
    waiting = [client.draft([DraftOrder(cursor, 3, Law(), 7)], 0) for _ in range(50)]
    await asyncio.sleep(0.05)
    await server.drain(0.0)
    async with asyncio.timeout(5.0):  # what is lost is known by its broken stream
        results = await asyncio.gather(*waiting, return_exceptions=True)
    assert {type(each) for each in results} == {Lost}
    assert len(losses) == 1
    with pytest.raises(Lost):
        await client.open(cursor, 10, Law())
    await client.session.ended()
    await channel.close()


async def test_text_in_and_text_out(stage: Stage, tmp_path: Path) -> None:
    words = [f"{a}{b}" for a, b in itertools.product("abcdefgh", "ijklmnopqrstuvwx")][:127]
    backend = Backend(models.WordLevel({word: index for index, word in enumerate([*words, "?"])}, unk_token="?"))
    backend.pre_tokenizer = pre_tokenizers.Whitespace()
    backend.save(str(tmp_path / "tokenizer.json"))
    coordinator, _ = await stage.set(one_slot, target=str(tmp_path))
    prompt = f"{words[3]} {words[17]} {words[42]}"
    ids, text = await stage.ask(coordinator, text=prompt)
    assert ids == (await stage.ask(coordinator))[0]
    assert text == " " + backend.decode(ids)  # the answer goes on where the prompt stopped
    stop = text[60:65]
    cut_ids, cut_text = await stage.ask(coordinator, text=prompt, stop=[stop])
    assert cut_text == text[: text.index(stop)]
    assert cut_ids == ids[: len(cut_ids)]
    assert stop in backend.decode(cut_ids)
    assert stop not in backend.decode(cut_ids[:-1])
