"""The HTTP front's errors, who may come in, and clients that go away; over a synthetic cell."""

import json
import re
import threading
from collections.abc import Sequence
from importlib import metadata
from pathlib import Path
from typing import Any

import httpx
import openai
import pytest

from coordinator.config import CoordinatorConfig
from coordinator.http import stream
from coordinator.http.api import make_api
from coordinator.reception import input_processor
from coordinator.reception.tokenizer import Tokenizer
from dspark.client import Client
from dspark.errors import ConfigError
from tests.certificates import Authority
from tests.keys import key_files, token_files
from tests.services.http_cell import HttpCell, of_module, synthetic_pair
from tests.waiting import wait_until

MODEL = "synthetic"


@pytest.fixture(scope="module")
def pair(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return synthetic_pair(tmp_path_factory.mktemp("pair"))


cell = of_module(lambda folder: {"pair": synthetic_pair(folder)})


def post(cell: HttpCell, body: Any, path: str = "", **options: Any) -> httpx.Response:
    """path: of chats for a body with messages, else of completions."""
    path = path or ("/v1/chat/completions" if "messages" in body else "/v1/completions")
    return httpx.post(cell.url + path, json=body, timeout=30, **options)


def refusal(answer: httpx.Response) -> tuple[int, str]:
    """Its status, and the code that says why."""
    return answer.status_code, answer.json()["error"]["code"]


def completion(**fields: Any) -> dict[str, Any]:
    return {"model": MODEL, "prompt": "abc", "max_tokens": 4, **fields}


def chat(*messages: Any, **fields: Any) -> dict[str, Any]:
    said = messages or ({"role": "user", "content": "abc"},)
    return {"model": MODEL, "messages": said, **fields}


# of a kind or a value that no field has
WRONG: list[tuple[dict[str, Any], str]] = [
    (completion(temperature=-1), "temperature"),
    (completion(temperature="hot"), "temperature"),
    (completion(n=True), "n"),
    (completion(max_tokens=1 << 40), "max_tokens"),
    (completion(logit_bias={"x": 1}), "logit_bias"),
    *(
        (completion(logit_bias={key: 1}), "logit_bias")
        for key in ("1_0", " 1", "+1", "01", "1.0", "-1", "٣", "")
    ),
    (completion(logit_bias={"4294967296": 1}), "logit_bias"),
    (completion(logit_bias={"1": "2"}), "logit_bias"),
    (completion(logit_bias={"1": True}), "logit_bias"),
    (completion(seed=2**64), "seed"),
    (completion(seed=-(2**63) - 1), "seed"),
    (completion(seed=1.5), "seed"),
    (completion(temperature=True), "temperature"),
    (completion(temperature=1e300), "temperature"),
    (completion(max_tokens=2.0), "max_tokens"),
    (completion(max_tokens="2"), "max_tokens"),
    (completion(top_k=-2), "top_k"),
    (completion(stop_token_ids=[-1]), "stop_token_ids"),
    (completion(stop_token_ids=[1.7]), "stop_token_ids[0]"),
    (completion(stream=1), "stream"),
    (completion(ignore_eos=1), "ignore_eos"),
    (completion(prompt=[1.7, 2.2]), "prompt[0]"),
    (completion(prompt=[True]), "prompt[0]"),
    (completion(prompt=[2**32]), "prompt"),
    (completion(stop=[3]), "stop[0]"),
    (completion(prompt=""), "prompt"),
    (completion(prompt=[]), "prompt"),
    (completion(prompt=[-1]), "prompt"),
    (completion(prompt=[4096]), "prompt"),
    (completion(prompt=["x"] * 257), "prompt"),
    (completion(prompt={"a": 1}), "prompt"),
    ({"model": MODEL}, "prompt"),
    (completion(stream_options={"include_usage": True}), "stream_options"),
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
    (completion(suffix="x"), "suffix"),
    (completion(best_of=4), "best_of"),
    (completion(best_of=True), "best_of"),
    (completion(length_penalty=0.5), "length_penalty"),
    (completion(priority=3), "priority"),
    (completion(frobnicate=1), "frobnicate"),
    (completion(label="x"), "label"),
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
    assert (long.status_code, long.json()["error"]["param"]) == (400, "messages")
    assert "at most 5000" in long.json()["error"]["message"]


def test_a_developer_s_rules_are_the_system_s(cell: HttpCell) -> None:
    user = {"role": "user", "content": "x"}
    talks = [chat({"role": role, "content": "Be brief."}, user) for role in ("developer", "system")]
    said = [
        post(cell, {**talk, "max_tokens": 2, "return_token_ids": True}).json() for talk in talks
    ]
    assert said[0]["prompt_token_ids"] == said[1]["prompt_token_ids"]


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
    assert answer.status_code == 400
    assert answer.json()["error"]["type"] == "invalid_request_error"


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
        named = post(cell, {}, path, headers={"x-request-id": "mine"})
        assert named.status_code == 400
        assert (named.headers["x-request-id"], named.headers["request-id"]) == ("mine", "mine")
    refused = post(cell, completion(max_tokens=1 << 20))  # once it has a name
    assert refused.status_code == 400
    assert refused.headers["x-request-id"].startswith("cmpl-")
    for host in ("LOCALHOST:80", "localhost.", "a.LocalHost"):  # names have no case
        assert post(cell, completion(), headers={"host": host}).status_code == 200, host
    with cell.connected("POST /v1/completions", b"x", length=1 << 30) as connection:
        assert connection.recv(100).startswith(b"HTTP/1.1 413 ")


def test_health_models_metrics_version_and_description(cell: HttpCell) -> None:
    health = httpx.get(f"{cell.url}/health")
    assert (health.status_code, health.content) == (200, b"")
    assert "dspark_num_requests_running" in httpx.get(f"{cell.url}/metrics").text
    assert httpx.get(f"{cell.url}/version").json()["version"]
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


def test_pages_of_named_origins_may_ask() -> None:
    page = {
        "origin": "https://chat.example",
        "access-control-request-method": "POST",
        "access-control-request-private-network": "true",  # of a page on the Internet
    }
    with HttpCell(
        workers=False, cors_origin=("https://chat.example", "http://localhost:3000")
    ) as cell:
        for origin, allowed in (("https://chat.example", True), ("https://evil.example", False)):
            asked = httpx.options(f"{cell.url}/v1/completions", headers=page | {"origin": origin})
            assert (asked.headers.get("access-control-allow-origin") == origin) is allowed
            assert (asked.status_code == 200) is allowed
            answer = httpx.get(f"{cell.url}/version", headers={"origin": origin})
            assert (answer.headers.get("access-control-allow-origin") == origin) is allowed
    with HttpCell(workers=False) as cell:
        answer = httpx.get(f"{cell.url}/version", headers=page)
        assert "access-control-allow-origin" not in answer.headers


@pytest.mark.parametrize(
    "origin", ["*", "chat.example", "https://chat.example/path", "https://", "ftp://x"]
)
def test_an_origin_that_is_none_is_refused_at_the_start(origin: str) -> None:
    config = CoordinatorConfig(http="127.0.0.1:0", cors_origin=(origin,))
    with pytest.raises(ConfigError, match="cors_origin: "):
        make_api(config, None)  # type: ignore[arg-type]


def test_texts_and_conversations_become_ids_and_back_as_vllm_has_it(cell: HttpCell) -> None:
    text = "def add(a, b):\n    return a + b # Grüße"
    ask = {"model": MODEL, "prompt": text}
    made = post(cell, ask | {"return_token_strs": True}, "/tokenize").json()
    assert set(made) == {"count", "max_model_len", "tokens", "token_strs"}
    assert made["count"] == len(made["tokens"]) == len(made["token_strs"])
    assert post(cell, ask, "/tokenize").json()["token_strs"] is None
    answer = post(cell, completion(prompt=text, return_token_ids=True)).json()["choices"][0]
    assert answer["prompt_token_ids"] == made["tokens"]
    back = post(cell, {"model": MODEL, "tokens": made["tokens"]}, "/detokenize")
    assert back.json() == {"prompt": text}
    messages = [{"role": "user", "content": text}]
    made = post(cell, {"messages": messages}, "/tokenize").json()
    answer = post(cell, chat(*messages, max_tokens=2, return_token_ids=True)).json()
    assert answer["prompt_token_ids"] == made["tokens"]
    with cell.openai() as client:
        streamed = client.chat.completions.create(
            model=MODEL,
            messages=messages,
            max_tokens=2,
            stream=True,
            extra_body={"return_token_ids": True},
        )
        firsts = [getattr(event, "prompt_token_ids", None) for event in streamed]
    assert firsts[0] == made["tokens"]
    assert not any(firsts[1:])
    for path, body, param in (
        ("tokenize", {}, "prompt"),
        ("tokenize", {"prompt": "x", "messages": messages}, "prompt"),
        ("tokenize", {"prompt": 3}, "prompt"),
        ("tokenize", {"prompt": "x", "tools": []}, "tools"),
        ("tokenize", {"messages": messages, "add_special_tokens": True}, "add_special_tokens"),
        ("tokenize", {"messages": [{"role": "user"}]}, "messages[0].content"),
        ("detokenize", {"tokens": [1.5]}, "tokens[0]"),
        ("detokenize", {"tokens": [-1]}, "tokens"),
        ("detokenize", {"tokens": [10**6]}, "tokens"),
        ("detokenize", {}, "tokens"),
        ("detokenize", {"tokens": [], "model": "other"}, "model"),
    ):
        wrong = post(cell, body, f"/{path}")
        assert wrong.status_code in (400, 404), wrong.text
        assert wrong.json()["error"]["param"] == param


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


def test_a_full_queue_says_when_to_come_back(pair: Path) -> None:
    with HttpCell(pair, max_running=1, max_queued=0) as cell, cell.openai() as client:
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


def test_without_a_verifier_it_is_unavailable(pair: Path) -> None:
    with HttpCell(pair, workers=False) as cell:
        for answer in (post(cell, completion()), httpx.get(f"{cell.url}/v1/models")):
            assert refusal(answer) == (503, "unavailable")
            assert "retry-after" in answer.headers
        assert httpx.get(f"{cell.url}/health").status_code == 503


def test_what_takes_too_long_is_told_so(tmp_path: Path) -> None:
    with HttpCell(synthetic_pair(tmp_path, step_ms=100.0), request_deadline_s=0.5) as cell:
        late = post(cell, completion(max_tokens=1000, ignore_eos=True))
        assert refusal(late) == (504, "deadline_exceeded")
        # A stream has begun by then, so it hears of it by an event, and never sees [DONE].
        text = post(cell, completion(max_tokens=1000, ignore_eos=True, stream=True)).text
        last = text.rstrip("\n").split("\n\n")[-1]
        assert json.loads(last.removeprefix("data: "))["error"]["code"] == "deadline_exceeded"
        asked = completion(max_tokens=1000, stream=True, extra_body={"ignore_eos": True})
        with cell.openai() as client, pytest.raises(openai.APIError, match="no answer within"):
            list(client.completions.create(**asked))
        cell.freed()


def test_a_silent_stream_is_kept_alive(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(stream, "KEEPALIVE_S", 0.05)
    with HttpCell(synthetic_pair(tmp_path, step_ms=400.0)) as cell:
        body = completion(stream=True, ignore_eos=True)
        with httpx.stream("POST", f"{cell.url}/v1/completions", json=body, timeout=60) as answer:
            text = answer.read().decode()
        assert text.count(": still here\n\n") > 1
        assert text.endswith("data: [DONE]\n\n")
        with cell.openai() as client:  # every reader of events skips comments
            assert list(client.completions.create(**completion(stream=True)))


def test_under_tls_certificates_are_asked_for_and_renewed_while_serving(tmp_path: Path) -> None:
    authority = Authority(tmp_path)
    _, files = token_files(tmp_path, "worker")
    with HttpCell(workers=False, **authority.settings(), **files) as cell:
        assert cell.url.startswith("https://")
        with pytest.raises(httpx.TransportError):
            httpx.get(f"{cell.url}/health", verify=authority.context())
        node = authority.context("node")
        assert httpx.get(f"{cell.url}/health", verify=node).status_code == 503
        endpoint = cell.url.removeprefix("https://")
        before = authority.shown(endpoint)
        authority.spoil("node.crt")
        assert authority.shown(endpoint) == before
        authority.renew()
        assert authority.shown(endpoint) != before


def test_a_certificate_says_who_calls_over_http_too(tmp_path: Path) -> None:
    authority = Authority(tmp_path)
    with HttpCell(workers=False, **authority.settings()) as cell:
        for name, models, metrics in (
            ("client-acme", 503, 403),
            ("operator", 503, 200),
            ("monitor", 403, 200),
            ("node", 403, 403),
        ):
            shows = authority.context(name)
            for path, status in (("/v1/models", models), ("/metrics", metrics)):
                assert httpx.get(cell.url + path, verify=shows).status_code == status, (name, path)


def test_a_key_is_the_clients_token(tmp_path: Path) -> None:
    tokens, files = token_files(tmp_path, "worker", "client")
    client = tokens["client"]
    with HttpCell(workers=False, **files) as cell:
        # an operator's last
        keys = ((None, 401), ("wrong", 401), (client, 503), (tokens["worker"], 503))
        for key, status in keys:
            for headers in ({"authorization": f"Bearer {key}"}, {"x-api-key": str(key)}):
                answer = post(cell, completion(), headers=headers if key else {})
                assert answer.status_code == status, answer.text
        assert post(cell, completion()).json()["error"]["code"] == "invalid_api_key"
        assert httpx.get(f"{cell.url}/health").status_code == 503  # asks nobody
        # metrics are open here, to who shows a key of another role as well
        for headers in ({}, {"authorization": f"Bearer {client}"}):
            assert httpx.get(f"{cell.url}/metrics", headers=headers).status_code == 200
        with cell.openai(api_key="wrong") as stranger, pytest.raises(openai.AuthenticationError):
            stranger.models.list()
        refused = cell.coordinator.metrics.value("refusals_total", reason="unauthenticated")
        assert refused == 6, "as often as somebody was not let in"


def test_tenants_are_told_apart_by_their_keys(pair: Path, tmp_path: Path) -> None:
    keys = {name: f"the-key-of-the-tenant-{name}" for name in ("acme", "bolt")}
    with HttpCell(pair, **key_files(tmp_path, keys)["coordinator"]) as cell:

        def headers(tenant: str) -> dict[str, str]:
            return {"authorization": f"Bearer {keys[tenant]}", "x-request-id": "one"}

        body = completion(stream=True, max_tokens=50_000, ignore_eos=True)
        url = f"{cell.url}/v1/completions"
        with httpx.stream("POST", url, json=body, headers=headers("acme"), timeout=30) as running:
            lines = running.iter_lines()  # held on to: a stream ends with whoever reads its lines
            next(lines)
            # The same name is another request, of another tenant as of the same.
            for tenant in keys:
                answer = post(cell, completion(), headers=headers(tenant))
                assert (answer.status_code, answer.headers["x-request-id"]) == (200, "one")
                assert re.fullmatch(r"cmpl-one-[0-9a-f]{8}", answer.json()["id"])
        cell.freed()
        assert cell.cancelled == 1


def test_a_chat_without_a_limit_ends_at_the_deployments(pair: Path) -> None:
    with HttpCell(pair, default_max_tokens=5) as cell:
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


def test_long_lists_of_ids_are_bounded_and_read_beside_the_event_loop(
    cell: HttpCell, monkeypatch: pytest.MonkeyPatch
) -> None:
    decode, name_of, threads = Tokenizer.decode, Tokenizer.name_of, set[int]()

    def decoded(self: Tokenizer, ids: Sequence[int], *, skip_special: bool) -> str:
        if len(ids) > input_processor.LONG_IDS:  # not the last characters of an answer
            threads.add(threading.get_ident())
        return decode(self, ids, skip_special=skip_special)

    def named(self: Tokenizer, token: int) -> str | None:
        threads.add(threading.get_ident())
        return name_of(self, token)

    monkeypatch.setattr(Tokenizer, "decode", decoded)
    monkeypatch.setattr(Tokenizer, "name_of", named)
    most = cell.coordinator.cell.membership.verifiers[0].context_length
    ids = [65] * most
    assert post(cell, {"tokens": ids}, "/detokenize").status_code == 200
    asked = {"prompt": "ab " * input_processor.LONG_IDS, "return_token_strs": True}
    assert post(cell, asked, "/tokenize").json()["count"] > input_processor.LONG_IDS
    echoed = post(cell, completion(prompt=ids[: 2 * input_processor.LONG_IDS], echo=True))
    assert echoed.status_code == 200
    assert threads
    assert cell.portal.call(threading.get_ident) not in threads
    for path, body, param in (
        ("/detokenize", {"tokens": [*ids, 65]}, "tokens"),
        ("", completion(prompt=[*ids, 65], echo=True), "prompt"),
    ):
        error = post(cell, body, path).json()["error"]
        assert error["param"] == param
        assert f"{most + 1} ids are more than the context of {most} tokens" in error["message"]
