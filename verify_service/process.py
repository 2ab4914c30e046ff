"""A verifier process: builds its engine and service for the common worker process."""

from __future__ import annotations

import asyncio
from functools import partial

from dspark.errors import ConfigError
from dspark.runtime.cost_store import Curve
from dspark.runtime.shell import Servicer
from dspark.runtime.wire_limits import reading
from dspark.runtime.worker import Services, Worker, check_worker, start_worker
from dspark.wire.v1 import verify_pb2, verify_pb2_grpc
from verify_service.config import VerifyConfig
from verify_service.engine_core import EngineCore
from verify_service.service import NAME, VerifyService, control_bounds


async def start(config: VerifyConfig, *, name: str = "verify/0") -> Worker[EngineCore]:
    """Loads, tests and measures the target on the pass thread, then starts serving."""
    check(config)
    return await start_worker(
        "verify",
        config,
        name=name,
        model=config.target,
        load=partial(_load, config),
        services=_services,
        passes=True,
    )


def _services(worker: Worker[EngineCore]) -> Services:
    engine = worker.engine
    if engine.config.engine == "real":
        import torch

        # For all threads but the pass thread, which has set its own number already. With a thread
        # pool for each, OpenMP has more threads than processors and blocks them after every
        # product.
        torch.set_num_threads(1)
    service = VerifyService(worker)
    context_length = engine.target.context_length
    readers = {
        "Control": reading(verify_pb2.ControlDown.FromString, control_bounds(context_length))
    }
    servicer = Servicer(verify_pb2_grpc.add_VerifyServicer_to_server, service, NAME, readers)
    return Services((servicer,), partial(asyncio.to_thread, engine.close))


def _load(config: VerifyConfig) -> tuple[EngineCore, Curve | None]:
    """Loads the engine and its cost curve; a synthetic one without torch."""
    if config.engine == "synthetic":
        from dspark.synthetic.spec import load_spec
        from verify_service.synthetic import SyntheticVerifyEngine

        spec = load_spec(config.synthetic or "")
        curve = spec.verify.curve() if config.measure_cost else None
        return SyntheticVerifyEngine(spec, config), curve
    from verify_service import profiler
    from verify_service.engine import VerifyEngine

    engine = VerifyEngine.load(config)
    curve = profiler.cost_curve(engine) if config.measure_cost else None
    engine.record()
    return engine, curve


def check(config: VerifyConfig) -> None:
    """Raises ConfigError for settings that cannot work, before anything is loaded."""
    if config.engine == "real" and not config.synthetic and not config.target:
        raise ConfigError("verify.target: required and not given")
    check_worker("verify", config)
    if config.engine == "synthetic" and config.tensor_parallel_size > 1:
        raise ConfigError("verify.tensor_parallel_size: a synthetic engine has nothing to divide")
    if config.kv_tokens and config.kv_tokens < config.page_size:
        raise ConfigError(
            f"verify.kv_tokens: {config.kv_tokens} does not hold one page of {config.page_size}"
        )
