"""Brings a cell up: returns when it serves, or raises one sentence that says why not and leaves
nothing behind."""

from __future__ import annotations

import contextlib
import os
import time
from collections.abc import Iterator, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from coordinator.config import CoordinatorConfig, http_missing
from coordinator.process import try_journal
from deploy import footprint
from deploy.autoscale import AutoscaleConfig
from deploy.awaiting import as_placed, await_lanes, await_replicas
from deploy.cell_plan import CLIENT_TOKENS, largest, plan_topology, token_files, within
from deploy.config import ClusterConfig
from deploy.down import Say, operating, take_down, take_down_wholly
from deploy.fleet import NothingStarted
from deploy.head import Head, free_ports, start_head
from deploy.process_tags import new_cell_id, own
from deploy.ray_environment import check_guarded, joined
from deploy.reserving import reserve
from deploy.service_registry import config_class
from deploy.topology import ProcessRole, Topology
from dspark.client import NoCell, find_cell
from dspark.client.cell import Cell, cell_file, remove_cell, write_cell
from dspark.errors import CheckpointError, ConfigError, DsparkError, Unavailable
from dspark.model.location import locate
from dspark.runtime.addresses import EVERYWHERE, check_listeners, join_endpoint
from dspark.runtime.config import load_config
from dspark.runtime.identity import state_dir, write_token
from dspark.runtime.process import usable_of
from dspark.runtime.security import Security
from dspark.targets import folder_of, is_imported
from dspark.whole_file import locked

ENDED = "`dspark down` ended the cell while it started"


@contextlib.contextmanager
def _alone() -> Iterator[None]:
    """Lock against a second `dspark up`, whose state file would hide the first one's cell."""
    descriptor = os.open(state_dir(), os.O_RDONLY)
    try:
        if not locked(descriptor):
            raise DsparkError(f"another `dspark up` is starting a cluster here ({state_dir()})")
        yield
    finally:
        os.close(descriptor)


@_alone()
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
    autoscale = load_config(
        AutoscaleConfig, section="autoscale", file=file, environ=environ, flags=scaling
    )
    config, autoscale = within(config, autoscale)
    if config.http is not None and (missing := http_missing()):
        say(
            f"no HTTP: not installed: {', '.join(missing)} (`pip install '.[http]'` in the "
            "checkout)"
        )
    files = token_files(config)
    (port,) = [config.port] if config.port else free_ports(1)
    if config.address is None:
        check_listeners(
            [("cluster.port" if config.port else "cluster.bind", join_endpoint(config.bind, port))]
        )
    most = largest(config, autoscale)
    topology = plan_topology(
        config, file=file, environ=environ, port=port, token_files=files, most=most
    )
    if topology.coordinator.settings[CLIENT_TOKENS] != str(files.get(CLIENT_TOKENS)):
        files.pop(CLIENT_TOKENS, None)  # the operator brings the tokens
    secrets = {key: write_token(path) for key, path in files.items()}
    if CLIENT_TOKENS in secrets:
        say(f"clients from elsewhere need the token in {files[CLIENT_TOKENS]}")
    if config.address is None:  # other machines have other files
        _check_processes(topology, most)
        try_journal(CoordinatorConfig(**topology.coordinator.settings))
        _find_models(topology.templates[ProcessRole.VERIFY].settings, say)
    deadline = time.monotonic() + config.start_timeout_s
    cell = Cell(
        endpoint=join_endpoint("127.0.0.1" if config.bind in EVERYWHERE else config.bind, port),
        cell_id=new_cell_id(),
        token_file=str(files["operator_token_file"]),
        ray_address=config.address or "",
        ray_pid=0,
        ray_dir="",
        target=config.target or f"synthetic {config.synthetic}",
        drafter=config.drafter or "a synthetic drafter",
        tls_ca=config.tls_ca or "",
        tls_cert=config.tls_cert or "",
        tls_key=config.tls_key or "",
        tls_server_name=config.tls_server_name or "",
        name=config.cell,
    )

    def noted(head: Head) -> None:
        nonlocal cell
        _check_wanted(cell)
        cell = replace(
            cell,
            ray_address=head.address,
            ray_pid=head.pid,
            ray_dir=str(head.folder),
            dashboard=head.dashboard,
        )
        write_cell(cell)  # from now on `dspark down` can clear up, whatever happens here

    try:
        if config.address is None:
            say("ray: starting a local cluster")
            start_head(
                state_dir() / "ray_token",
                cell.cell_id,
                os.environ,
                noted,
                dashboard=config.dashboard,
            )
        return _serve(cell, topology, secrets, config, autoscale, deadline, say)
    except BaseException as error:
        _check_wanted(cell)
        if config.address is not None and isinstance(error, NothingStarted):
            remove_cell()
        else:
            _undo(say)
        raise


def _serve(
    cell: Cell,
    topology: Topology,
    secrets: Mapping[str, str],
    config: ClusterConfig,
    autoscale: AutoscaleConfig,
    deadline: float,
    say: Say,
) -> Cell:
    with joined(cell) as cluster:
        say(f"ray: {'started' if cell.ray_pid else 'joined'} at {cell.ray_address}")
        check_guarded(cell.ray_address, insecure=config.insecure)
        if cell.dashboard:
            say(
                f"Ray's dashboard: {cell.dashboard} (it asks for the token in "
                f"{state_dir() / 'ray_token'})"
            )
        memory = {
            role: footprint.of(role, template.settings)
            for role, template in topology.templates.items()
        }
        most = largest(config, autoscale)
        own = config.address is None
        topology, warning = reserve(topology, cluster.nodes(), own=own, most=most, memory=memory)
        if warning:
            say(warning)
        _check_wanted(cell)
        write_cell(cell)  # before the first of the cell's actors, in whosever cluster
        cluster.start_controller(cell.cell_id, topology, secrets, config, autoscale)

        def report() -> list[dict[str, Any]]:
            _check_wanted(cell)
            rows: list[dict[str, Any]] = cluster.report(cell)
            return rows

        cell = as_placed(cell, await_replicas(report, deadline, say))
        if cell.http:
            say(f"OpenAI endpoint: {cell.http}/v1")
        if cell.frontends:
            say(f"clients: {cell.frontends}")
        with operating(cell) as client:
            await_lanes(client, report, deadline, say)
    say(f"serving {cell.target} with {cell.drafter} at {cell.endpoint}")
    return cell


def _check_wanted(cell: Cell) -> None:
    """Raises Unavailable where another command ends, or has ended, a cell with a Ray of its own:
    its state file is marked, or gone."""
    if not cell.ray_pid:
        return
    with contextlib.suppress(NoCell):
        now = find_cell()
        if now.cell_id == cell.cell_id and not now.leaving:
            return
    raise Unavailable(ENDED)


def _undo(say: Say) -> None:
    say("taking down what was started")
    try:
        take_down_wholly(say, 0.0)
    except DsparkError as error:  # the error that led here is raised after this
        say(str(error))


def _refuse_second(say: Say) -> None:
    try:
        cell = find_cell()
    except NoCell:
        if cell_file().exists():
            raise
        return
    if cell.ray_pid and not own(cell.ray_pid, cell.cell_id):
        say(f"clearing the state of a cluster that is gone (process {cell.ray_pid} has ended)")
        take_down(lambda _: None)
        return
    raise DsparkError(f"a cluster is already up at {cell.endpoint}; `dspark down` ends it")


def _check_processes(topology: Topology, most: Mapping[ProcessRole, int]) -> None:
    """Raises ConfigError for what processes on this machine, as many of each role as there may be,
    cannot have: files, processors, addresses."""
    wanted: list[tuple[str, str]] = []
    for role in filter(most.get, topology.templates):
        config = config_class(role)(**topology.templates[role].settings)
        if config.cpus:
            usable_of(config.cpus, f"{role}.cpus")
        wanted += Security.of(config).addresses(role, config) * most[role]
    check_listeners(wanted)


def _find_models(settings: Mapping[str, Any], say: Say) -> None:
    """Finds the models of a verifier's settings before anything starts, and imports those that
    first become folders, where the user sees it; the processes find them in the cache. Raises
    ConfigError."""
    for key in ("target", "drafter"):
        if not (model := settings[key]):
            continue
        try:
            if is_imported(model) and not folder_of(model).is_dir():
                say(f"{model}: importing it once, into {folder_of(model)}")
            locate(model, revision=settings[f"{key}_revision"], weights=False)
        except CheckpointError as error:
            raise ConfigError(f"cluster.{key}: {error}") from error
