"""A verifier over loopback: what it says of itself, caches of each request, scarce pages, and
coordinators that fall silent or talk nonsense."""

import asyncio
import contextlib
import threading
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import grpc
import pytest
import torch

from dspark.rounds.control import Admission
from dspark.rounds.events import Acknowledged, Admit, GoneReason
from dspark.rounds.plan import Plan, PlanKind
from dspark.runtime import backlog, cost_store
from dspark.runtime.aio_call import ending_as_told
from dspark.runtime.channel import open_channel
from dspark.types import SamplingParams
from dspark.wire.control_down import write_down
from dspark.wire.v1 import types_pb2, verify_pb2, verify_pb2_grpc
from tests.conductor import Answer, Conductor, conducting, planned
from tests.faults.oracle import plain_greedy
from tests.services.cell import Cell, ended
from tests.waiting import until

GREEDY = SamplingParams(temperature=0.0)
PROMPT = [3, 17, 90, 41, 5, 66, 12, 101, 33, 8, 77]


async def described(process: Any) -> Any:
    async with open_channel(process.endpoint) as channel:
        return await verify_pb2_grpc.VerifyStub(channel).Describe(types_pb2.DescribeRequest())


async def test_per_request_caches_give_the_same_tokens(cell: Cell, golden_target: Path) -> None:
    (expected,) = plain_greedy(golden_target, [PROMPT], 40)
    v = await cell.verifier(attention="stateful", prefill_chunk=4)
    said = await described(v)
    assert said.attention_path == "stateful"
    assert said.attention_reason == "asked for by configuration"
    async with conducting(v, planned(PlanKind.FIXED, 3)) as conductor:
        conductor.know(1, await cell.drafter())
        asked = [conductor.ask(PROMPT, GREEDY, 40, drafter=1) for _ in range(2)]
        assert await conductor.tokens(*asked) == [expected, expected]
        assert sum(each.verified for answer in asked for each in answer.rounds) > 0


class _Forgiving(list[Any]):
    """Remembers no refusal."""

    def append(self, refused: Any) -> None:
        pass


async def test_pages_run_out_and_the_youngest_begin_again(cell: Cell, golden_target: Path) -> None:
    prompts = [PROMPT[number:] for number in range(5)]
    v = await cell.verifier(kv_tokens=256)
    async with conducting(v, planned(PlanKind.FIXED, 3, window=2)) as conductor:
        conductor.know(1, await cell.drafter())
        asked = [conductor.ask(prompt, GREEDY, 60, drafter=1) for prompt in prompts]
        for answer in asked:  # whose prompt found no page comes again
            answer.refused = _Forgiving()
        assert await conductor.tokens(*asked) == plain_greedy(golden_target, prompts, 60)
        assert any(each.why is GoneReason.OUT_OF_PAGES for each in conductor.released)


async def test_what_it_says_of_itself_and_the_stored_cost_curve(
    cell: Cell, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(cost_store, "OTHERS", float("inf"))  # other tests run beside this one
    settings = {"measure_cost": True, "cost_max_tokens": 4, "kv_tokens": 4096}
    v = await cell.verifier(**settings)
    said = await described(v)
    assert (said.incarnation, said.vocab_size, said.hidden_size) == (v.incarnation, 128, 64)
    assert (said.attention_path, said.dtype) == ("paged", "float32")
    assert said.feature_dtype == "bfloat16"
    assert list(said.stop_token_ids) == [1]
    assert len(said.fingerprint) == 16
    assert said.projection.startswith("dspark:0,1,2,3,4:")
    measured = said.cost
    assert said.cost.source == "measured"
    assert (list(measured.tokens), list(measured.contexts)) == ([1, 2, 3, 4], [128])
    assert v.engine.held.pages_held == 0, "what was held for timing is given back"
    said = await described(await cell.verifier(**settings))
    assert said.cost.source == "stored"
    assert said.cost.seconds == measured.seconds


@pytest.mark.parametrize("said", [{"threads": 2}, {}])
async def test_several_threads_are_those_of_passes_alone(
    cell: Cell, monkeypatch: pytest.MonkeyPatch, said: dict[str, int]
) -> None:
    # what counts where no setting says it
    monkeypatch.setenv("OMP_NUM_THREADS", "1" if said else "2")
    v = await cell.verifier(**said)
    assert await v.passes.run(torch.get_num_threads) == 2
    assert await v.device.run(torch.get_num_threads) == 1
    d = await cell.drafter(**said)
    assert await d.device.run(torch.get_num_threads) == 2


@pytest.fixture
async def conductor(v: Any) -> AsyncIterator[Conductor]:
    async with conducting(v, planned(PlanKind.OFF, 0, window=2)) as made:
        yield made


@pytest.fixture
async def raw(v: Any) -> AsyncIterator[Any]:
    """A control stream, message by message."""
    async with open_channel(v.endpoint) as channel:
        stub = verify_pb2_grpc.VerifyStub(channel)
        yield ending_as_told(stub.Control())


async def answered(conductor: Conductor, answer: Answer) -> None:
    """It ends with the target's tokens, and nothing is held any more."""
    engine = conductor.verifier.engine
    target = Path(engine.config.target)
    assert await conductor.tokens(answer) == plain_greedy(target, [answer.prompt], answer.room)
    await until(lambda: engine.held.sequences == 0)


def admission(number: int, room: int = 100) -> Admission:
    return Admission(Admit(number, 0, 2, room), [5, 6], GREEDY, 2 + room, False)


@pytest.mark.parametrize(
    ("message", "field"),
    [
        (verify_pb2.ControlDown(orders=[{"plan": {"cohorts": 3}}]), "plan.cohorts"),
        (
            verify_pb2.ControlDown(orders=[{"admission": {"token_ids": [1] * 9_000_000}}]),
            "token_ids",
        ),
    ],
    ids=["plan", "large"],
)
async def test_a_coordinator_that_talks_nonsense_loses_its_stream_and_nobody_elses(
    v: Any, conductor: Conductor, raw: Any, message: verify_pb2.ControlDown, field: str
) -> None:
    other = conductor.ask([5, 6], GREEDY, 300)
    await raw.write(write_down(v.incarnation, [Plan(window=2), admission(1 << 40)]))
    await until(lambda: v.engine.held.sequences == 2)
    message.incarnation = v.incarnation
    await raw.write(message)
    code, why = await ended(raw)
    assert (code, why.split(":")[0]) == (grpc.StatusCode.INVALID_ARGUMENT, field)
    await until(lambda: v.engine.held.sequences <= 1)
    await answered(conductor, other)


async def test_a_coordinator_that_says_more_than_is_heard_loses_its_stream(
    v: Any, raw: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """By its bytes, long before its messages are too many."""
    monkeypatch.setattr(backlog, "BYTES", 1 << 14)
    go_on = threading.Event()
    v.device.post(lambda: go_on.wait(20), asyncio.get_running_loop())
    # a byte a token
    asked = Admission(Admit(1, 0, 400, 10), [1] * 400, GREEDY, 410, False)
    large = write_down(v.incarnation, [asked])
    with contextlib.suppress(grpc.aio.AioRpcError, asyncio.InvalidStateError):
        for _ in range(1000):  # more than wait in a connection
            await raw.write(large)
    go_on.set()
    assert (await ended(raw))[0] is grpc.StatusCode.RESOURCE_EXHAUSTED


async def test_orders_for_another_process_end_the_stream(v: Any, raw: Any) -> None:
    await raw.write(write_down(5, [admission(1)]))
    assert (await ended(raw))[0] is grpc.StatusCode.UNAVAILABLE
    assert v.engine.held.sequences == 0


@pytest.mark.parametrize("v", [{"lease_s": 0.4}], indirect=True, ids=["short lease"])
async def test_a_silent_coordinator_loses_its_sequences_and_one_with_nothing_to_say_does_not(
    v: Any, raw: Any
) -> None:
    await raw.write(write_down(v.incarnation, [Plan(window=2), admission(1)]))
    await until(lambda: v.engine.held.sequences == 1)
    code, why = await ended(raw)
    assert (code, why.split(":")[0]) == (grpc.StatusCode.UNAVAILABLE, "lease")
    await until(lambda: v.engine.held.sequences == 0)
    async with conducting(v, planned(PlanKind.OFF, 0)) as conductor:
        conductor.holds_back = True
        answer = conductor.ask([5, 6], GREEDY, 30)
        await until(lambda: answer.tokens)
        await asyncio.sleep(1.2)
        conductor.holds_back = False
        conductor.port.tell([Acknowledged(1, 0, 0)])
        await answered(conductor, answer)


async def test_what_comes_late_or_for_nobody_changes_nothing(v: Any, conductor: Conductor) -> None:
    answer = conductor.ask([5, 6], GREEDY, 60)
    for through in (5000, 0, 1):
        conductor.port.tell(
            [Acknowledged(1, 0, through), Acknowledged(1, 9, 0), Acknowledged(1 << 50, 0, 0)]
        )
    await answered(conductor, answer)
    reason = "acknowledgement_of_a_gone_sequence"
    assert v.metrics.value("dropped_total", kind="rounds", reason=reason) >= 6, "and it is counted"
