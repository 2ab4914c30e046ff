"""Certificates of one process: those it shows as a server and as a client, and those it trusts.

Files are PEM. A server checks its files at every handshake, so that renewed ones take effect
without a restart; files that do not match are ignored until they do. A client reads them when it
opens a channel.
"""

from __future__ import annotations

import base64
import contextlib
import logging
import re
import ssl
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Generic, TypeVar

import grpc

from dspark.errors import ConfigError, in_short

T = TypeVar("T")

GRPC_KEYS = ("RSA", "P-256", "P-384")  # gRPC takes no others
# How object identifiers of keys look in a certificate, where no signature's looks so.
_KEYS = {
    "RSA": bytes.fromhex("06092a864886f70d010101"),
    "P-256": bytes.fromhex("06082a8648ce3d030107"),
    "P-384": bytes.fromhex("06052b81040022"),
    "P-521": bytes.fromhex("06052b81040023"),
    "Ed25519": bytes.fromhex("06032b6570032100"),
    "Ed448": bytes.fromhex("06032b6571033a00"),
}
_PEM = re.compile(b"-----BEGIN ([A-Z0-9 ]*)CERTIFICATE-----(.*?)-----END", re.DOTALL)

log = logging.getLogger("dspark.tls")  # clients import this file and have no other logging


@contextlib.contextmanager
def _still_there() -> Iterator[None]:
    """Within it a file that changes while it is read raises ConfigError."""
    try:
        yield
    except OSError as error:  # ssl.SSLError is one
        raise ConfigError(
            f"tls_cert, tls_key, tls_ca: a file changed while it was read ({in_short(error)})"
        ) from error


@dataclass(frozen=True)
class Tls:
    """Paths of PEM files.

    cert, key: this process's certificate chain and private key; servers need them, clients where
    servers require one. ca: certificates that peers' chains must end at; absent, a client trusts
    the system's and a server requires none. server_name: the name expected in servers'
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
        """Builds it from the `tls_*` values of a configuration, state file or command line; None:
        plaintext."""
        made = cls(*(getattr(told, f"tls_{field.name}") or None for field in fields(cls)))
        return made if made != cls() else None

    def channel_credentials(self) -> grpc.ChannelCredentials:
        """Credentials for channels to TLS servers, from the files as they are now."""
        self.check()
        return grpc.ssl_channel_credentials(
            root_certificates=_read("tls_ca", self.ca),
            private_key=_read("tls_key", self.key),
            certificate_chain=_read("tls_cert", self.cert),
        )

    def server_credentials(self, *, ask_peers: bool) -> grpc.ServerCredentials:
        """Credentials of a gRPC listener. ask_peers: callers must show a certificate of `ca`."""

        def configuration() -> grpc.ServerCertificateConfiguration:
            self.check(server=True)
            pair = (_read("tls_key", self.key), _read("tls_cert", self.cert))
            believed = _read("tls_ca", self.ca) if ask_peers else None
            return grpc.ssl_server_certificate_configuration([pair], root_certificates=believed)

        def changed() -> grpc.ServerCertificateConfiguration | None:
            """The new configuration, or None for the same. Runs on a thread of gRPC's."""
            last = kept.value
            return None if (fresh := kept.now()) is last else fresh

        kept = ReloadedFiles(self.paths, configuration)
        return grpc.dynamic_ssl_server_credentials(
            kept.value, changed, require_client_authentication=ask_peers
        )

    def server_context(self, *, ask_peers: bool) -> ssl.SSLContext:
        """A TLS context for listeners that are not gRPC's; it follows the files as they change."""
        kept = ReloadedFiles(self.paths, lambda: self._context(ask_peers))

        def greeted(
            connection: ssl.SSLSocket | ssl.SSLObject, name: str | None, first: ssl.SSLContext
        ) -> None:
            """Runs at every handshake, whether or not a name was given."""
            connection.context = kept.now()

        kept.value.sni_callback = greeted
        return kept.value

    @_still_there()
    def _context(self, ask_peers: bool) -> ssl.SSLContext:
        """A TLS context with the files as they are now."""
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

    @_still_there()
    def check(self, *, server: bool = False) -> None:
        """Raises ConfigError by key for files that cannot be read, do not match or are expired."""
        if server and not self.cert:
            raise ConfigError("tls_cert, tls_key: a listener cannot do TLS without them")
        for key, path in (("tls_cert", self.cert), ("tls_key", self.key), ("tls_ca", self.ca)):
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
                # Never ask for a password: a service has no user to give one.
                probe.load_cert_chain(self.cert, self.key, password=lambda: b"")
            except (ssl.SSLError, ValueError) as error:
                reason = getattr(error, "reason", None) or error
                raise ConfigError(
                    f"tls_cert, tls_key: {self.cert} and {self.key} are no certificate and its "
                    f"plain key ({reason})"
                ) from error
            _check_first("tls_cert", self.cert)
            if server:
                self._try(self.cert)

    @_still_there()
    def check_shared(self, name: str, *, ask_peers: bool) -> None:
        """Raises ConfigError by key for files that processes which all have these would refuse of
        each other. name: the one they expect; empty if it is not known. ask_peers: callers
        show theirs too."""
        self.check(server=True)
        assert self.ca is not None
        self._try(self.ca, name.rstrip("."), ask_peers=ask_peers)

    def warn_of_another_authority(self) -> None:
        """Warns of a certificate that those who believe the same `ca` refuse; others may not."""
        try:
            self.check_shared("", ask_peers=True)
        except ConfigError as error:
            log.warning(
                "tls.another_authority: peers with this tls_ca refuse this process: %s", error
            )

    def _try(self, believed: str, name: str = "", *, ask_peers: bool = False) -> None:
        """Shakes hands with itself in memory, both ends believing the certificates of a file.
        Raises ConfigError if one end refuses what the other one shows."""
        assert self.cert is not None
        client = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
        server = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        client.check_hostname = bool(name)
        server.verify_mode = ssl.CERT_REQUIRED if ask_peers else ssl.CERT_NONE
        for context in (client, server):
            context.verify_flags |= ssl.VERIFY_X509_PARTIAL_CHAIN  # as gRPC has it
            context.load_verify_locations(believed)
            context.load_cert_chain(self.cert, self.key)
        there, back = ssl.MemoryBIO(), ssl.MemoryBIO()
        try:
            caller = client.wrap_bio(back, there, server_hostname=name or None)
        except (ValueError, TypeError) as error:
            raise ConfigError(
                f"tls_server_name, or bind without it: {name!r} is no name of a host"
            ) from error
        ends = {"server": caller, "client": server.wrap_bio(there, back, server_side=True)}
        for shown_by, end in [*ends.items()] * 3:
            try:
                end.do_handshake()
            except ssl.SSLWantReadError:  # it is the other end's turn
                continue
            except ssl.SSLError as error:
                reason = getattr(error, "verify_message", error.reason)
                raise ConfigError(
                    f"tls_cert: {self.cert} is refused as a {shown_by}'s ({reason}); wanted is one "
                    "for servers and clients, of the authority in tls_ca, like node.crt of `dspark "
                    "certificates`"
                ) from error


class ReloadedFiles(Generic[T]):
    """A value made from files, and made again when one of them has changed; if that fails, the last
    one stays."""

    def __init__(self, paths: Sequence[str], make: Callable[[], T], *, look_s: float = 0.0) -> None:
        """look_s: least seconds between two checks of the files."""
        self._paths, self._make, self._look_s = paths, make, look_s
        self._stamps, self._looked = self._stamped(), time.monotonic()
        self._warned_of = self._stamps
        self.value = make()

    def now(self) -> T:
        """The value of the files as they are now. Any thread may call."""
        if (at := time.monotonic()) - self._looked >= self._look_s:
            self._looked = at
            if (stamps := self._stamped()) != self._stamps:
                try:
                    self.value, self._stamps = self._make(), stamps
                    log.info("files.taken: %s", ", ".join(self._paths))
                except (OSError, ConfigError) as error:
                    if stamps != self._warned_of:  # once per change, however many handshakes
                        log.warning("files.not_taken: %s", error)
                    self._warned_of = stamps
        return self.value

    def _stamped(self) -> list[tuple[int, int]]:
        found = []
        for path in self._paths:
            with contextlib.suppress(OSError):  # `make` reports it
                found.append(Path(path).stat())
        return [(one.st_mtime_ns, one.st_ino) for one in found]


def _check_first(key: str, path: str) -> None:
    """Raises ConfigError for a file whose first certificate, the one that is shown, gRPC does not
    take, or is out of date: every handshake would fail."""
    found = _PEM.search(_read(key, path) or b"")
    if found is None or found[1] == b"TRUSTED ":
        raise ConfigError(f"{key}: {path} begins with no plain certificate (BEGIN CERTIFICATE)")
    content = base64.decodebytes(found[2])
    kind = next((kind for kind, mark in _KEYS.items() if mark in content), "unknown")
    if kind not in GRPC_KEYS:
        raise ConfigError(
            f"{key}: {path} has a key of the kind {kind}; gRPC takes {', '.join(GRPC_KEYS)} alone"
        )
    told = ssl._ssl._test_decode_cert(path)  # type: ignore[attr-defined]  # no public function reads one
    begins, ends = told["notBefore"], told["notAfter"]
    if not ssl.cert_time_to_seconds(begins) <= time.time() <= ssl.cert_time_to_seconds(ends):
        raise ConfigError(f"{key}: {path} holds from {begins} to {ends}, and not now")


def _read(key: str, path: str | None) -> bytes | None:
    try:
        return Path(path).read_bytes() if path else None
    except OSError as error:
        raise ConfigError(f"{key}: cannot read {path}: {error.strerror}") from error
