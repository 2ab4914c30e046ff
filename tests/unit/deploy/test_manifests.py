"""Every file under deploy/ that another program reads: valid by that program's schema, and true of
this software."""

import dataclasses
import json
import re
import shlex
import shutil
import subprocess
import tomllib
from collections.abc import Iterator
from importlib import resources
from pathlib import Path
from typing import Any

import jsonschema
import kubernetes_validate
import pathspec
import pytest
import yaml

from deploy import footprint
from deploy.autoscale import AutoscaleConfig
from deploy.config import ClusterConfig
from deploy.service_registry import ROOMS, config_class, load_settings
from deploy.topology import ProcessRole
from dspark.cli.main import build_parser
from dspark.runtime.config import load_config
from dspark.runtime.security import Security
from tests.unit.deploy.conftest import Write

ROOT = Path(__file__).parents[3]
DEPLOY, SCHEMAS = ROOT / "deploy", ROOT / "tests" / "data" / "schemas"
KUBERNETES = "1.31"  # gRPC probes are stable since 1.27
CUSTOM = {"RayCluster": "ray_cluster", "RayJob": "ray_job", "PodMonitor": "pod_monitor"}

Manifest = dict[str, Any]


def _manifests() -> Iterator[tuple[str, Manifest]]:
    for path in sorted((DEPLOY / "kubernetes").rglob("*.yaml")):
        for index, document in enumerate(yaml.safe_load_all(path.read_text())):
            if document["kind"] != "Kustomization":
                yield f"{path.relative_to(DEPLOY / 'kubernetes')}:{index}", document


MANIFESTS = dict(_manifests())
SECTIONS = yaml.safe_load(MANIFESTS["plain/config.yaml:0"]["data"]["cell.yaml"])


def _pods(manifest: Manifest) -> Iterator[Manifest]:
    """Pod templates, as pods."""
    spec = manifest.get("spec", {})
    groups = [spec.get("headGroupSpec", {}), *spec.get("workerGroupSpecs", []), spec]
    for group in groups:
        if "template" in group:
            pod = {"apiVersion": "v1", "kind": "Pod", "metadata": {"name": "any"}}
            yield {**pod, "spec": group["template"]["spec"]}


def _check(manifest: Manifest) -> None:
    if manifest["kind"] in CUSTOM:
        jsonschema.validate(
            manifest, json.loads((SCHEMAS / f"{CUSTOM[manifest['kind']]}.json").read_text())
        )
    else:
        kubernetes_validate.validate(manifest, KUBERNETES, strict=True)
    for pod in _pods(manifest):
        kubernetes_validate.validate(pod, KUBERNETES, strict=True)


@pytest.mark.parametrize("name", MANIFESTS)
def test_manifests_are_valid(name: str) -> None:
    _check(MANIFESTS[name])


@pytest.mark.parametrize("name", ["plain/config.yaml:0", "ray/config.yaml:0"])
def test_the_mounted_configuration_is_one_the_processes_read(name: str, write: Write) -> None:
    file = write(MANIFESTS[name]["data"]["cell.yaml"])
    sections = yaml.safe_load(file.read_text())
    known = {*map(str, ProcessRole), "cluster", "autoscale"}
    assert set(sections) <= known
    for role in ProcessRole:
        load_settings(role, file=file, environ={}, flags={})
    if "cluster" in sections:
        config = load_config(ClusterConfig, section="cluster", file=file, environ={})
        assert load_config(AutoscaleConfig, section="autoscale", file=file, environ={}).enabled
        groups = MANIFESTS["ray/raycluster.yaml:0"]["spec"]["workerGroupSpecs"]
        labelled = {f"{key}={value}" for group in groups for key, value in group["labels"].items()}
        assert {
            config.coordinator_selector,
            config.verifier_selector,
            config.drafter_selector,
        } == labelled


def _parsed(role: str, words: list[str]) -> Any:
    return build_parser().parse_args(["serve", role, *words])


def _secured(role: ProcessRole, settings: dict[str, Any], secrets: Path) -> None:
    """Passes what a process checks before it listens; the files of its secrets stand in for the
    mounted ones."""
    mine = dict(settings)
    for key, value in settings.items():
        if key.endswith("token_file") and value:
            path = secrets / Path(value).name
            path.write_text("0123456789abcdef" + path.name)
            mine[key] = str(path)
    config = config_class(role)(**mine)
    security = Security.of(config)
    security.check_bind(config.bind)
    assert security.metrics_host(config.bind) == "0.0.0.0", "Prometheus reaches it"


def test_processes_listen_beyond_loopback_because_they_ask_for_secrets(
    tmp_path: Path, write: Write
) -> None:
    file = write(MANIFESTS["plain/config.yaml:0"]["data"]["cell.yaml"])
    for role in (ProcessRole.COORDINATOR, ProcessRole.VERIFY, ProcessRole.DRAFT):
        given = vars(_parsed(role, COMPOSE["services"][role]["command"]))
        for source, flags in ((file, {}), (None, given)):
            _secured(role, load_settings(role, file=source, environ={}, flags=flags), tmp_path)


def test_the_headless_names_in_the_configuration_are_those_of_the_stateful_sets() -> None:
    for pool in ("verify", "draft"):
        service = MANIFESTS[f"plain/{pool}.yaml:1"]
        port = service["spec"]["ports"][0]["port"]
        assert service["spec"]["clusterIP"] == "None"
        pods = MANIFESTS[f"plain/{pool}.yaml:0"]["spec"]
        assert pods["serviceName"] == service["metadata"]["name"]
        for index, endpoint in enumerate(SECTIONS["coordinator"][pool]):
            assert endpoint == f"{pool}-{index}.{pool}:{port}"


def test_ports_of_workers_are_known_and_open_to_the_cell() -> None:
    cell, metrics = (
        {each["port"] for each in rule["ports"]}
        for rule in MANIFESTS["plain/network.yaml:0"]["spec"]["ingress"]
    )
    for pool in ("verify", "draft"):
        settings = load_settings(ProcessRole(pool), file=None, environ={}, flags=SECTIONS[pool])
        calls = {int(settings["bind"].rpartition(":")[2])}
        if pool == "draft":
            calls.add(settings["rounds_port"])
        assert 0 not in calls, "the policy could not name it"
        assert calls <= cell
        assert settings["metrics_port"] in metrics
        (container,) = next(_pods(MANIFESTS[f"plain/{pool}.yaml:0"]))["spec"]["containers"]
        ports = {port["containerPort"] for port in container["ports"]}
        assert ports == calls | {settings["metrics_port"]}


def test_probes_ask_for_services_that_exist_at_ports_that_are_listened_on() -> None:
    services = {room.service for room in ROOMS.values()}
    probed = 0
    for manifest in MANIFESTS.values():
        for pod in _pods(manifest):
            for container in pod["spec"]["containers"]:
                ports = {port["containerPort"] for port in container.get("ports", ())}
                for kind in ("startupProbe", "readinessProbe", "livenessProbe"):
                    probe = container.get(kind, {}).get("grpc")
                    if probe is not None:
                        probed += 1
                        assert probe["port"] in ports
                        assert probe.get("service", "") in {"", *services}
    assert probed == 9


def test_a_pod_has_longer_to_end_than_its_process() -> None:
    for pool in ("coordinator", "verify", "draft"):
        pod = MANIFESTS[f"plain/{pool}.yaml:0"]["spec"]["template"]["spec"]
        (grace,) = [word for word in pod["containers"][0]["args"] if word.startswith("--grace-s=")]
        assert pod["terminationGracePeriodSeconds"] > float(grace.partition("=")[2])
        _parsed(pool, [word.replace("$(POD_NAME)", "x") for word in pod["containers"][0]["args"]])


@pytest.mark.skipif(shutil.which("kubectl") is None, reason="kubectl is not installed")
@pytest.mark.parametrize("overlay", ["plain", "ray", "ray-redis"])
def test_overlays_build(overlay: str) -> None:
    built = subprocess.run(
        ["kubectl", "kustomize", str(DEPLOY / "kubernetes" / overlay)],
        capture_output=True,
        text=True,
        timeout=120,
    )
    assert built.returncode == 0, built.stderr
    documents = list(yaml.safe_load_all(built.stdout))
    assert "Namespace" in [document["kind"] for document in documents]
    for document in documents:
        _check(document)
    if overlay == "ray-redis":
        (cluster,) = [each for each in documents if each["kind"] == "RayCluster"]
        assert cluster["spec"]["gcsFaultToleranceOptions"]["redisAddress"] == "redis:6379"
        head = cluster["spec"]["headGroupSpec"]["template"]["spec"]
        volumes = {volume["name"]: volume for volume in head["volumes"]}
        mounts = {
            mount["name"]: mount["mountPath"] for mount in head["containers"][0]["volumeMounts"]
        }
        assert volumes.keys() == mounts.keys()
        (claim,) = [each for each in documents if each["kind"] == "PersistentVolumeClaim"]
        assert volumes["state"]["persistentVolumeClaim"]["claimName"] == claim["metadata"]["name"]
        assert f"DSPARK_HOME={mounts['state']} " in DOCKERFILE


# Compose and the image.

COMPOSE = yaml.safe_load((DEPLOY / "docker" / "compose.yaml").read_text())
DOCKERFILE = (DEPLOY / "docker" / "Dockerfile").read_text()


def test_compose_is_valid() -> None:
    schema = (
        resources.files("check_jsonschema") / "builtin_schemas" / "vendor" / "compose-spec.json"
    )
    jsonschema.validate(COMPOSE, json.loads(schema.read_text(encoding="utf-8")))


def test_compose_serves_with_options_that_exist_and_mounts_files_that_exist() -> None:
    for pool in ("coordinator", "verify", "draft"):
        service = COMPOSE["services"][pool]
        _parsed(pool, service["command"])
        assert f"AS {service['build']['target']}\n" in DOCKERFILE
        used = set(re.findall(r"/run/secrets/(\w+)", " ".join(service["command"])))
        assert used == set(service["secrets"])
    for service in COMPOSE["services"].values():
        for volume in service.get("volumes", ()):
            source = volume.partition(":")[0]
            assert source in COMPOSE["volumes"] or (DEPLOY / "docker" / source).exists(), source
    drawn = (DEPLOY / "docker" / "secrets.sh").read_text()
    assert all(name in drawn for name in COMPOSE["secrets"])


def test_secrets_are_drawn_once(tmp_path: Path) -> None:
    script = tmp_path / "secrets.sh"
    shutil.copy(DEPLOY / "docker" / "secrets.sh", script)
    subprocess.run(["sh", str(script)], check=True, timeout=30)
    first = {path.name: path.read_text() for path in (tmp_path / "secrets").iterdir()}
    assert set(first) == set(COMPOSE["secrets"])
    assert all(re.fullmatch("[0-9a-f]{64}", value) for value in first.values())
    subprocess.run(["sh", str(script)], check=True, timeout=30)
    assert {path.name: path.read_text() for path in (tmp_path / "secrets").iterdir()} == first


def test_entry_points_of_the_image_parse() -> None:
    words = {"coordinator": "serve", "verify": "serve", "draft": "serve"}
    stages = re.split(r"^FROM ", DOCKERFILE, flags=re.MULTILINE)
    for stage in stages:
        name = re.match(r"\S+ AS (\S+)", stage)
        if name is None or name[1] not in words:
            continue
        lines = dict(re.findall(r"^(ENTRYPOINT|CMD) (\[.*\])$", stage, re.MULTILINE))
        entry, command = json.loads(lines["ENTRYPOINT"]), json.loads(lines["CMD"])
        assert entry[:5] == ["tini", "--", "dspark", "serve", name[1]]
        _parsed(name[1], entry[5:] + command)
        (check,) = re.findall(r"HEALTHCHECK .* CMD (\[.*\])", stage)
        build_parser().parse_args(json.loads(check)[1:])
        words.pop(name[1])
    assert not words


def test_the_image_installs_extras_that_exist_and_copies_files_that_exist() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    asked = re.findall(r'^RUN pip install .*"\.\[([\w,]+)\]"$', DOCKERFILE, re.MULTILINE)
    assert len(asked) == 2
    given = set(",".join(asked).split(","))
    assert {"serve", "http", "structured", "quantised"} <= given
    assert given <= project["optional-dependencies"].keys()
    copied = re.findall(r"^COPY ([^-]\S*) ", DOCKERFILE, re.MULTILINE)
    assert all((ROOT / source).exists() for source in copied)


def test_an_image_holds_the_packages_and_the_drafter_and_no_more() -> None:
    lines = (ROOT / ".dockerignore").read_text().splitlines()
    # As in .gitignore, but that every pattern begins at the root.
    patterns = [re.sub("^!?", r"\g<0>/", line) for line in lines if line and line[0] != "#"]
    left_out = pathspec.PathSpec.from_lines("gitignore", patterns)
    listed = subprocess.run(
        ["git", "ls-files", "--cached", "--others", "--exclude-standard"],
        cwd=ROOT, capture_output=True, text=True, check=True, timeout=60,
    ).stdout.splitlines()  # fmt: skip
    files = {line for line in listed if (ROOT / line).is_file() and not left_out.match_file(line)}
    assert {name.partition("/")[0] for name in files} == {
        "pyproject.toml", "constraints.txt", "README.md", "LICENSE", "dspark", "coordinator",
        "verify_service",
        "draft_service", "deploy", "models",
    }  # fmt: skip
    assert "models/smollm2-dspark/model.safetensors" in files
    assert "dspark/wire/v1/control_pb2.py" in files
    assert not any("secrets/" in name or "__pycache__" in name for name in files)


def test_the_job_runs_a_command_that_exists() -> None:
    words = shlex.split(MANIFESTS["ray/rayjob.yaml:0"]["spec"]["entrypoint"])
    build_parser().parse_args(words[1:])


@pytest.mark.parametrize("role", [ProcessRole.VERIFY, ProcessRole.DRAFT])
def test_the_pods_of_the_shipped_pair_hold_their_caches_when_full(
    role: ProcessRole, tmp_path: Path
) -> None:
    """The target by its shape, for its weights are not in the checkout."""
    shape = {"num_hidden_layers": 30, "num_attention_heads": 9, "num_key_value_heads": 3}
    shape |= {"hidden_size": 576, "dtype": "bfloat16"}
    (tmp_path / "config.json").write_text(json.dumps(shape))
    with (tmp_path / "model.safetensors").open("wb") as weights:
        weights.truncate(2 * 134_515_008)
    named = {"target": str(tmp_path), "drafter": str(ROOT / "models" / "smollm2-dspark")}
    settings = dataclasses.asdict(dataclasses.replace(config_class(role)(), **named))
    (container,) = next(_pods(MANIFESTS[f"plain/{role.value}.yaml:0"]))["spec"]["containers"]
    limit = int(container["resources"]["limits"]["memory"].removesuffix("Gi")) << 30
    # a second form of the weights, kept rows, prompts in work
    beside = footprint.of(role, settings) // 4
    assert limit >= footprint.of(role, settings) + beside
