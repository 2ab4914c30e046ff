"""Front ends before one coordinator: the same answers, and what happens when either side goes."""

import asyncio
import contextlib
import json
from collections.abc import AsyncIterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import grpc
import pytest
import structlog

from coordinator.answers.output_queue import OutputQueue
from coordinator.cells.cell import SubmitRequest
from coordinator.frontend import front_end, remote_cell
from coordinator.requests.request import Request
from dspark.client import AsyncClient, Chunk, Completion
from dspark.client.request import write_request
from dspark.errors import ConfigError, InvalidRequest, Overloaded, Unavailable
from dspark.rounds.policy import Off
from dspark.runtime.channel import auth_metadata, open_channel
from dspark.types import SamplingParams
from dspark.wire.v1 import frontend_pb2, frontend_pb2_grpc, generate_pb2, generate_pb2_grpc
from tests.commands import DSPARK
from tests.faults.pair import FLAT
from tests.keys import token_files
from tests.services import workers
from tests.services.cell import Cell, ended, health, says, standing_in
from tests.services.http_cell import TARGET, synthetic_pair
from tests.waiting import until

GENERATION = "dspark.wire.v1.Generation"


@pytest.fixture
async def cell(tmp_path: Path, request: pytest.FixtureRequest) -> AsyncIterator[Cell]:
    async with Cell(pair=synthetic_pair(tmp_path), shared={"target": str(TARGET)}) as made:
        await made.whole(verify={"max_sequences": 8192}, **getattr(request, "param", {}))
        yield made
        await made.freed()


def said(one: Completion) -> list[Any]:
    """What a client is told of an answer, its times and rounds aside."""
    choices = [
        (each.index, each.text, each.token_ids, each.finish_reason, each.matched_stop)
        for each in one.choices
    ]
    end = one.end
    return [one.text, one.token_ids, end.finish_reason, end.matched_stop, end.usage, choices]


async def test_an_answer_is_the_same_through_a_front_end_of_its_own(cell: Cell) -> None:
    near, far = cell.client(cell.serving), cell.client(await cell.frontend())
    assert await near.model_info() == await far.model_info()
    whole = await near.complete("Grüße, ", max_tokens=40, seed=10, temperature=0.0)
    asked: list[dict[str, Any]] = [
        {"seed": 6, "temperature": 0.0},
        {"seed": 7},
        {"seed": 8, "n": 3},
        {"seed": 9, "policy": "off", "top_p": 0.9, "presence_penalty": 0.5},
        {"seed": 10, "temperature": 0.0, "stop_token_ids": [whole.token_ids[9]]},
    ]
    for options in asked:
        one = await near.complete("Grüße, ", max_tokens=40, **options)
        other = await far.complete("Grüße, ", max_tokens=40, **options)
        assert said(one) == said(other), options
        assert other.end.speculation.rounds > 0
        times = other.end.timings
        assert times.total_ms >= times.ttft_ms >= times.queue_ms >= 0


async def test_a_stop_string_is_matched_in_front_and_frees_the_sequence(cell: Cell) -> None:
    frontend = await cell.frontend()
    near, far = cell.client(cell.serving), cell.client(frontend)
    whole = await near.complete("abc", max_tokens=400, seed=5)
    stop = whole.text[20:24]
    for client in (near, far):
        cut = await client.complete("abc", max_tokens=10_000, seed=5, stop=[stop])
        assert cut.text == whole.text[: whole.text.index(stop)]
        assert (cut.end.finish_reason, cut.end.matched_stop) == ("stop", stop)
        assert cut.end.usage.completion_tokens == len(cut.token_ids)
        assert cut.token_ids == whole.token_ids[: len(cut.token_ids)]
        assert 1 + cut.end.speculation.accepted_tokens + cut.end.speculation.rounds >= len(
            cut.token_ids
        )
        await cell.freed()
    assert cell.serving.metrics.value("requests_total", outcome="stop") == 2


@pytest.mark.parametrize("far", [False, True])
async def test_who_is_cut_at_its_deadline_by_its_own_grpc_has_not_gone_away(
    cell: Cell, far: bool
) -> None:
    process = await cell.frontend() if far else cell.serving
    asked = write_request([1, 2], {"max_tokens": 9000, "ignore_eos": True})
    stub = generate_pb2_grpc.GenerationStub(cell.client(process)._channel)
    for reads_for_s, outcome in ((0.95, "expired"), (0.3, "cancelled")):
        call = stub.Generate(asked, timeout=1.0)
        await call.read()
        await asyncio.sleep(reads_for_s)
        call.cancel()
        await cell.freed()
        assert cell.serving.metrics.value("requests_total", outcome=outcome) == 1


@pytest.mark.parametrize("cell", [{"max_running": 1, "max_queued": 1}], indirect=True, ids=["few"])
async def test_errors_of_admission_come_back_unchanged(cell: Cell) -> None:
    frontend = await cell.frontend()
    near, far = cell.client(cell.serving), cell.client(frontend)
    held = [
        asyncio.create_task(far.complete([1, 2], max_tokens=9000, request_id=f"held-{number}"))
        for number in range(2)
    ]
    await until(lambda: cell.running == 2)
    for client in (near, far):
        with pytest.raises(Overloaded, match="wait already") as refused:
            await client.complete([1, 2], max_tokens=4)
        assert refused.value.retry_after_s > 0
    assert cell.serving.metrics.value("admission_rejections_total", reason="queue_full") == 2
    assert set(await far.abort(["held-0", "held-1", "unknown"])) == {"held-0", "held-1"}
    assert [(await one).end.finish_reason for one in held] == ["abort", "abort"]
    for client in (near, far):
        with pytest.raises(InvalidRequest) as invalid:
            await client.complete([1, 9999], max_tokens=4)
        assert invalid.value.field == "tokenized.input_ids"


async def test_without_a_verifier_it_is_unavailable() -> None:
    async with workers.coordinator() as alone, AsyncClient(alone.endpoint) as client:
        with pytest.raises(Unavailable, match="no verifier is connected"):
            await client.complete([1, 2], max_tokens=4)


async def test_ids_are_unique_in_the_cell_and_any_front_end_aborts(cell: Cell) -> None:
    first, second = await cell.frontend(), await cell.frontend(name="frontend/1")
    one, other = cell.client(first), cell.client(second)
    running = asyncio.create_task(one.complete([1, 2], max_tokens=9000, request_id="mine"))
    await until(lambda: cell.running)
    with pytest.raises(InvalidRequest, match="running request has this id"):
        await other.complete([1, 2], max_tokens=4, request_id="mine")
    names = [process.name for process in (await cell.client(cell.serving).status()).processes]
    assert {"frontend/0", "frontend/1"} <= set(names)
    await until(lambda: cell.serving.metrics.value("generation_tokens_total"))
    assert await other.abort(["mine"]) == ("mine",)
    answer = await running
    assert answer.end.finish_reason == "abort"
    assert answer.end.usage.completion_tokens == len(answer.token_ids) > 0


@contextlib.asynccontextmanager
async def running(*words: str) -> AsyncIterator[tuple[asyncio.subprocess.Process, str]]:
    """A process of its own and its endpoint."""
    command, unread = [*DSPARK, "serve", *words, "--ready-json"], asyncio.subprocess.DEVNULL
    process = await asyncio.create_subprocess_exec(
        *command, stdout=asyncio.subprocess.PIPE, stderr=unread
    )
    assert process.stdout is not None
    try:
        line = await asyncio.wait_for(process.stdout.readline(), 60)
        yield process, json.loads(line)["endpoint"]
    finally:
        with contextlib.suppress(ProcessLookupError):
            process.kill()
        await process.wait()


async def test_a_front_end_that_is_killed_leaves_nothing_behind(cell: Cell) -> None:
    survivor = cell.client(await cell.frontend(name="frontend/1"))
    words = ("frontend", "--coordinator", cell.serving.endpoint)
    async with running(*words) as (process, endpoint), AsyncClient(endpoint) as client:
        tasks = [asyncio.create_task(client.complete([n, 2], max_tokens=9000)) for n in range(8)]
        await until(lambda: cell.running == 8)
        kept = asyncio.create_task(survivor.complete([1, 2], max_tokens=100))
        await until(lambda: cell.running == 9 or kept.done())
        process.kill()
        await kept
        ends = await asyncio.gather(*tasks, return_exceptions=True)
    assert all(isinstance(end, Unavailable) for end in ends)
    await cell.freed()
    assert cell.serving.metrics.value("requests_total", outcome="cancelled") == 8


async def test_a_killed_coordinator_ends_streams_with_their_offset_and_another_one_is_found(
    cell: Cell,
) -> None:
    await cell.serving.stop(0.0)
    words = ["coordinator", "--metrics-port", "none", "--verify", cell.verifiers[0].endpoint]
    async with running(*words) as (process, endpoint):
        frontend = await cell.frontend(coordinator=endpoint)
        client = cell.client(frontend)
        stream, tokens = client.generate([1, 2], max_tokens=9000), 0
        with pytest.raises(Unavailable) as broken:  # noqa: PT012
            async for event in stream:
                tokens += len(event.token_ids) if isinstance(event, Chunk) else 0
                if tokens > 20:
                    process.kill()
        assert f"offset {tokens}" in str(broken.value)
        with pytest.raises(Unavailable, match="not attached"):
            await client.complete([1, 2], max_tokens=4)
        assert await health(frontend, GENERATION) == "not_serving"
        await process.wait()
    async with running(*words, "--bind", endpoint):
        await says(frontend, GENERATION, "serving")
        assert len((await client.complete([1, 2], max_tokens=4)).token_ids) == 4


async def test_a_client_that_does_not_read_is_cut_and_its_neighbours_go_on(cell: Cell) -> None:
    frontend = await cell.frontend()
    neighbour = asyncio.create_task(cell.client(frontend).complete([5, 6], max_tokens=200))
    message = generate_pb2.GenerateRequest(request_id="slow")
    request = Request("slow", (1, 2), SamplingParams(), 256, Off())
    sink = OutputQueue(4)
    frontend.cell.submit(
        SubmitRequest(message, request, asyncio.get_running_loop().time(), 30.0), sink
    )
    await until(lambda: frontend.metrics.value("slow_readers_cut_total"))
    taken = await sink.take()
    assert taken is not None
    assert len(taken) == 4
    with pytest.raises(Overloaded, match="reads too slowly"):
        await sink.take()
    assert len((await neighbour).token_ids) == 200
    await cell.freed()
    assert cell.serving.metrics.value("requests_total", outcome="slow_reader") == 1


async def test_chunks_may_be_held_back_and_lose_nothing(cell: Cell) -> None:
    prompt, options = "abc", {"max_tokens": 100, "seed": 4, "policy": "off"}
    whole = await cell.client(cell.serving).complete(prompt, **options)
    async with cell.client(await cell.frontend(chunk_interval_ms=60.0)).generate(
        prompt, **options
    ) as stream:
        events = [event async for event in stream]
    chunks = [event for event in events if isinstance(event, Chunk)]
    assert len(chunks) < 50
    assert said(Completion.of(events)) == said(whole)


async def test_a_full_front_end_says_so_and_a_client_that_goes_frees_its_sequences(
    cell: Cell,
) -> None:
    frontend = await cell.frontend(max_streams=1)
    client = cell.client(frontend)
    async with client.generate([1, 2], max_tokens=9000, n=2) as stream:
        assert isinstance(await anext(aiter(stream)), Chunk)
        assert cell.running == 2
        with pytest.raises(Overloaded, match="open at this front end"):
            await client.complete([1, 2], max_tokens=4)
    await cell.freed()
    assert cell.serving.metrics.value("requests_total", outcome="cancelled") == 2
    assert frontend.metrics.value("client_streams") == 0


@pytest.mark.parametrize("far", [False, True])
async def test_who_asks_again_while_it_stops_is_refused_in_words(
    cell: Cell, far: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also who asks in the moment in which the last answer ends, and with it the server."""
    process = await cell.frontend() if far else cell.serving
    done: list[Completion] = []

    async def ask() -> None:
        client = cell.client(process)
        while True:
            done.append(await client.complete([1, 2], max_tokens=40))

    asking = [asyncio.create_task(ask()) for _ in range(4)]
    await until(lambda: len(done) >= 4)
    paused: list[float] = []

    async def pause(least_s: float) -> None:
        """On a loaded machine who was answered last asks again later than that."""
        paused.append(least_s)
        await asyncio.sleep(least_s)
        await until(lambda: all(one.done() for one in asking))

    monkeypatch.setattr(front_end, "asyncio", SimpleNamespace(sleep=pause))
    await process.stop(20.0)
    (paused_s,) = paused
    assert paused_s > 0.0
    for one in asking:
        with pytest.raises(Unavailable, match="is draining; try another one"):
            await one


@pytest.mark.parametrize("far", [False, True])
async def test_a_coordinator_that_drains_says_so_and_where_answers_stand(
    cell: Cell, far: bool
) -> None:
    process = await cell.frontend() if far else cell.serving
    client = cell.client(process)
    async with client.generate([1, 2], max_tokens=9000) as stream:
        assert isinstance(await anext(stream), Chunk)  # one without a token is asked for again
        stopping = asyncio.create_task(cell.serving.stop(2.0))
        await until(lambda: (far and process.cell._terms is None) or process.cell.draining)
        with pytest.raises(Unavailable, match="the coordinator is draining; try another one"):
            await client.complete([1, 2], max_tokens=4)
        with pytest.raises(Unavailable, match=r"the coordinator stops; .* at offset \d+"):
            async for _ in stream:
                pass
    await stopping


async def test_front_ends_rounds_and_rows_bring_the_workers_token(tmp_path: Path) -> None:
    _, files = token_files(tmp_path, "worker")
    async with Cell(pair=FLAT, shared=files) as cell:
        coordinator = await cell.whole()
        stranger = cell.client(await cell.frontend(token_file=None, attach_wait_s=0.5))
        with pytest.raises(Unavailable, match="unauthenticated"):
            await stranger.complete([1, 2], max_tokens=4)
        friend = cell.client(await cell.frontend())
        # loopback: clients need no token
        await friend.complete([1, 2, 3] * 100, max_tokens=40, policy="fixed:3")
        assert coordinator.metrics.value("spec_decode_num_draft_tokens_total") > 0


class OfAnotherVersion(frontend_pb2_grpc.CellServicer):
    """A coordinator whose terms no front end of this version can read."""

    async def Attach(
        self, requests: AsyncIterator[frontend_pb2.FrontendBatch], context: Any
    ) -> AsyncIterator[frontend_pb2.CellBatch]:
        yield frontend_pb2.CellBatch(number=1)
        yield frontend_pb2.CellBatch(number=2, terms=frontend_pb2.Terms(policy="unheard of"))
        await asyncio.Event().wait()


@pytest.fixture
def pauses(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    """Between attempts to attach, which take no time; behind the sixth there is none."""
    slept, sleep = list[float](), asyncio.sleep

    async def paused(seconds: float) -> None:
        slept.append(seconds)
        await sleep(0.0 if len(slept) < 6 else 60.0)

    names = vars(asyncio) | {"sleep": paused}
    monkeypatch.setattr(remote_cell, "asyncio", SimpleNamespace(**names))
    return slept


async def test_a_coordinator_that_is_not_understood_is_asked_less_and_less_often(
    pauses: list[float],
) -> None:
    add: Any = frontend_pb2_grpc.add_CellServicer_to_server
    async with (
        standing_in(add, OfAnotherVersion()) as place,
        workers.frontend(coordinator=place, attach_wait_s=0.01),
    ):
        await until(lambda: len(pauses) == 6)
    assert pauses == [0.1, 0.2, 0.4, 0.8, 1.6, 2.0]


async def test_of_a_coordinator_that_stays_away_the_log_tells_once(
    pauses: list[float], monkeypatch: pytest.MonkeyPatch
) -> None:
    # a logger that no test before this one has configured
    monkeypatch.setattr(remote_cell, "log", structlog.get_logger())
    with structlog.testing.capture_logs() as lines:
        async with workers.frontend(coordinator="127.0.0.1:1", attach_wait_s=0.01):
            await until(lambda: len(pauses) == 6)
    assert [line["event"] for line in lines].count("frontend.detached") == 1


HELLO = {"hello": frontend_pb2.FrontendHello(name="by hand")}
ASKED = frontend_pb2.Submit(
    call=1,
    request=write_request([1, 2], {"request_id": "r1", "max_tokens": 5000}),
    deadline_us=10_000_000,
)


@pytest.mark.parametrize(
    ("said", "code"),
    [
        ([{}], grpc.StatusCode.INVALID_ARGUMENT),
        ([{"submits": [ASKED]}], grpc.StatusCode.INVALID_ARGUMENT),
        ([HELLO, {"submits": [ASKED, ASKED]}], grpc.StatusCode.INTERNAL),
    ],
    ids=["empty", "no hello", "a number twice"],
)
async def test_a_front_end_that_breaks_the_protocol_is_let_go(
    cell: Cell, said: list[dict[str, Any]], code: grpc.StatusCode
) -> None:
    async with open_channel(cell.serving.endpoint) as channel:
        stub = frontend_pb2_grpc.CellStub(channel)  # type: ignore[no-untyped-call]
        call = stub.Attach(metadata=auth_metadata(None))
        for each in said:
            await call.write(frontend_pb2.FrontendBatch(**each))
        assert (await ended(call))[0] is code


async def test_a_start_without_a_coordinator_is_refused_or_waits() -> None:
    with pytest.raises(ConfigError, match=r"frontend\.coordinator"):
        async with workers.frontend():
            pass
    with pytest.raises(ConfigError, match=r"frontend\.max_streams"):
        async with workers.frontend(coordinator="127.0.0.1:1", max_streams=0):
            pass
    nobody = workers.frontend(coordinator="127.0.0.1:1", attach_wait_s=0.2)
    async with nobody as waiting, AsyncClient(waiting.endpoint) as client:
        with pytest.raises(Unavailable, match="not attached"):
            await client.complete([1], max_tokens=2)
