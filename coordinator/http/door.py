"""What every route needs: the desk, and who may come in."""

from __future__ import annotations

import hashlib
import ipaddress
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field

from fastapi import Request
from starlette.exceptions import HTTPException

import dspark
from coordinator.cells.cell import Terms
from coordinator.clock import Clock
from coordinator.http.errors import UnknownModel
from coordinator.http.template import ChatTemplate
from coordinator.reception.frontdesk import FrontDesk
from coordinator.reception.pacing import Pace
from coordinator.requests.validation import DEFAULT_MAX_TOKENS
from dspark.runtime.identity import model_name
from dspark.runtime.security import Security
from dspark.runtime.telemetry import Metrics

Guard = Callable[[Request], Awaitable[None]]


@dataclass(frozen=True)
class Door:
    """One HTTP front.

    guard: a dependency that raises Denied; `operator_guard` for what clients need not see. template: of the target.
    name: what clients call the target; empty takes its own. longest_s: longest life of a request.
    unread_s: how long a client may leave an event untaken. default_max_tokens: of a chat that sets no limit.
    local: only this machine can come in, and nobody asks it for a key, so web pages must not either. pace: hides what
    packets tell of answers. security: of the listener. origins: web pages that may ask from a browser. version: of this
    software.
    """

    desk: FrontDesk
    clock: Clock
    metrics: Metrics
    guard: Guard
    operator_guard: Guard
    longest_s: float
    unread_s: float = 10.0
    default_max_tokens: int = DEFAULT_MAX_TOKENS
    template: ChatTemplate | None = None
    name: str = ""
    local: bool = True
    pace: Pace | None = None
    security: Security = field(default_factory=Security)
    origins: tuple[str, ...] = ()
    version: str = field(default_factory=lambda: dspark.__version__)

    def model(self, terms: Terms) -> str:
        """The name clients use: the one that was given, the folder's, or the hub id."""
        return model_name(terms.model, self.name)

    def fingerprint(self, terms: Terms) -> str:
        """Changes when the target's weights or this software do: what an answer under a seed depends on."""
        made = hashlib.sha256(f"{terms.fingerprint} {self.version}".encode())
        return f"fp_{made.hexdigest()[:12]}"

    def check_model(self, asked: str | None, terms: Terms) -> str:
        """The served name; UnknownModel for any other model. Nothing asked for is the one there is."""
        served = self.model(terms)
        if asked not in (None, "", served, terms.model):
            raise UnknownModel(f"the model {str(asked)[:200]!r} is not served here; {served!r} is")
        return served


def check_host(request: Request) -> None:
    """A web page that resolves its own name to this machine carries that name; it must not drive a local server."""
    host = request.headers.get("host", "")
    name = host.rsplit(":", 1)[0] if not host.endswith("]") else host
    if name == "localhost" or name.endswith(".localhost"):
        return
    try:
        if ipaddress.ip_address(name.strip("[]")).is_loopback:
            return
    except ValueError:
        pass
    raise HTTPException(403, f"host {host[:100]!r}: without a client token only local names are answered")
