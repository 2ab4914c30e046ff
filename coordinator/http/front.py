"""The HTTP front of a process, as the process sees it. Loads the HTTP libraries only where a front is wanted."""

from __future__ import annotations

import importlib.util
from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING, Protocol

from coordinator.reception.input_processor import InputProcessor
from dspark.errors import ConfigError

if TYPE_CHECKING:
    from fastapi import APIRouter

    from coordinator.config import CoordinatorConfig
    from coordinator.frontend.config import FrontendConfig
    from coordinator.http.api import Api

LIBRARIES = ("fastapi", "uvicorn", "httptools", "jinja2")


class HttpFront(Protocol):
    """A listening front."""

    @property
    def url(self) -> str:
        """http://host:port"""

    async def stop(self, grace_s: float) -> None:
        """Takes no new connections; running answers get `grace_s` seconds."""


async def open_front(
    config: CoordinatorConfig | FrontendConfig,
    processor: InputProcessor,
    *,
    most: int,
    more: Callable[[Api], Iterable[APIRouter]] = lambda _: (),
) -> HttpFront | None:
    """Opens `config.http`, if any. most: requests at one time. more: routes beside OpenAI's."""
    if config.http is None:
        return None
    missing = [name for name in LIBRARIES if importlib.util.find_spec(name) is None]
    if missing:
        raise ConfigError(
            f"http: needs {', '.join(missing)}; they come with the extra `http`: pip install '.[http]' in the checkout"
        )
    from coordinator.http.api import make_api
    from coordinator.http.app import build_app
    from coordinator.http.server import HttpServer

    api = make_api(config, processor)
    server = HttpServer(
        build_app(api, more(api)), config.http, most=most, security=api.security, metrics=processor.metrics
    )
    await server.start()
    return server
