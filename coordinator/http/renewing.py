"""Certificates of the HTTP listener, looked at again at every handshake, as those of the other listeners are."""

from __future__ import annotations

import contextlib
import ssl

from dspark.errors import ConfigError
from dspark.runtime.tls import Tls


class Renewing:
    """For `ssl.SSLContext.sni_callback`, which is asked at every handshake, whether or not a name was given."""

    def __init__(self, tls: Tls, *, ask_peers: bool) -> None:
        self._tls, self._ask_peers = tls, ask_peers
        self._stamps = tls.stamps()
        self._newest: ssl.SSLContext | None = None

    def __call__(self, connection: ssl.SSLSocket | ssl.SSLObject, name: str | None, first: ssl.SSLContext) -> None:
        with contextlib.suppress(OSError, ConfigError, ssl.SSLError):  # files that do not fit each other: old ones stay
            if (stamps := self._tls.stamps()) != self._stamps:
                self._newest, self._stamps = self._tls.server_context(ask_peers=self._ask_peers), stamps
        if self._newest is not None:
            connection.context = self._newest
