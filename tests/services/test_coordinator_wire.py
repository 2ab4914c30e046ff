"""What a drafter may do wrong on the wire, against a real verifier: it costs speed, never an id."""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import AsyncIterator, Callable
from contextlib import AsyncExitStack
from pathlib import Path
from typing import Any

import pytest
import pytest_asyncio
import workers
from fake_drafter import LIES, FakeDrafter, Reply, Said, sound
from tokenizers import Tokenizer as Backend
from tokenizers import models, pre_tokenizers

from dspark.runtime.channel import open_channel
from dspark.wire.v1 import draft_pb2, generate_pb2, generate_pb2_grpc
from verify_service.drafters import MALFORMED_ORDERS

pytestmark = pytest.mark.services


class Stage:
    """A verifier, a wild drafter, a coordinator between them."""

    def __init__(self, ends: AsyncExitStack, target: Path, drafter: Path) -> None:
        self._start, self._pair = ends.enter_async_context, (target, drafter)
        self.verifier: Any = None

    async def set(self, reply: Reply, verify: dict[str, Any] | None = None, **settings: Any) -> tuple[Any, FakeDrafter]:
        self.verifier = await self._start(workers.verifier(*self._pair, grace_s=0.1, **(verify or {})))
        drafter = await self._start(FakeDrafter(reply, self.verifier.engine.projection.fingerprint))
        told = {"verify": (self.verifier.endpoint,), "draft": (drafter.endpoint,), "policy": "fixed:7"}
        coordinator = await self._start(workers.coordinator(grace_s=0.1, **told, **{"warm_up_s": 0.0, **settings}))
        return coordinator, drafter

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


@pytest_asyncio.fixture
async def stage(golden_target: Path, golden_drafter: Path) -> AsyncIterator[Stage]:
    async with AsyncExitStack() as ends:
        yield Stage(ends, golden_target, golden_drafter)


MALFORMED = {
    **{
        what: LIES[what]
        for what in (
            "too few rows",
            "columns that do not fit",
            "an id beyond the vocabulary",
            "a confidence that is none",
            "more slots than were asked for",
            "no distributions",
            "bytes that are missing",
        )
    },
    "a reason nobody knows": lambda order: [empty(order, empty_reasons=[42])],
}


def empty(order: draft_pb2.Order, **changes: Any) -> draft_pb2.Blocks:
    """A block without a slot."""
    none = dict.fromkeys(("token_ids", "confidence"), ()) | dict.fromkeys(("q_ids", "q_probs"), b"")
    return sound(order, **{**none, "lengths": [0], "q_entries": [0], **changes})


@pytest.mark.parametrize("what", MALFORMED)
async def test_a_malformed_block_is_an_empty_block(stage: Stage, what: str) -> None:
    coordinator, wild = await stage.set(MALFORMED[what])
    expected = await stage.ask(coordinator, policy="off", tokens=200)
    assert await stage.ask(coordinator, tokens=200) == expected
    assert coordinator.metrics.value("spec_decode_num_accepted_tokens_total") == 0
    if what == "a reason nobody knows":  # a block without a slot hurts nobody
        assert coordinator.metrics.value("empty_blocks_total", reason="invalid") == wild.orders > MALFORMED_ORDERS
        return
    assert stage.verifier.metrics.value("dropped_total", kind="block", reason="malformed") > 0
    await stage.until(lambda: wild.streams > 1, coordinator)
    assert wild.orders <= MALFORMED_ORDERS * wild.streams, "it was let go and tried again"


async def test_one_malformed_block_among_good_ones_costs_that_block(stage: Stage) -> None:
    numbers = itertools.count()

    def reply(order: draft_pb2.Order) -> list[Said] | None:
        return [sound(order)] if next(numbers) % 2 else LIES["no distributions"](order)

    coordinator, wild = await stage.set(reply)
    expected = await stage.ask(coordinator, policy="off")
    assert await stage.ask(coordinator) == expected
    assert wild.orders > 2 * MALFORMED_ORDERS
    assert wild.streams == 1
    told = coordinator.metrics.value("empty_blocks_total", reason="invalid")
    assert wild.orders // 2 <= told <= wild.orders // 2 + 2


async def test_a_q_that_is_none_costs_its_block_and_no_id(stage: Stage) -> None:
    coordinator, _ = await stage.set(LIES["chances that are none"])
    expected = await stage.ask(coordinator, policy="off")
    assert await stage.ask(coordinator) == expected
    assert coordinator.metrics.value("empty_blocks_total", reason="invalid") > 0


def ends_the_stream(order: draft_pb2.Order) -> None:
    """Says nothing more."""


@pytest.mark.parametrize(
    "reply",
    [
        ends_the_stream,
        lambda order: [draft_pb2.Blocks(order=order.order)],
        LIES["nothing at all"],
        LIES["an order that nobody gave"],
        LIES["twice"],
        lambda order: [draft_pb2.RoundsWelcome(incarnation=5, drafter_version="another")],
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
    assert wild.orders == 1
    assert coordinator.metrics.value("empty_blocks_total", reason="drafter_late") > 0


async def test_a_drafter_that_forgot_a_context_gets_it_again(stage: Stage) -> None:
    def reply(order: draft_pb2.Order) -> list[Said]:
        forgot = {"empty_reasons": [draft_pb2.EMPTY_REASON_UNKNOWN_SEQUENCE], "watermarks": [0]}
        return [empty(order, **forgot) if wild.opened == 1 else sound(order)]

    coordinator, wild = await stage.set(reply)
    expected = await stage.ask(coordinator, policy="off")
    assert await stage.ask(coordinator) == expected
    assert (wild.opened, wild.streams) == (2, 1)
    assert coordinator.metrics.value("spec_decode_num_drafts_total") > 3


async def test_a_lost_drafter_is_known_by_its_broken_stream(stage: Stage) -> None:
    coordinator, drafter = await stage.set(LIES["honest"])
    await stage.ask(coordinator)
    assert coordinator.membership.drafters
    await drafter.__aexit__()
    async with asyncio.timeout(5.0):  # no deadline is this short
        while coordinator.membership.drafters:  # noqa: ASYNC110  it rings no wakeup
            await asyncio.sleep(0.01)
    assert coordinator.metrics.value("worker_losses_total", pool="draft") == 1


async def test_text_in_and_text_out(stage: Stage, tmp_path: Path) -> None:
    words = [f"{a}{b}" for a, b in itertools.product("abcdefgh", "ijklmnopqrstuvwx")][:127]
    backend = Backend(models.WordLevel({word: index for index, word in enumerate([*words, "?"])}, unk_token="?"))
    backend.pre_tokenizer = pre_tokenizers.Whitespace()
    backend.save(str(tmp_path / "tokenizer.json"))
    coordinator, _ = await stage.set(LIES["honest"], target=str(tmp_path))
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
