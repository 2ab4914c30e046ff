"""The client library against a servicer that computes its answers."""

import asyncio
import gc
import inspect
import time
import tracemalloc
from collections.abc import AsyncIterator, Iterator
from concurrent import futures
from dataclasses import replace
from typing import Any

import grpc
import numpy as np
import pytest

from dspark.cli.main import main
from dspark.client import (
    AsyncClient,
    AsyncStream,
    Cancelled,
    Chunk,
    Client,
    DeadlineExceeded,
    Denied,
    Event,
    InvalidRequest,
    Overloaded,
    ServerError,
    Unavailable,
    Unsupported,
)
from dspark.client.request import Options
from dspark.wire.v1 import generate_pb2, generate_pb2_grpc, types_pb2
from tests.noted_cell import CELL
from tests.waiting import until, wait_until

TOP_P, MIN_P = "sampling_params.top_p", "sampling_params.min_p"
# by request id: status, sentence, trailing metadata
FAILS: dict[str, Any] = {
    "bad": ("INVALID_ARGUMENT", f"{TOP_P}: must be in (0, 1]", ("bad-field", TOP_P)),
    "unbuilt": ("UNIMPLEMENTED", f"{MIN_P}: not supported", ("bad-field", MIN_P)),
    "full": ("RESOURCE_EXHAUSTED", "the queue is full", ("retry-after-ms", "250")),
    "gone": ("UNAVAILABLE", "no verifier is connected"),
    "once": ("UNAVAILABLE", "starting"),
    "stranger": ("UNAUTHENTICATED", "no token"),
    "cut": ("CANCELLED", "CANCELLED"),
    "bug": ("INTERNAL", "internal error, reference 12ab"),
}


class Counter(generate_pb2_grpc.GenerationServicer):
    """Answers prompt [p, ...] with p, p+1, ...; fails as the request id says; remembers what became
    of each call."""

    endpoint = ""

    def __init__(self) -> None:
        self.ended: set[str] = set()
        self.calls = 0
        self.seen = generate_pb2.GenerateRequest()

    def Generate(
        self, request: generate_pb2.GenerateRequest, context: grpc.ServicerContext
    ) -> Iterator[generate_pb2.GenerateResponse]:
        self.calls += 1
        self.seen = request
        context.add_callback(lambda: self.ended.add(request.request_id))
        if request.request_id in FAILS and (request.request_id != "once" or self.calls == 1):
            status, sentence, *told = FAILS[request.request_id]
            context.set_trailing_metadata(tuple(told))
            context.abort(getattr(grpc.StatusCode, status), sentence)
        first = request.tokenized.input_ids[0]
        for offset in range(request.sampling_params.max_tokens):
            if request.request_id.startswith("slow"):
                time.sleep(0.02)
            if not context.is_active():
                return
            chunk = generate_pb2.GenerateStreamChunk(
                token_ids=[first + offset], text=f" {first + offset}", offset=offset
            )
            yield generate_pb2.GenerateResponse(request_id=request.request_id, chunk=chunk)
        if request.request_id == "speechless":
            return
        end = generate_pb2.GenerateComplete(finish_reason="FINISH_REASON_LENGTH")
        end.usage.completion_tokens = request.sampling_params.max_tokens
        end.speculation.rule = types_pb2.RULE_TOKEN
        yield generate_pb2.GenerateResponse(request_id=request.request_id, complete=end)

    def GetModelInfo(
        self, request: generate_pb2.GetModelInfoRequest, context: grpc.ServicerContext
    ) -> generate_pb2.GetModelInfoReply:
        return generate_pb2.GetModelInfoReply()  # a target without a tokenizer


@pytest.fixture
def service() -> Iterator[Counter]:
    servicer = Counter()
    server = grpc.server(futures.ThreadPoolExecutor(4))
    generate_pb2_grpc.add_GenerationServicer_to_server(servicer, server)
    servicer.endpoint = f"127.0.0.1:{server.add_insecure_port('127.0.0.1:0')}"
    server.start()
    yield servicer
    server.stop(0).wait(5)


@pytest.fixture
def client(service: Counter) -> Iterator[Client]:
    with Client(service.endpoint) as made:
        yield made


@pytest.fixture(params=[Client, AsyncClient])
async def either(service: Counter, request: pytest.FixtureRequest) -> AsyncIterator[Any]:
    """Each kind of client; `answered` has what its methods give."""
    made = request.param(service.endpoint)
    yield made
    await answered(made.close())


@pytest.fixture
def alone() -> Iterator[Client]:
    """Where nobody listens."""
    with Client("127.0.0.1:9") as made:
        yield made


async def answered(asked: Any) -> Any:
    """What a method of either client gives, of a stream the next event."""
    if isinstance(asked, AsyncIterator):
        asked = anext(asked)
    elif isinstance(asked, Iterator):
        return next(asked)
    return await asked if inspect.isawaitable(asked) else asked


async def all_of(stream: Any) -> list[Event]:
    return [event async for event in stream] if isinstance(stream, AsyncStream) else [*stream]


async def test_a_stream_gives_every_token_once_and_then_says_why_it_ended(either: Any) -> None:
    *chunks, end = await all_of(either.generate([5], max_tokens=3))
    assert chunks == [Chunk(" 5", (5,), 0), Chunk(" 6", (6,), 1), Chunk(" 7", (7,), 2)]
    told = (end.finish_reason, end.usage.completion_tokens, end.speculation.rule)
    assert told == ("length", 3, "token")


def test_a_completion_prints_exactly_the_promised_keys(client: Client) -> None:
    shape = client.complete([5], max_tokens=2).as_json()
    assert list(shape) == ["text", "token_ids", "finish_reason", "usage", "speculation", "timings"]
    assert shape["token_ids"] == [5, 6]
    told = "rounds draft_tokens verified_tokens accepted_tokens mean_acceptance_length"
    told += " acceptance_histogram verified_histogram policy"
    assert list(shape["speculation"]) == told.split()
    assert list(shape["timings"]) == ["ttft_ms", "itl_ms", "total_ms"]


def test_every_sampling_field_has_an_option(service: Counter, client: Client) -> None:
    fields: dict[str, Any] = {
        "max_tokens": 1,
        "min_tokens": 1,
        "temperature": 0.5,
        "top_p": 0.5,
        "top_k": 3,
        "min_p": 0.25,
        "repetition_penalty": 1.5,
        "presence_penalty": -0.5,
        "frequency_penalty": 0.5,
        "logit_bias": {7: 1.5, 9: -2.0},
        "stop": ["x"],
        "stop_token_ids": [4],
        "skip_special_tokens": False,
        "include_stop_str_in_output": True,
        "ignore_eos": True,
        "n": 2,
        "logprobs": 0,
        "prompt_logprobs": 0,
        "seed": 7,
    }
    assert set(fields) == {field.name for field in generate_pb2.SamplingParams.DESCRIPTOR.fields}
    client.complete([9], **fields, policy="fixed:3", rule="token")
    assert service.seen.sampling_params == generate_pb2.SamplingParams(**fields)
    told = service.seen.speculation
    assert (told.policy, told.rule) == ("fixed:3", types_pb2.RULE_TOKEN)
    client.complete([9], max_tokens=1, stop="x")
    assert service.seen.sampling_params == generate_pb2.SamplingParams(max_tokens=1, stop=["x"])


def test_numbers_of_other_libraries_are_numbers(service: Counter, client: Client) -> None:
    given: Any = {"max_tokens": np.int64(1), "temperature": np.float32(0.5), "top_k": -1}
    client.complete(np.array([9, 10]), seed=np.uint64(2**64 - 1), **given)
    plain: Any = {"max_tokens": 1, "temperature": 0.5, "top_k": 0, "seed": 2**64 - 1}
    assert list(service.seen.tokenized.input_ids) == [9, 10]
    assert service.seen.sampling_params == generate_pb2.SamplingParams(**plain)


def test_both_clients_spell_out_the_same_options() -> None:
    names = {name for name in dir(Client) if not name.startswith("_")}
    assert names == {name for name in dir(AsyncClient) if not name.startswith("_")}
    assert {"generate", "complete", "abort", "model_info", "status", "explain", "close"} <= names
    for name in ("__init__", *names):
        one, other = (inspect.signature(getattr(kind, name)) for kind in (Client, AsyncClient))
        assert one.parameters == other.parameters, name
        kinds = {parameter.kind for parameter in one.parameters.values()}
        assert inspect.Parameter.VAR_KEYWORD not in kinds, f"{name} takes anything"
        assert "Any" not in {str(parameter.annotation) for parameter in one.parameters.values()}
        assert one.return_annotation == other.return_annotation.replace("Async", ""), name
    spelled = inspect.signature(Client.generate).parameters
    assert set(Options.__annotations__) | {"self", "prompt", "timeout", "resume_s"} == set(spelled)
    assert spelled["temperature"].annotation == "float | None"


@pytest.mark.parametrize("how", ["dropped", "closed", "its client is closed"])
async def test_leaving_early_ends_work_at_the_server(
    service: Counter, either: Any, how: str
) -> None:
    stream = either.generate([1], max_tokens=10_000, request_id="slow")
    await answered(stream)
    if how == "dropped":
        del stream
        gc.collect()
    else:
        await answered((stream if how == "closed" else either).close())
        with pytest.raises(Cancelled):
            await all_of(stream)
    await until(lambda: "slow" in service.ended)


@pytest.mark.parametrize(
    ("request_id", "kind", "sentence"),
    [
        ("bad", InvalidRequest, "sampling_params.top_p: must be in (0, 1]"),
        ("unbuilt", Unsupported, "sampling_params.min_p: not supported"),
        ("full", Overloaded, "the queue is full"),
        ("gone", Unavailable, "no verifier is connected"),
        ("stranger", Denied, "no token"),
        ("bug", ServerError, "reference 12ab"),
        ("cut", Unavailable, " ended the call"),
    ],
)
async def test_every_status_has_its_exception(
    either: Any, request_id: str, kind: type[Exception], sentence: str
) -> None:
    with pytest.raises(kind) as caught:
        await answered(either.complete([1], max_tokens=1, request_id=request_id))
    assert sentence in str(caught.value)
    if isinstance(caught.value, InvalidRequest):
        assert caught.value.field.startswith("sampling_params.")
    if isinstance(caught.value, Overloaded):
        assert caught.value.retry_after_s == 0.25


def test_unavailable_before_a_first_token_is_tried_again(service: Counter, client: Client) -> None:
    assert client.complete([3], max_tokens=1, request_id="once").token_ids == (3,)
    assert service.calls == 2


def test_the_timeout_is_the_deadline(service: Counter, client: Client) -> None:
    with pytest.raises(DeadlineExceeded):
        client.complete([1], max_tokens=10_000, request_id="slow-late", timeout=0.2)
    wait_until(lambda: "slow-late" in service.ended)


@pytest.mark.parametrize("timeout", [1e18, float("inf")])
async def test_a_timeout_without_end_is_none(either: Any, timeout: float) -> None:
    said = await answered(either.complete([3], max_tokens=1, timeout=timeout))
    assert said.token_ids == (3,)
    assert not (await answered(either.model_info(timeout=timeout))).has_tokenizer


def test_answers_beyond_any_bound_take_no_memory_here(client: Client) -> None:
    tracemalloc.start()
    with client.generate([1], n=100_000_000, request_id="bad"):
        assert tracemalloc.get_traced_memory()[1] < 1 << 20
    tracemalloc.stop()


@pytest.mark.parametrize(
    ("words", "said"),
    [
        ("hi", "prompt: the target has no tokenizer; give --token-ids"),
        ("--token-ids 5 --timeout 0", "timeout: must be above 0, got 0"),
    ],
)
def test_the_command_asks_for_nothing_that_it_could_not_get(
    words: str, said: str, service: Counter, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["generate", "--endpoint", service.endpoint, *words.split()]) == 1
    assert capsys.readouterr().err == f"dspark: {said}\n"
    assert not service.calls


async def test_a_closed_client_calls_nobody(either: Any) -> None:
    arguments: Any = {"generate": [[1]], "complete": [[1]], "abort": ["r"], "explain": ["r"]}
    await answered(either.close())
    for name in (*arguments, "model_info", "status", "ended"):
        with pytest.raises(Cancelled, match="the client is closed"):
            await answered(getattr(either, name)(*arguments.get(name, ())))


def test_several_front_ends_are_one_target_where_certificates_allow_it() -> None:
    fronts = "10.0.0.1:7000,10.0.0.2:7000"
    cell = replace(CELL, frontends=fronts)
    assert sorted(cell.for_clients.removeprefix("ipv4:").split(",")) == fronts.split(",")
    named = replace(cell, tls_ca="ca.pem", tls_server_name="cell")
    assert named.for_clients.startswith("ipv4:")
    assert replace(cell, tls_ca="ca.pem").for_clients in fronts.split(",")


def test_several_endpoints_and_names_are_taken() -> None:
    Client("ipv4:127.0.0.1:9,127.0.0.1:10").close()
    Client("dns:///localhost:9").close()


def test_nobody_listening_is_unavailable(alone: Client) -> None:
    with pytest.raises(Unavailable, match=r"127\.0\.0\.1:9"):
        alone.complete([1], max_tokens=1, timeout=5)


def test_what_is_larger_than_any_message_is_no_overload(client: Client) -> None:
    with pytest.raises(InvalidRequest, match=r"request: .*larger than max \([0-9]+ vs"):
        client.complete("x" * (5 << 20))


@pytest.fixture
async def slow(service: Counter) -> AsyncIterator[tuple[AsyncClient, AsyncStream]]:
    """A client and its answer that has begun."""
    async with AsyncClient(service.endpoint) as client:
        stream = client.generate([1], max_tokens=1000, request_id="slow")
        await anext(stream)
        yield client, stream


@pytest.mark.parametrize("closed", ["stream", "client", "reader"])
async def test_a_stream_closed_by_another_task_is_cancelled_for_its_reader(
    slow: tuple[AsyncClient, AsyncStream], closed: str
) -> None:
    client, stream = slow
    reading = asyncio.create_task(all_of(stream))
    await asyncio.sleep(0)
    ways = {"reader": reading.cancel, "stream": stream.close, "client": client.close}
    await answered(ways[closed]())
    with pytest.raises(asyncio.CancelledError if closed == "reader" else Cancelled):
        await reading


async def test_a_stream_whose_reader_gave_up_does_not_look_complete(
    service: Counter, slow: tuple[AsyncClient, AsyncStream]
) -> None:
    _, stream = slow
    with pytest.raises(TimeoutError):
        await asyncio.wait_for(anext(stream), 0.001)
    for _ in range(2):
        with pytest.raises(Cancelled):
            await anext(stream)
    await until(lambda: "slow" in service.ended)


async def test_an_answer_that_does_not_say_why_it_ended_is_the_server_s_fault(either: Any) -> None:
    stream = either.generate([1], max_tokens=1, request_id="speechless")
    await answered(stream)
    with pytest.raises(ServerError, match="ended the answer without saying why"):
        await answered(stream)
