"""The OpenAI-style client against a real HTTP server on loopback, in the dialects such servers
speak."""

import asyncio
import contextlib
import json
from collections.abc import Callable
from typing import Any

import pytest

from dspark.client import Options
from dspark.errors import Denied, InvalidRequest, Overloaded, Unavailable
from dspark.loadgen import prometheus
from dspark.loadgen.answer import MeasuredAnswer
from dspark.loadgen.http_stream import LINE_LIMIT
from dspark.loadgen.openai_endpoint import OpenAiEndpoint
from dspark.loadgen.prompts import Question

QUESTION = Question((1, 2, 3))
Reply = Callable[[dict[str, Any]], bytes]


def ask(reply: Reply) -> tuple[MeasuredAnswer, OpenAiEndpoint, dict[str, Any]]:
    """One question to a server that answers with the bytes `reply` makes of the request, over a
    connection that the client closes."""

    async def talk() -> tuple[MeasuredAnswer, OpenAiEndpoint, dict[str, Any]]:
        seen: dict[str, Any] = {}
        left = asyncio.Event()

        async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            head = (await reader.readuntil(b"\r\n\r\n")).decode()
            length = int(head.partition("Content-Length: ")[2].split()[0])
            seen.update(json.loads(await reader.readexactly(length)), head=head)
            writer.write(reply(seen))
            writer.write_eof()
            with contextlib.suppress(ConnectionError):  # of a client that left bytes unread
                await reader.read()
            writer.close()
            left.set()

        server = await asyncio.start_server(serve, "127.0.0.1", 0)
        port = server.sockets[0].getsockname()[1]
        endpoint = OpenAiEndpoint(
            f"http://127.0.0.1:{port}/v1",
            "m",
            Options(max_tokens=9, temperature=0, seed=None),
            api_key="k",
        )
        answer = MeasuredAnswer(QUESTION, intended=0.0)
        async with server:
            try:
                async for piece in endpoint.stream(QUESTION, 0):
                    answer.take(piece, asyncio.get_running_loop().time())
            finally:
                async with asyncio.timeout(10):
                    await left.wait()
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


COUNTED: dict[str, tuple[list[dict[str, Any]], list[int]]] = {
    "ids": ([choice(token_ids=[5]), choice(token_ids=[6, 7], finish_reason="length")], [1, 2]),
    "usage": ([choice() | {"usage": {"completion_tokens": count}} for count in (1, 4)], [1, 3]),
    "total": (  # which is spread over the messages
        [
            choice(),
            choice(finish_reason="stop"),
            {"choices": [], "usage": {"completion_tokens": 6}},
        ],
        [3, 3],
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
        (b"HTTP/1.1 200 OK\r\nContent-Length: 100\r\n\r\nshort", "broke off"),
        (b"HTTP/1.1 200 OK\r\n\r\n" + bytes(LINE_LIMIT + 1), "sent a line of more than"),
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
    names = ("drafts", "draft_tokens", "accepted_tokens")
    page = {f'vllm:spec_decode_num_{name}_total{{engine="{n}"}}': 10.0 * len(name) + n
            for name in names for n in (0, 1)}  # fmt: skip

    async def scrape(url: str) -> dict[str, float]:
        if url != "http://there:1/metrics":
            raise Unavailable(url)
        return page

    monkeypatch.setattr(prometheus, "scrape", scrape)
    known = await OpenAiEndpoint("http://there:1/v1/", "m", Options()).counters()
    assert known == {name: 20.0 * len(name) + 1 for name in names}
    assert await OpenAiEndpoint("http://elsewhere:1/v1", "m", Options()).counters() == {}


def test_addresses_are_checked(monkeypatch: pytest.MonkeyPatch) -> None:
    called: list[tuple[Any, ...]] = []

    async def connected(*address: Any, ssl: Any, limit: int) -> Any:
        called.append((*address, ssl is not None))
        raise OSError("no")

    async def talk(url: str) -> None:
        async for _ in OpenAiEndpoint(url, "m", Options()).stream(QUESTION, 0):
            pass

    with pytest.raises(InvalidRequest, match="url"):
        asyncio.run(talk("ftp://x/v1"))
    with pytest.raises(Unavailable, match="reached"):
        asyncio.run(talk("http://127.0.0.1:9/v1"))
    monkeypatch.setattr(asyncio, "open_connection", connected)
    for url in ("http://x/v1", "https://x/v1", "https://x:9/v1"):
        with pytest.raises(Unavailable, match="reached"):
            asyncio.run(talk(url))
    assert called == [("x", 80, False), ("x", 443, True), ("x", 9, True)]
