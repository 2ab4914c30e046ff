"""A coordinator process, from configuration to SERVING and back."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

import structlog

from coordinator.cells.cell import served
from coordinator.cells.cell_service import CELL, CellService
from coordinator.cells.control import ControlService
from coordinator.cells.journal import Journal
from coordinator.cells.journal_file import SYNCS, JournalFile
from coordinator.cells.local_cell import LocalCell, Offer
from coordinator.clock import Clock
from coordinator.config import CoordinatorConfig
from coordinator.http.front import HttpFront, open_front
from coordinator.lanes.conduct import Conduct
from coordinator.queue.admission import Admission, Bounds
from coordinator.reception.input_processor import InputProcessor, prompt_bytes
from coordinator.reception.pacing import read_pace
from coordinator.reception.service import GENERATION, GenerationService
from coordinator.reception.tokenizer import find_tokenizer
from coordinator.requests.rule import parse_rule
from coordinator.watching.tracing import Tracing, open_tracer
from coordinator.workers.breaker import Doubts
from coordinator.workers.membership import ANNOUNCE_WAIT_S, Membership
from coordinator.workers.worker import Address, Role
from dspark.errors import ConfigError, InvalidRequest
from dspark.rounds.policy import Policy, parse_policy
from dspark.runtime.identity import model_name, new_incarnation
from dspark.runtime.listeners import check_listeners
from dspark.runtime.metrics_server import MetricsServer, serve_metrics
from dspark.runtime.security import Security, split_endpoint, streams_per_connection
from dspark.runtime.server import LEAST_PUBLIC_PING_MS, PUBLIC_LOOKAHEAD, GrpcServer
from dspark.runtime.telemetry import Metrics
from dspark.runtime.wire_limits import MAX_REQUEST
from dspark.types import Rule
from dspark.wire.v1 import control_pb2_grpc, frontend_pb2_grpc, generate_pb2_grpc

if TYPE_CHECKING:
    from fastapi import APIRouter

    from coordinator.http.api import Api

log = structlog.get_logger("dspark.coordinator")

CONTROL = "dspark.wire.v1.Control"
SPARE_STREAMS = 256  # of one connection, for calls that are being refused: beyond, gRPC refuses without a hint
LAST_CALLS_S = 0.2  # who asks again right after the last answer is refused in words, not cut by the server's end
LAST_WRITES_S = 1.0  # for what streams still have to say after their requests were ended


@dataclass
class CoordinatorProcess:
    """A serving coordinator."""

    endpoint: str
    incarnation: int
    metrics: Metrics
    metrics_port: int | None
    membership: Membership
    admission: Admission
    _server: GrpcServer = field(repr=False)
    _journal: Journal | None = field(repr=False)
    _metrics_server: MetricsServer | None = field(repr=False)
    _http: HttpFront | None = field(repr=False)
    _tracing: Any = field(repr=False)

    @property
    def http_url(self) -> str | None:
        """Of the HTTP front, if there is one."""
        return self._http.url if self._http is not None else None

    async def stop(self, grace_s: float = 5.0) -> None:
        """Takes no new requests, lets running streams finish within the grace, then lets everybody go."""
        self.admission.draining = True
        await self._server.set_serving(False)
        await self.admission.emptied(grace_s)
        self.admission.cut_all()
        await asyncio.sleep(min(grace_s, LAST_CALLS_S))
        await self._server.drain(min(grace_s, LAST_WRITES_S))
        if self._http is not None:
            await self._http.stop(min(grace_s, LAST_WRITES_S))
        await self.membership.close()
        if self._journal is not None:
            self._journal.close()
        if self._tracing is not None:
            await asyncio.to_thread(self._tracing.shutdown)  # sends what it still holds
        if self._metrics_server is not None:
            self._metrics_server.close()
            self._metrics_server = None


async def start(config: CoordinatorConfig, *, name: str = "coordinator/0") -> CoordinatorProcess:
    """Serves at once, or as soon as the workers it knows from the start have run their first requests; lanes open as
    workers are found."""
    policy, rule = check(config)
    offer = Offer(policy=policy, rule=rule)
    security = Security.of(config)
    check_listeners(security.listeners("coordinator", config, config.http))
    tokenizer = find_tokenizer(config.target, config.target_revision)
    incarnation, clock = new_incarnation(), asyncio.get_running_loop()
    metrics = Metrics(
        cell=config.cell, model_name=lambda: model_name(config.target or served(cell), config.served_model)
    )
    metrics.policy_info.labels(policy=str(offer.policy)).set(1)
    admission = Admission(_bounds(config), clock, metrics)
    journal = _journal(config, metrics)
    membership = Membership(
        admission,
        waits=_waits(config),
        describe_s=config.describe_deadline_s,
        token=security.token,
        tls=security.tls,
        clock=clock,
        metrics=metrics,
        doubts=Doubts(losses=config.flap_limit),
        write=journal.write if journal is not None else lambda: None,
        warm_up_s=config.warm_up_s,
        rule=rule,
    )
    provider = _traced(config, name, admission, membership, clock, metrics)
    cell = LocalCell(admission, membership, offer, journal)
    frontends = CellService(cell, clock, metrics)
    control = ControlService(cell, frontends, metrics, name=name, incarnation=incarnation)
    room = config.max_running + config.max_queued + SPARE_STREAMS
    server = GrpcServer(
        bind=config.bind,
        security=security,
        max_concurrent_streams=room,  # so that excess is refused, not parked
        per_connection=streams_per_connection(config, room),
        max_receive=MAX_REQUEST,
        prompt_bytes=lambda: prompt_bytes(cell),
        least_ping_ms=LEAST_PUBLIC_PING_MS,
        lookahead=PUBLIC_LOOKAHEAD,
    )
    processor = InputProcessor(
        cell, tokenizer, clock, metrics, max_unread=config.max_unread, longest_s=config.request_deadline_s
    )
    generation = GenerationService(processor, unread_s=config.max_unread_s, pace=read_pace(config))
    server.add(generate_pb2_grpc.add_GenerationServicer_to_server, generation, GENERATION)
    server.add(frontend_pb2_grpc.add_CellServicer_to_server, frontends, CELL)
    server.add(control_pb2_grpc.add_ControlServicer_to_server, control, CONTROL)
    metrics_server = None
    try:
        port = await server.start()
        control.endpoint = server.endpoint(port)
        await membership.announce(_static(config), wait_s=ANNOUNCE_WAIT_S + config.warm_up_s)
        if config.metrics_port is not None:
            metrics_server = serve_metrics(metrics, security, config.bind, config.metrics_port)
            control.metrics_port = metrics_server.port
        http = await open_front(
            config,
            processor,
            most=config.max_running + config.max_queued + SPARE_STREAMS,
            more=lambda api: _live(config, api, membership, admission),
        )
        await server.set_serving(True)
        health = _Health(server, admission)
        health.change(membership.ready)
        membership.on_serving = health.change
    except BaseException:
        await membership.close()
        await server.drain(0.0)
        if journal is not None:
            journal.close()
        raise
    log.info(
        "coordinator.serving",
        name=name,
        endpoint=control.endpoint,
        policy=str(offer.policy),
        rule=offer.rule.name.lower(),
        text=tokenizer is not None,
    )
    return CoordinatorProcess(
        endpoint=control.endpoint,
        incarnation=incarnation,
        metrics=metrics,
        metrics_port=metrics_server.port if metrics_server is not None else None,
        membership=membership,
        admission=admission,
        _server=server,
        _journal=journal,
        _metrics_server=metrics_server,
        _http=http,
        _tracing=provider,
    )


def _live(config: CoordinatorConfig, api: Api, membership: Membership, admission: Admission) -> tuple[APIRouter, ...]:
    """The live page, where it is wanted. Called once the HTTP libraries are known to be there."""
    if not config.live_page:
        return ()
    from coordinator.live.routes import live_routes

    return (live_routes(api, membership, admission, config.live_streams),)


class _Health:
    """Clients hear NOT_SERVING while no verifier is there; workers and operators find the process all the same."""

    def __init__(self, server: GrpcServer, admission: Admission) -> None:
        self._server, self._admission = server, admission
        self._serving = True

    def change(self, serving: bool) -> None:
        if serving == self._serving or self._admission.draining:
            return
        self._serving = serving
        self._server.say_serving(serving, GENERATION)


def check(config: CoordinatorConfig) -> tuple[Policy, Rule]:
    """Refuses what cannot work, by name, before anything is opened; returns the default policy and rule."""
    for key in ("max_running", "max_prefills", "max_unread", "default_max_tokens"):
        if getattr(config, key) < 1:
            raise ConfigError(f"coordinator.{key}: {getattr(config, key)} is less than 1")
    for key in ("max_queued", "flap_limit", "max_handovers", "live_streams", "warm_up_s", "window"):
        if getattr(config, key) < 0:
            raise ConfigError(f"coordinator.{key}: {getattr(config, key)} is negative")
    for key in (
        "request_deadline_s",
        "queue_deadline_s",
        "max_unread_s",
        "prefill_deadline_s",
        "verify_deadline_s",
        "describe_deadline_s",
        "verifier_wait_s",
        "journal_sync_s",
        "journal_keep_s",
    ):
        if not getattr(config, key) > 0:
            raise ConfigError(f"coordinator.{key}: {getattr(config, key)} is not above 0")
    if config.journal_sync not in SYNCS:
        raise ConfigError(f"coordinator.journal_sync: {config.journal_sync!r} is none of {', '.join(SYNCS)}")
    if not 1 <= config.journal_segment_mb <= 1 << 20:
        raise ConfigError(f"coordinator.journal_segment_mb: {config.journal_segment_mb} is not in 1..{1 << 20}")
    if not 0.0 <= config.otel_share <= 1.0:
        raise ConfigError(f"coordinator.otel_share: {config.otel_share} is not between 0 and 1")
    if config.otel_endpoint is not None:
        split_endpoint(config.otel_endpoint)
    if config.cohorts not in (0, 1, 2):
        raise ConfigError(f"coordinator.cohorts: {config.cohorts} is not 0, 1 or 2")
    for endpoint in (*config.verify, *config.draft):
        split_endpoint(endpoint)
    try:
        return (
            parse_policy(config.policy, field="coordinator.policy"),
            parse_rule(config.rule, field="coordinator.rule"),
        )
    except InvalidRequest as error:
        raise ConfigError(str(error)) from error


def _static(config: CoordinatorConfig) -> list[Address]:
    given = ((Role.VERIFY, config.verify), (Role.DRAFT, config.draft))
    return [
        Address(role, endpoint, 0, f"{role.value}/{index}")
        for role, endpoints in given
        for index, endpoint in enumerate(endpoints)
    ]


def _traced(
    config: CoordinatorConfig, name: str, admission: Admission, membership: Membership, clock: Clock, metrics: Metrics
) -> Any:
    """Lets requests be traced; what sends the spans, or None."""
    if config.otel_endpoint is None:
        return None
    tracer, provider = open_tracer(config.otel_endpoint, service="dspark-coordinator", instance=name)
    admission.tracing = Tracing(tracer, config.otel_share, membership.explain, clock, metrics)
    return provider


def _journal(config: CoordinatorConfig, metrics: Metrics) -> Journal | None:
    """What earlier coordinators of this folder left is read here, before anything is served."""
    if config.journal is None:
        return None
    file = JournalFile(
        Path(config.journal),
        sync=config.journal_sync,
        sync_s=config.journal_sync_s,
        segment_bytes=config.journal_segment_mb << 20,
    )
    return Journal(file, keep_s=config.journal_keep_s, metrics=metrics)


def _bounds(config: CoordinatorConfig) -> Bounds:
    return Bounds(
        config.max_running,
        config.max_queued,
        config.verifier_wait_s,
        config.max_handovers,
        config.queue_deadline_s,
        2 * config.warm_up_s,  # plain ones, then drafted ones
    )


def _waits(config: CoordinatorConfig) -> Conduct:
    return Conduct(
        prefills=config.max_prefills,
        prefill_s=config.prefill_deadline_s,
        verify_s=config.verify_deadline_s,
        bypass=config.bypass,
        cohorts=config.cohorts,
        window=config.window,
    )
