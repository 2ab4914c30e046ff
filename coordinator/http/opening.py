"""The door of a process, from its configuration: who is let in, and what the target's conversations look like."""

from __future__ import annotations

import re
from dataclasses import replace

from fastapi import Request

from coordinator.clock import Clock
from coordinator.config import CoordinatorConfig
from coordinator.frontend.config import FrontendConfig
from coordinator.http.connection import names_of
from coordinator.http.door import Door, Guard
from coordinator.http.template import find_template
from coordinator.reception.frontdesk import FrontDesk
from coordinator.reception.pacing import read_pace
from dspark.errors import ConfigError, Denied, Forbidden
from dspark.runtime.roles import METRICS, Role, Roles
from dspark.runtime.security import Security, is_loopback, set_caller, split_endpoint
from dspark.runtime.telemetry import Metrics

_ORIGIN = re.compile(r"https?://[^/\s?#@]+")
CLIENTS: Roles = frozenset({Role.CLIENT, Role.OPERATOR})


def make_door(config: CoordinatorConfig | FrontendConfig, desk: FrontDesk, clock: Clock, metrics: Metrics) -> Door:
    """The door of `config.http`, whose address decides who is asked for what."""
    assert config.http is not None
    security = Security.of(replace(config, bind=config.http))
    security.check_bind(config.http)
    return Door(
        desk,
        clock,
        metrics,
        guard=guard_of(security, CLIENTS),
        operator_guard=guard_of(security, METRICS),
        longest_s=config.request_deadline_s,
        unread_s=config.max_unread_s,
        default_max_tokens=config.default_max_tokens,
        template=find_template(config.target, config.target_revision),
        name=config.served_model or "",
        local=is_loopback(split_endpoint(config.http)[0]) and Role.CLIENT in security.access.open_to,
        pace=read_pace(config),
        security=security,
        origins=_origins(config.cors_origin, asked=Role.CLIENT not in security.access.open_to),
    )


def _origins(given: tuple[str, ...], *, asked: bool) -> tuple[str, ...]:
    """asked: whether callers are asked who they are."""
    for origin in given:
        if origin == "*" and not asked:
            raise ConfigError("cors_origin: * lets any web page in where nobody is asked for a key; name origins")
        if origin != "*" and not _ORIGIN.fullmatch(origin):
            raise ConfigError(f"cors_origin: {origin[:100]!r} is not a scheme, a host and perhaps a port")
    return given


def guard_of(security: Security, roles: Roles) -> Guard:
    """A dependency that lets `roles` in and remembers who it was."""

    async def guard(request: Request) -> None:
        shown, names = request.headers.get("authorization"), names_of(request.scope)
        try:
            caller = security.http_caller(shown, names, roles)
        except Denied as error:
            if shown is None or isinstance(error, Forbidden) or not security.access.open_to & roles:
                raise
            # Clients of this interface cannot leave the key out; where anybody may come in, any key will do.
            caller = security.http_caller(None, names, roles)
        set_caller(caller)

    return guard
