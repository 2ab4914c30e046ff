"""Who may listen where, and who may call what.

Loopback needs nothing. Anything wider needs a token, or the operator's explicit `insecure`. Every method is denied
unless the caller's token allows it; health checks alone are free.
"""

from __future__ import annotations

import hmac
import ipaddress
from collections.abc import Iterable
from dataclasses import dataclass, field

from dspark.errors import ConfigError, Denied

_FREE = "/grpc.health.v1.Health/"


def split_endpoint(endpoint: str) -> tuple[str, int]:
    """(host, port) of "host:port"; port 0 means any."""
    host, _, port = endpoint.rpartition(":")
    if not host or not port.isdigit() or int(port) > 65535:
        raise ConfigError(f"bind: {endpoint!r} is not host:port")
    return host.strip("[]"), int(port)


def is_loopback(host: str) -> bool:
    """Whether only this machine can reach `host`."""
    if host == "localhost":
        return True
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False


def check_bind(endpoint: str, *, token: str | None, insecure: bool) -> None:
    """Refuses an endpoint that strangers could reach without a secret."""
    host, _ = split_endpoint(endpoint)
    if not is_loopback(host) and not token and not insecure:
        raise ConfigError(
            f"bind: {endpoint} can be reached from outside this machine and no token is set; "
            "set token_file, bind to 127.0.0.1, or say --insecure"
        )


@dataclass(frozen=True)
class Access:
    """The calls a server allows.

    token: secret of workers and operators; it opens every method. None opens every method to everybody.
    client_token: secret of clients; it opens `client_services` only.
    client_services: full names of services that clients may call, e.g. "dspark.wire.v1.Generation".
    """

    token: str | None = None
    client_token: str | None = None
    client_services: frozenset[str] = field(default_factory=frozenset)

    def __post_init__(self) -> None:
        if self.client_token is not None and self.token is None:
            raise ConfigError("client_token_file: needs token_file too, or operators' calls would be open to everybody")

    def check(self, method: str, metadata: Iterable[tuple[str, str | bytes]]) -> None:
        """Raises Denied unless `metadata` allows the full method name ("/package.Service/Method")."""
        if self.token is None or method.startswith(_FREE):
            return
        service = method.split("/")[1]
        if service in self.client_services and self.client_token is None:
            return
        given = ""
        for key, value in metadata:
            if key == "authorization" and isinstance(value, str) and value.startswith("Bearer "):
                given = value[len("Bearer ") :]
        allowed = [self.token]
        if service in self.client_services and self.client_token is not None:
            allowed.append(self.client_token)
        # Every candidate is compared, so the time taken says nothing about which one was close.
        matches = [hmac.compare_digest(given.encode(), secret.encode()) for secret in allowed]
        if not any(matches):
            raise Denied(f"{method}: the call carries no valid token")
