"""What the live page asks, without a browser: rounds explained, frames, bounds, access."""

import asyncio
import json
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest

from dspark.client import Client
from tests.keys import token_files
from tests.services.http_cell import HttpCell, of_module, synthetic_pair
from tests.waiting import wait_until

PROMPT = "Worksheet on sums\n\nProblem 1: Add 12 and 30.\n"


cell = of_module(live_streams=4)


@pytest.fixture
def http(cell: HttpCell) -> Iterator[httpx.Client]:
    with httpx.Client(base_url=cell.url, timeout=30.0) as client:
        yield client


def events(response: httpx.Response) -> Iterator[dict[str, Any]]:
    for line in response.iter_lines():
        if line.startswith("data: "):
            yield json.loads(line.removeprefix("data: "))


def said(*contents: str) -> list[dict[str, str]]:
    """A conversation that the user begins."""
    return [
        {"role": ("user", "assistant")[index % 2], "content": text}
        for index, text in enumerate(contents)
    ]


def ask(http: httpx.Client, *contents: str, **wish: Any) -> list[dict[str, Any]]:
    given = {"messages": said(*contents or (PROMPT,)), "max_tokens": 48, **wish}
    with http.stream("POST", "/live/generate", json=given) as response:
        assert response.status_code == 200
        return list(events(response))


@pytest.mark.parametrize("policy", ["adaptive", "fixed:3", "threshold:0.6", "off"])
def test_an_answer_is_told_token_by_token_as_it_is_over_grpc(
    cell: HttpCell, http: httpx.Client, policy: str
) -> None:
    with Client(cell.coordinator.endpoint) as client:
        expected = client.complete(PROMPT, max_tokens=48, temperature=0.0, policy=policy)
    begin, first, *rounds, end = ask(http, policy=policy)
    assert (begin["type"], first["type"], end["type"]) == ("begin", "first", "end")
    assert begin["policy"] == policy
    tokens = [token for told in (first, *rounds) for token in told["tokens"]]
    assert [token["id"] for token in tokens] == list(expected.token_ids)
    assert "".join(token["text"] for token in tokens) == expected.text
    assert end["tokens"] == 48
    assert end["rounds"] == len(rounds)
    for each in rounds:
        told, slots = each["told"], each["told"]["slots"]
        assert [slot["survival"] for slot in slots] == sorted(
            (slot["survival"] for slot in slots), reverse=True
        )
        assert told["prefix"] <= (3 if policy == "fixed:3" else len(slots))
        assert told["round_ms"] > 0
        assert (told["empty_because"] != "") == (not slots)
        assert policy != "off" or told["empty_because"] == "policy_off"
        assert policy != "fixed:3" or not slots or told["why"] in ("fixed", "whole", "room")
        named = [slot["text"] for slot in slots if slot["token_id"] is not None]
        assert named == [token["text"] for token in each["tokens"][: len(named)]]
    assert 0 < end["first_ms"] < end["total_ms"]
    assert end["verified"] == sum(each["told"]["prefix"] for each in rounds)
    assert end["drafted"] == sum(len(each["told"]["slots"]) for each in rounds)
    drafted = sum(token["origin"] == "drafted" for token in tokens)
    assert drafted == sum(each["told"]["accepted"] for each in rounds) == end["accepted"]
    if policy in ("fixed:3", "off"):  # else it may be that no draft pays
        assert (drafted > 0) is (policy == "fixed:3")


def test_a_conversation_goes_through_the_targets_template(
    cell: HttpCell, http: httpx.Client
) -> None:
    turns = said("Add 12 and 30.", "42", "Now add 5.")
    with cell.openai() as client:
        options: dict[str, Any] = {"model": "", "max_tokens": 24, "temperature": 0.0}
        expected = client.chat.completions.create(messages=turns, **options)  # type: ignore[call-overload]
    begin, *told = ask(http, *(each["content"] for each in turns), max_tokens=24)
    assert begin["prompt_tokens"] == expected.usage.prompt_tokens
    assert begin["left_out"] == 0
    text = "".join(token["text"] for each in told[:-1] for token in each["tokens"])
    assert text == expected.choices[0].message.content


def test_the_oldest_turns_are_left_out_where_the_context_is_full(
    cell: HttpCell, http: httpx.Client
) -> None:
    with Client(cell.coordinator.endpoint) as client:
        room = client.model_info().context_length - 16
    long = "import socket\n" * (room // 18)  # two of them are longer than the context
    begin, *_ = ask(http, long, long, "Add 12 and 30.", "42", "Now add 5.", max_tokens=16)
    assert begin["left_out"] == 2
    short, *_ = ask(http, "Add 12 and 30.", "42", "Now add 5.", max_tokens=16)
    assert begin["prompt_tokens"] == short["prompt_tokens"]
    alone = http.post("/live/generate", json={"messages": said(long * 4), "max_tokens": 16})
    assert alone.status_code == 400
    assert "context" in alone.text


def test_leaving_frees_the_sequence_at_once(cell: HttpCell, http: httpx.Client) -> None:
    before = cell.cancelled
    with http.stream(
        "POST", "/live/generate", json={"messages": said(PROMPT), "max_tokens": 1024}
    ) as response:
        assert next(events(response))["type"] == "begin"
    cell.freed()
    assert cell.cancelled == before + 1
    wait_until(lambda: not cell.coordinator.cell.membership.explain.watches)


def test_who_leaves_before_the_answer_has_begun_frees_the_sequence_too(
    cell: HttpCell, monkeypatch: pytest.MonkeyPatch
) -> None:
    front, before = cell.coordinator, cell.cancelled
    accept, asked, left = front._processor.accept, threading.Event(), threading.Event()

    async def slowly(message: Any) -> Any:
        asked.set()
        await asyncio.to_thread(left.wait)
        return await accept(message)

    monkeypatch.setattr(front._processor, "accept", slowly)
    open_before = len(front._http._server.server_state.connections)
    body = {"messages": said(PROMPT), "max_tokens": 1024}
    with cell.connected("POST /live/generate", json.dumps(body).encode()):
        assert asked.wait(30)
    wait_until(lambda: len(front._http._server.server_state.connections) <= open_before)
    left.set()
    wait_until(lambda: cell.cancelled == before + 1)
    cell.freed()


def test_a_page_that_reads_nothing_is_cut_and_counted(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(
        "coordinator.live.feed.event", lambda _: b"data: %b\n\n" % (b"x" * (1 << 20))
    )
    with HttpCell(synthetic_pair(tmp_path), max_unread_s=0.2) as cell:
        with cell.connected("GET /live/events"):
            wait_until(lambda: cell.coordinator.metrics.value("slow_readers_cut_total") == 1)
        wait_until(lambda: not cell.coordinator.cell.membership.explain.watches)


def test_head_of_the_stream_is_its_head_alone(cell: HttpCell, http: httpx.Client) -> None:
    """And the connection takes the next request."""
    for _ in range(2):
        answer = http.head("/live/events")
        assert (answer.status_code, answer.content) == (200, b"")
        assert answer.headers["content-type"].startswith("text/event-stream")
    assert http.get("/health").status_code == 200
    assert not cell.coordinator.cell.membership.explain.watches


def test_a_page_that_finds_too_many_watches_is_told_to_come_again(
    cell: HttpCell, http: httpx.Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    wait_until(lambda: not cell.coordinator.cell.membership.explain.watches)
    monkeypatch.setattr("coordinator.lanes.watch.MAX_WATCHES", 0)
    for answer in (http.get("/live/events"), http.post("/live/load", json={"streams": 1})):
        assert (answer.status_code, answer.headers["retry-after"]) == (429, "1")
        assert "0 watch already" in answer.text


def test_frames_show_lanes_workers_and_the_load_that_is_set_within_its_bound(
    cell: HttpCell, http: httpx.Client
) -> None:
    with http.stream("GET", "/live/events") as response:
        frames = events(response)
        assert next(frames)["type"] == "hello"
        assert http.post("/live/load", json={"streams": 1000}).json() == {"streams": 4, "most": 4}
        busy = next(frame for frame in frames if any(lane["turns"] for lane in frame["lanes"]))
        (lane,) = busy["lanes"]
        assert lane["verified"] <= lane["drafted"] or not lane["drafted"]
        assert lane["committed"] >= lane["turns"] > 0
        assert {worker["role"] for worker in busy["workers"]} == {"verify", "draft"}
        assert busy["load"] == {"streams": 4, "most": 4}
        assert http.post("/live/load", json={"streams": 0}).json()["streams"] == 0
        idle = next(frame for frame in frames if not frame["running"])
        assert idle["load"]["streams"] == 0
        newest = idle["ended"][:4]
        assert [each["outcome"] for each in newest] == ["cancelled"] * 4
        assert all(each["ms"] > 0 for each in newest)
        rounds = [each for each in newest if each["rounds"]]
        assert all(
            each["tau"] == round((each["tokens"] - 1) / each["rounds"], 2) for each in rounds
        )
    cell.freed()


def test_nobody_watches_nothing_is_kept_and_no_load_stays(
    cell: HttpCell, http: httpx.Client
) -> None:
    assert http.post("/live/load", json={"streams": 2}).json()["streams"] == 2
    assert cell.coordinator.cell.membership.explain.watches
    wait_until(lambda: not cell.coordinator.cell.membership.explain.watches)
    cell.freed()


@pytest.mark.parametrize(
    ("path", "body", "named"),
    [
        ("/live/generate", {"messages": []}, "messages"),
        ("/live/generate", {"messages": [{"role": "tool", "content": "x"}]}, "messages[0].role"),
        ("/live/generate", {"messages": [{"role": "user"}]}, "messages[0].content"),
        ("/live/generate", {"messages": said("x"), "max_tokens": 5000}, "max_tokens"),
        ("/live/generate", {"messages": said("x"), "policy": "fixed:0"}, "policy"),
        ("/live/generate", {"messages": said("x"), "shape": "{"}, "shape"),
        ("/live/generate", {"messages": ["x"] * 200}, "messages[0]"),
        ("/live/generate", {"messages": said("x"), "temperature": -1}, "temperature"),
        ("/live/generate", {"messages": said("x"), "best_of": 3}, "best_of"),
        ("/live/load", {"streams": -1}, "streams"),
        ("/live/load", {"streams": 1, "policy": "magic"}, "policy"),
    ],
)
def test_what_is_wrong_is_named(
    cell: HttpCell, path: str, body: dict[str, Any], named: str
) -> None:
    assert cell.refused(path, body).startswith(f"{named}: ")


def test_the_page_and_its_files_come_with_strict_headers(http: httpx.Client) -> None:
    page = http.get("/")
    assert page.headers["content-type"].startswith("text/html")
    policy = page.headers["content-security-policy"]
    assert "default-src 'none'" in policy
    assert "unsafe" not in policy
    assert "require-trusted-types-for 'script'" in policy
    assert page.headers["x-content-type-options"] == "nosniff"
    for name in ("main.js", "theme.css", "icon.svg", "examples.json"):
        file = http.get(f"/live/page/{name}")
        assert file.status_code == 200
        assert file.headers["content-security-policy"] == policy
        assert not {"etag", "last-modified"} & file.headers.keys(), (
            "two versions may share times and sizes"
        )
    part = {"Range": "bytes=0-9", "If-Range": "x"}
    assert http.get("/", headers=part).status_code == 200
    assert "http://" not in page.text.replace("http://www.w3.org", "")
    assert "https://" not in page.text


@pytest.mark.parametrize(
    "name", ["..%2flive.py", "%2e%2e/live.py", "nothing.js", ".", "index.html%00.js"]
)
def test_no_other_file_is_found(http: httpx.Client, name: str) -> None:
    assert http.get(f"/live/page/{name}").status_code == 404


def test_other_sites_pages_get_nowhere(http: httpx.Client) -> None:
    for header in (
        {"sec-fetch-site": "cross-site"},
        {"sec-fetch-site": "same-site"},
        {"host": "elsewhere.example"},
    ):
        assert http.post("/live/load", json={"streams": 1}, headers=header).status_code == 403
        assert http.get("/live/cell", headers=header).status_code == 403
    plain = http.post(
        "/live/load", content='{"streams": 1}', headers={"content-type": "text/plain"}
    )
    assert plain.status_code == 415  # what a form of another site could send


def test_answers_are_for_clients_pools_for_monitors_and_load_for_operators(tmp_path: Path) -> None:
    names = ("client", "metrics", "operator")
    keys, files = token_files(tmp_path, *names, "worker")
    asked: list[tuple[str, dict[str, Any] | None, set[str]]] = [
        ("/", None, {"", *names}),
        ("/live/page/main.js", None, {"", *names}),
        ("/live/cell", None, {"client", "operator"}),
        ("/live/generate", {"messages": said("x"), "max_tokens": 1}, {"client", "operator"}),
        ("/live/events", None, {"metrics", "operator"}),
        ("/live/load", {"streams": 0}, {"operator"}),
    ]
    with (
        HttpCell(synthetic_pair(tmp_path), **files) as guarded,
        httpx.Client(base_url=guarded.url) as http,
    ):
        for path, body, allowed in asked:
            for name in ("", *names):
                headers = {"authorization": f"Bearer {keys[name]}"} if name else {}
                with http.stream(
                    "GET" if body is None else "POST", path, json=body, headers=headers
                ) as response:
                    expected = 200 if name in allowed else 403 if name else 401
                    assert response.status_code == expected, (path, name)


def test_the_page_can_be_turned_off(tmp_path: Path) -> None:
    with (
        HttpCell(synthetic_pair(tmp_path), live_page=False) as without,
        httpx.Client(base_url=without.url) as http,
    ):
        for path in ("/", "/live/cell", "/live/events", "/live/page/main.js"):
            assert http.get(path).status_code == 404
        assert http.get("/health").status_code == 200
