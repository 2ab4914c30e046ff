"""Bringing a cell up: returns when it serves, or says in one sentence why it does not and leaves nothing behind."""

from __future__ import annotations

import importlib.util
import os
import socket
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from deploy import footprint, ray_environment
from deploy.autoscale_config import AutoscaleConfig
from deploy.config import NO_DRAFTER, TLS_FILES, ClusterConfig
from deploy.fleet import NothingStarted
from deploy.head import Head, free_ports, start_head, stop_head
from deploy.marks import new_cell_id
from deploy.placement import homes
from deploy.ray_auth import check_guarded
from deploy.reserving import Node, reserve
from deploy.rooms import load_settings
from deploy.topology import ProcessRole, Topology, desired
from dspark.client import Client, NoCell, find_cell
from dspark.client.cell import Cell, cell_file, is_alive, remove_cell, write_cell
from dspark.errors import ConfigError, DsparkError, Unavailable
from dspark.runtime.config import load_config
from dspark.runtime.cpus import usable
from dspark.runtime.identity import state_dir, write_token
from dspark.runtime.listeners import check_listeners
from dspark.runtime.security import is_loopback, split_endpoint
from dspark.synthetic.spec import load_spec
from dspark.targets import folder_of, imported, is_imported

Say = Callable[[str], None]
Pair = Callable[[str | None, str | None], Mapping[str, str | None]]

POLL_S = 0.25
REMIND_EVERY_S = 10.0
WORKERS = (f"{ProcessRole.VERIFY}/", f"{ProcessRole.DRAFT}/")
GIVE_UP_AFTER_FAILURES = 3  # of one replica, none of them fatal


def read_config(
    *, file: str | Path | None, environ: Mapping[str, str], flags: Mapping[str, object], pair: Pair
) -> ClusterConfig:
    """The cell that is asked for. `pair` completes target and drafter where nothing names them."""
    given = load_config(ClusterConfig, section="cluster", file=file, environ=environ, flags=flags)
    if given.address is None and (joined := ray_environment.job_address(environ)):
        flags = {**flags, "address": joined}
        given = replace(given, address=joined)
    # Processes may run in another folder: what is a file or a folder here gets its full path.
    full: dict[str, object] = {
        key: str(Path(path).expanduser().resolve()) for key in TLS_FILES if (path := getattr(given, key))
    }
    if given.synthetic:
        path = Path(given.synthetic).expanduser().resolve()
        load_spec(path)  # what is wrong with it is said before anything starts
        return replace(given, synthetic=str(path), **full)  # type: ignore[arg-type]
    models = pair(given.target or None, given.drafter or None)
    for name, model in models.items():
        if not model:
            raise ConfigError(f"cluster.{name}: required; say --{name} PATH_OR_ID")
        if (name, model) != ("drafter", NO_DRAFTER):
            _check_model(name, model)
    full |= {name: _full_path(model) if model else model for name, model in models.items()}
    config = load_config(ClusterConfig, section="cluster", file=file, environ=environ, flags={**flags, **full})
    return replace(config, drafters=0) if config.drafter == NO_DRAFTER else config


def plan_topology(
    config: ClusterConfig,
    *,
    file: str | Path | None,
    environ: Mapping[str, str],
    port: int,
    token_files: Mapping[str, Path],
) -> Topology:
    """Every process with its resolved settings; a wrong key or value is found here, before anything starts."""
    shared: dict[str, object] = {
        "target": config.target,
        "drafter": config.drafter,
        "engine": config.engine,
        "synthetic": config.synthetic,
        "target_revision": config.revision,
        "drafter_revision": config.revision,
        **{key: str(path) for key, path in token_files.items()},
        "insecure": config.insecure,
        "cell": config.cell,
        **{key: getattr(config, key) for key in (*TLS_FILES, "tls_server_name", "tls_require_client_cert")},
        "device": config.device,
        "policy": config.policy,
        "rule": config.rule,
    }
    fronts = {**shared, "http": http_bind(config.http)}
    binds = {ProcessRole.COORDINATOR: f"{config.bind}:{port}"}
    settings = {
        role: load_settings(
            role,
            file=file,
            environ=environ,
            flags={
                **(fronts if role is ProcessRole.COORDINATOR else shared),
                "bind": binds.get(role, f"{config.bind}:0"),
            },
        )
        for role in ProcessRole
    }
    for own in settings.values():  # one name on every process's metrics
        own["served_model"] = own["served_model"] or settings[ProcessRole.COORDINATOR]["served_model"]
    threads = max(settings[role]["threads"] for role in (ProcessRole.VERIFY, ProcessRole.DRAFT))
    # Who joins a cluster does not know what its machines have.
    return desired(config, settings, homes(usable(), threads) if config.address is None else None)


def bring_up(
    config: ClusterConfig,
    *,
    file: str | Path | None,
    environ: Mapping[str, str],
    say: Say,
    scaling: Mapping[str, object] | None = None,
) -> Cell:
    """Starts or joins Ray, starts the cell, waits until it serves, writes the state file.

    scaling: keys of section `autoscale` that override the file and the environment.
    """
    _refuse_second(say)
    autoscale = load_config(AutoscaleConfig, section="autoscale", file=file, environ=environ, flags=scaling)
    config = within(config, autoscale)
    if config.http is not None and not has_http():
        say("no HTTP: fastapi and uvicorn are not installed (`pip install '.[http]'` in the checkout)")
    if config.address is None:
        _import_models(config, say)
    files = token_files(config)
    (port,) = [config.port] if config.port else free_ports(1)
    if config.port and config.address is None:
        check_listeners([("cluster.port", f"{config.bind}:{port}")])
    topology = plan_topology(config, file=file, environ=environ, port=port, token_files=files)
    secrets = {key: write_token(path) for key, path in files.items()}
    if "client_token_file" in secrets:
        say(f"clients from elsewhere need the token in {files['client_token_file']}")
    deadline = time.monotonic() + config.start_timeout_s
    cell_id = new_cell_id()

    def cell_on(head: Head | None) -> Cell:
        return Cell(
            endpoint=f"{_reachable(config.bind)}:{port}",
            cell_id=cell_id,
            token_file=str(files["operator_token_file"]),
            ray_address=head.address if head else str(config.address),
            ray_pid=head.pid if head else 0,
            ray_dir=str(head.folder) if head else "",
            target=config.target or f"synthetic {config.synthetic}",
            drafter=config.drafter or "a synthetic drafter",
            tls_ca=config.tls_ca or "",
            tls_cert=config.tls_cert or "",
            tls_key=config.tls_key or "",
            tls_server_name=config.tls_server_name or "",
            name=config.cell,
            dashboard=head.dashboard if head else "",
        )

    def noted(head: Head) -> None:
        write_cell(cell_on(head))  # from now on `dspark down` can clear up, whatever happens here

    head: Head | None = None
    if config.address is None:
        say("ray: starting a local cluster")
        try:
            head = start_head(state_dir() / "ray_token", cell_id, os.environ, noted, dashboard=config.dashboard)
        except BaseException:
            remove_cell()
            raise
    cell = cell_on(head)
    try:
        write_cell(cell)
        return _serve(cell, topology, secrets, config, autoscale, head, deadline, say)
    except NothingStarted:
        if head is None:
            remove_cell()
        else:
            _undo(cell, head, say)
        raise
    except BaseException:
        _undo(cell, head, say)
        raise


def _serve(
    cell: Cell,
    topology: Topology,
    secrets: Mapping[str, str],
    config: ClusterConfig,
    autoscale: AutoscaleConfig,
    head: Head | None,
    deadline: float,
    say: Say,
) -> Cell:
    ray_environment.prepare(os.environ)
    from deploy import cluster

    cluster.connect(cell.ray_address, local=head is not None)
    try:
        say(f"ray: {'started' if head else 'joined'} at {cell.ray_address}")
        check_guarded(cell.ray_address, insecure=config.insecure)
        if cell.dashboard:
            say(f"Ray's dashboard: {cell.dashboard} (it asks for the token in {state_dir() / 'ray_token'})")
        topology = _reserved(topology, config, autoscale, cluster.nodes(), say)
        conduct = cluster.Supervision(
            config.cell, config.start_timeout_s, config.place_timeout_s, config.drain_s, autoscale
        )
        cluster.start_controller(topology, secrets=secrets, tls=config.tls(), conduct=conduct)
        rows = await_replicas(lambda: cluster.report(cell.name), deadline, say)
        served = next(row["endpoint"] for row in rows if row["name"] == topology.coordinator.name)
        if served != cell.endpoint:  # it runs on another node of the cluster
            cell = Cell(**{**cell.__dict__, "endpoint": served})
            write_cell(cell)
        if url := next(row["http"] for row in rows if row["name"] == topology.coordinator.name):
            cell = Cell(**{**cell.__dict__, "http": url})
            write_cell(cell)
            say(f"OpenAI endpoint: {url}/v1")
        fronts = [row["endpoint"] for row in rows if row["name"].startswith(f"{ProcessRole.FRONTEND}/")]
        if fronts:
            cell = Cell(**{**cell.__dict__, "frontends": ",".join(fronts)})
            write_cell(cell)
            say(f"clients: {cell.frontends}")
        await_lanes(cell, topology.count(ProcessRole.VERIFY), topology.count(ProcessRole.DRAFT), deadline, say)
    finally:
        cluster.disconnect()
    say(f"serving {cell.target} with {cell.drafter} at {cell.endpoint}")
    return cell


def _reserved(
    topology: Topology, config: ClusterConfig, autoscale: AutoscaleConfig, nodes: Sequence[Node], say: Say
) -> Topology:
    """The cell with what Ray is to reserve for each process."""
    most = {role: topology.count(role) for role in ProcessRole}
    if autoscale.enabled:
        most[ProcessRole.VERIFY] = max(most[ProcessRole.VERIFY], autoscale.max_verifiers)
        most[ProcessRole.DRAFT] = max(most[ProcessRole.DRAFT], autoscale.max_drafters if topology.has_drafter else 0)
    memory = {role: footprint.of(role, template.settings) for role, template in topology.templates.items()}
    topology, warning = reserve(topology, config, nodes, most=most, memory=memory)
    if warning:
        say(warning)
    return topology


def await_replicas(report: Callable[[], list[dict[str, Any]]], deadline: float, say: Say) -> list[dict[str, Any]]:
    """Waits until every replica serves; says every change, and now and then what is still pending."""
    shown: dict[str, str] = {}
    reminded = time.monotonic()
    while True:
        rows = report()
        for row in rows:
            failing = row["fatal"] or row["failures"] >= GIVE_UP_AFTER_FAILURES
            if failing and row["phase"] != "serving":  # what serves again is forgiven what it was
                raise Unavailable(f"{row['name']} cannot start: {row['reason']}")
            if row["unplaced"]:
                raise Unavailable(f"{row['name']} cannot be placed: {row['reason']}")
            where = f" at {row['endpoint']} (pid {row['pid']})" if row["endpoint"] else ""
            line = f"{row['name']}: {row['phase']}{where}" + (f", {row['reason']}" if row["reason"] else "")
            if shown.get(row["name"]) != line:
                shown[row["name"]] = line
                if row["phase"] != "down" or row["reason"]:
                    say(line)
        pending = [row["name"] for row in rows if row["phase"] != "serving"]
        leaving = rows[0]["leaving"] if rows else []
        if not pending and not leaving:
            return rows
        if time.monotonic() > deadline:
            reasons = "; ".join([*(shown[name] for name in pending), *(f"{name} has not left" for name in leaving)])
            raise Unavailable(f"not serving in time: {reasons}")
        if time.monotonic() - reminded > REMIND_EVERY_S:
            reminded = time.monotonic()
            say(f"still waiting for {', '.join([*pending, *(f'{name} to leave' for name in leaving)])}")
        time.sleep(POLL_S)


def await_lanes(cell: Cell, verifiers: int, drafters: int, deadline: float, say: Say) -> None:
    """Waits until the coordinator is connected to exactly these workers and has a lane for every verifier."""
    reminded = time.monotonic()
    with Client(cell.endpoint, token=cell.token(), tls=cell.tls()) as client:
        while True:
            try:
                reply = client.status()
                states = {process.name: process.state for process in reply.processes}
                connected = sum(state == "serving" for name, state in states.items() if name.startswith(WORKERS))
                fed = {name for lane in reply.lanes for name in lane.drafters}
                if connected == verifiers + drafters and len(reply.lanes) == verifiers and len(fed) == drafters:
                    return
                waiting = ", ".join(
                    f"{process.name} is {process.state}" + (f" ({process.detail})" if process.detail else "")
                    for process in reply.processes
                    if process.state != "serving"
                )
                pending = waiting or f"{len(reply.lanes)} of {verifiers} lanes, {len(fed)} of {drafters} drafters feed"
            except DsparkError as error:
                pending = str(error)
            if time.monotonic() > deadline:
                raise Unavailable(f"the coordinator is up but not connected in time: {pending}")
            if time.monotonic() - reminded > REMIND_EVERY_S:
                reminded = time.monotonic()
                say(f"still waiting for the coordinator: {pending}")
            time.sleep(POLL_S)


def within(config: ClusterConfig, autoscale: AutoscaleConfig) -> ClusterConfig:
    """Pools begin inside the bounds that autoscaling keeps."""
    if not autoscale.enabled:
        return config
    verifiers = min(max(config.verifiers, autoscale.min_verifiers), autoscale.max_verifiers)
    drafters = min(max(config.drafters, autoscale.min_drafters), autoscale.max_drafters)
    return replace(config, verifiers=verifiers, drafters=0 if config.drafter == NO_DRAFTER else drafters)


def has_http() -> bool:
    """Whether the HTTP front could be opened here."""
    return all(importlib.util.find_spec(module) for module in ("fastapi", "uvicorn"))


def http_bind(wanted: str | None) -> str | None:
    """Where the HTTP front listens: as wanted, at a free port if somebody is there, nowhere without its extra."""
    if wanted is None or not has_http():
        return None
    host, port = split_endpoint(wanted)
    try:
        with socket.socket(socket.AF_INET6 if ":" in host else socket.AF_INET) as probe:
            probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            probe.bind((host, port))
    except OSError:
        port = 0
    # Not 0, which would be another port for every successor of the process.
    return f"{wanted.rpartition(':')[0]}:{port or free_ports(1)[0]}"


def _undo(cell: Cell, head: Head | None, say: Say) -> None:
    say("taking down what was started")
    if head is not None:
        left = stop_head(head)
        if left:
            say(f"processes {left} would not end")
            return  # the state file stays, so that `dspark down` can try again
    else:
        from deploy.down import close_remote

        close_remote(cell, say)
    remove_cell()


def _refuse_second(say: Say) -> None:
    try:
        cell = find_cell()
    except NoCell:
        if cell_file().exists():
            raise
        return
    if cell.ray_pid and not is_alive(cell.ray_pid):
        say(f"clearing the state of a cluster that is gone (process {cell.ray_pid} has ended)")
        from deploy.down import take_down

        take_down(lambda _: None)
        return
    raise DsparkError(f"a cluster is already up at {cell.endpoint}; `dspark down` ends it")


def _check_model(name: str, model: str) -> None:
    """A path that is not there is a typing error, told at once; anything else may be a hub id."""
    path = Path(model).expanduser()
    looks_local = path.is_absolute() or model.startswith((".", "~")) or model.count("/") > 1 or path.exists()
    if looks_local and not is_imported(path) and not (path / "config.json").is_file():
        raise ConfigError(f"cluster.{name}: {model} is not a folder with a config.json")


def _import_models(config: ClusterConfig, say: Say) -> None:
    """What becomes a folder first does so here, where somebody looks on; the processes find it in the cache."""
    for model in filter(is_imported, filter(None, (config.target, config.drafter))):
        folder = folder_of(model)
        if not folder.is_dir():
            say(f"{model}: importing it once, into {folder}")
        imported(model)


def _full_path(model: str) -> str:
    path = Path(model).expanduser()
    return str(path.resolve()) if path.exists() else model


def token_files(config: ClusterConfig) -> dict[str, Path]:
    """Secrets of the cell by configuration key. Clients need one as soon as strangers could reach either entry."""
    files = {"token_file": state_dir() / "worker_token", "operator_token_file": state_dir() / "operator_token"}
    hosts = [config.bind, *([split_endpoint(config.http)[0]] if config.http is not None else ())]
    if not all(map(is_loopback, hosts)) and not config.insecure:
        files["client_token_file"] = state_dir() / "client_token"
    return files


def _reachable(bind: str) -> str:
    return "127.0.0.1" if bind in ("0.0.0.0", "::") else bind
