"""Certificates of one process: what it shows as a server and as a client, and whom it believes.

Files are PEM. A server looks at its files at every handshake, so that renewed ones take force without a restart; files
that do not belong together are ignored until they do. A client reads them when it opens a channel.
"""

from __future__ import annotations

import contextlib
import logging
import ssl
from dataclasses import dataclass
from pathlib import Path

import grpc

from dspark.errors import ConfigError

log = logging.getLogger("dspark.tls")  # clients import this file and have no other logging


@dataclass(frozen=True)
class Tls:
    """Paths of PEM files.

    cert, key: this process's certificate chain and private key; servers need them, clients where servers ask for one.
    ca: certificates that peers' chains must end at; absent, a client believes the system's and a server asks nobody.
    server_name: the name looked for in servers' certificates, where their addresses change; absent, the address.
    """

    cert: str | None = None
    key: str | None = None
    ca: str | None = None
    server_name: str | None = None

    def __post_init__(self) -> None:
        if bool(self.cert) != bool(self.key):
            raise ConfigError("tls_cert, tls_key: one is of no use without the other")

    def channel_credentials(self) -> grpc.ChannelCredentials:
        """For channels to TLS servers, with the files as they are now."""
        self.check()
        return grpc.ssl_channel_credentials(
            root_certificates=_read("tls_ca", self.ca) if self.ca else None,
            private_key=_read("tls_key", self.key) if self.key else None,
            certificate_chain=_read("tls_cert", self.cert) if self.cert else None,
        )

    def server_credentials(self, *, ask_peers: bool) -> grpc.ServerCredentials:
        """For a listener. `ask_peers`: whether callers must show a certificate of `ca`."""
        watched = _Watched(self, ask_peers)
        return grpc.dynamic_ssl_server_credentials(
            watched.configuration(), watched.changed, require_client_authentication=ask_peers
        )

    def server_context(self, *, ask_peers: bool) -> ssl.SSLContext:
        """The same for listeners that are not gRPC's."""
        context = self._context(ask_peers)
        context.sni_callback = _Renewing(self, ask_peers)
        return context

    def _context(self, ask_peers: bool) -> ssl.SSLContext:
        """With the files as they are now."""
        self.check(server=True)
        context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
        assert self.cert is not None
        context.load_cert_chain(self.cert, self.key)
        if ask_peers:
            context.load_verify_locations(self.ca)
            context.verify_mode = ssl.CERT_REQUIRED
        return context

    def stamps(self) -> tuple[tuple[int, int], ...]:
        """Changes when a file does: (time of change in ns, inode) each."""
        found = [Path(path).stat() for path in (self.cert, self.key, self.ca) if path]
        return tuple((one.st_mtime_ns, one.st_ino) for one in found)

    def check(self, *, server: bool = False) -> None:
        """Refuses files that cannot be read or do not fit each other, by key."""
        if server and not self.cert:
            raise ConfigError("tls_cert, tls_key: a listener cannot do TLS without them")
        for key, path in (("tls_cert", self.cert), ("tls_key", self.key), ("tls_ca", self.ca)):
            if path:
                _read(key, path)
        probe = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
        if self.ca:
            try:
                probe.load_verify_locations(self.ca)
            except ssl.SSLError as error:
                raise ConfigError(f"tls_ca: {self.ca} holds no certificate ({error.reason})") from error
        if self.cert and self.key:
            try:
                # A password is never asked for: nobody may be there to give it.
                probe.load_cert_chain(self.cert, self.key, password=lambda: b"")
            except (ssl.SSLError, ValueError) as error:
                reason = getattr(error, "reason", None) or error
                raise ConfigError(
                    f"tls_cert, tls_key: {self.cert} and {self.key} are no certificate and its plain key ({reason})"
                ) from error


class _Renewing:
    """For `ssl.SSLContext.sni_callback`, which is asked at every handshake, whether or not a name was given."""

    def __init__(self, tls: Tls, ask_peers: bool) -> None:
        self._tls, self._ask_peers, self._stamps = tls, ask_peers, tls.stamps()
        self._newest: ssl.SSLContext | None = None

    def __call__(self, connection: ssl.SSLSocket | ssl.SSLObject, name: str | None, first: ssl.SSLContext) -> None:
        with contextlib.suppress(OSError, ConfigError, ssl.SSLError):  # files that do not fit each other: old ones stay
            if (stamps := self._tls.stamps()) != self._stamps:
                self._newest, self._stamps = self._tls._context(self._ask_peers), stamps
        if self._newest is not None:
            connection.context = self._newest


class _Watched:
    """A server's files, looked at again at every handshake."""

    def __init__(self, tls: Tls, ask_peers: bool) -> None:
        self._tls, self._ask_peers = tls, ask_peers
        tls.check(server=True)
        self._seen = tls.stamps()

    def configuration(self) -> grpc.ServerCertificateConfiguration:
        tls = self._tls
        assert tls.cert is not None
        assert tls.key is not None
        pair = (_read("tls_key", tls.key), _read("tls_cert", tls.cert))
        believed = _read("tls_ca", tls.ca) if self._ask_peers and tls.ca else None
        return grpc.ssl_server_certificate_configuration([pair], root_certificates=believed)

    def changed(self) -> grpc.ServerCertificateConfiguration | None:
        """The new files, or None to go on with the old ones. Runs on a thread of gRPC's."""
        try:
            stamps = self._tls.stamps()
            if stamps == self._seen:
                return None
            self._tls.check(server=True)
            fresh = self.configuration()
        except (OSError, ConfigError) as error:
            log.warning("tls.files_not_taken: %s", error)
            return None
        self._seen = stamps
        log.info("tls.files_taken")
        return fresh


def _read(key: str, path: str) -> bytes:
    try:
        return Path(path).read_bytes()
    except OSError as error:
        raise ConfigError(f"{key}: cannot read {path}: {error.strerror}") from error
