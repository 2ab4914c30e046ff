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
from dspark.runtime.channel import open_channel
from dspark.runtime.server import GrpcServer
from dspark.wire.v1 import draft_pb2, draft_pb2_grpc, generate_pb2, generate_pb2_grpc, types_pb2
from verify_service import process as verify_process
from verify_service.config import VerifyConfig
from verify_service.drafters import MALFORMED_ORDERS

pytestmark = pytest.mark.services

INCARNATION = 77
Reply = Callable[[draft_pb2.Order], list[draft_pb2.RoundsEvent] | None]


def blocks(order: draft_pb2.Order, /, **fields: Any) -> list[draft_pb2.RoundsEvent]:
    """One block with these fields for an order of one, with columns that fit unless told otherwise."""
    slots = len(fields.get("token_ids", ()))
    columns = {
        "order": order.order,
        "lengths": [slots],
        "q_entries": [0],
        "empty_reasons": [0],
        "watermarks": [order.committed_len[0] - 1],
        **fields,
    }
    return [draft_pb2.RoundsEvent(blocks=draft_pb2.Blocks(forward_ns=1000, **columns))]


def one_slot(order: draft_pb2.Order, /, token: int = 5, **fields: Any) -> list[draft_pb2.RoundsEvent]:
    """A well-formed block of one token."""
    q = {"q_entries": [1], "q_ids": token.to_bytes(4, "little"), "q_probs": b"\0\0\x80?"}
    return blocks(order, token_ids=[token], confidence=[0.9], **q, **fields)


class WildDrafter(draft_pb2_grpc.DraftServicer):
    """Answers orders as told, and everything else as it should. None ends the stream; [] stays silent."""

    def __init__(self, reply: Reply, projection: str) -> None:
        self.reply, self.projection = reply, projection
        self.streams = self.drafts = self.opened = 0

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

    async def Watch(self, request: Any, context: Any) -> AsyncIterator[types_pb2.Draining]:
        await asyncio.Event().wait()
        yield types_pb2.Draining()

    async def Rounds(self, request_iterator: Any, context: Any) -> AsyncIterator[draft_pb2.RoundsEvent]:
        self.streams += 1
        async for command in request_iterator:
            events: list[draft_pb2.RoundsEvent] | None = []
            match command.WhichOneof("command"):
                case "hello":
                    welcome = draft_pb2.RoundsWelcome(incarnation=INCARNATION, drafter_version="wild")
                    events = [draft_pb2.RoundsEvent(welcome=welcome)]
                case "open":
                    self.opened += 1
                    opened = draft_pb2.ContextOpened(sequence=command.open.sequence, epoch=command.open.epoch)
                    events = [draft_pb2.RoundsEvent(opened=opened)]
                case "order":
                    self.drafts += 1
                    events = self.reply(command.order)
            if events is None:
                return
            for event in events:
                yield event


class Stage:
    """A verifier, a wild drafter, a coordinator between them."""

    def __init__(self, target: Path, drafter: Path) -> None:
        self._target, self._drafter = str(target), str(drafter)
        self._ends: list[Callable[[], Any]] = []
        self.ends: dict[str, Callable[[], Any]] = {}

    async def set(self, reply: Reply, verify: dict[str, Any] | None = None, **settings: Any) -> tuple[Any, WildDrafter]:
        config = VerifyConfig(target=self._target, drafter=self._drafter, measure_cost=False, **(verify or {}))
        self.verifier = verifier = await verify_process.start(config)
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
        self.ends["drafter"] = lambda: server.drain(0.0)
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

    async def until(self, condition: Callable[[], bool], coordinator: Any) -> None:
        """Asks and asks, until it is so."""
        async with asyncio.timeout(30.0):
            while not condition():
                await self.ask(coordinator)

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
    coordinator, wild = await stage.set(lambda order: blocks(order, **MALFORMED[what]))
    expected = await stage.ask(coordinator, policy="off", tokens=200)
    assert await stage.ask(coordinator, tokens=200) == expected
    assert coordinator.metrics.value("spec_decode_num_accepted_tokens_total") == 0
    if not MALFORMED[what].get("token_ids"):  # a block without a slot hurts nobody
        assert coordinator.metrics.value("empty_blocks_total", reason="invalid") == wild.drafts > MALFORMED_ORDERS
        return
    assert stage.verifier.metrics.value("dropped_total", kind="block", reason="malformed") > 0
    await stage.until(lambda: wild.streams > 1, coordinator)
    assert wild.drafts <= MALFORMED_ORDERS * wild.streams, "it was let go and tried again"


async def test_one_malformed_block_among_good_ones_costs_that_block(stage: Stage) -> None:
    numbers = itertools.count()

    def reply(order: draft_pb2.Order) -> list[draft_pb2.RoundsEvent]:
        return one_slot(order) if next(numbers) % 2 else blocks(order, **MALFORMED["no q"])

    coordinator, wild = await stage.set(reply)
    expected = await stage.ask(coordinator, policy="off")
    assert await stage.ask(coordinator) == expected
    assert wild.drafts > 2 * MALFORMED_ORDERS
    assert wild.streams == 1
    told = coordinator.metrics.value("empty_blocks_total", reason="invalid")
    assert wild.drafts // 2 <= told <= wild.drafts // 2 + 2


async def test_a_q_that_is_none_costs_its_block_and_no_id(stage: Stage) -> None:
    def reply(order: draft_pb2.Order) -> list[draft_pb2.RoundsEvent]:
        q = {"q_entries": [1], "q_ids": b"\x07\0\0\0", "q_probs": b"\0\0\xc0\x7f"}  # another token, and NaN
        return blocks(order, token_ids=[5], confidence=[0.9], **q)

    coordinator, _ = await stage.set(reply)
    expected = await stage.ask(coordinator, policy="off")
    assert await stage.ask(coordinator) == expected
    assert coordinator.metrics.value("empty_blocks_total", reason="invalid") > 0


def ends_the_stream(order: draft_pb2.Order) -> None:
    """Says nothing more."""


@pytest.mark.parametrize(
    "reply",
    [
        ends_the_stream,
        lambda order: [draft_pb2.RoundsEvent(blocks=draft_pb2.Blocks(order=order.order))],
        lambda order: [draft_pb2.RoundsEvent()],
        lambda order: one_slot(order, order=999_999),
        lambda order: [*one_slot(order), *one_slot(order)],
        lambda order: [
            draft_pb2.RoundsEvent(welcome=draft_pb2.RoundsWelcome(incarnation=5, drafter_version="another"))
        ],
    ],
    ids=["ends the stream", "too few blocks", "nothing", "to nobody's order", "twice", "another process"],
)
async def test_a_drafter_that_breaks_the_protocol_is_let_go_and_tried_again(stage: Stage, reply: Reply) -> None:
    coordinator, wild = await stage.set(reply)
    expected = await stage.ask(coordinator, policy="off", tokens=200)
    assert await stage.ask(coordinator, tokens=200) == expected
    await stage.until(lambda: wild.streams > 1, coordinator)
    malformed = stage.verifier.metrics.value("dropped_total", kind="block", reason="malformed")
    assert (malformed > 0) is (reply is not ends_the_stream)


async def test_a_silent_drafter_costs_one_deadline(stage: Stage) -> None:
    patient = {"draft_deadline_s": 0.2, "drafter_patience_s": 60.0}
    coordinator, wild = await stage.set(lambda order: [], patient)
    expected = await stage.ask(coordinator, policy="off")
    assert await stage.ask(coordinator) == expected
    assert wild.drafts == 1
    assert coordinator.metrics.value("empty_blocks_total", reason="drafter_late") > 0


async def test_a_drafter_that_forgot_a_context_gets_it_again(stage: Stage) -> None:
    def reply(order: draft_pb2.Order) -> list[draft_pb2.RoundsEvent]:
        if wild.opened == 1:
            return blocks(order, empty_reasons=[draft_pb2.EMPTY_REASON_UNKNOWN_SEQUENCE], watermarks=[0])
        return one_slot(order)

    coordinator, wild = await stage.set(reply)
    expected = await stage.ask(coordinator, policy="off")
    assert await stage.ask(coordinator) == expected
    assert (wild.opened, wild.streams) == (2, 1)
    assert coordinator.metrics.value("spec_decode_num_drafts_total") > 3


async def test_a_lost_drafter_is_known_by_its_broken_stream(stage: Stage) -> None:
    coordinator, _ = await stage.set(one_slot)
    await stage.ask(coordinator)
    assert coordinator.membership.drafters
    await stage.ends["drafter"]()
    async with asyncio.timeout(5.0):  # no deadline is this short
        while coordinator.membership.drafters:  # noqa: ASYNC110  it rings no wakeup
            await asyncio.sleep(0.01)
    assert coordinator.metrics.value("worker_losses_total", pool="draft") == 1


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
