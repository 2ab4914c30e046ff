"""A cell with an HTTP front on an event loop of its own, for clients that block."""

import asyncio
import contextlib
import shutil
import socket
from collections.abc import Callable, Coroutine, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, Self

import anthropic
import httpx
import openai
import pytest
from anyio.from_thread import start_blocking_portal

from coordinator.config import CoordinatorConfig
from dspark.client import Client, Completion, RoundExplanation
from tests.faults.pair import DRAFTER, FOLDER, TARGET
from tests.services.cell import Cell
from tests.synthetic_file import synthetic_file
from tests.waiting import wait_until

PATIENCE_S = 120.0  # with anything asked of the loop
# On a crowded machine a drafter is late, and then left out for a while.
PATIENT = {"draft_deadline_s": 30.0, "drafter_patience_s": 60.0}


class HttpCell:
    """Services in this process, on one more thread; a context that stops them.

    With `pair` a synthetic cell of that description, else the tiny pair. `settings` go to the
    coordinator, `verify` to the verifier, `shared` to every process. `portal` leads to its loop.
    """

    def __init__(
        self,
        pair: Path | None = None,
        *,
        workers: bool = True,
        shared: Mapping[str, Any] | None = None,
        verify: Mapping[str, Any] | None = None,
        **settings: Any,
    ) -> None:
        made = {"pair": pair} if pair else {"target": TARGET, "drafter": DRAFTER}
        self._cell = Cell(shared=shared, **made)
        self._workers, self._settings = workers, settings
        self._verify = {**PATIENT, **(verify or {})}

    def __enter__(self) -> Self:
        with contextlib.ExitStack() as ends:
            self.portal = ends.enter_context(start_blocking_portal(name="cell"))
            ends.callback(self.run, self._cell.__aexit__)
            self.run(self._start)
            self._ends = ends.pop_all()
        return self

    def __exit__(self, *_: object) -> None:
        self._ends.close()

    def run(self, work: Callable[[], Coroutine[Any, Any, Any]]) -> Any:
        """On its loop. TimeoutError: it was cancelled, as whatever hangs would be waited for."""
        return self.portal.call(asyncio.wait_for, work(), PATIENCE_S)

    @property
    def url(self) -> str:
        return str(self.coordinator.http_url)

    def openai(self, **options: Any) -> openai.OpenAI:
        """The official client; it tries nothing again, so that every error shows."""
        return openai.OpenAI(
            base_url=f"{self.url}/v1", max_retries=0, **{"api_key": "none", **options}
        )

    def claude(self) -> anthropic.Anthropic:
        """The official client of the other dialect, likewise."""
        return anthropic.Anthropic(base_url=self.url, api_key="none", max_retries=0)

    def post(self, path: str, body: Any, **options: Any) -> httpx.Response:
        return httpx.post(self.url + path, json=body, timeout=PATIENCE_S, **options)

    def refused(self, path: str, body: Any) -> str:
        """The field of a body that is refused, and what is wrong with it."""
        answer = self.post(path, body)
        assert answer.status_code == 400, answer.text
        error, said = answer.json()["error"], str(answer.json()["error"]["message"])
        assert error["type"] == "invalid_request_error"
        if path.startswith("/v1/messages"):
            assert answer.json()["type"] == "error"
        else:
            assert said.startswith(f"{error['param']}: ")
        return said

    def chat(self, **fields: Any) -> Any:
        """A chat of one turn through the official client."""
        turn = {"role": "user", "content": "def f"}
        given = {"model": "", "messages": [turn], "max_tokens": 400, **fields}
        return self.openai().chat.completions.create(**given)

    def connected(self, request: str, content: bytes = b"", length: int = 0) -> socket.socket:
        """A connection that asks, and reads little. length: of the content as its head tells it."""
        host, port = self.url.removeprefix("http://").split(":")
        connection = socket.socket()
        connection.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        connection.connect((host, int(port)))
        head = f"{request} HTTP/1.1\r\nHost: {host}\r\nContent-Type: application/json\r\n"
        told = f"{head}Content-Length: {length or len(content)}\r\n\r\n"
        connection.sendall(told.encode() + content)
        return connection

    @property
    def held(self) -> int:
        """Sequences anywhere."""
        return self._cell.running + self._cell.held

    def freed(self) -> None:
        self.run(self._cell.freed)

    @property
    def cancelled(self) -> int:
        """Answers so far that ended because nobody wanted more of them."""
        return int(self.coordinator.metrics.value("requests_total", outcome="cancelled"))

    async def _start(self) -> None:
        if self._workers:
            self.verifier: Any = await self._cell.verifier(**self._verify)
            self.drafter: Any = await self._cell.drafter()
        door = {"target": str(TARGET), "http": "127.0.0.1:0"}
        warm_up = {"warm_up_s": CoordinatorConfig.warm_up_s}
        self.coordinator: Any = await self._cell.coordinator(
            **{**door, **warm_up, **self._settings}
        )


def of_module(settings: Callable[[Path], Mapping[str, Any]] = lambda _: {}, **more: Any) -> Any:
    """A fixture: a cell for all tests of a module. settings: made in a folder of its own."""

    @pytest.fixture(scope="module")
    def cell(tmp_path_factory: pytest.TempPathFactory) -> Iterator[HttpCell]:
        with HttpCell(**settings(tmp_path_factory.mktemp("cell")), **more) as running:
            yield running

    return cell


def explained(cell: HttpCell, name: str, **asked: Any) -> tuple[list[RoundExplanation], Completion]:
    """Rounds of an answer, told while it runs, and all of it."""
    with Client(cell.coordinator.endpoint) as client, ThreadPoolExecutor(1) as pool:
        asking = pool.submit(client.complete, request_id=name, temperature=0.0, **asked)
        wait_until(lambda: cell.coordinator.cell.admission.find(name) is not None)
        return list(client.explain(name, timeout=60.0)), asking.result()


def in_schema(schema: Any, **more: Any) -> Any:
    """A `response_format` of OpenAI's. more: beside the schema."""
    return {"type": "json_schema", "json_schema": {"name": "x", "schema": schema, **more}}


def target_that_calls(folder: Path) -> dict[str, Any]:
    """A cell of the tiny target as `tiny`, copied to `folder`, with a template that knows tools."""
    for file in (*TARGET.glob("*.json"), *TARGET.glob("*.safetensors")):
        shutil.copy(file, folder)
    shutil.copy(FOLDER.parent / "chat_templates" / "qwen.jinja", folder / "chat_template.jinja")
    return {
        "target": str(folder),
        "verify": {"target": str(folder)},
        "served_model": "tiny",
        "policy": "fixed:3",
    }


def slowly(folder: Path) -> dict[str, Any]:
    """Settings of a cell of a synthetic pair with steps of 4 ms."""
    return {"pair": synthetic_pair(folder, step_ms=4.0)}


def synthetic_pair(folder: Path, *, step_ms: float = 2.0) -> Path:
    """Over the tiny target's ids, with steps long enough to be in the middle of."""
    return Path(
        synthetic_file(
            folder,
            [0.9, 0.9, 0.8],
            verify_ms=step_ms,
            draft_ms=0.2,
            concentration=1.0,
            vocabulary=4096,
        )
    )
