"""A cell with an HTTP front on an event loop of its own, for clients that block."""

import shutil
import socket
from collections.abc import Coroutine, Mapping
from pathlib import Path
from typing import Any, Self

import openai

from coordinator.config import CoordinatorConfig
from tests.faults.loop_thread import LoopThread
from tests.faults.pair import DRAFTER, FOLDER, TARGET
from tests.services.cell import Cell
from tests.synthetic_file import synthetic_file


class HttpCell:
    """Services in this process, on one more thread; a context that stops them.

    With `pair` a synthetic cell of that description, else the tiny pair. `settings` go to the
    coordinator, `verify` to the verifier, `shared` to every process.
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
        self._workers, self._verify, self._settings = workers, dict(verify or {}), settings
        self.verifier: Any = None
        self.drafter: Any = None
        self.coordinator: Any = None

    def __enter__(self) -> Self:
        self._loop = LoopThread("cell", patience_s=120.0)
        self.run(self._start())
        return self

    def __exit__(self, *_: object) -> None:
        self.run(self._cell.__aexit__())
        self._loop.close()

    def run(self, work: Coroutine[Any, Any, Any]) -> Any:
        """Something on the cell's loop."""
        return self._loop.run(work)

    @property
    def thread(self) -> int | None:
        return self._loop._thread.ident

    @property
    def url(self) -> str:
        return str(self.coordinator.http_url)

    def openai(self, **options: Any) -> openai.OpenAI:
        """The official client; it tries nothing again, so that every error shows."""
        return openai.OpenAI(
            base_url=f"{self.url}/v1", max_retries=0, **{"api_key": "none", **options}
        )

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
        self.run(self._cell.freed())

    @property
    def cancelled(self) -> int:
        """Answers so far that ended because nobody wanted more of them."""
        return int(self.coordinator.metrics.value("requests_total", outcome="cancelled"))

    async def _start(self) -> None:
        if self._workers:
            self.verifier = await self._cell.verifier(**self._verify)
            self.drafter = await self._cell.drafter()
        door = {"target": str(TARGET), "http": "127.0.0.1:0"}
        warm_up = {"warm_up_s": CoordinatorConfig.warm_up_s}
        self.coordinator = await self._cell.coordinator(**{**door, **warm_up, **self._settings})


def in_schema(schema: Any, **more: Any) -> Any:
    """A `response_format` of OpenAI's. more: beside the schema."""
    return {"type": "json_schema", "json_schema": {"name": "x", "schema": schema, **more}}


def target_that_calls(folder: Path) -> dict[str, Any]:
    """Settings of a cell whose target is the tiny one with a chat template that knows tools, in
    `folder`, as `tiny`."""
    for file in (*TARGET.glob("*.json"), *TARGET.glob("*.safetensors")):
        shutil.copy(file, folder)
    shutil.copy(FOLDER.parent / "chat_templates" / "qwen.jinja", folder / "chat_template.jinja")
    return {
        "target": str(folder),
        "verify": {"target": str(folder)},
        "served_model": "tiny",
        "policy": "fixed:3",
    }


def synthetic_pair(folder: Path, *, step_ms: float = 2.0) -> Path:
    """A pair over the tiny target's tokenizer's ids, with steps long enough to be in the middle
    of."""
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
