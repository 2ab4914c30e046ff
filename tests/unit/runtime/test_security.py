"""Who may listen where, and who may call what."""

import itertools
import stat
from pathlib import Path
from typing import Any

import pytest

from dspark.errors import ConfigError, Denied, Forbidden
from dspark.runtime import roles
from dspark.runtime.addresses import join_endpoint, split_endpoint
from dspark.runtime.identity import new_incarnation, read_token, write_token
from dspark.runtime.listen_config import ListenConfig, PublicConfig
from dspark.runtime.roles import METHODS, METRICS, Role
from dspark.runtime.security import Access, ClientTokens, Security, read_client_tokens
from dspark.wire.v1 import (
    control_pb2,
    draft_pb2,
    features_pb2,
    frontend_pb2,
    generate_pb2,
    verify_pb2,
)
from tests.certificates import Authority

GENERATE = "/dspark.wire.v1.Generation/Generate"
ANNOUNCE = "/dspark.wire.v1.Control/Announce"
SESSION = "/dspark.wire.v1.Verify/Control"
REFLECTION = "/grpc.reflection.v1alpha.ServerReflection/ServerReflectionInfo"
WORKER, OPERATOR, MONITOR = "worker-" * 4, "operator-" * 4, "monitor-" * 4
OURS, THEIRS = "client-of-ours-" * 2, "client-of-theirs-" * 2


@pytest.fixture
def files(tmp_path: Path) -> dict[str, str]:
    """A file of each kind of secret, by configuration key."""
    content = {
        "token_file": WORKER,
        "operator_token_file": OPERATOR,
        "metrics_token_file": MONITOR,
        "client_token_file": f"# tenants\n{OURS}\n\nacme {THEIRS}\n",
    }
    for key, text in content.items():
        (tmp_path / key).write_text(text)
    return {key: str(tmp_path / key) for key in content}


def _ask(access: Access, method: str, token: str | None, names: tuple[str, ...] = ()) -> str:
    """ "in" with the tenant, "denied" or "forbidden"."""
    shown = None if token is None else f"Bearer {token}"
    try:
        admitted = access.admit(method, roles.allowed(method), authorization=shown, names=names)
        return f"in:{admitted.tenant}"
    except Forbidden:
        return "forbidden"
    except Denied:
        return "denied"


def test_every_method_of_the_protocol_says_who_may_call_it() -> None:
    protocol = {
        f"/{service.full_name}/{method.name}"
        for file in (control_pb2, draft_pb2, features_pb2, frontend_pb2, generate_pb2, verify_pb2)
        for service in file.DESCRIPTOR.services_by_name.values()
        for method in service.methods
    }
    assert {method for method in METHODS if not method.startswith("/grpc.")} == protocol
    assert all(METHODS.values())


@pytest.mark.parametrize(
    ("method", "let_in"),
    [
        (GENERATE, {OPERATOR: "", OURS: "", THEIRS: "acme"}),
        (ANNOUNCE, {OPERATOR: ""}),
        (SESSION, {WORKER: ""}),
        (REFLECTION, {WORKER: "", OPERATOR: "", OURS: "", THEIRS: "acme"}),
        ("/dspark.wire.v1.Verify/Undecided", {}),
    ],
)
def test_a_token_opens_its_own_methods_only_and_brings_its_tenant(
    files: dict[str, str], method: str, let_in: dict[str, str]
) -> None:
    access = Security.of(PublicConfig(bind="0.0.0.0:1", **files)).access
    for token in (WORKER, OPERATOR, MONITOR, OURS, THEIRS):
        expected = f"in:{let_in[token]}" if token in let_in else "forbidden"
        assert _ask(access, method, token) == expected, token
    for stranger in (None, "", "wrong", WORKER[:-1], WORKER + "x"):
        assert _ask(access, method, stranger) == "denied"
    assert _ask(access, "/grpc.health.v1.Health/Check", None) == "in:"


def test_the_scheme_is_bearer(files: dict[str, str]) -> None:
    access = Security.of(PublicConfig(**files)).access
    allowed = roles.allowed(ANNOUNCE)
    assert access.admit(ANNOUNCE, allowed, authorization=f"bearer {OPERATOR}").roles == {
        Role.OPERATOR
    }
    for shown in (OPERATOR, f"Basic {OPERATOR}", f"Bearer  {OPERATOR}"):
        with pytest.raises(Denied):
            access.admit(ANNOUNCE, allowed, authorization=shown)


def test_a_name_in_certificates_without_any_is_no_plaintext() -> None:
    with pytest.raises(ConfigError, match="tls_cert, tls_key: a listener cannot do TLS without"):
        Security.of(ListenConfig(tls_server_name="cell"))


def test_without_an_operators_token_the_workers_is_theirs(files: dict[str, str]) -> None:
    access = Security.of(ListenConfig(token_file=files["token_file"])).access
    assert _ask(access, ANNOUNCE, WORKER) == "in:"
    assert _ask(access, GENERATE, WORKER) == "in:"


@pytest.mark.parametrize(
    ("bind", "insecure", "open_to_strangers"),
    [("127.0.0.1:0", False, True), ("0.0.0.0:0", False, False), ("0.0.0.0:0", True, True)],
)
def test_strangers_are_clients_near_by_or_where_it_is_said(
    files: dict[str, str], bind: str, insecure: bool, open_to_strangers: bool
) -> None:
    access = Security.of(
        PublicConfig(bind=bind, insecure=insecure, token_file=files["token_file"])
    ).access
    assert _ask(access, GENERATE, None) == ("in:" if open_to_strangers else "denied")
    assert _ask(access, ANNOUNCE, None) == "denied"
    assert _ask(access, GENERATE, "wrong") == "denied", "a wrong token is told, wherever it is"


def test_a_certificate_says_who_calls_where_no_token_does() -> None:
    access = Access(certificates=True)
    assert _ask(access, SESSION, None, ("DNS:x", "dspark://worker/verify-0")) == "in:"
    assert _ask(access, ANNOUNCE, None, ("dspark://worker/v", "dspark://operator/me")) == "in:"
    assert _ask(access, GENERATE, None, ("dspark://client/acme",)) == "in:acme"
    assert _ask(access, SESSION, None, ("dspark://client/acme",)) == "forbidden"
    for names in (
        (),
        ("localhost",),
        ("worker/v",),
        ("dspark://root/x",),
        ("dspark://worker/",),
        ("dspark://client/a/b",),
        ("https://worker/x",),
    ):
        assert _ask(access, SESSION, None, names) == "denied"
    assert _ask(access, SESSION, "any", ("dspark://worker/v",)) == "denied", "still a wrong token"


def test_loopback_needs_nothing_and_wider_needs_a_secret_or_a_word(files: dict[str, str]) -> None:
    nothing = Security()
    for endpoint in ("127.0.0.1:0", "localhost:5", "[::1]:5"):
        nothing.check_bind(endpoint)
    Security.of(ListenConfig(token_file=files["token_file"])).check_bind("0.0.0.0:5")
    Security(insecure=True).check_bind("0.0.0.0:5")
    for endpoint in ("0.0.0.0:5", "10.1.2.3:5", "example:5", "[::]:5"):
        with pytest.raises(ConfigError, match="insecure"):
            nothing.check_bind(endpoint)


@pytest.mark.parametrize("endpoint", ["localhost", ":5", "[]:5", "host:port", "host:70000"])
def test_an_endpoint_is_host_and_port(endpoint: str) -> None:
    with pytest.raises(ConfigError, match="is not host:port"):
        Security().check_bind(endpoint)


@pytest.mark.parametrize("host", ["::1", "[::1]", "0:0:0:0:0:0:0:1", "[0000::0001]"])
def test_an_address_has_one_form_however_it_is_written(host: str) -> None:
    """The one that certificates hold, and in brackets for gRPC."""
    assert join_endpoint(*split_endpoint(f"{host}:5")) == "[::1]:5"
    Security().check_bind(f"{host}:5")


def test_metrics_stay_near_unless_their_readers_are_asked(files: dict[str, str]) -> None:
    wide = "10.0.0.1:1"
    assert (
        Security.of(ListenConfig(bind=wide, token_file=files["token_file"])).metrics_host(wide)
        == "127.0.0.1"
    )
    asked = Security.of(PublicConfig(bind=wide, **files))
    assert asked.metrics_host(wide) == "10.0.0.1"
    with pytest.raises(Denied):
        asked.access.admit("/metrics", METRICS)
    with pytest.raises(Forbidden):
        asked.access.admit("/metrics", METRICS, authorization=f"Bearer {OURS}")
    assert asked.access.admit("/metrics", METRICS, authorization=f"Bearer {MONITOR}").roles == {
        Role.MONITOR
    }
    assert Security.of(ListenConfig(bind=wide, insecure=True)).metrics_host(wide) == "10.0.0.1"


@pytest.mark.parametrize("key", ["operator_token_file", "client_token_file", "metrics_token_file"])
def test_a_secret_of_others_alone_would_leave_workers_calls_open(
    files: dict[str, str], key: str, tmp_path: Path
) -> None:
    """Where an authority is believed and certificates are not asked for, too."""
    one, tls = {key: files[key]}, Authority(tmp_path).settings()
    for more in ({}, {**tls, "tls_require_client_cert": False}):
        with pytest.raises(ConfigError, match=key):
            Security.of(PublicConfig(**one, **more))
    assert Security.of(PublicConfig(**one, **tls)).access.asks


KEYS = ["token_file", "operator_token_file", "metrics_token_file", "client_token_file"]


@pytest.mark.parametrize(("one", "other"), [*itertools.combinations(KEYS, 2)])
def test_no_secret_stands_in_two_files(files: dict[str, str], one: str, other: str) -> None:
    secret = Path(files[one]).read_text()
    Path(files[other]).write_text(secret)
    with pytest.raises(ConfigError, match=f"^{other}: .*{one}") as caught:
        Security.of(PublicConfig(**files))
    assert secret.strip() not in str(caught.value)


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ("", "no token"),
        ("short", "line 1"),
        (f"{OURS}\nb {'x' * 8000}", "line 2 .* 8000 characters, 16 to 7168 are taken"),
        (f"{OURS}\na b {THEIRS}", "line 2"),
        (f"bad/name {OURS}", "line 1"),
        (f"a {OURS}\nb {OURS}", "twice"),
        ("\n".join(f"tenant{n} {n:032d}" for n in range(1025)), "1025 tokens"),
    ],
)
def test_a_file_of_clients_that_does_not_read_is_refused_and_not_shown(
    tmp_path: Path, text: str, problem: str
) -> None:
    path = tmp_path / "clients"
    path.write_text(text)
    with pytest.raises(ConfigError, match=problem) as caught:
        read_client_tokens(path)
    assert OURS not in str(caught.value)
    assert THEIRS not in str(caught.value)


def test_a_file_of_clients_is_taken_again_when_it_changes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("dspark.runtime.security.LOOK_S", 0.0)
    path = tmp_path / "clients"
    path.write_text(f"ours {OURS}")
    tokens = ClientTokens(path, {OPERATOR: "operator_token_file"})
    path.write_text(f"theirs {THEIRS}  # longer")
    assert tokens.tenant(OURS) == "ours", "a file that does not read changes nothing"
    path.write_text(f"theirs {THEIRS}\nmine {OPERATOR}")
    assert tokens.tenant(OURS) == "ours", "nor does one that holds another role's secret"
    path.write_text(f"theirs {THEIRS}")
    assert (tokens.tenant(OURS), tokens.tenant(THEIRS)) == (None, "theirs")
    path.unlink()
    assert tokens.tenant(THEIRS) == "theirs"


def test_a_token_file_is_private_and_long_enough(tmp_path: Path) -> None:
    path = tmp_path / "token"
    token = write_token(path)
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    assert read_token(path) == token
    assert read_token(None) is None
    path.chmod(0o644)
    assert write_token(path) != token
    assert stat.S_IMODE(path.stat().st_mode) == 0o600


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("short", "5 characters, 16 to 7168"),
        ("long" * 2000, "8000 characters, 16 to 7168"),  # no listener would take it
        # nobody could show it in a call
        *((f"{WORKER}{odd}x", "token holds a line end, or another") for odd in "\n\t\0\x7f"),
    ],
)
def test_a_token_that_nobody_could_show_is_refused(tmp_path: Path, text: str, said: str) -> None:
    (tmp_path / "token").write_text(text)
    with pytest.raises(ConfigError, match=said):
        read_token(tmp_path / "token")


@pytest.mark.parametrize("read", [read_token, read_client_tokens])
def test_a_file_of_tokens_that_is_not_there_is_named(tmp_path: Path, read: Any) -> None:
    absent = tmp_path / "absent"
    with pytest.raises(ConfigError, match=rf"cannot read {absent}: No such file or directory$"):
        read(absent)


def test_incarnations_differ() -> None:
    assert len({new_incarnation() for _ in range(1000)}) == 1000
