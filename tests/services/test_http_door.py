"""The HTTP front's errors, who may come in, and clients that go away; over a synthetic cell."""

import json
import re
from importlib import metadata
from pathlib import Path
from typing import Any

import httpx
import openai
import pytest

from coordinator.http import stream
from dspark.client import Client
from tests.services.http_cell import HttpCell, of_module, synthetic_pair
from tests.waiting import wait_until

MODEL = "synthetic"


cell = of_module(lambda folder: {"pair": synthetic_pair(folder)})


def post(cell: HttpCell, body: Any, **options: Any) -> httpx.Response:
    """A chat, for a body with messages, or a completion."""
    path = "/v1/chat/completions" if "messages" in body else "/v1/completions"
    return cell.post(path, body, **options)


def refusal(answer: httpx.Response, why: str = "code") -> tuple[int, str]:
    """Its status, and the code or another word of why."""
    return answer.status_code, answer.json()["error"][why]


def completion(**fields: Any) -> dict[str, Any]:
    return {"model": MODEL, "prompt": "abc", "max_tokens": 4, **fields}


def chat(*messages: Any, **fields: Any) -> dict[str, Any]:
    said = messages or ({"role": "user", "content": "abc"},)
    return {"model": MODEL, "messages": said, **fields}


def each_of(fields: dict[str, list[Any]]) -> list[tuple[dict[str, Any], str]]:
    """Completions with one of these values, and the field it is of."""
    return [(completion(**{name: value}), name) for name in fields for value in fields[name]]


# of a kind or a value that no field has
WRONG: list[tuple[dict[str, Any], str]] = [
    *each_of(
        {
            "temperature": [-1, "hot", True, 1e300],
            "n": [True],
            "max_tokens": [1 << 40, 2.0, "2"],
            "logit_bias": [
                *({key: 1} for key in ("x", "1_0", " 1", "+1", "01", "1.0", "-1", "٣", "")),
                {"4294967296": 1},
                {"1": "2"},
                {"1": True},
            ],
            "seed": [2**64, -(2**63) - 1, 1.5],
            "top_k": [-2],
            "stop_token_ids": [[-1]],
            "stream": [1],
            "ignore_eos": [1],
            "prompt": [[2**32], "", [], [-1], [4096], ["x"] * 257, {"a": 1}],
            "stream_options": [{"include_usage": True}],
        }
    ),
    (completion(stop_token_ids=[1.7]), "stop_token_ids[0]"),
    (completion(prompt=[1.7, 2.2]), "prompt[0]"),
    (completion(prompt=[True]), "prompt[0]"),
    (completion(stop=[3]), "stop[0]"),
    ({"model": MODEL}, "prompt"),
    (completion(stream=True, stream_options={"foo": 1}), "stream_options.foo"),
    (completion(speculation={"policy": "best"}), "speculation.policy"),
    (completion(speculation={"rule": "typical"}), "speculation.rule"),
    (chat({"role": "assistant", "tool_calls": [{}]}), "messages[0].tool_calls[0]"),
    (chat({"content": "x"}), "messages[0].role"),
    (chat({"role": "user", "content": 3}), "messages[0].content"),
    (chat({"role": "user", "content": [{"type": "text"}]}), "messages[0].content[0].text"),
    ({"model": MODEL, "messages": []}, "messages"),
    (chat(chat_template_kwargs={"frob": 1}), "chat_template_kwargs.frob"),
    (chat(top_logprobs=3), "top_logprobs"),
    (chat(logprobs=True, top_logprobs=40), "top_logprobs"),
    (chat(max_completion_tokens=0), "max_completion_tokens"),
    (chat({"role": "user", "content": ""}), "messages"),
]
IMAGE = {"type": "image_url", "image_url": {"url": "x"}}
CALLS = [{"function": {"name": "f"}}]
UNBUILT: list[tuple[dict[str, Any], str]] = [
    *each_of({"suffix": ["x"], "best_of": [4, True], "length_penalty": [0.5], "priority": [3]}),
    *each_of({"frobnicate": [1], "label": ["x"]}),
    (chat(text="x"), "text"),
    (chat(tools=[{"type": "function", **CALLS[0]}]), "tools"),
    (chat(audio={"voice": "x"}), "audio"),
    (chat(enable_thinking=True), "enable_thinking"),
    (chat({"role": "user", "content": [IMAGE]}), "messages[0].content[0].type"),
    *(
        (chat({"role": "user", "content": "x", key: given}), f"messages[0].{key}")
        for key, given in (("audio", {"id": "a"}), ("images", ["a"]), ("prefix", True))
    ),
    (chat({"role": "narrator", "content": "x"}), "messages[0].role"),
    (chat({"role": "tool", "content": "x"}), "messages[0].role"),
    (chat({"role": "assistant", "tool_calls": CALLS}), "messages[0].tool_calls"),
]


@pytest.mark.parametrize(
    ("body", "param", "code"),
    [
        *((*each, None) for each in WRONG),
        *((*each, "unsupported_parameter") for each in UNBUILT),
    ],
)
def test_what_is_wrong_or_not_built_is_named(
    cell: HttpCell, body: dict[str, Any], param: str, code: str | None
) -> None:
    answer = post(cell, body)
    assert answer.status_code == 400, answer.text
    error = answer.json()["error"]
    assert (error["type"], error["param"], error["code"]) == ("invalid_request_error", param, code)
    assert error["message"].startswith(f"{param}: ")


@pytest.mark.parametrize("given", [0, -1])
def test_a_least_value_is_named_in_the_same_words_everywhere(cell: HttpCell, given: int) -> None:
    for name, body in (
        ("max_tokens", completion(max_tokens=given)),
        ("max_completion_tokens", chat(max_completion_tokens=given)),
    ):
        said = post(cell, body).json()["error"]["message"]
        assert said == f"{name}: must be at least 1, got {given}"


def test_a_conversation_is_bounded_as_any_text_is(
    cell: HttpCell, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("coordinator.reception.input_processor.MAX_TEXT", 5000)
    long = post(cell, chat({"role": "user", "content": "x" * 6000}, max_tokens=1))
    assert refusal(long, "param") == (400, "messages")
    assert "at most 5000" in long.json()["error"]["message"]


def test_fields_that_ask_for_nothing_and_labels_are_let_through(cell: HttpCell) -> None:
    absent = dict.fromkeys(("suffix", "logit_bias", "stop", "seed", "n"))
    idle = {"top_k": -1, "min_p": 0, "min_tokens": 0, "priority": 0, "length_penalty": 1.0}
    form = {"tools": [], "tool_choice": "none", "response_format": {"type": "text"}}
    for body in (
        completion(**absent, user="u", metadata={"a": "b"}, best_of=1, echo=False),
        completion(**idle, logits_processors=[], seed=-(2**63), user=None),
        chat(max_tokens=3, logprobs=False, top_logprobs=0),
        chat(max_tokens=3, safety_identifier="x", **form),
    ):
        assert post(cell, body).status_code == 200, body


@pytest.mark.parametrize(
    "content", [b"", b"{", b"[]", b'{"a":' * 5000, b"\xff", b'{"prompt": "x", "temperature": NaN}']
)
def test_what_is_not_json_is_a_bad_request(cell: HttpCell, content: bytes) -> None:
    headers = {"content-type": "application/json"}
    answer = httpx.post(f"{cell.url}/v1/completions", content=content, headers=headers)
    assert refusal(answer, "type") == (400, "invalid_request_error")


def test_a_model_that_is_not_served_is_not_found(cell: HttpCell) -> None:
    with pytest.raises(openai.NotFoundError) as missing:
        cell.chat(model="gpt-4")
    assert missing.value.code == "model_not_found"


def test_other_requests_hear_statuses_in_the_same_shape(cell: HttpCell) -> None:
    routes = (
        "GET /v1/models, .*GET /health, .*POST /v1/chat/completions, POST /v1/completions, "
        "POST /tokenize.*, GET /openapi.json$"
    )
    for path, method in (
        ("/v1/frobnicate", "GET"),
        ("/v1/completions", "GET"),
        ("/v1", "POST"),
        ("/v1/completions/", "POST"),
    ):
        said = httpx.request(method, cell.url + path).json()["error"]["message"]
        assert re.match(f"{method} {path} is no route here; there are {routes}", said), said
    for answer, status in (
        (httpx.get(f"{cell.url}/v1/frobnicate"), 404),
        (httpx.get(f"{cell.url}/v1/completions"), 405),
        (httpx.post(f"{cell.url}/v1/completions", content=b"x"), 415),
        (post(cell, completion(), headers={"content-encoding": "gzip"}), 415),
        (post(cell, completion(), headers={"host": "evil.example"}), 403),
    ):
        assert answer.status_code == status
        assert list(answer.json()["error"]) == ["message", "type", "param", "code"]
    for path in ("/v1/completions", "/v1/messages"):
        named = cell.post(path, {}, headers={"x-request-id": "mine"})
        assert named.status_code == 400
        assert (named.headers["x-request-id"], named.headers["request-id"]) == ("mine", "mine")
    refused = post(cell, completion(max_tokens=1 << 20))  # once it has a name
    assert refused.status_code == 400
    assert refused.headers["x-request-id"].startswith("cmpl-")
    for host in ("LOCALHOST:80", "localhost.", "a.LocalHost"):  # names have no case
        assert post(cell, completion(), headers={"host": host}).status_code == 200, host
    with cell.connected("POST /v1/completions", b"x", length=1 << 30) as connection:
        assert connection.recv(100).startswith(b"HTTP/1.1 413 ")


def test_metrics_and_a_description_are_there(cell: HttpCell) -> None:
    assert "dspark_num_requests_running" in httpx.get(f"{cell.url}/metrics").text
    paths = httpx.get(f"{cell.url}/openapi.json").json()["paths"]
    asked = paths["/v1/chat/completions"]["post"]["requestBody"]["content"]
    fields = asked["application/json"]["schema"]["properties"]
    assert {"messages", "temperature", "stream_options", "chat_template_kwargs"} <= set(fields)


@pytest.mark.parametrize(
    "path", ["/health", "/version", "/v1/models", "/metrics", "/openapi.json", "/"]
)
def test_a_head_is_what_get_says_without_its_body(cell: HttpCell, path: str) -> None:
    with httpx.Client() as client:
        head, whole = client.head(cell.url + path), client.get(cell.url + path)
        assert (head.status_code, head.content) == (whole.status_code, b"") == (200, b"")
        assert head.headers["content-type" if whole.content else "content-length"]
    assert httpx.head(f"{cell.url}/v1/completions").status_code == 405


def test_a_checkout_that_nobody_installed_serves(
    cell: HttpCell, monkeypatch: pytest.MonkeyPatch
) -> None:
    def version(name: str) -> str:
        raise metadata.PackageNotFoundError(name)

    monkeypatch.setattr(metadata, "version", version)
    answer = post(cell, completion())
    assert answer.status_code == 200, answer.text
    assert re.fullmatch("fp_[0-9a-f]{12}", answer.json()["system_fingerprint"])
    assert httpx.get(f"{cell.url}/version").json() == {"version": "0+unknown"}
    with Client(cell.coordinator.endpoint) as client:
        assert client.status().version == "0+unknown"


def test_events_are_written_as_the_format_asks(cell: HttpCell) -> None:
    body = completion(stream=True, max_tokens=8, ignore_eos=True)
    with httpx.stream(
        "POST", f"{cell.url}/v1/completions", json=body, headers={"x-request-id": "mine"}
    ) as answer:
        text = answer.read().decode()
    assert answer.headers["content-type"].startswith("text/event-stream")
    assert answer.headers["x-request-id"] == "mine"
    *events, done, rest = text.split("\n\n")
    assert (done, rest) == ("data: [DONE]", "")
    assert all(re.fullmatch(r"data: \{.*\}", event) for event in events)
    (name,) = {json.loads(event[6:])["id"] for event in events}
    assert re.fullmatch(r"cmpl-mine-[0-9a-f]{8}", name)
    long = post(cell, completion(), headers={"x-request-id": "x" * 500})
    assert (long.status_code, long.headers["x-request-id"]) == (200, "x" * 500)


@pytest.mark.parametrize("stream", [True, False])
def test_a_client_that_goes_frees_both_pools(cell: HttpCell, stream: bool) -> None:
    body, before = completion(stream=stream, max_tokens=50_000, ignore_eos=True), cell.cancelled
    with cell.connected("POST /v1/completions", json.dumps(body).encode()) as connection:
        if stream:
            assert b"200 OK" in connection.recv(1000)
        wait_until(lambda: cell.coordinator.cell.admission.running == 1)
        assert cell.held
    cell.freed()
    assert cell.cancelled == before + 1


def test_a_refused_prompt_takes_the_others_back(cell: HttpCell) -> None:
    assert post(cell, completion(prompt=[[1, 2], [3, 5000]])).status_code == 400
    cell.freed()


def test_a_full_queue_says_when_to_come_back(tmp_path: Path) -> None:
    with (
        HttpCell(synthetic_pair(tmp_path), max_running=1, max_queued=0) as cell,
        cell.openai() as client,
    ):
        extra = {"extra_body": {"ignore_eos": True}}
        running = completion(max_tokens=50_000, stream=True, **extra)
        stream = client.completions.create(**running)
        next(iter(stream))
        refused = post(cell, completion())
        assert refusal(refused) == (429, "rate_limit_exceeded")
        assert int(refused.headers["retry-after"]) >= 1
        assert int(refused.headers["retry-after-ms"]) >= 1
        stream.close()
        cell.freed()
        assert cell.cancelled == 1
        answer = client.completions.create(**completion(**extra))
        assert answer.usage.completion_tokens == 4


def test_without_a_verifier_it_is_unavailable(tmp_path: Path) -> None:
    with HttpCell(synthetic_pair(tmp_path), workers=False) as cell:
        for answer in (post(cell, completion()), httpx.get(f"{cell.url}/v1/models")):
            assert refusal(answer) == (503, "unavailable")
            assert "retry-after" in answer.headers
        assert httpx.get(f"{cell.url}/health").status_code == 503


def test_what_takes_too_long_is_told_so(tmp_path: Path) -> None:
    with HttpCell(synthetic_pair(tmp_path, step_ms=100.0), request_deadline_s=1.5) as cell:
        late = post(cell, completion(max_tokens=1000, ignore_eos=True))
        assert refusal(late) == (504, "deadline_exceeded")
        # A stream has begun by then, so it hears of it by an event, and never sees [DONE].
        text = post(cell, completion(max_tokens=1000, ignore_eos=True, stream=True)).text
        last = text.rstrip("\n").split("\n\n")[-1]
        assert last.startswith("data: ")
        error = json.loads(last.removeprefix("data: "))["error"]
        assert (error["code"], error["message"]) == ("deadline_exceeded", "no answer within 1.5 s")
        cell.freed()


def test_a_silent_stream_is_kept_alive(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(stream, "KEEPALIVE_S", 0.05)
    with HttpCell(synthetic_pair(tmp_path, step_ms=400.0)) as cell:
        body = completion(stream=True, ignore_eos=True)
        with httpx.stream("POST", f"{cell.url}/v1/completions", json=body, timeout=60) as answer:
            text = answer.read().decode()
        assert text.count(": still here\n\n") > 1
        assert text.endswith("data: [DONE]\n\n")


def test_a_chat_without_a_limit_ends_at_the_deployments(tmp_path: Path) -> None:
    with HttpCell(synthetic_pair(tmp_path), default_max_tokens=5) as cell:
        for given, tokens in (({}, 5), ({"max_tokens": 7}, 7), ({"max_completion_tokens": 2}, 2)):
            answer = post(cell, chat(**given, ignore_eos=True)).json()
            assert answer["usage"]["completion_tokens"] == tokens
            assert answer["choices"][0]["finish_reason"] == "length"


@pytest.mark.parametrize("left", [1, 3])
def test_an_answer_without_a_limit_ends_where_the_context_does(cell: HttpCell, left: int) -> None:
    longest = httpx.get(f"{cell.url}/v1/models").json()["data"][0]["max_model_len"]
    answer = post(cell, completion(prompt=[7] * (longest - left), max_tokens=None, ignore_eos=True))
    assert answer.status_code == 200, answer.text
    assert answer.json()["usage"]["completion_tokens"] == left
    short = post(cell, completion(prompt=[7], max_tokens=None, ignore_eos=True))
    assert short.json()["usage"]["completion_tokens"] == 16
