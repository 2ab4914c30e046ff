"""A drafter process, from configuration to SERVING and back."""

from __future__ import annotations

from dataclasses import dataclass, field

import structlog

from draft_service import feature_sink, service, session
from draft_service.arrivals import Arrivals
from draft_service.cohorts import Cohorts
from draft_service.config import DraftConfig
from draft_service.feature_sink import FeatureSink
from draft_service.interface import Engine
from draft_service.service import DraftService
from dspark.errors import ConfigError
from dspark.runtime.cost_store import Curve
from dspark.runtime.device_worker import DeviceWorker
from dspark.runtime.draining import emptied
from dspark.runtime.identity import model_name, new_incarnation
from dspark.runtime.listeners import check_listeners
from dspark.runtime.metrics_server import MetricsServer, serve_metrics
from dspark.runtime.security import Security
from dspark.runtime.server import GrpcServer
from dspark.runtime.telemetry import Metrics
from dspark.runtime.wire_limits import reading
from dspark.wire.v1 import draft_pb2, draft_pb2_grpc, features_pb2, features_pb2_grpc

log = structlog.get_logger("dspark.draft")


@dataclass
class DraftProcess:
    """A serving drafter."""

    endpoint: str
    incarnation: int
    metrics: Metrics
    metrics_port: int | None
    engine: Engine
    _server: GrpcServer = field(repr=False)
    _service: DraftService = field(repr=False)
    _device: DeviceWorker = field(repr=False)
    _arrivals: Arrivals = field(repr=False)
    _cohorts: Cohorts = field(repr=False)
    _metrics_server: MetricsServer | None = field(repr=False)

    async def stop(self, grace_s: float = 5.0) -> None:
        """Takes no new sequences, lets running calls end within the grace, frees everything."""
        await self._server.set_serving(False)
        self._device.on_health = lambda healthy: None  # it serves no more, however well it is
        self._service.drain(grace_s)
        # Sessions stay open as long as their coordinator lives; what is waited for is the sequences in them.
        await emptied(self._device, lambda: self.engine.held.sequences, grace_s)
        await self._server.drain(min(grace_s, 0.2))
        await self._cohorts.close()
        await self._arrivals.close()
        self._device.close()
        if self._metrics_server is not None:
            self._metrics_server.close()
            self._metrics_server = None


async def start(config: DraftConfig, *, name: str = "draft/0") -> DraftProcess:
    """Loads and measures the drafter on the device thread, then serves."""
    check(config)
    security = Security.of(config)
    check_listeners(security.listeners("draft", config))
    incarnation = new_incarnation()
    name_shown = model_name(config.target or config.drafter or config.engine, config.served_model)
    metrics = Metrics(cell=config.cell, model_name=lambda: name_shown)
    device = DeviceWorker(name)
    metrics_server = None
    try:
        engine, cost = await device.run(_load, config)
        arrivals = Arrivals(engine, device)
        cohorts = Cohorts(engine, device, arrivals, metrics)
        servicer = DraftService(
            engine=engine, device=device, cohorts=cohorts, metrics=metrics, incarnation=incarnation, cost=cost
        )
        sink = FeatureSink(engine=engine, arrivals=arrivals, metrics=metrics, incarnation=incarnation)
        server = GrpcServer(bind=config.bind, security=security)
        commands = {"Session": reading(draft_pb2.DraftCommand.FromString, session.BOUNDS)}
        server.add(draft_pb2_grpc.add_DraftServicer_to_server, servicer, service.NAME, commands)
        chunks = {"Push": reading(features_pb2.FeatureChunk.FromString, feature_sink.BOUNDS)}
        server.add(features_pb2_grpc.add_FeaturesServicer_to_server, sink, feature_sink.NAME, chunks)
        port = await server.start()
        metrics.pages_total.set(engine.held.pages_total)
        if config.metrics_port is not None:
            metrics_server = serve_metrics(metrics, security, config.bind, config.metrics_port)
            servicer.metrics_port = metrics_server.port
        await server.set_serving(True)
        device.on_health = server.say_serving
    except BaseException:
        device.close()
        raise
    endpoint = server.endpoint(port)
    log.info(
        "draft.serving",
        name=name,
        endpoint=endpoint,
        model=engine.config.drafter,
        device=str(engine.device),
        dtype=engine.dtype,
        pages=engine.held.pages_total,
        metrics_port=metrics_server.port if metrics_server is not None else None,
        projection=engine.projection,
        calibrated=engine.calibrated,
    )
    return DraftProcess(
        endpoint=endpoint,
        incarnation=incarnation,
        metrics=metrics,
        metrics_port=metrics_server.port if metrics_server is not None else None,
        engine=engine,
        _server=server,
        _service=servicer,
        _device=device,
        _arrivals=arrivals,
        _cohorts=cohorts,
        _metrics_server=metrics_server,
    )


def _load(config: DraftConfig) -> tuple[Engine, Curve | None]:
    """The engine and what its passes cost; a synthetic one is loaded without torch."""
    if config.engine == "synthetic":
        from draft_service.synthetic import SyntheticDraftEngine

        synthetic = SyntheticDraftEngine.load(config)
        return synthetic, synthetic.cost_curve() if config.measure_cost else None
    from draft_service import profiler
    from draft_service.engine import DraftEngine

    engine = DraftEngine.load(config)
    return engine, profiler.cost_curve(engine) if config.measure_cost else None


def check(config: DraftConfig) -> None:
    """Refuses numbers that cannot work, by name, before anything is loaded."""
    if config.engine not in ("real", "synthetic"):
        raise ConfigError(f"draft.engine: {config.engine!r} is not real or synthetic")
    if config.engine == "synthetic" and not config.synthetic:
        raise ConfigError("draft.synthetic: required with the synthetic engine and not given")
    if config.engine == "real" and config.synthetic:
        raise ConfigError("draft.synthetic: of use with `engine: synthetic` only")
    if config.engine == "real" and config.drafter in ("", "none"):
        raise ConfigError("draft.drafter: required and not given")
    bounds = {
        "threads": (1, 1024),
        "page_size": (1, 4096),
        "q_entries": (1, 4096),
        "max_sequences": (1, 1 << 20),
        "lease_s": (0.1, 86_400),
        "max_batch_sequences": (1, 1 << 16),
        "max_wait_us": (0, 10_000_000),
    }
    for key, (least, most) in bounds.items():
        if not least <= getattr(config, key) <= most:
            raise ConfigError(f"draft.{key}: {getattr(config, key)} is not in {least}..{most}")
    if config.context_tokens < config.page_size:
        raise ConfigError(f"draft.context_tokens: {config.context_tokens} does not hold one page of {config.page_size}")
