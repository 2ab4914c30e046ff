"""From one configuration file to the settings of every process."""

import re
import socket
import types
from collections.abc import Mapping
from contextlib import nullcontext
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from cryptography.x509 import DNSName
from cryptography.x509.oid import ExtendedKeyUsageOID as EKU
from structlog.testing import capture_logs

from deploy.autoscale import AutoscaleConfig
from deploy.cell_plan import http_bind, largest, plan_topology, read_config, token_files, within
from deploy.config import ClusterConfig
from deploy.topology import ProcessRole, Topology, desired, resized, sizes_of
from dspark.cli import certificates
from dspark.errors import ConfigError
from dspark.runtime.config import load_config
from tests.certificates import Authority
from tests.unit.deploy.conftest import Write
from verify_service.config import VerifyConfig

SYNTHETIC = Path(__file__).parents[3] / "benchmarks" / "synthetic" / "flat.yaml"
EXAMPLE = Path(__file__).parents[3] / "examples" / "cell.yaml"
PAIR: dict[str, Any] = {"target": "t", "drafter": "d"}
CELL = ClusterConfig(**PAIR)
SECRETS = {name: Path(f"/s/{name}") for name in ("token_file", "client_token_file")}


def _topology(
    config: ClusterConfig,
    file: Path | None = None,
    most: Mapping[ProcessRole, int] | None = None,
    **environ: str,
) -> Topology:
    most = most or sizes_of(config)
    return plan_topology(
        config, file=file, environ=environ, port=4242, token_files=SECRETS, most=most
    )


def _plan(config: ClusterConfig, *words: Any, **more: Any) -> dict[str, dict[str, object]]:
    replicas = _topology(config, *words, **more).replicas
    return {name: dict(replica.settings) for name, replica in replicas.items()}


def _read(flags: Mapping[str, Any], file: Path | None = None) -> ClusterConfig:
    return read_config(file=file, environ={}, flags=flags)


def test_every_process_gets_what_its_room_understands() -> None:
    told = {"policy": "fixed:3", "rule": "coupled"}
    plan = _plan(ClusterConfig(**PAIR, **told, device="cpu", revision="r1"))
    wanted = {
        "coordinator/0": {**told, "bind": "127.0.0.1:4242"},
        "verify/0": {**PAIR, "bind": "127.0.0.1:0", "target_revision": "r1"},
        "draft/0": {"drafter": "d", "bind": "127.0.0.1:0", "drafter_revision": "r1"},
    }
    for name, settings in plan.items():
        assert settings.items() >= {**wanted.pop(name), "token_file": "/s/token_file"}.items()
    assert not wanted


@pytest.mark.parametrize(
    "key", ["coordinator.tls_cert", "frontend.tls_ca", "verify.tls_server_name"]
)
def test_certificates_of_one_process_alone_are_refused(key: str, write: Write) -> None:
    """The others would not speak TLS, or believe another authority."""
    section, _, name = key.partition(".")
    file = write(f"{section}: {{{name}: its.own}}")
    with pytest.raises(ConfigError, match=rf"^{key}: its\.own, but all .* as cluster\.{name}$"):
        _plan(replace(CELL, frontends=1), file)
    if section == "frontend":  # of which there is none
        _plan(CELL, file)


@pytest.mark.parametrize("section", ["coordinator", "frontend"])
def test_tokens_that_the_operator_names_are_those_of_every_door(section: str, write: Write) -> None:
    file = write(f"{section}: {{client_token_file: /tenants}}")
    for given, wanted in ((file, "/tenants"), (None, "/s/client_token_file")):
        plan = _plan(replace(CELL, frontends=1), given)
        assert plan["coordinator/0"]["client_token_file"] == wanted
        assert plan["frontend/0"]["client_token_file"] == wanted


def test_http_that_is_off_is_off_whatever_the_section_of_the_coordinator_says(write: Write) -> None:
    file = write("coordinator: {http: '127.0.0.1:0'}")
    assert _plan(replace(CELL, http=None), file)["coordinator/0"]["http"] is None


def test_what_a_section_says_and_the_cell_decides_otherwise_is_told(write: Write) -> None:
    file = write(
        "coordinator: {bind: '0.0.0.0:50051', policy: 'off'}\nverify: {target: t, kv_tokens: 4096}"
    )
    with capture_logs() as said:
        plan = _plan(CELL, file)
    assert plan["coordinator/0"]["policy"] == "off"
    unused = [each for each in said if each["event"] == "setting.unused"]
    assert [(each["setting"], each["value"], each["used"]) for each in unused] == [
        ("coordinator.bind", "0.0.0.0:50051", "127.0.0.1:4242")
    ]


def test_a_synthetic_pair_needs_its_file_and_no_models(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(SYNTHETIC.parent)
    flags = {"engine": "synthetic", "synthetic": SYNTHETIC.name}
    plan = _plan(_read(flags))
    for name in ("verify/0", "draft/0"):
        assert (plan[name]["engine"], plan[name]["synthetic"]) == ("synthetic", str(SYNTHETIC))
    assert "engine" not in plan["coordinator/0"]
    for wrong, said in (
        ({"engine": "synthetic"}, r"cluster\.synthetic"),
        ({**flags, "target": "org/t"}, r"cluster\.target"),
        ({**flags, "synthetic": "no-such.yaml"}, "no-such"),
    ):
        with pytest.raises(ConfigError, match=said):
            _read(wrong)


def test_a_cell_without_a_drafter_starts_none_and_gets_none(tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text("{}")
    config = _read({"target": str(tmp_path), "drafter": "none"})
    assert config.drafters == 0
    topology = _topology(config)
    assert topology.names == {"coordinator/0", "verify/0"}
    with pytest.raises(ConfigError, match="started without a drafter"):
        resized(topology, 1, 1)
    told = topology.replicas["verify/0"].settings
    assert load_config(VerifyConfig, section="verify", flags=told).drafter is None


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"tls_cert": "ours/client-acme.crt", "tls_key": "ours/client-acme.key"}, "purpose"),
        ({"tls_cert": "ours/client-acme.crt"}, "no certificate and its plain key"),
        ({"tls_ca": "theirs/ca.crt"}, "unable to get local issuer certificate"),
        ({"tls_ca": "ours/none"}, "No such file"),
        ({"tls_server_name": "elsewhere"}, "not valid for 'elsewhere'"),
        ({"bind": "10.1.2.3"}, "not valid for '10.1.2.3'"),
        ({"tls_server_name": "a..b"}, "'a..b' is no name of a host"),
    ],
)
def test_certificates_that_processes_would_refuse_of_each_other_are_refused_at_once(
    change: dict[str, str], said: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    Authority(tmp_path / "theirs")
    given = PAIR | Authority(Path("ours")).settings()
    for name in ("localhost", "localhost."):
        _read(given | {"tls_server_name": name})
    for bind in ("127.0.0.1", "::1", "0.0.0.0"):
        _read(given | {"bind": bind})
    with pytest.raises(ConfigError, match=rf"^cluster\.tls_.*{re.escape(said)}"):
        _read(given | change)


def test_processes_on_all_addresses_of_one_machine_call_each_other_by_its_loopback(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(certificates, "_alternative", DNSName)  # no address is in the certificate
    flags = PAIR | {"bind": "0.0.0.0"} | Authority(tmp_path).settings()
    with pytest.raises(ConfigError, match=r"not valid for '127\.0\.0\.1'"):
        _read(flags)
    for more in ({"address": "10.0.0.1:6379"}, {"tls_server_name": "localhost"}):
        _read(flags | more)


@pytest.mark.parametrize("asked", [True, False])
def test_a_certificate_for_servers_alone_will_do_where_callers_show_none(
    asked: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    oids = types.SimpleNamespace(CLIENT_AUTH=EKU.SERVER_AUTH, SERVER_AUTH=EKU.SERVER_AUTH)
    monkeypatch.setattr("cryptography.x509.oid.ExtendedKeyUsageOID", oids)
    flags = PAIR | {"tls_require_client_cert": asked} | Authority(tmp_path).settings()
    with pytest.raises(ConfigError, match="refused as a client's") if asked else nullcontext():
        _read(flags)


@pytest.mark.parametrize("bind", ["::1", "[::1]", "0:0:0:0:0:0:0:1"])
def test_processes_listen_on_an_address_of_ipv6_however_it_is_written(bind: str) -> None:
    plan = _plan(_read(PAIR | {"bind": bind}))
    assert plan["coordinator/0"]["bind"] == "[::1]:4242"
    assert plan["verify/0"]["bind"] == "[::1]:0"


def test_an_address_to_bind_with_a_port_is_refused_and_the_setting_of_the_port_named() -> None:
    with pytest.raises(ConfigError, match=r"cluster\.bind: '127\.0\.0\.1:7000' .* cluster\.port"):
        replace(CELL, bind="127.0.0.1:7000")


@pytest.mark.parametrize(
    ("sizes", "problem"),
    [
        ((1, 9999), r"draft=9999 is not in 0\.\.4096"),
        ((1, -1), r"draft=-1 is not in 0\.\.4096"),
        ((0, 1), r"verify=0 is not in 1\.\.4096"),
    ],
)
def test_a_size_that_no_pool_can_have_is_refused_with_its_bounds(
    sizes: tuple[int, int], problem: str
) -> None:
    with pytest.raises(ConfigError, match=problem):
        resized(desired(CELL, {}), *sizes)


def test_the_example_file_is_valid_and_the_environment_overrides_it() -> None:
    config = _read({"target": "org/t", "drafter": "org/d"}, EXAMPLE)
    assert config.drafters == 2
    plan = _plan(config, EXAMPLE, DSPARK_DRAFT__Q_ENTRIES="16")
    assert plan["coordinator/0"]["max_queued"] == 256
    assert plan["draft/1"]["q_entries"] == 16


def test_a_folder_gets_its_full_path_so_that_workers_find_it(
    golden_target: Path, golden_drafter: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(golden_target.parent)
    config = _read({"target": golden_target.name, "drafter": golden_drafter.name})
    assert (config.target, config.drafter) == (str(golden_target), str(golden_drafter))


def test_the_file_may_name_the_pair(
    golden_target: Path, golden_drafter: Path, write: Write
) -> None:
    models = f"target: {golden_target}, drafter: {golden_drafter}"
    config = _read({}, write(f"cluster: {{{models}, drafters: 2}}\n"))
    told = (config.target, config.drafter, config.drafters)
    assert told == (str(golden_target), str(golden_drafter), 2)


def test_http_takes_the_port_that_is_wanted_or_any_and_can_be_off() -> None:
    with socket.create_server(("127.0.0.1", 0)) as held:
        taken = f"127.0.0.1:{held.getsockname()[1]}"
        other = http_bind(taken)
        assert other not in (taken, None)
        assert http_bind(other) == other, "a successor of the process finds it again"
        assert http_bind(taken, here=False) == taken, "it may be free on another machine"
    assert http_bind(taken) == taken
    assert http_bind(None) is None
    assert load_config(ClusterConfig, section="cluster", flags={"http": "none"}).http is None


def test_http_is_off_where_one_of_its_libraries_is_missing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(
        "coordinator.config.HTTP_LIBRARIES", ("fastapi", "a_parser_that_is_not_there")
    )
    assert http_bind("127.0.0.1:0") is None


@pytest.mark.parametrize(
    ("told", "drawn"),
    [
        ({}, False),
        ({"bind": "0.0.0.0"}, True),
        ({"http": "0.0.0.0:8000"}, True),
        ({"http": "0.0.0.0:8000", "insecure": True}, False),
        ({"http": None}, False),
    ],
)
def test_clients_get_a_secret_as_soon_as_strangers_could_reach_an_entry(
    told: dict[str, Any], drawn: bool
) -> None:
    assert ("client_token_file" in token_files(replace(CELL, **told))) == drawn


@pytest.mark.parametrize(
    ("written", "said"),
    [
        ("coordinator: {policy: fastest}", "coordinator.policy: expected off"),
        ("coordinator: {rule: best}", "coordinator.rule: 'best' is none of token, block, coupled"),
        ("coordinator: {tool_format: xml}", "coordinator.tool_format: 'xml' is none of hermes"),
        ("verify: {dtype: int3}", "verify.dtype: 'int3' is none of auto"),
        ("verify: {attention: flash}", "verify.attention: 'flash' is none of auto, stateful"),
        ("verify: {kv_tokens: -5}", "verify.kv_tokens: -5 is less than 0"),
        (
            "verify: {tensor_parallel_size: 65}",
            "verify.tensor_parallel_size: 65 is not in 1..64",
        ),
        ("verify: {kv_tokens: 5}", "verify.kv_tokens: 5 does not hold one page of 16"),
        (
            "draft: {context_tokens: 40, page_size: 64}",
            "draft.context_tokens: 40 does not hold one page of 64",
        ),
        ("coordinator: {otel_endpoint: nowhere}", "coordinator.otel_endpoint: 'nowhere' is not"),
        ("draft: {context_tokens: 0}", "draft.context_tokens: 0 is less than 1"),
        ("draft: {metrics_port: 70000}", "draft.metrics_port: 70000 is not in 0..65535"),
        ("cluster: {verifiers: 100000000}", "cluster.verifiers: 100000000 is not in 1..4096"),
        ("cluster: {http: nowhere}", "cluster.http: 'nowhere' is not host:port"),
        ("cluster: {rule: blocks}", "cluster.rule: 'blocks' is none of token, block, coupled"),
        ("cluster: {policy: fixed}", "cluster.policy: fixed:k needs a whole number"),
        ("cluster: {verifiers: 0}", "cluster.verifiers: "),
        ("cluster: {drafters: -1}", "cluster.drafters: "),
        ("cluster: {frontends: -1}", "cluster.frontends: "),
        ("cluster: {port: 70_000}", "cluster.port: "),
        ("cluster: {verifier_gpus: -0.5}", "cluster.verifier_gpus: "),
        ("cluster: {verifier_gpus: 1.5}", "cluster.verifier_gpus: "),
        ("cluster: {drafter_memory_gib: -1.0}", "cluster.drafter_memory_gib: "),
        ("cluster: {coordinator_cpus: -1.0}", "cluster.coordinator_cpus: "),
        ("cluster: {drafter_cpus: -1.0}", "cluster.drafter_cpus: "),
        ("cluster: {verifier_selector: role}", "cluster.verifier_selector: "),
        ("cluster: {cell: No Name}", "cluster.cell: "),
        ("cluster: {cell: ''}", "cluster.cell: "),
        ("cluster: {http: '8000'}", "cluster.http: "),
        ("cluster: {place_timeout_s: 0.0}", "cluster.place_timeout_s: "),
        ("cluster: {start_timeout_s: 0.0}", "cluster.start_timeout_s: "),
        ("cluster: {drain_s: -1.0}", "cluster.drain_s: "),
        ("verify: {page_sise: 3}", "verify.page_sise: unknown key"),
        ("cluster: {address: 'head:x'}", "cluster.address: 'head:x' is not host:port"),
        ("cluster: {address: 'ray://head:1'}", "cluster.address: 'ray://head:1' is not host:port"),
        ("[" * 5000, "cannot be read"),
    ],
)
def test_what_no_process_could_start_with_is_refused_before_any_does(
    write: Write, written: str, said: str
) -> None:
    file = write(written)
    with pytest.raises(ConfigError, match=re.escape(said)):
        _plan(_read(PAIR, file), file)


def test_pools_begin_within_the_bounds_of_autoscaling() -> None:
    bounds = AutoscaleConfig(enabled=True, min_verifiers=2, max_verifiers=3, max_drafters=2)
    config, _ = within(replace(CELL, verifiers=1, drafters=2), bounds)
    assert (config.verifiers, config.drafters) == (2, 2)
    more, said = replace(config, drafters=3), "3, but autoscale.max_drafters is 2"
    with pytest.raises(ConfigError, match=f"^cluster.drafters: {said}"):
        within(more, bounds)
    assert within(more, AutoscaleConfig()) == (more, AutoscaleConfig())


def test_a_cell_without_a_drafter_is_never_given_one() -> None:
    plain = replace(CELL, drafter="none", drafters=0)
    config, bounds = within(plain, AutoscaleConfig(enabled=True, min_drafters=1))
    assert config.drafters == largest(config, bounds)[ProcessRole.DRAFT] == 0
    assert bounds.bounds["drafters"] == (0, 0), "without weights there is nobody to start"


def test_processors_that_nobody_divided_are_divided_among_the_workers(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("dspark.runtime.process.CPU_QUOTA", Path("none"))
    monkeypatch.delenv("OMP_NUM_THREADS", raising=False)

    def threads(config: ClusterConfig, processors: int = 2, **told: Any) -> tuple[object, object]:
        """Of each verifier and each drafter."""
        here = tuple(range(processors))
        monkeypatch.setattr("dspark.runtime.process.usable", lambda: here)
        plan = _plan(config, **told)
        return plan["verify/0"]["threads"], plan["draft/0"]["threads"]

    assert threads(CELL) == (2, 1)
    assert threads(replace(CELL, verifiers=2)) == (1, 1)
    assert threads(CELL, DSPARK_VERIFY__CPUS="1") == (1, 1)
    # of a cluster that is joined: the process decides, by what Ray reserves for it
    assert threads(replace(CELL, address="head:6379"))[0] == 0
    grows = AutoscaleConfig(enabled=True, max_verifiers=4, max_drafters=2)
    assert threads(CELL, 16, most=largest(CELL, grows)) == (3, 2), "those that may come"
    assert threads(CELL, 16, most=largest(CELL, AutoscaleConfig())) == (12, 4)


def test_labels_of_a_pool_are_its_own() -> None:
    topology = desired(replace(CELL, verifier_selector="zone=a"), {})
    told = {name: replica.selector for name, replica in topology.replicas.items()}
    assert told == {"coordinator/0": {}, "verify/0": {"zone": "a"}, "draft/0": {}}


def test_front_ends_come_last_and_stay_when_pools_are_resized() -> None:
    topology = desired(replace(CELL, frontends=2), {})
    assert [*topology.replicas][-2:] == ["frontend/0", "frontend/1"]
    assert resized(topology, 2, 0).sizes[ProcessRole.FRONTEND] == 2


def test_resizing_keeps_names_and_drops_the_highest_numbers() -> None:
    settings = {ProcessRole.DRAFT: {"drafter": "d"}}
    before = desired(replace(CELL, verifiers=2, drafters=0), settings)
    after = resized(before, 1, 2)
    assert after.names == {"coordinator/0", "verify/0", "draft/0", "draft/1"}
    assert {after.replicas[f"draft/{number}"].settings["drafter"] for number in (0, 1)} == {"d"}
    assert resized(after, 2, 0) == before
