"""A verifier process, from configuration to SERVING and back."""

from __future__ import annotations

from dataclasses import dataclass, field

import structlog

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
from dspark.wire.v1 import verify_pb2, verify_pb2_grpc
from verify_service.commands import bounds
from verify_service.config import FEATURE_DTYPES, VerifyConfig
from verify_service.feature_push import FeaturePush
from verify_service.interface import Engine
from verify_service.service import NAME, VerifyService

log = structlog.get_logger("dspark.verify")


@dataclass
class VerifyProcess:
    """A serving verifier."""

    endpoint: str
    incarnation: int
    metrics: Metrics
    metrics_port: int | None
    engine: Engine
    _server: GrpcServer = field(repr=False)
    _service: VerifyService = field(repr=False)
    _device: DeviceWorker = field(repr=False)
    _push: FeaturePush = field(repr=False)
    _metrics_server: MetricsServer | None = field(repr=False)

    async def stop(self, grace_s: float = 5.0) -> None:
        """Takes no new sequences, lets running calls end within the grace, frees everything."""
        await self._server.set_serving(False)
        self._device.on_health = lambda healthy: None  # it serves no more, however well it is
        self._service.drain(grace_s)
        # Sessions stay open as long as their coordinator lives; what is waited for is the sequences in them.
        await emptied(self._device, lambda: self.engine.held.sequences, grace_s)
        await self._server.drain(min(grace_s, 0.2))
        await self._push.close()
        self._device.close()
        if self._metrics_server is not None:
            self._metrics_server.close()
            self._metrics_server = None


async def start(config: VerifyConfig, *, name: str = "verify/0") -> VerifyProcess:
    """Loads, tests and measures the target on the device thread, then serves."""
    check(config)
    security = Security.of(config)
    check_listeners(security.listeners("verify", config))
    incarnation = new_incarnation()
    name_shown = model_name(config.target or config.engine, config.served_model)
    metrics = Metrics(cell=config.cell, model_name=lambda: name_shown)
    device = DeviceWorker(name)
    metrics_server = None
    try:
        # Loading may take minutes and must not hold up whoever else runs on this loop.
        engine, cost = await device.run(_load, config)
        push = FeaturePush(
            incarnation=incarnation,
            projection=engine.projection.fingerprint if engine.projection is not None else "",
            token=security.token,
            tls=security.tls,
            queue_rows=config.push_queue_rows,
            metrics=metrics,
        )
        service = VerifyService(
            engine=engine, device=device, push=push, metrics=metrics, incarnation=incarnation, cost=cost
        )
        server = GrpcServer(bind=config.bind, security=security)
        readers = {"Session": reading(verify_pb2.VerifyCommand.FromString, bounds(engine.target.context_length))}
        server.add(verify_pb2_grpc.add_VerifyServicer_to_server, service, NAME, readers)
        port = await server.start()
        metrics.pages_total.set(engine.held.pages_total)
        if config.metrics_port is not None:
            metrics_server = serve_metrics(metrics, security, config.bind, config.metrics_port)
            service.metrics_port = metrics_server.port
        await server.set_serving(True)
        device.on_health = server.say_serving
    except BaseException:
        device.close()
        raise
    endpoint = server.endpoint(port)
    log.info(
        "verify.serving",
        name=name,
        endpoint=endpoint,
        model=engine.config.target,
        attention_path=engine.attention_path,
        device=str(engine.device),
        dtype=engine.dtype,
        pages=engine.held.pages_total,
        metrics_port=metrics_server.port if metrics_server is not None else None,
        projection=engine.projection.fingerprint if engine.projection is not None else None,
    )
    return VerifyProcess(
        endpoint=endpoint,
        incarnation=incarnation,
        metrics=metrics,
        metrics_port=metrics_server.port if metrics_server is not None else None,
        engine=engine,
        _server=server,
        _service=service,
        _device=device,
        _push=push,
        _metrics_server=metrics_server,
    )


def _load(config: VerifyConfig) -> tuple[Engine, Curve | None]:
    """The engine and what its passes cost; a synthetic one is loaded without torch."""
    if config.engine == "synthetic":
        from verify_service.synthetic import SyntheticVerifyEngine

        synthetic = SyntheticVerifyEngine.load(config)
        return synthetic, synthetic.cost_curve() if config.measure_cost else None
    from verify_service import profiler
    from verify_service.engine import VerifyEngine

    if config.force_acceptance is not None:
        log.warning(
            "verify.acceptance_forced", mean=config.force_acceptance, effect="answers are not the target's text"
        )
    engine = VerifyEngine.load(config)
    return engine, profiler.cost_curve(engine) if config.measure_cost else None


def check(config: VerifyConfig) -> None:
    """Refuses numbers that cannot work, by name, before anything is loaded."""
    if config.engine not in ("real", "synthetic"):
        raise ConfigError(f"verify.engine: {config.engine!r} is not real or synthetic")
    if config.engine == "synthetic" and not config.synthetic:
        raise ConfigError("verify.synthetic: required with the synthetic engine and not given")
    if config.engine == "real" and config.synthetic:
        raise ConfigError("verify.synthetic: of use with `engine: synthetic` only")
    if config.engine == "real" and not config.target:
        raise ConfigError("verify.target: required and not given")
    if config.feature_dtype not in FEATURE_DTYPES:
        raise ConfigError(f"verify.feature_dtype: {config.feature_dtype!r} is none of {', '.join(FEATURE_DTYPES)}")
    if config.force_acceptance is not None:
        most = config.force_acceptance_slots + 1
        if config.engine != "real":
            raise ConfigError("verify.force_acceptance: a synthetic engine takes its acceptance from its file")
        if not 1 <= config.force_acceptance <= most:
            raise ConfigError(f"verify.force_acceptance: {config.force_acceptance} is not in 1..{most}")
    bounds = {
        "threads": (1, 1024),
        "page_size": (1, 4096),
        "prefill_chunk": (1, 1 << 20),
        "max_sequences": (1, 1 << 20),
        "lease_s": (0.1, 86_400),
        "force_acceptance_slots": (1, 64),
    }
    for key, (least, most) in bounds.items():
        if not least <= getattr(config, key) <= most:
            raise ConfigError(f"verify.{key}: {getattr(config, key)} is not in {least}..{most}")
    if config.kv_tokens < config.page_size:
        raise ConfigError(f"verify.kv_tokens: {config.kv_tokens} does not hold one page of {config.page_size}")
    if config.max_batch_tokens < 1:
        raise ConfigError(f"verify.max_batch_tokens: {config.max_batch_tokens} is less than 1")
