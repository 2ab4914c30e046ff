"""A coordinator process: built from its configuration, started, and closed."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

import structlog

from coordinator.cells.control import ControlService
from coordinator.cells.frontends import CELL, CellService
from coordinator.cells.journal import Journal
from coordinator.cells.journal_file import JournalFile
from coordinator.cells.local_cell import LocalCell
from coordinator.config import CoordinatorConfig
from coordinator.frontend.front_end import ClientsProcess
from coordinator.lanes.lane_context import LaneContext
from coordinator.queue.scheduler import Scheduler
from coordinator.reception.pacing import read_pace
from coordinator.reception.service import GENERATION
from coordinator.reception.tokenizer import load_tokenizer
from coordinator.requests.validation import read_defaults
from coordinator.watching.tracing import Tracing, open_provider
from coordinator.workers.membership import Membership
from coordinator.workers.worker import Address, WorkerRole
from dspark.errors import ConfigError
from dspark.rounds.policy import Policy
from dspark.runtime.addresses import join_endpoint, split_endpoint
from dspark.runtime.server import GrpcServer
from dspark.runtime.setting import check_settings
from dspark.runtime.shell import Servicer
from dspark.runtime.telemetry import Metrics
from dspark.types import Rule
from dspark.wire.v1 import control_pb2_grpc, frontend_pb2_grpc

if TYPE_CHECKING:
    from fastapi import APIRouter

    from coordinator.http.api import Api

log = structlog.get_logger("dspark.coordinator")

CONTROL = "dspark.wire.v1.Control"
# Streams per connection for calls that are being refused; beyond them gRPC refuses without a hint.
SPARE_STREAMS = 256


async def start(
    config: CoordinatorConfig, *, name: str = "coordinator/0"
) -> ClientsProcess[LocalCell]:
    """Starts a coordinator and returns it serving. Waits a bounded time for the configured workers
    to run their first requests; lanes open as workers connect. Raises ConfigError."""
    policy, rule = check(config)
    most = config.max_running + config.max_queued + SPARE_STREAMS
    process = ClientsProcess[LocalCell]("coordinator", config, most=most)
    tokenizer = await load_tokenizer(config.target, config.target_revision)
    clock, metrics = asyncio.get_running_loop(), process.metrics
    metrics.policy_info.labels(policy=str(policy)).set(1)
    admission = Scheduler(config, clock, metrics)
    journal = _journal(config, metrics)
    write = journal.write if journal is not None else lambda: None
    lanes = LaneContext(clock, metrics, config, write)
    membership = Membership(admission, lanes, process.security)
    if config.otel_endpoint is not None:
        provider = open_provider(config.otel_endpoint, service="dspark-coordinator", instance=name)
        admission.tracing = Tracing(provider, config.otel_share, lanes.explain, clock, metrics)
    process.cell = cell = LocalCell(admission, membership, policy, rule, journal)
    frontends = CellService(cell, clock, metrics)
    control = ControlService(cell, frontends, process, name)
    try:
        await process.listen(
            tokenizer,
            Servicer(frontend_pb2_grpc.add_CellServicer_to_server, frontends, CELL),
            Servicer(control_pb2_grpc.add_ControlServicer_to_server, control, CONTROL),
        )
        membership.announce(_static(config))
        await membership.settled()
        await process.open_http(lambda api: _live(config, api, membership, admission))
        await process.server.set_serving(True)
        membership.on_serving = _health(process.server, admission)
        membership.on_serving(membership.ready)
    except BaseException:
        await process.abandon()
        raise
    log.info(
        "coordinator.serving",
        name=name,
        endpoint=process.endpoint,
        policy=str(policy),
        rule=rule.name.lower(),
        text=tokenizer is not None,
    )
    return process


def _live(
    config: CoordinatorConfig, api: Api, membership: Membership, admission: Scheduler
) -> tuple[APIRouter, ...]:
    """Routes of the live page; none when it is off. Called with the HTTP libraries present."""
    if not config.live_page:
        return ()
    from coordinator.live.routes import live_routes

    return (live_routes(api, membership, admission, config.live_streams),)


def _health(server: GrpcServer, admission: Scheduler) -> Callable[[bool], None]:
    """Returns a callback that reports NOT_SERVING for the clients' service while the cell is not
    ready. Workers and operators still reach the process."""
    said = True

    def change(serving: bool) -> None:
        nonlocal said
        if serving != said and not admission.draining:
            said = serving
            server.say_serving(serving, GENERATION)

    return change


def check(config: CoordinatorConfig) -> tuple[Policy, Rule]:
    """Checks every setting before anything is opened; returns the default policy and rule. Raises
    ConfigError, which names the setting."""
    check_settings(config, "coordinator")
    read_pace(config)
    if config.otel_endpoint is not None:
        split_endpoint(config.otel_endpoint, "coordinator.otel_endpoint")
    for key, endpoints in (("verify", config.verify), ("draft", config.draft)):
        places = [split_endpoint(endpoint, f"coordinator.{key}") for endpoint in endpoints]
        for endpoint, place in zip(endpoints, places, strict=True):
            if not place[1]:
                raise ConfigError(f"coordinator.{key}: {endpoint!r} needs the port of a worker")
            if places.count(place) > 1:
                raise ConfigError(f"coordinator.{key}: {endpoint!r} is given twice")
    return read_defaults("coordinator", config.policy, config.rule)


def _static(config: CoordinatorConfig) -> list[Address]:
    given = ((WorkerRole.VERIFY, config.verify), (WorkerRole.DRAFT, config.draft))
    return [
        Address(role, join_endpoint(*split_endpoint(endpoint)), 0, f"{role.value}/{index}")
        for role, endpoints in given
        for index, endpoint in enumerate(endpoints)
    ]


def try_journal(config: CoordinatorConfig) -> None:
    """Raises ConfigError for a folder of the journal that a coordinator on this machine could not
    write, or that another one writes."""
    if (file := _journal_file(config)) is not None:
        file.close()


def _journal_file(config: CoordinatorConfig) -> JournalFile | None:
    if config.journal is None:
        return None
    return JournalFile(
        Path(config.journal),
        sync=config.journal_sync,
        sync_s=config.journal_sync_s,
        segment_bytes=config.journal_segment_mb << 20,
    )


def _journal(config: CoordinatorConfig, metrics: Metrics) -> Journal | None:
    """Opens the journal, None without a folder. Reads the records of earlier coordinators now."""
    if (file := _journal_file(config)) is None:
        return None
    try:
        return Journal(file, keep_s=config.journal_keep_s, metrics=metrics)
    except OSError as error:
        file.close()
        raise ConfigError(f"coordinator.journal: {config.journal}: {error.strerror}") from error
