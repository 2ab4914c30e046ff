"""Whether a process can listen where it is told to, asked before it loads anything."""

from __future__ import annotations

import errno
import os
import socket
from collections.abc import Iterable

from dspark.errors import ConfigError
from dspark.runtime.security import split_endpoint

_WHY = {
    errno.EADDRINUSE: "somebody listens there (`ss -ltnp 'sport = :{port}'` says who); name another port, or 0 for any",
    errno.EADDRNOTAVAIL: "this machine has no such address",
    errno.EACCES: "ports so low need privileges; name one above 1023",
}


def check_listeners(wanted: Iterable[tuple[str, str | None]]) -> None:
    """wanted: (setting, host:port) of everything the process will listen on; None is off. ConfigError by the setting
    that cannot be had, or of two that want the same. Where it may be taken is tried, and given back."""
    taken: dict[tuple[str, int], str] = {}
    for key, endpoint in wanted:
        if endpoint is None:
            continue
        host, port = split_endpoint(endpoint, key)
        if not port:
            continue
        if (host, port) in taken:
            raise ConfigError(f"{key}: {endpoint} is what {taken[host, port]} asks for, too")
        taken[host, port] = key
        _try(key, endpoint, host, port)


def _try(key: str, endpoint: str, host: str, port: int) -> None:
    try:
        family, _, _, _, address = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)[0]
        with socket.socket(family, socket.SOCK_STREAM) as probe:
            probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            probe.bind(address)
            probe.listen(1)  # with SO_REUSEADDR two may be bound where neither listens
    except OSError as error:
        why = _WHY.get(error.errno or 0, error.strerror or os.strerror(error.errno or 0))
        raise ConfigError(f"{key}: cannot listen on {endpoint}: {why.format(port=port)}") from error
