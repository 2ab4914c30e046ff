"""Who may listen where, and who may call what."""

from __future__ import annotations

import stat
from pathlib import Path

import pytest

from dspark.errors import ConfigError, Denied
from dspark.runtime.identity import new_incarnation, read_token, write_token
from dspark.runtime.security import Access, check_bind

GENERATE = "/dspark.wire.v1.Generation/Generate"
ANNOUNCE = "/dspark.wire.v1.Control/Announce"
CLIENTS = frozenset({"dspark.wire.v1.Generation"})


def _with(token: str) -> tuple[tuple[str, str], ...]:
    return (("authorization", f"Bearer {token}"),)


def test_loopback_needs_nothing_and_wider_needs_a_secret_or_a_word() -> None:
    for endpoint in ("127.0.0.1:0", "localhost:5", "[::1]:5"):
        check_bind(endpoint, token=None, insecure=False)
    check_bind("0.0.0.0:5", token="x" * 20, insecure=False)
    check_bind("0.0.0.0:5", token=None, insecure=True)
    for endpoint in ("0.0.0.0:5", "10.1.2.3:5", "example:5", "[::]:5"):
        with pytest.raises(ConfigError, match="insecure"):
            check_bind(endpoint, token=None, insecure=False)


@pytest.mark.parametrize("endpoint", ["localhost", ":5", "host:port", "host:70000"])
def test_an_endpoint_is_host_and_port(endpoint: str) -> None:
    with pytest.raises(ConfigError, match="bind"):
        check_bind(endpoint, token="x" * 20, insecure=True)


def test_every_method_is_denied_unless_the_token_allows_it() -> None:
    access = Access("worker-secret", "client-secret", CLIENTS)
    access.check("/grpc.health.v1.Health/Check", ())
    access.check(GENERATE, _with("client-secret"))
    access.check(GENERATE, _with("worker-secret"))
    access.check(ANNOUNCE, _with("worker-secret"))
    for method, metadata in [
        (ANNOUNCE, _with("client-secret")),
        (ANNOUNCE, ()),
        (GENERATE, ()),
        (GENERATE, _with("")),
        (GENERATE, (("authorization", "worker-secret"),)),
        ("/grpc.reflection.v1alpha.ServerReflection/ServerReflectionInfo", ()),
    ]:
        with pytest.raises(Denied):
            access.check(method, metadata)


def test_without_a_client_secret_clients_are_free_and_operators_are_not() -> None:
    access = Access("worker-secret", None, CLIENTS)
    access.check(GENERATE, ())
    with pytest.raises(Denied):
        access.check(ANNOUNCE, ())


def test_a_client_secret_alone_would_leave_operators_calls_open() -> None:
    with pytest.raises(ConfigError, match="client_token_file"):
        Access(None, "client-secret", CLIENTS)


def test_a_token_file_is_private_and_long_enough(tmp_path: Path) -> None:
    path = tmp_path / "token"
    token = write_token(path)
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    assert read_token(path) == token
    assert read_token(None) is None
    path.chmod(0o644)
    assert write_token(path) != token
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    path.write_text("short")
    with pytest.raises(ConfigError, match="at least 16"):
        read_token(path)
    with pytest.raises(ConfigError, match="cannot read"):
        read_token(tmp_path / "absent")


def test_incarnations_differ() -> None:
    assert len({new_incarnation() for _ in range(1000)}) == 1000
