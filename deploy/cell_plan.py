"""Plans a whole cell from flags, file and environment, before anything starts."""

from __future__ import annotations

import socket
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import structlog

from coordinator.config import CoordinatorConfig, http_missing
from coordinator.requests.validation import read_defaults
from deploy import ray_environment
from deploy.autoscale import AutoscaleConfig
from deploy.config import NO_DRAFTER, ClusterConfig
from deploy.head import free_ports
from deploy.service_registry import check_room, config_class, load_settings
from deploy.topology import POOLS, ProcessRole, Topology, desired, sizes_of, threads_of
from dspark import shipped
from dspark.errors import ConfigError
from dspark.runtime.addresses import (
    EVERYWHERE,
    check_listeners,
    is_loopback,
    join_endpoint,
    plain_host,
    split_endpoint,
)
from dspark.runtime.config import load_config
from dspark.runtime.identity import state_dir
from dspark.runtime.tls import Tls
from dspark.synthetic.spec import load_spec
from dspark.targets import check_model

log = structlog.get_logger("dspark.deploy")

TLS = ("tls_cert", "tls_key", "tls_ca", "tls_server_name")
FILES = ("synthetic", *TLS[:3])
CLIENT_TOKENS = "client_token_file"
# Settings of the cell that every process gets, where it has a setting of that name.
HANDED_ON = (
    *("target", "drafter", "engine", "device", "policy", "rule", "cell", "insecure"),
    *("synthetic", *TLS, "tls_require_client_cert"),
)


def read_config(
    *, file: str | Path | None, environ: Mapping[str, str], flags: Mapping[str, object]
) -> ClusterConfig:
    """Reads the cell's configuration; without a target and a drafter it is for the shipped pair.
    Raises ConfigError."""
    given = load_config(ClusterConfig, section="cluster", file=file, environ=environ, flags=flags)
    read_defaults(
        "cluster",
        given.policy or CoordinatorConfig.policy,
        given.rule or CoordinatorConfig.rule,
    )
    # Processes may run in another folder, so paths that exist here become absolute.
    full: dict[str, Any] = {
        key: str(Path(path).resolve()) for key in FILES if (path := getattr(given, key))
    }
    address = given.address or ray_environment.job_address(environ)
    given = replace(given, address=address, bind=plain_host(given.bind), **full)
    _check_tls(given)
    if given.synthetic:
        load_spec(given.synthetic)  # a faulty file is refused before anything starts
        return given
    models = shipped.pair(given.target or None, given.drafter or None)
    for name, model in models.items():
        if not model:
            raise ConfigError(f"cluster.{name}: required; say --{name} PATH_OR_ID")
        if (name, model) != ("drafter", NO_DRAFTER):
            check_model(f"cluster.{name}", model)
    full = {name: _full_path(str(model)) for name, model in models.items()}
    return replace(given, **full, drafters=0 if full["drafter"] == NO_DRAFTER else given.drafters)


def plan_topology(
    config: ClusterConfig,
    *,
    file: str | Path | None,
    environ: Mapping[str, str],
    port: int,
    token_files: Mapping[str, Path],
    most: Mapping[ProcessRole, int],
) -> Topology:
    """Every process with its resolved settings; a wrong key or value raises ConfigError here,
    before anything starts. most: largest number of processes of each role."""
    drawn = {key: str(path) for key, path in token_files.items()}
    for_clients = drawn.pop(CLIENT_TOKENS, None)
    shared: dict[str, object] = {
        **{key: getattr(config, key) for key in HANDED_ON},
        **drawn,
        "target_revision": config.revision,
        "drafter_revision": config.revision,
        "bind": join_endpoint(config.bind, 0),
    }
    # "none": None would keep what the file says of the coordinator
    http = http_bind(config.http, here=_is_here(config.address)) or "none"
    own = {ProcessRole.COORDINATOR: {"bind": join_endpoint(config.bind, port), "http": http}}
    settings = {
        role: load_settings(role, file=file, environ=environ, flags=shared | own.get(role, {}))
        for role in ProcessRole
    }
    for role, made in settings.items():
        for key in TLS:
            if most[role] and made[key] != getattr(config, key):
                raise ConfigError(
                    f"{role}.{key}: {made[key]}, but all processes of a cell have the same; name "
                    f"it as cluster.{key}"
                )
        _tell_unused(role, made, load_settings(role, file=file, environ=environ, flags={}))
    _admit_clients(settings, for_clients)
    for role in ProcessRole:
        if role is not ProcessRole.FRONTEND and (
            role is not ProcessRole.DRAFT or config.drafter != NO_DRAFTER
        ):
            check_room(role, settings[role])
    for each in settings.values():  # one name on every process's metrics
        each["served_model"] = (
            each["served_model"] or settings[ProcessRole.COORDINATOR]["served_model"]
        )
    if config.address is None:  # machines of a joined cluster are not known
        for role in POOLS:
            settings[role]["threads"] = threads_of(role, settings[role], most[role])
    return desired(config, settings)


def _tell_unused(role: ProcessRole, made: Mapping[str, Any], own: Mapping[str, Any]) -> None:
    """Warns of what a process's own section says and the cell decides otherwise."""
    usual = config_class(role)()
    for key, value in own.items():
        if value not in (made[key], getattr(usual, key)):
            log.warning("setting.unused", setting=f"{role}.{key}", value=value, used=made[key])


def _admit_clients(settings: Mapping[ProcessRole, dict[str, Any]], drawn: str | None) -> None:
    """Gives the processes that clients call one file of tokens: the operator's own, with those of
    tenants, else the drawn one."""
    doors = [settings[role] for role in (ProcessRole.COORDINATOR, ProcessRole.FRONTEND)]
    own = [_full_path(door[CLIENT_TOKENS]) for door in doors if door[CLIENT_TOKENS]]
    for door in doors:
        named = door[CLIENT_TOKENS]
        door[CLIENT_TOKENS] = _full_path(named) if named else own[0] if own else drawn


def within(
    config: ClusterConfig, autoscale: AutoscaleConfig
) -> tuple[ClusterConfig, AutoscaleConfig]:
    """The configuration with pools of the least size that autoscaling allows or more, and its
    bounds; a cell without a drafter is never given one. Raises ConfigError for a larger size than
    it allows."""
    if config.drafter == NO_DRAFTER:
        autoscale = replace(autoscale, min_drafters=0, max_drafters=0)
    if autoscale.enabled:
        for pool, (least, most) in autoscale.bounds.items():
            if (size := getattr(config, pool)) > most:
                raise ConfigError(f"cluster.{pool}: {size}, but autoscale.max_{pool} is {most}")
            config = replace(config, **{pool: max(size, least)})
    return config, autoscale


def largest(config: ClusterConfig, autoscale: AutoscaleConfig) -> dict[ProcessRole, int]:
    """Largest number of processes of each role that autoscaling may reach."""
    most = sizes_of(config)
    if autoscale.enabled:
        most[ProcessRole.VERIFY] = autoscale.max_verifiers
        most[ProcessRole.DRAFT] = autoscale.max_drafters
    return most


def http_bind(wanted: str | None, *, here: bool = True) -> str | None:
    """Where the HTTP front listens: at `wanted`, or at a free port if that one is taken. None if it
    is off or its packages are not installed. here: whether it is to run on this machine; what is
    taken on another one is not known."""
    if wanted is None or http_missing():
        return None
    _, port = split_endpoint(wanted)
    try:
        if here:
            check_listeners([("http", wanted)])
    except ConfigError:
        port = 0
    # Not port 0, which would give each successor of the process another port.
    return f"{wanted.rpartition(':')[0]}:{port or free_ports(1)[0]}"


def _is_here(address: str | None) -> bool:
    """Whether the Ray cluster at this address is of this machine; None: one of our own."""
    if address is None:
        return True
    try:
        socket.create_server((split_endpoint(address, "cluster.address")[0], 0)).close()
    except OSError:  # not an address of this machine
        return False
    return True


def _check_tls(config: ClusterConfig) -> None:
    """Raises ConfigError for certificates with which the cell's processes would refuse each
    other."""
    try:
        if (tls := Tls.of(config)) is not None:
            here = config.bind
            if config.bind in EVERYWHERE:  # then processes are called by their node's address
                here = "127.0.0.1" if config.address is None else ""
            tls.check_shared(
                config.tls_server_name or here, ask_peers=config.tls_require_client_cert
            )
    except ConfigError as error:
        raise ConfigError(f"cluster.{error}") from error


def _full_path(model: str) -> str:
    path = Path(model)
    return str(path.resolve()) if path.exists() else model


def token_files(config: ClusterConfig) -> dict[str, Path]:
    """Paths of the cell's secrets by configuration key. Clients need a token as soon as the gRPC or
    the HTTP endpoint can be reached from other machines."""
    files = {
        "token_file": state_dir() / "worker_token",
        "operator_token_file": state_dir() / "operator_token",
    }
    hosts = [config.bind, *([split_endpoint(config.http)[0]] if config.http is not None else ())]
    if not all(map(is_loopback, hosts)) and not config.insecure:
        files[CLIENT_TOKENS] = state_dir() / "client_token"
    return files
