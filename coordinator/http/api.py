"""What every HTTP route shares: the input processor, the target's chat template, access checks."""

from __future__ import annotations

import functools
import hashlib
import re
from collections.abc import Awaitable, Callable, Iterable
from dataclasses import dataclass, replace

from fastapi import APIRouter, Depends, FastAPI, Request
from starlette.exceptions import HTTPException

import dspark
from coordinator.cells.cell import CellTerms
from coordinator.config import ClientsConfig
from coordinator.http.body import M, read_body
from coordinator.http.connection import names_of
from coordinator.http.errors import UnknownModel, handle_errors
from coordinator.http.template import ChatTemplate, find_template
from coordinator.reception.input_processor import InputProcessor, prompt_bytes
from coordinator.reception.pacing import PacketPace, read_pace
from dspark.errors import ConfigError, Denied
from dspark.runtime.addresses import is_loopback, split_endpoint
from dspark.runtime.identity import model_name
from dspark.runtime.roles import METRICS, Role, Roles
from dspark.runtime.security import Security, current_caller, set_caller

Guard = Callable[[Request], Awaitable[None]]


@dataclass(frozen=True)
class Api:
    """What the routes of one HTTP listener share.

    guard: a dependency that raises Denied for callers that are neither client nor operator;
    operator_guard: for those that may not read metrics. template: the target's chat template.
    pace: hides what packets reveal of answers. security: TLS and keys of the listener. local: it
    listens on loopback and asks for no key, so requests of other sites' pages must be refused.
    """

    processor: InputProcessor
    config: ClientsConfig
    guard: Guard
    operator_guard: Guard
    template: ChatTemplate | None
    pace: PacketPace | None
    security: Security
    local: bool

    def model(self, terms: CellTerms) -> str:
        """The model's name for clients: `served_model`, else the folder's name or the hub id."""
        return model_name(terms.model, self.config.served_model)

    def fingerprint(self, terms: CellTerms) -> str:
        """`system_fingerprint`: a hash of the target's weights and this software's version, on
        which a seeded answer depends."""
        made = hashlib.sha256(f"{terms.fingerprint} {dspark.__version__}".encode())
        return f"fp_{made.hexdigest()[:12]}"

    def check_model(self, asked: str | None, terms: CellTerms) -> str:
        """The served model's name. Raises UnknownModel if `asked` is the name of another; None and
        "" are no name."""
        served = self.model(terms)
        if asked not in (None, "", served, terms.model):
            raise UnknownModel(f"the model {str(asked)[:200]!r} is not served here; {served!r} is")
        return served

    async def read(self, request: Request, kind: type[M]) -> M:
        """The body of a request, no larger than a prompt that the cell can take."""
        return await read_body(request, kind, prompt_bytes(self.processor.cell))

    def check_capacity(self) -> None:
        """Refuses a request to generate that has no room, before any work on it."""
        self.processor.cell.check_capacity(current_caller().tenant)


def check_host(request: Request) -> None:
    """Raises HTTPException 403 if the Host header is not a local name: a web page may resolve its
    own name to this machine (DNS rebinding) and must not drive a local server."""
    host = request.headers.get("host", "")
    name = (host.rsplit(":", 1)[0] if not host.endswith("]") else host).lower().rstrip(".")
    if not name.endswith(".localhost") and not is_loopback(name.strip("[]")):
        raise HTTPException(
            403, f"host {host[:100]!r}: without a client token only local names are answered"
        )


_ORIGIN = re.compile(r"https?://[^/\s?#@]+")
CLIENTS: Roles = frozenset({Role.CLIENT, Role.OPERATOR})


def make_api(config: ClientsConfig, processor: InputProcessor) -> Api:
    """The Api of the listener at `config.http`, whose address decides who must show a key."""
    assert config.http is not None
    security = Security.of(replace(config, bind=config.http))
    asked = Role.CLIENT not in security.access.open_to
    _check_origins(config.cors_origin, asked)
    return Api(
        processor,
        config,
        guard_of(security, CLIENTS, processor.metrics.denied),
        guard_of(security, METRICS, processor.metrics.denied),
        find_template(config.target, config.target_revision),
        read_pace(config),
        security,
        local=is_loopback(split_endpoint(config.http)[0]) and not asked,
    )


def _check_origins(given: tuple[str, ...], asked: bool) -> None:
    """Raises ConfigError for malformed origins, and for * unless callers need a key (`asked`)."""
    for origin in given:
        if origin == "*" and not asked:
            raise ConfigError(
                "cors_origin: * lets any web page in where no key is needed; name origins"
            )
        if origin != "*" and not _ORIGIN.fullmatch(origin):
            raise ConfigError(
                f"cors_origin: {origin[:100]!r} is not a scheme, a host and perhaps a port"
            )


def guard_of(security: Security, roles: Roles, denied: Callable[[Denied], None]) -> Guard:
    """A dependency that admits and records a caller with one of `roles`, else calls `denied` and
    raises Denied."""
    admit = functools.partial(security.access.admit, "this request", roles)

    async def guard(request: Request) -> None:
        shown, names = request.headers.get("authorization"), names_of(request.scope)
        if shown is None and (key := request.headers.get("x-api-key")) is not None:
            # the header of Anthropic's clients
            shown = f"Bearer {key}"
        try:
            caller = admit(authorization=shown, names=names)
        except Denied as error:
            if shown is None or not security.access.open_to & roles:
                denied(error)
                raise
            # OpenAI's clients always send a key; where a role needs none, any key is accepted.
            caller = admit(authorization=None, names=names)
        set_caller(caller)

    return guard


def build_app(api: Api, routers: Iterable[APIRouter]) -> FastAPI:
    """The application of `routers`, with error handlers, the check of hosts, and CORS."""

    async def from_here(request: Request) -> None:
        if api.local:
            check_host(request)

    # No documentation pages: they would load scripts of other hosts. The schema is /openapi.json.
    # No redirects: behind a proxy with TLS they would lead to plain HTTP.
    app = FastAPI(title="dspark", docs_url=None, redoc_url=None, redirect_slashes=False)
    handle_errors(app)
    for router in routers:
        app.include_router(router, dependencies=[Depends(from_here)])
    return app
