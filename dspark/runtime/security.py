"""Access: on which addresses a process may listen, and which callers it admits.

Loopback needs no credentials. A wider address needs a token, certificates, or the operator's
explicit `insecure`. A caller has the role of its token; without a token, that of its certificate;
else none. The roles that each method needs are in `roles.py`.

Clients' tokens are in one file, each with its tenant, which is read again when it changes.
"""

from __future__ import annotations

import contextvars
import hashlib
import hmac
import re
import ssl
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path

import grpc

from dspark.errors import ConfigError, Denied, Forbidden, in_short
from dspark.runtime.addresses import check_listeners, is_loopback, join_endpoint, split_endpoint
from dspark.runtime.identity import check_token, read_token
from dspark.runtime.listen_config import ListenConfig, PublicConfig
from dspark.runtime.roles import Role, Roles
from dspark.runtime.tls import ReloadedFiles, Tls

PUBLIC_STREAMS = 100
SCHEME = "dspark://"  # in a certificate's alternative names: dspark://ROLE/NAME
MOST_TOKENS = 1024
LOOK_S = 1.0  # seconds between checks of the file
TENANT = re.compile(r"[A-Za-z0-9._-]{1,64}")


def streams_per_connection(config: PublicConfig, room: int) -> int:
    """Number of calls that a client's connection may have open. room: calls that the process takes
    in all.

    The bound matters because cancelled calls of one peer delay those of all others: they are
    handled one after the other.
    """
    near = is_loopback(split_endpoint(config.bind)[0])
    return config.max_streams_per_connection or (room if near else PUBLIC_STREAMS)


@dataclass(frozen=True)
class Caller:
    """An admitted caller. roles: its roles; empty where no credentials were needed. tenant: its
    name, "" if it has none."""

    roles: Roles = frozenset()
    tenant: str = ""


_NOBODY = Caller()
_caller: contextvars.ContextVar[Caller] = contextvars.ContextVar("dspark_caller", default=_NOBODY)


def current_caller() -> Caller:
    """The caller of the call that is being handled."""
    return _caller.get()


def set_caller(caller: Caller) -> None:
    """Sets the caller of the running task; called where callers are admitted."""
    _caller.set(caller)


@dataclass(frozen=True)
class Access:
    """Decides who a caller is, and whether its role suffices.

    worker, operator, monitor: secrets of these roles; None gives no token that role, except that an
    absent operator's secret is the worker's. clients: secrets of clients, with their tenants.
    certificates: whether callers have shown one, whose names may give a role. open_to: roles that
    every caller has.
    """

    worker: str | None = field(default=None, repr=False)
    operator: str | None = field(default=None, repr=False)
    monitor: str | None = field(default=None, repr=False)
    clients: ClientTokens | None = field(default=None, repr=False)
    certificates: bool = False
    open_to: Roles = frozenset()

    @property
    def asks(self) -> bool:
        """Whether callers need credentials; without a worker's secret and certificates, none do."""
        return self.worker is not None or self.certificates

    def admit(
        self,
        what: str,
        roles: Roles | None,
        *,
        authorization: str | None = None,
        names: Iterable[str] = (),
    ) -> Caller:
        """The caller, if it has one of `roles` (None: free). `what` names the call in errors.

        authorization: "Bearer TOKEN". names: alternative names of a certificate that was verified.
        Raises Denied for a caller without valid credentials, Forbidden for one with other roles.
        """
        if roles is None or not self.asks:
            return _NOBODY
        found: Caller | None
        if authorization is not None:
            # nothing else makes up for a wrong token
            found = self._by_token(authorization)
            if found is None:
                raise Denied(f"{what}: the token is not valid")
        else:
            found = _by_names(names) if self.certificates else None
        if found is not None and found.roles & roles:
            return found
        if self.open_to & roles and authorization is None:
            return _NOBODY
        if found is None:
            raise Denied(f"{what}: the call carries no valid token")
        needed = f"needs the role {' or '.join(sorted(roles))}" if roles else "no role may call it"
        raise Forbidden(f"{what}: {needed}")

    def _by_token(self, authorization: str) -> Caller | None:
        kind, _, given = authorization.partition(" ")
        if kind.lower() != "bearer":
            return None
        secrets = (
            (self.worker, {Role.WORKER} if self.operator else {Role.WORKER, Role.OPERATOR}),
            (self.operator, {Role.OPERATOR}),
            (self.monitor, {Role.MONITOR}),
        )
        # Every candidate is compared, so the time taken says nothing about which one was close.
        matches = [
            Caller(frozenset(roles))
            for secret, roles in secrets
            if secret is not None and hmac.compare_digest(_digest(given), _digest(secret))
        ]
        tenant = self.clients.tenant(given) if self.clients is not None else None
        if tenant is not None:
            matches.append(Caller(frozenset({Role.CLIENT}), tenant))
        return matches[0] if matches else None


def _by_names(names: Iterable[str]) -> Caller | None:
    """The caller with the roles that a certificate's names give, one or more; None without any."""
    roles, tenant = set(), ""
    for name in names:
        if not name.startswith(SCHEME):
            continue
        role, _, who = name.removeprefix(SCHEME).partition("/")
        if role not in set(Role) or not TENANT.fullmatch(who):
            continue
        roles.add(Role(role))
        tenant = who if role == Role.CLIENT else tenant
    return Caller(frozenset(roles), tenant) if roles else None


@dataclass(frozen=True)
class Security:
    """Access and credentials of one process. token: the one it shows to other processes."""

    access: Access = field(default_factory=Access)
    token: str | None = field(default=None, repr=False)
    tls: Tls | None = None
    insecure: bool = False

    @classmethod
    def of(cls, config: ListenConfig) -> Security:
        """Builds it from a process's configuration; reads all files at once, and raises ConfigError
        by key."""
        names = ("token_file", "operator_token_file", "metrics_token_file")
        secrets = {name: read_token(getattr(config, name), name) for name in names}
        keys, (token, operator, monitor) = _keys_of(secrets), secrets.values()
        client_file: str | None = getattr(config, "client_token_file", None)
        if (tls := Tls.of(config)) is not None:
            tls.check(server=True)
        ask_peers = tls is not None and tls.ca is not None and config.tls_require_client_cert
        if tls is not None and ask_peers:
            tls.warn_of_another_authority()
        for key in ("operator_token_file", "client_token_file", "metrics_token_file"):
            if getattr(config, key, None) and token is None and not ask_peers:
                raise ConfigError(
                    f"{key}: needs token_file too, or workers' calls would be open to everybody"
                )
        open_to: set[Role] = set()
        near = is_loopback(split_endpoint(config.bind)[0])
        if (near or config.insecure) and not ask_peers:
            if not client_file and isinstance(config, PublicConfig):
                # workers serve no clients
                open_to.add(Role.CLIENT)
            if not config.metrics_token_file:
                open_to.add(Role.MONITOR)
        access = Access(
            worker=token,
            operator=operator,
            monitor=monitor,
            clients=ClientTokens(client_file, keys) if client_file else None,
            certificates=ask_peers,
            open_to=frozenset(open_to),
        )
        return cls(access, token, tls, config.insecure)

    def check_bind(self, endpoint: str, key: str = "bind") -> None:
        """Raises ConfigError for an endpoint that strangers could reach without credentials. `key`
        is the setting to blame."""
        host, _ = split_endpoint(endpoint, key)
        if not is_loopback(host) and not self.access.asks and not self.insecure:
            raise ConfigError(
                f"{key}: {endpoint} can be reached from outside this machine and callers would "
                "show nothing; set token_file or tls_cert, tls_key and tls_ca, name 127.0.0.1, or "
                "say --insecure"
            )

    def metrics_host(self, bind: str) -> str:
        """The host on which `/metrics` listens for a server bound to `bind`: loopback, unless
        readers need credentials or `insecure` is set."""
        host, _ = split_endpoint(bind)
        wide = self.insecure or self.access.monitor is not None or self.access.certificates
        return host if wide or is_loopback(host) else "127.0.0.1"

    def addresses(self, section: str, config: ListenConfig) -> list[tuple[str, str]]:
        """(setting, host:port) of every listener of a process with this configuration."""
        port = config.metrics_port
        host = self.metrics_host(config.bind)
        page = None if port is None else join_endpoint(host, port)
        rounds: int | None = getattr(config, "rounds_port", None)  # of drafters
        own = None if rounds is None else join_endpoint(split_endpoint(config.bind)[0], rounds)
        http: str | None = getattr(config, "http", None)  # of those that clients call
        wanted = {"bind": config.bind, "metrics_port": page, "rounds_port": own, "http": http}
        return [(f"{section}.{key}", endpoint) for key, endpoint in wanted.items() if endpoint]

    def check_addresses(self, section: str, config: ListenConfig) -> None:
        """Raises ConfigError, by setting, for an address of a process with this configuration
        that strangers could reach without credentials, or that cannot be had."""
        wanted = self.addresses(section, config)
        for key, endpoint in wanted:
            self.check_bind(endpoint, key)
        check_listeners(wanted)

    def server_credentials(self) -> grpc.ServerCredentials | None:
        """TLS credentials of gRPC listeners; None: plaintext."""
        return (
            self.tls.server_credentials(ask_peers=self.access.certificates)
            if self.tls is not None
            else None
        )

    def server_context(self) -> ssl.SSLContext | None:
        """TLS context of other listeners; None: plaintext."""
        return (
            self.tls.server_context(ask_peers=self.access.certificates)
            if self.tls is not None
            else None
        )


def _keys_of(secrets: Mapping[str, str | None]) -> dict[str, str]:
    """The keys by their secrets. Raises ConfigError for a secret of two keys: its caller would have
    the roles of one of them, and not of the other."""
    keys: dict[str, str] = {}
    for key, secret in secrets.items():
        if secret is not None and (twin := keys.setdefault(secret, key)) != key:
            raise ConfigError(f"{key}: the same secret as {twin}'s; each needs its own")
    return keys


def read_client_tokens(path: str | Path) -> tuple[tuple[str, str], ...]:
    """(tenant, token) of every line `TOKEN` or `TENANT TOKEN`; empty lines and those that begin
    with # are skipped. Raises ConfigError for an invalid file."""
    try:
        lines = Path(path).read_text(encoding="ascii").splitlines()
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigError(f"client_token_file: cannot read {path}: {in_short(error)}") from error
    found: list[tuple[str, str]] = []
    for number, line in enumerate(lines, 1):
        words = line.split()
        if not words or words[0].startswith("#"):
            continue
        tenant, token = ("", words[0]) if len(words) == 1 else (words[0], words[-1])
        # Errors name the line and never show it.
        if len(words) > 2 or (tenant and not TENANT.fullmatch(tenant)):
            raise ConfigError(
                f"client_token_file: line {number} of {path} is not TOKEN or TENANT TOKEN"
            )
        check_token(token, f"client_token_file: the token in line {number} of {path}")
        found.append((tenant, token))
    if not found:
        raise ConfigError(f"client_token_file: {path} holds no token")
    if len(found) > MOST_TOKENS:
        raise ConfigError(
            f"client_token_file: {path} holds {len(found)} tokens, at most {MOST_TOKENS} are read"
        )
    if len({token for _, token in found}) != len(found):
        raise ConfigError(f"client_token_file: {path} holds one token twice")
    return tuple(found)


class ClientTokens:
    """The client tokens of one file. If the file becomes unreadable, the known tokens stay in
    force. others: keys of secrets that are no client's."""

    def __init__(self, path: str | Path, others: Mapping[str, str]) -> None:
        def digests() -> list[tuple[str, bytes]]:
            known = read_client_tokens(path)
            for _, token in known:
                if token in others:
                    raise ConfigError(
                        f"client_token_file: {path} holds the secret of {others[token]}; each "
                        "needs its own"
                    )
            return [(tenant, _digest(token)) for tenant, token in known]

        self._known = ReloadedFiles([str(path)], digests, look_s=LOOK_S)

    def tenant(self, given: str) -> str | None:
        """The tenant of a token; None for an unknown token."""
        digest = _digest(given)
        # All are compared: the time taken says nothing about which one was close.
        matches = [
            tenant for tenant, known in self._known.now() if hmac.compare_digest(digest, known)
        ]
        return matches[0] if matches else None


def _digest(text: str) -> bytes:
    return hashlib.sha256(text.encode()).digest()
