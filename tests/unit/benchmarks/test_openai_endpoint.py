"""The OpenAI-style client against a real HTTP server on loopback, in the dialects such servers
speak."""

import asyncio
import json
from collections.abc import Callable
from typing import Any
from unittest.mock import AsyncMock

import pytest

from dspark.client import Options
from dspark.errors import Denied, InvalidRequest, Overloaded, Unavailable
from dspark.loadgen import prometheus
from dspark.loadgen.answer import MeasuredAnswer
from dspark.loadgen.openai_endpoint import OpenAiEndpoint
from dspark.loadgen.prompts import Question

QUESTION = Question((1, 2, 3))
Reply = Callable[[dict[str, Any]], bytes]


def ask(reply: Reply, query: str = "") -> tuple[MeasuredAnswer, OpenAiEndpoint, dict[str, Any]]:
    """One question to a server that answers with the bytes `reply` makes of the request."""

    async def talk() -> tuple[MeasuredAnswer, OpenAiEndpoint, dict[str, Any]]:
        seen: dict[str, Any] = {}

        async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            head = (await reader.readuntil(b"\r\n\r\n")).decode()
            length = int(head.partition("Content-Length: ")[2].split()[0])
            seen.update(json.loads(await reader.readexactly(length)), head=head)
            writer.write(reply(seen))
            writer.close()

        server = await asyncio.start_server(serve, "127.0.0.1", 0)
        port = server.sockets[0].getsockname()[1]
        endpoint = OpenAiEndpoint(
            f"http://127.0.0.1:{port}/v1/{query}",
            "m",
            Options(max_tokens=9, temperature=0, seed=None),
            api_key="k",
        )
        answer = MeasuredAnswer(QUESTION, intended=0.0)
        async with server:
            async for piece in endpoint.stream(QUESTION, 0):
                answer.take(piece, asyncio.get_running_loop().time())
        return answer, endpoint, seen

    return asyncio.run(talk())


def events(*messages: dict[str, Any] | str, chunked: bool = True) -> bytes:
    body = b"".join(
        b"data: %s\n\n" % (m if isinstance(m, str) else json.dumps(m)).encode() for m in messages
    )
    if not chunked:
        return b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\n\r\n" + body
    # Pieces that end in the middle of lines, as on a real network.
    parts = [body[start : start + 37] for start in range(0, len(body), 37)]
    chunks = b"".join(b"%x\r\n%s\r\n" % (len(part), part) for part in parts)
    return b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n" + chunks + b"0\r\n\r\n"


def choice(**more: Any) -> dict[str, Any]:
    return {"choices": [{"index": 0, "text": "x", "finish_reason": None, **more}]}


ENDED = events(choice(token_ids=[5], finish_reason="length"))

COUNTED: dict[str, tuple[list[dict[str, Any]], list[int]]] = {
    "ids": ([choice(token_ids=[5]), choice(token_ids=[6, 7], finish_reason="length")], [1, 2]),
    "usage": ([choice() | {"usage": {"completion_tokens": count}} for count in (1, 4)], [1, 3]),
    "total": (  # which is spread over the messages
        [
            choice(),
            choice(finish_reason="stop"),
            {"choices": [], "usage": {"completion_tokens": 7}},
        ],
        [3, 4],
    ),
}


@pytest.mark.parametrize("chunked", [True, False])
@pytest.mark.parametrize("by", COUNTED)
def test_tokens_are_counted_by_the_best_that_a_server_tells(by: str, chunked: bool) -> None:
    messages, counts = COUNTED[by]
    answer, endpoint, seen = ask(lambda seen: events(*messages, "[DONE]", chunked=chunked))
    assert answer.size == sum(len(f"data: {json.dumps(each)}\n\n") for each in messages)
    assert (answer.counts, endpoint.counted_by) == (counts, by)
    assert answer.token_ids == ([5, 6, 7] if by == "ids" else [])
    assert (seen["prompt"], seen["max_tokens"], seen["stream"]) == ([1, 2, 3], 9, True)
    assert "seed" not in seen, "a server may refuse null"
    assert "Authorization: Bearer k" in seen["head"]


def test_the_query_of_a_url_is_sent_behind_the_path() -> None:
    _, _, seen = ask(lambda seen: ENDED, "?version=2&x=a/b")
    assert seen["head"].startswith("POST /v1/completions?version=2&x=a/b HTTP/1.1\r\n")


@pytest.mark.parametrize(
    ("head", "kind"),
    [
        ("429 Too Many Requests\r\nRetry-After: 7", Overloaded),
        ("400 Bad Request", InvalidRequest),
        ("401 Unauthorized", Denied),
        ("403 Forbidden", Denied),
        ("500 Internal Server Error", Unavailable),
    ],
)
def test_statuses_become_the_errors_of_this_project(head: str, kind: type[Exception]) -> None:
    with pytest.raises(kind, match="said why"):
        ask(lambda seen: f"HTTP/1.1 {head}\r\nContent-Length: 8\r\n\r\nsaid why".encode())


@pytest.mark.parametrize(
    ("reply", "said"),
    [
        (b"", "broke off"),
        (b"220 smtp.example ESMTP\r\n\r\n", "does not speak HTTP"),
        (b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\nzz\r\n", "broke off"),
        (ENDED.removesuffix(b"0\r\n\r\n"), "broke off"),
        (b"HTTP/1.1 200 OK\r\nContent-Length: 100\r\n\r\nshort", "broke off"),
        (events(choice(token_ids=[1])), "ended the answer without saying why"),
        (events("{"), "not JSON"),
        (events({"error": {"message": "no"}}, "[DONE]"), "failed: .*no"),
    ],
)
def test_a_reply_that_breaks_off_or_makes_no_sense_is_no_answer(reply: bytes, said: str) -> None:
    with pytest.raises(Unavailable, match=said):
        ask(lambda seen: reply)


async def test_totals_of_speculation_stand_beside_the_interface(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    totals = {"drafts": 3, "draft_tokens": 12, "accepted_tokens": 7}
    page = {f"vllm:spec_decode_num_{name}_total": total for name, total in totals.items()}

    async def scrape(url: str) -> dict[str, int]:
        if url != "http://there:1/metrics":
            raise Unavailable(url)
        return page

    monkeypatch.setattr(prometheus, "scrape", scrape)
    assert await OpenAiEndpoint("http://there:1/v1/", "m", Options()).counters() == totals
    assert await OpenAiEndpoint("http://elsewhere:1/v1", "m", Options()).counters() == {}


async def test_addresses_are_checked(monkeypatch: pytest.MonkeyPatch) -> None:
    async def ask_there(url: str) -> None:
        await anext(OpenAiEndpoint(url, "m", Options()).stream(QUESTION, 0))

    with pytest.raises(InvalidRequest, match="url"):
        await ask_there("ftp://x/v1")
    with pytest.raises(Unavailable, match="reached"):
        await ask_there("http://127.0.0.1:9/v1")
    connected = AsyncMock(side_effect=OSError("no"))
    monkeypatch.setattr(asyncio, "open_connection", connected)
    for url in ("http://x/v1", "https://x/v1"):
        with pytest.raises(Unavailable, match="reached"):
            await ask_there(url)
    assert [call.args for call in connected.mock_calls] == [("x", 80), ("x", 443)]
