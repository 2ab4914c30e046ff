"""TLS on real sockets: who is refused, who gets in as what, certificates renewed while serving."""

import asyncio
import contextlib
import datetime
import json
import ssl
from collections.abc import AsyncIterator, Callable
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import grpc
import httpx
import pytest
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec, ed448, ed25519, rsa
from cryptography.x509.oid import ExtendedKeyUsageOID
from grpc_health.v1 import health_pb2, health_pb2_grpc

from dspark.client import AsyncClient, Denied, Unavailable
from dspark.client.cell import whom_to_call
from dspark.errors import ConfigError
from dspark.runtime.channel import open_channel
from dspark.runtime.listen_config import ListenConfig
from dspark.runtime.metrics_server import MetricsServer
from dspark.runtime.security import Security
from dspark.runtime.server import GrpcServer
from dspark.runtime.telemetry import Metrics
from dspark.runtime.tls import Tls
from dspark.training.disk import read_rows
from tests.certificates import Authority
from tests.commands import dspark
from tests.faults.pair import FLAT
from tests.keys import key_files, token_files
from tests.services.cell import Cell
from tests.waiting import until

DAY = datetime.timedelta(days=1)
ADDRESSES = Path("/proc/net/if_inet6")
IPV6 = pytest.mark.skipif(
    not (ADDRESSES.exists() and " lo" in ADDRESSES.read_text()), reason="no ::1 on this machine"
)


@pytest.fixture(scope="module")
def ours(tmp_path_factory: pytest.TempPathFactory) -> Authority:
    return Authority(tmp_path_factory.mktemp("ours"))


@pytest.fixture(scope="module")
def theirs(tmp_path_factory: pytest.TempPathFactory) -> Authority:
    return Authority(tmp_path_factory.mktemp("theirs"))


async def _health(endpoint: str, tls: Tls | None) -> grpc.StatusCode | None:
    """None where somebody answered."""
    async with open_channel(endpoint, tls=tls) as channel:
        try:
            await health_pb2_grpc.HealthStub(channel).Check(
                health_pb2.HealthCheckRequest(), timeout=5
            )
        except grpc.aio.AioRpcError as error:
            return error.code()
    return None


@contextlib.asynccontextmanager
async def _serving(authority: Authority, bind: str = "127.0.0.1:0") -> AsyncIterator[str]:
    config = ListenConfig(bind=bind, **authority.settings())
    server = GrpcServer(bind=config.bind, security=Security.of(config))
    yield await server.start()
    await server.drain(0)


@pytest.fixture
async def endpoint(ours: Authority) -> AsyncIterator[str]:
    async with _serving(ours) as place:
        yield place


async def test_plaintext_strangers_and_other_authorities_are_refused(
    endpoint: str, ours: Authority, theirs: Authority
) -> None:
    assert await _health(endpoint, ours.tls()) is None
    stranger = replace(theirs.tls(), ca=ours.path("ca.crt"))
    for tls in (None, ours.tls(None), stranger, theirs.tls()):
        assert await _health(endpoint, tls) is grpc.StatusCode.UNAVAILABLE


async def test_a_name_that_is_not_in_the_certificate_is_refused(
    endpoint: str, ours: Authority
) -> None:
    for name, how in (("localhost", None), ("elsewhere", grpc.StatusCode.UNAVAILABLE)):
        assert await _health(endpoint, replace(ours.tls(), server_name=name)) is how


@IPV6
@pytest.mark.parametrize("host", ["::1", "[0:0:0:0:0:0:0:1]"])
async def test_an_address_of_ipv6_is_that_of_the_certificate_however_it_is_written(
    host: str, ours: Authority
) -> None:
    async with _serving(ours, f"{host}:0") as endpoint:
        port = endpoint.rpartition(":")[2]
        asked, _, _, _ = whom_to_call(f"{host}:{port}", None, None)
        assert asked == endpoint == f"[::1]:{port}"
        assert await _health(asked, ours.tls()) is None


@IPV6
async def test_processes_find_each_other_however_their_addresses_are_written(
    ours: Authority,
) -> None:
    def long(process: Any) -> str:
        return str(process.endpoint).replace("::1", "0:0:0:0:0:0:0:1")

    shared = {**ours.settings(), "bind": "::1:0"}
    async with Cell(pair=FLAT, shared=shared) as cell:
        verifier, drafter = await cell.verifier(), await cell.drafter()
        coordinator = await cell.coordinator(verify=(long(verifier),), draft=(long(drafter),))
        front = await cell.frontend(coordinator=long(coordinator))
        assert await _answered(front.endpoint, ours.tls("client-acme")) == 8
        assert coordinator.metrics.value("spec_decode_num_draft_tokens_total") > 0


async def test_renewed_certificates_are_taken_while_serving(tmp_path: Path) -> None:
    authority = Authority(tmp_path)
    async with _serving(authority) as endpoint:
        await asyncio.to_thread(authority.check_renewal, endpoint)
        assert await _health(endpoint, authority.tls()) is None


async def _answered(endpoint: str, tls: Tls, token: str | None = None) -> int:
    """How many tokens an answer has."""
    async with AsyncClient(endpoint, token=token, tls=tls) as client:
        answer = await client.complete([1, 2, 3], max_tokens=8, timeout=20, policy="fixed:3")
    return len(answer.token_ids)


async def test_a_cell_under_mutual_tls_answers_those_with_a_token(
    tmp_path: Path, ours: Authority, theirs: Authority
) -> None:
    keys = key_files(tmp_path, {"acme": "a-token-of-the-tenant-acme"})
    tokens, own = token_files(tmp_path, "operator")
    tenant = ours.tls("client-acme")
    shared = {**keys["verify"], **own, **ours.settings()}
    async with Cell(pair=FLAT, shared=shared) as cell:
        coordinator = await cell.whole(**keys["coordinator"])
        front = await cell.frontend(**keys["coordinator"])
        for endpoint in (coordinator.endpoint, front.endpoint):
            assert await _answered(endpoint, tenant, "a-token-of-the-tenant-acme") == 8
            with pytest.raises(Denied):
                await _answered(endpoint, tenant, "a-token-of-nobody-at-all")
            with pytest.raises(Unavailable):
                await _answered(endpoint, theirs.tls(), "a-token-of-the-tenant-acme")
            assert await _answered(endpoint, tenant) == 8, "its certificate says who it is"
        assert coordinator.metrics.value("spec_decode_num_draft_tokens_total") > 0
        for process in (coordinator, front):
            assert process.metrics.value("refusals_total", reason="unauthenticated") == 1
        async with AsyncClient(coordinator.endpoint, tls=tenant) as client:
            with pytest.raises(Denied):
                await client.status()
        assert coordinator.metrics.value("refusals_total", reason="forbidden") == 1
        operator = {"token": tokens["operator"], "tls": ours.tls()}
        async with AsyncClient(coordinator.endpoint, **operator) as client:
            states = {one.name: one.state for one in (await client.status()).processes}
        assert set(states.values()) == {"serving"}
        assert len(states) == 4


async def test_a_verifier_is_found_again_when_all_certificates_are_others(tmp_path: Path) -> None:
    """At the same address, by a coordinator that was started with the former ones."""
    authority = Authority(tmp_path)
    tenant = authority.tls("client-acme")
    async with Cell(pair=FLAT, shared=authority.settings()) as cell:
        verifier = await cell.verifier()
        coordinator = await cell.coordinator()
        authority.replace()
        await verifier.stop(0.0)
        await cell.verifier(bind=verifier.endpoint)
        await until(lambda: coordinator.cell.membership.ready, 20.0)
        assert await _answered(coordinator.endpoint, tenant) == 8


async def test_a_front_end_attaches_after_certificates_that_did_not_fit(tmp_path: Path) -> None:
    """It looked for its coordinator while they were being replaced."""
    authority = Authority(tmp_path)
    tenant = authority.tls("client-acme")
    async with Cell(pair=FLAT, shared=authority.settings()) as cell:
        await cell.verifier()
        coordinator = await cell.coordinator()
        front = await cell.frontend()
        authority.spoil("node.crt")
        await coordinator.stop(0.0)
        await asyncio.sleep(1.0)
        authority.renew()
        await cell.coordinator(bind=coordinator.endpoint)
        await until(lambda: front.cell._terms is not None, 20.0)
        assert await _answered(front.endpoint, tenant) == 8


async def test_a_stage_of_training_asks_a_cell_under_mutual_tls(
    tmp_path: Path, ours: Authority, golden_target: Path
) -> None:
    prompts, rows = tmp_path / "prompts.jsonl", tmp_path / "rows.jsonl"
    _, files = token_files(tmp_path, "worker")
    shared = {**files, **ours.settings()}
    turns = [{"role": "user", "content": "", "token_ids": [3, 4, 5]}]
    prompts.write_text(json.dumps({"id": "one", "conversations": turns}) + "\n")
    async with Cell(pair=FLAT, shared=shared) as cell:
        coordinator = await cell.whole()
        asked = ["--endpoint", coordinator.endpoint]
        for key, path in shared.items():
            asked += ["--" + key.replace("_", "-"), path]
        stage = ["regenerate", str(prompts), "--target", str(golden_target), "--out", str(rows)]
        await asyncio.to_thread(dspark, "train", *stage, "--max-tokens", "4", *asked)
    (row,) = read_rows(rows)
    assert len(row["conversations"][1]["token_ids"]) == 4


def _scrape(url: str, token: str | None, context: ssl.SSLContext | None) -> int:
    shown = {"Authorization": f"Bearer {token}"} if token else {}
    reply = httpx.get(url, headers=shown, timeout=5, verify=context or True)
    assert reply.status_code != 200 or "dspark_rounds_total" in reply.text
    return reply.status_code


def test_metrics_ask_like_everybody_else(
    tmp_path: Path, ours: Authority, theirs: Authority
) -> None:
    tokens, files = token_files(tmp_path, "worker", "metrics")
    reader = tokens["metrics"]
    security = Security.of(ListenConfig(**files, **ours.settings()))
    metrics = Metrics()
    server = MetricsServer(metrics, security, "127.0.0.1:0", 0)
    url = f"https://127.0.0.1:{server.server_port}/metrics"
    node, stranger = ours.context("node"), ours.context()
    stranger.load_cert_chain(theirs.path("node.crt"), theirs.path("node.key"))
    for shown, context, status in (
        (reader, node, 200),
        (None, ours.context("monitor"), 200),
        (None, node, 403),  # a worker's certificate reads no metrics
        ("wrong-token-of-some-length", node, 401),
        (tokens["worker"], node, 200),  # without operators' own token it is theirs
    ):
        assert _scrape(url, shown, context) == status, shown
    for other in (ours.context(), stranger):
        with pytest.raises(httpx.TransportError):
            _scrape(url, reader, other)
    with pytest.raises(httpx.TransportError):
        _scrape(url.replace("https", "http"), reader, None)
    for reason in ("unauthenticated", "forbidden"):
        assert metrics.value("refusals_total", reason=reason) == 1
    server.close()


@pytest.mark.parametrize("key", ["tls_cert", "tls_ca"])
def test_half_of_the_files_is_refused(ours: Authority, key: str) -> None:
    with pytest.raises(ConfigError, match="tls_cert, tls_key"):
        Security.of(ListenConfig(**{key: ours.settings()[key]}))


def test_files_that_are_no_certificates_are_refused(
    tmp_path: Path, ours: Authority, theirs: Authority
) -> None:
    junk = tmp_path / "junk"
    junk.write_text("-----BEGIN NOTHING-----")
    for change, told in (
        ({"tls_ca": str(junk)}, "tls_"),
        ({"tls_key": str(junk)}, "tls_"),
        ({"tls_key": theirs.path("node.key")}, "tls_"),
        ({"tls_ca": str(tmp_path / "absent")}, "tls_ca: cannot read"),
    ):
        with pytest.raises(ConfigError, match=told):
            Security.of(ListenConfig(**{**ours.settings(), **change}))


@pytest.mark.parametrize("file", ["ca.crt", "node.crt"])
@pytest.mark.parametrize("step", ["load_verify_locations", "load_cert_chain"])
@pytest.mark.parametrize("change", [Authority.spoil, Authority.remove])
@pytest.mark.parametrize(
    ("ask", "before"),  # how many times the step is done well
    [
        (partial(Tls.check, server=True), 0),
        (partial(Tls.check_shared, name="", ask_peers=True), 3),
        (partial(Tls.server_context, ask_peers=True), 3),
    ],
)
def test_a_file_that_changes_while_it_is_read_is_refused_like_one_that_does_not_fit(
    tmp_path: Path,
    file: str,
    step: str,
    change: Callable[[Authority, str], None],
    ask: Callable[[Tls], object],
    before: int,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Whoever keeps a connection tries again then, and ends by any other error."""
    ours = Authority(tmp_path)
    real, done = getattr(ssl.SSLContext, step), list[str]()

    def read(context: ssl.SSLContext, *told: Any, **more: Any) -> None:
        real(context, *told, **more)
        if len(done) == before:
            change(ours, file)
        done.append(file)
        real(context, *told, **more)

    monkeypatch.setattr(ssl.SSLContext, step, read)
    with contextlib.suppress(ConfigError):
        ask(ours.tls())
    assert len(done) > before


@pytest.mark.parametrize("name", ["client-acme", "operator", "ca"])
def test_a_certificate_that_no_server_can_show_is_refused_before_it_is_shown(
    name: str, ours: Authority
) -> None:
    change = {"tls_cert": ours.path(f"{name}.crt"), "tls_key": ours.path(f"{name}.key")}
    with pytest.raises(ConfigError, match=rf"^tls_cert: .*{name}\.crt is refused as a server's"):
        Security.of(ListenConfig(**{**ours.settings(), **change}))
    ours.tls(name).check()  # as a caller's it may do


KEYS: dict[str, Callable[[], Any]] = {
    "RSA": lambda: rsa.generate_private_key(65537, 2048),
    "P-384": lambda: ec.generate_private_key(ec.SECP384R1()),
    "Ed448": ed448.Ed448PrivateKey.generate,
    "Ed25519": ed25519.Ed25519PrivateKey.generate,
    "P-521": lambda: ec.generate_private_key(ec.SECP521R1()),
    "unknown": lambda: ec.generate_private_key(ec.SECP224R1()),
}


def _own(folder: Path, made: Any, days: int = 0) -> Tls:
    """A certificate of this key that holds on a day and those beside it, so many days from now."""
    cert, key = folder / "own.crt", folder / "own.key"
    day, name = datetime.datetime.now(datetime.UTC) + days * DAY, x509.Name([])
    builder = x509.CertificateBuilder(name, name, made.public_key(), 1, day - DAY, day + DAY)
    signed = builder.sign(KEYS["RSA"](), hashes.SHA256())
    pem = serialization.Encoding.PEM
    cert.write_bytes(signed.public_bytes(pem))
    plain = serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
    key.write_bytes(made.private_bytes(pem, *plain))
    return Tls(str(cert), str(key))


@pytest.mark.parametrize("kind", KEYS)
def test_a_key_that_grpc_does_not_take_is_named_with_its_kind(kind: str, tmp_path: Path) -> None:
    """That of the certificate, whatever signed it."""
    said = rf"^tls_cert: .*own\.crt has a key of the kind {kind}; gRPC takes RSA"
    taken = kind in ("RSA", "P-384")
    with contextlib.nullcontext() if taken else pytest.raises(ConfigError, match=said):
        _own(tmp_path, KEYS[kind]()).check()


def test_a_certificate_with_openssls_own_marks_is_named(tmp_path: Path) -> None:
    """gRPC does not read it."""
    authority = Authority(tmp_path)
    shown = Path(authority.path("node.crt"))
    shown.write_text(shown.read_text().replace("CERTIFICATE", "TRUSTED CERTIFICATE"))
    with pytest.raises(ConfigError, match=r"^tls_cert: .*node\.crt begins with no plain certif"):
        authority.tls().check()


def test_a_process_of_another_authority_than_it_believes_is_warned_of(
    ours: Authority,
    theirs: Authority,
    tmp_path: Path,
    caplog: pytest.LogCaptureFixture,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """It may be meant: callers of one authority, and a server's certificate of a public one."""
    settings = {**ours.settings(), "tls_ca": theirs.path("ca.crt")}
    Security.of(ListenConfig(**settings, tls_require_client_cert=False))
    Security.of(ListenConfig(**ours.settings()))
    assert not caplog.records
    Security.of(ListenConfig(**settings))
    assert "node.crt is refused as a server's" in caplog.text
    purposes = ExtendedKeyUsageOID
    monkeypatch.setattr(purposes, "CLIENT_AUTH", purposes.SERVER_AUTH)
    Security.of(ListenConfig(**Authority(tmp_path).settings()))
    assert "node.crt is refused as a client's" in caplog.text


@pytest.mark.parametrize("days", [-2, 2])
def test_a_certificate_out_of_its_time_is_named(days: int, tmp_path: Path, ours: Authority) -> None:
    tls = replace(_own(tmp_path, KEYS["RSA"](), days), ca=ours.path("ca.crt"))
    for make in (tls.channel_credentials, lambda: tls.server_credentials(ask_peers=True)):
        with pytest.raises(
            ConfigError, match=r"tls_cert: .*own\.crt holds from .* GMT to .* GMT, and not now"
        ):
            make()
