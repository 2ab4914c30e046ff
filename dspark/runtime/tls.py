"""Certificates of one process: what it shows as a server and as a client, and whom it believes.

Files are PEM. A server looks at its files at every handshake, so that renewed ones take force
without a restart; files that do not belong together are ignored until they do. A client reads them
when it opens a channel.
"""

from __future__ import annotations

import contextlib
import logging
import ssl
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Generic, TypeVar

import grpc

from dspark.errors import ConfigError

T = TypeVar("T")

log = logging.getLogger("dspark.tls")  # clients import this file and have no other logging


@dataclass(frozen=True)
class Tls:
    """Paths of PEM files.

    cert, key: this process's certificate chain and private key; servers need them, clients where
    servers ask for one. ca: certificates that peers' chains must end at; absent, a client believes
    the system's and a server asks nobody. server_name: the name looked for in servers'
    certificates, where their addresses change; absent, the address.
    """

    cert: str | None = None
    key: str | None = None
    ca: str | None = None
    server_name: str | None = None

    def __post_init__(self) -> None:
        if bool(self.cert) != bool(self.key):
            raise ConfigError("tls_cert, tls_key: one is of no use without the other")

    @classmethod
    def of(cls, told: object) -> Tls | None:
        """By what a configuration, a state file or a command line says as `tls_*`; None:
        plaintext."""
        made = cls(*(getattr(told, f"tls_{field.name}") or None for field in fields(cls)))
        return made if made != cls() else None

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

        def configuration() -> grpc.ServerCertificateConfiguration:
            self.check(server=True)
            assert self.cert is not None
            assert self.key is not None
            pair = (_read("tls_key", self.key), _read("tls_cert", self.cert))
            believed = _read("tls_ca", self.ca) if ask_peers and self.ca else None
            return grpc.ssl_server_certificate_configuration([pair], root_certificates=believed)

        def changed() -> grpc.ServerCertificateConfiguration | None:
            """None: they are the same. Runs on a thread of gRPC's."""
            last = kept.value
            return None if (fresh := kept.now()) is last else fresh

        kept = OfFiles(self.paths, configuration)
        return grpc.dynamic_ssl_server_credentials(
            kept.value, changed, require_client_authentication=ask_peers
        )

    def server_context(self, *, ask_peers: bool) -> ssl.SSLContext:
        """The same for listeners that are not gRPC's."""
        kept = OfFiles(self.paths, lambda: self._context(ask_peers))

        def greeted(
            connection: ssl.SSLSocket | ssl.SSLObject, name: str | None, first: ssl.SSLContext
        ) -> None:
            """At every handshake, whether or not a name was given."""
            connection.context = kept.now()

        kept.value.sni_callback = greeted
        return kept.value

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

    @property
    def paths(self) -> list[str]:
        return [path for path in (self.cert, self.key, self.ca) if path]

    def check(self, *, server: bool = False) -> None:
        """Refuses files that cannot be read, do not fit each other or are out of date, by key."""
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
                raise ConfigError(
                    f"tls_ca: {self.ca} holds no certificate ({error.reason})"
                ) from error
        if self.cert and self.key:
            try:
                # A password is never asked for: nobody may be there to give it.
                probe.load_cert_chain(self.cert, self.key, password=lambda: b"")
            except (ssl.SSLError, ValueError) as error:
                reason = getattr(error, "reason", None) or error
                raise ConfigError(
                    f"tls_cert, tls_key: {self.cert} and {self.key} are no certificate and its "
                    f"plain key ({reason})"
                ) from error
            _check_time("tls_cert", self.cert)


class OfFiles(Generic[T]):
    """What is made of files, and made again when one of them has changed; where that fails the last
    one stays."""

    def __init__(self, paths: Sequence[str], make: Callable[[], T], *, look_s: float = 0.0) -> None:
        """look_s: between two looks."""
        self._paths, self._make, self._look_s = paths, make, look_s
        self._stamps, self._looked = self._stamped(), time.monotonic()
        self._warned_of = self._stamps
        self.value = make()

    def now(self) -> T:
        """By the files as they are. Threads may ask."""
        if (at := time.monotonic()) - self._looked >= self._look_s:
            self._looked = at
            if (stamps := self._stamped()) != self._stamps:
                try:
                    self.value, self._stamps = self._make(), stamps
                    log.info("files.taken: %s", ", ".join(self._paths))
                except (OSError, ConfigError) as error:
                    if stamps != self._warned_of:  # once, however many come
                        log.warning("files.not_taken: %s", error)
                    self._warned_of = stamps
        return self.value

    def _stamped(self) -> list[tuple[int, int]]:
        found = []
        for path in self._paths:
            with contextlib.suppress(OSError):  # what is made of them says it
                found.append(Path(path).stat())
        return [(one.st_mtime_ns, one.st_ino) for one in found]


def _check_time(key: str, path: str) -> None:
    """Peers would refuse it one by one, each with a failed handshake."""
    told = ssl._ssl._test_decode_cert(path)  # type: ignore[attr-defined]  # no public function reads one
    begins, ends = told["notBefore"], told["notAfter"]
    if not ssl.cert_time_to_seconds(begins) <= time.time() <= ssl.cert_time_to_seconds(ends):
        raise ConfigError(f"{key}: {path} holds from {begins} to {ends}, and not now")


def _read(key: str, path: str) -> bytes:
    try:
        return Path(path).read_bytes()
    except OSError as error:
        raise ConfigError(f"{key}: cannot read {path}: {error.strerror}") from error
