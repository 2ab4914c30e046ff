"""The client library against a servicer that computes its answers."""

import asyncio
import gc
import inspect
import re
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
    synchronous,
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


def test_a_stream_gives_every_token_once_and_then_says_why_it_ended(client: Client) -> None:
    *chunks, end = client.generate([5], max_tokens=3)
    assert chunks == [Chunk(" 5", (5,), 0), Chunk(" 6", (6,), 1), Chunk(" 7", (7,), 2)]
    told = (end.finish_reason, end.usage.completion_tokens, end.speculation.rule)
    assert told == ("length", 3, "token")


def test_a_completion_prints_exactly_the_promised_keys(client: Client) -> None:
    shape = client.complete([5], max_tokens=2).as_json()
    assert list(shape) == ["text", "token_ids", "finish_reason", "usage", "speculation", "timings"]
    assert shape["token_ids"] == [5, 6]
    assert list(shape["speculation"]) == [
        "rounds",
        "draft_tokens",
        "verified_tokens",
        "accepted_tokens",
        "mean_acceptance_length",
        "acceptance_histogram",
        "verified_histogram",
        "policy",
    ]
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


@pytest.mark.parametrize(
    ("name", "value", "problem"),
    [
        ("n", -1, "must be in 1..16, got -1"),
        ("n", 2.0, "must be a whole number, got 2.0"),
        ("max_tokens", -1, "must be at least 1, got -1"),
        ("max_tokens", True, "must be a whole number, got True"),
        ("max_tokens", "3", "must be a whole number, got '3'"),
        ("max_tokens", 2**32, "must be at most 4294967295, got 4294967296"),
        ("min_tokens", -1, "must be at least 0, got -1"),
        ("top_k", -2, "must be in -1..4294967295, got -2"),
        ("logprobs", 2**31, "must be at most 2147483647, got 2147483648"),
        ("seed", 10**30, f"must be at most {2**64 - 1}, got {10**30}"),
        ("seed", -1, f"must be in 0..{2**64 - 1}, got -1"),
        ("seed", 1.5, "must be a whole number, got 1.5"),
        ("temperature", "hot", "must be a number, got 'hot'"),
        ("temperature", True, "must be a number, got True"),
        ("min_p", np.bool_(True), "must be a number, got np.True_"),
        ("logit_bias", {-1: 1.0}, "-1 is not a token id"),
        ("logit_bias", {"1_0": 1.0}, "must be a whole number, got '1_0'"),
        ("logit_bias", {1.7: 1.0}, "must be a whole number, got 1.7"),
        ("logit_bias", {1: "2"}, "must be a number, got '2'"),
        ("logit_bias", [1, 2], "must be a mapping of token ids to numbers, got [1, 2]"),
        ("stop", [3], "must be a text, got 3"),
        ("stop_token_ids", [-1], "-1 is not a token id"),
        ("stop_token_ids", [1.7], "must be a whole number, got 1.7"),
        ("stop_token_ids", [2**32], "4294967296 is not a token id"),
        ("ignore_eos", 1, "must be true or false, got 1"),
        ("rule", "typical", "'typical' is none of token, block, coupled"),
        ("rule", ["token"], "['token'] is none of token, block, coupled"),
        (
            "constraint",
            {"json_schema": {"a": "\ud800"}},
            "holds half of a character (a lone surrogate)",
        ),
        ("timeout", "5", "must be a number, got '5'"),
        ("timeout", 0, "must be above 0, got 0"),
        ("timeout", -1.0, "must be above 0, got -1"),
        ("timeout", float("nan"), "must be above 0, got nan"),
        ("resume_s", "5", "must be a number, got '5'"),
        ("resume_s", -1.0, "must be at least 0, got -1"),
        ("resume_s", float("nan"), "must be at least 0, got nan"),
    ],
)
async def test_what_would_become_another_value_on_the_wire_is_refused_by_name(
    name: str, value: Any, problem: str, alone: Client
) -> None:
    options: Any = {name: value}
    field = name if name in ("rule", "timeout", "resume_s") else f"sampling_params.{name}"
    if name == "constraint":
        field = "constraint.json_schema"
    for ask in (alone.generate, alone.complete):
        with pytest.raises(InvalidRequest) as refused:
            ask([9], **options)
        assert (refused.value.field, str(refused.value)) == (field, f"{field}: {problem}")
    async with AsyncClient("127.0.0.1:9") as other:
        with pytest.raises(InvalidRequest, match=re.escape(problem)):
            other.generate([9], **options)


@pytest.mark.parametrize(
    "prompt", [[1.7, 2.2], [True], ["1"], [-1], [2**32], 7, b"abc", np.array([1.0])]
)
def test_a_prompt_is_taken_as_it_is_or_not_at_all(prompt: Any, alone: Client) -> None:
    with pytest.raises(InvalidRequest) as refused:
        alone.generate(prompt)
    assert refused.value.field == "tokenized.input_ids"


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
        plain = _awaited(one.return_annotation), _awaited(other.return_annotation)
        assert plain[0] == plain[1], name
    spelled = inspect.signature(Client.generate).parameters
    assert set(Options.__annotations__) | {"self", "prompt", "timeout", "resume_s"} == set(spelled)
    assert spelled["temperature"].annotation == "float | None"


def _awaited(annotation: str) -> str:
    return annotation.replace("Async", "")


@pytest.mark.parametrize("how", ["break", "close", "client"])
def test_leaving_early_ends_work_at_the_server(service: Counter, client: Client, how: str) -> None:
    if how == "break":
        for _ in client.generate([1], max_tokens=10_000, request_id="slow-break"):
            break
        gc.collect()
    else:
        stream = client.generate([1], max_tokens=10_000, request_id=f"slow-{how}")
        next(stream)
        (stream if how == "close" else client).close()
        with pytest.raises(Cancelled):
            list(stream)
    wait_until(lambda: f"slow-{how}" in service.ended)


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
def test_every_status_has_its_exception(
    client: Client, request_id: str, kind: type[Exception], sentence: str
) -> None:
    with pytest.raises(kind) as caught:
        client.complete([1], max_tokens=1, request_id=request_id)
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
async def test_a_timeout_without_end_is_none(service: Counter, timeout: float) -> None:
    with Client(service.endpoint) as client:
        assert client.complete([3], max_tokens=1, timeout=timeout).token_ids == (3,)
        assert not client.model_info(timeout=timeout).has_tokenizer
    async with AsyncClient(service.endpoint) as other:
        assert (await other.complete([3], max_tokens=1, timeout=timeout)).token_ids == (3,)


def test_answers_beyond_any_bound_take_no_memory_here(client: Client) -> None:
    tracemalloc.start()
    with client.generate([1], n=100_000_000, request_id="bad"):
        assert tracemalloc.get_traced_memory()[1] < 1 << 20
    tracemalloc.stop()


@pytest.mark.parametrize("kind", [Client, AsyncClient])
@pytest.mark.parametrize(
    ("method", "arguments", "said"),
    [
        ("explain", {"request_id": "r", "rounds": -1}, "rounds: must be in 0..4294967295, got -1"),
        ("explain", {"request_id": 5}, "request_id: must be a text, got 5"),
        ("ended", {"most": 1.5}, "most: must be a whole number, got 1.5"),
        ("ended", {"request_id": "\ud800"}, "request_id: holds half of a character"),
    ],
)
async def test_operators_questions_are_read_as_requests_are(
    kind: Any, method: str, arguments: Any, said: str, service: Counter
) -> None:
    client = kind(service.endpoint)
    with pytest.raises(InvalidRequest, match=re.escape(said)):
        await answered(getattr(client, method)(**arguments))
    await answered(client.close())


@pytest.mark.parametrize(
    ("words", "code", "said"),
    [
        (["hi"], 1, "prompt: the target has no tokenizer; give --token-ids"),
        (["--token-ids", "5", "--logprobs", "3"], 2, "logprobs: is told with --json alone"),
        (["hi", "--prompt-logprobs", "0"], 2, "prompt-logprobs: is told with --json alone"),
        (["--token-ids", "5", "--timeout", "0"], 1, "timeout: must be above 0, got 0"),
    ],
)
def test_generate_refuses_what_it_could_not_tell_by_the_word_that_was_typed(
    words: list[str],
    code: int,
    said: str,
    service: Counter,
    capsys: pytest.CaptureFixture[str],
) -> None:
    assert main(["generate", "--endpoint", service.endpoint, *words]) == code
    assert capsys.readouterr().err == f"dspark: {said}\n"
    assert not service.calls


def test_a_stream_whose_client_is_closed_while_it_pauses_is_not_resumed(
    service: Counter, client: Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(synchronous.time, "sleep", lambda _: client.close())
    with pytest.raises(Cancelled):
        next(client.generate([1], request_id="cut", resume_s=5.0))
    assert service.calls == 1


async def test_a_closed_client_calls_nobody() -> None:
    arguments: Any = {"generate": [[1]], "complete": [[1]], "abort": ["r"], "explain": ["r"]}
    with Client("127.0.0.1:9") as client:
        pass
    async with AsyncClient("127.0.0.1:9") as other:
        pass
    for name in (*arguments, "model_info", "status", "ended"):
        for whom in (client, other):
            with pytest.raises(Cancelled, match="the client is closed"):
                await answered(getattr(whom, name)(*arguments.get(name, ())))


def test_several_front_ends_are_one_target_where_certificates_allow_it() -> None:
    fronts = "10.0.0.1:7000,10.0.0.2:7000"
    cell = replace(CELL, frontends=fronts)
    assert sorted(cell.for_clients.removeprefix("ipv4:").split(",")) == fronts.split(",")
    named = replace(cell, tls_ca="ca.pem", tls_server_name="cell")
    assert named.for_clients.startswith("ipv4:")
    assert replace(cell, tls_ca="ca.pem").for_clients in fronts.split(",")


@pytest.mark.parametrize("kind", [Client, AsyncClient])
@pytest.mark.parametrize(
    ("field", "value", "problem"),
    [
        ("endpoint", "", "'' is not host:port"),
        ("endpoint", "127.0.0.1", "'127.0.0.1' is not host:port"),
        ("endpoint", "127.0.0.1:99999", "'127.0.0.1:99999' is not host:port"),
        ("endpoint", "localhost:http", "'localhost:http' is not host:port"),
        ("token", "secret\n", "has a line end, or another character"),
        ("token", "geheimé", "has a line end, or another character"),
        ("token", "a\0b", "has a line end, or another character"),
        ("token", "a" * 8000, "8000 characters, at most 7168 are taken"),
    ],
)
async def test_what_no_client_can_be_made_with_is_refused_by_name(
    field: str, value: str, problem: str, kind: Any
) -> None:
    with pytest.raises(InvalidRequest, match=f"^{field}: {re.escape(problem)}"):
        kind(**{"endpoint": "127.0.0.1:9", field: value})


def test_several_endpoints_and_names_are_taken() -> None:
    Client("ipv4:127.0.0.1:9,127.0.0.1:10").close()
    Client("dns:///localhost:9").close()


def test_nobody_listening_is_unavailable(alone: Client) -> None:
    with pytest.raises(Unavailable, match=r"127\.0\.0\.1:9"):
        alone.complete([1], max_tokens=1, timeout=5)


def test_what_is_larger_than_any_message_is_no_overload(client: Client) -> None:
    with pytest.raises(InvalidRequest, match=r"request: .*larger than max \([0-9]+ vs"):
        client.complete("x" * (5 << 20))


async def test_the_async_client_says_the_same(service: Counter) -> None:
    async with AsyncClient(service.endpoint) as client:
        assert (await client.complete([5], max_tokens=3)).token_ids == (5, 6, 7)
        with pytest.raises(Overloaded):
            await client.complete([1], max_tokens=1, request_id="full")
        await anext(client.generate([1], max_tokens=10_000, request_id="slow-async"))
        await until(lambda: "slow-async" in service.ended)


async def test_a_stream_closed_by_another_task_is_cancelled_for_its_reader(
    service: Counter,
) -> None:
    for closed in ("stream", "client", "reader"):
        async with AsyncClient(service.endpoint) as client:
            stream = client.generate([1], max_tokens=1000, request_id=f"slow-async-{closed}")
            await anext(stream)
            reading = asyncio.create_task(_all_of(stream))
            await asyncio.sleep(0)
            if closed == "reader":
                reading.cancel()
            elif closed == "stream":
                stream.close()
            else:
                await client.close()
            with pytest.raises(asyncio.CancelledError if closed == "reader" else Cancelled):
                await reading


async def test_a_stream_whose_reader_gave_up_does_not_look_complete(service: Counter) -> None:
    async with AsyncClient(service.endpoint) as client:
        stream = client.generate([1], max_tokens=1000, request_id="slow-async-waited")
        await anext(stream)
        with pytest.raises(TimeoutError):
            await asyncio.wait_for(anext(stream), 0.001)
        for _ in range(2):
            with pytest.raises(Cancelled):
                await anext(stream)
        await until(lambda: "slow-async-waited" in service.ended)


@pytest.mark.parametrize("kind", [Client, AsyncClient])
async def test_an_answer_that_does_not_say_why_it_ended_is_the_server_s_fault(
    service: Counter, kind: Any
) -> None:
    client = kind(service.endpoint)
    stream = client.generate([1], max_tokens=1, request_id="speechless")
    await answered(stream)
    with pytest.raises(ServerError, match="ended the answer without saying why"):
        await answered(stream)
    await answered(client.close())


async def _all_of(stream: AsyncStream) -> list[Event]:
    return [event async for event in stream]
