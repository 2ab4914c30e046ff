"""Addresses of listeners and peers: their forms, and whether a process can have them. Those of a
process are tried before it loads anything."""

from __future__ import annotations

import contextlib
import errno
import ipaddress
import os
import re
import socket
from collections.abc import Iterable, Iterator

from dspark.errors import ConfigError

EVERYWHERE = ("0.0.0.0", "::")  # hosts of listeners on all addresses
_WHY = {
    errno.EADDRINUSE: "a process listens there (`ss -ltnp 'sport = :{port}'` shows it); "
    "name another port, or 0 for any",
    errno.EADDRNOTAVAIL: "this machine has no such address",
    errno.EACCES: "ports so low need privileges; name one above 1023",
}


def plain_host(host: str) -> str:
    """The host without brackets, and an address in the one form that certificates and gRPC know."""
    host = host.strip("[]")
    try:
        return str(ipaddress.ip_address(host))
    except ValueError:  # a name
        return host


def split_endpoint(endpoint: str, key: str = "bind") -> tuple[str, int]:
    """(host, port) of "host:port", the host as of `plain_host`; port 0 means any. `key` is the
    setting to blame."""
    written, _, port = endpoint.rpartition(":")
    host = plain_host(written)
    if not host or "/" in host or not re.fullmatch("[0-9]{1,5}", port) or int(port) > 65535:
        raise ConfigError(f"{key}: {endpoint!r} is not host:port")
    return host, int(port)


def join_endpoint(host: str, port: int) -> str:
    """host:port, an address of IPv6 in brackets."""
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"


def is_loopback(host: str) -> bool:
    """Whether only this machine can reach `host`."""
    if host.lower().rstrip(".") == "localhost":
        return True
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False


def check_listeners(wanted: Iterable[tuple[str, str]]) -> None:
    """Tries to open every address the process will listen on, and closes it again. wanted:
    (setting, host:port). Raises ConfigError naming the setting whose address cannot be opened, or
    is, or contains, that of another one."""
    taken: list[tuple[str, str, int]] = []
    for key, endpoint in wanted:
        host, port = split_endpoint(endpoint, key)
        if not port:
            continue
        address = _tried(key, host, port)
        for other, there, its in taken:
            if its == port and _overlap(address, there):
                asks = other if other != key else "another process"
                raise ConfigError(f"{key}: {endpoint} is what {asks} asks for, too")
        taken.append((key, address, port))


def _overlap(one: str, other: str) -> bool:
    """Whether listeners at two numeric addresses take each other's connections: that of all
    addresses is one of IPv4, too, where it is of IPv6."""
    if one == other or "::" in (one, other):
        return True
    return "0.0.0.0" in (one, other) and ":" not in one + other


def _tried(key: str, host: str, port: int) -> str:
    """The numeric address of a host, once it could be listened on."""
    with listening(key, host, port):
        family, _, _, _, address = socket.getaddrinfo(
            host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE
        )[0]
        with socket.socket(family, socket.SOCK_STREAM) as probe:
            probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            probe.bind(address)
            probe.listen(1)  # with SO_REUSEADDR two may be bound where neither listens
        return str(address[0])


@contextlib.contextmanager
def listening(key: str, host: str, port: int) -> Iterator[None]:
    """Context: what keeps its block from listening there raises ConfigError naming the setting."""
    try:
        yield
    except UnicodeError as error:
        raise ConfigError(f"{key}: {host!r} is no name of a host") from error
    except OSError as error:
        why = _WHY.get(error.errno or 0, error.strerror or os.strerror(error.errno or 0))
        raise ConfigError(
            f"{key}: cannot listen on {join_endpoint(host, port)}: {why.format(port=port)}"
        ) from error
