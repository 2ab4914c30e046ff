"""Starts a drafter process: its engine and its two services, in the shell of all workers."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from functools import partial

from draft_service import feature_receiver, rounds, service
from draft_service.config import DraftConfig
from draft_service.drafting import Drafting
from draft_service.engine_core import DraftEngineCore
from draft_service.feature_receiver import FeatureReceiver
from draft_service.rounds import Rounds
from draft_service.rounds_server import RoundsServer
from draft_service.service import DraftService
from dspark.errors import ConfigError
from dspark.runtime.addresses import join_endpoint, split_endpoint
from dspark.runtime.cost_store import Curve
from dspark.runtime.shell import Servicer
from dspark.runtime.wire_limits import reading
from dspark.runtime.worker import Services, Worker, check_worker, start_worker
from dspark.wire.v1 import draft_pb2, draft_pb2_grpc, features_pb2, features_pb2_grpc


async def start(config: DraftConfig, *, name: str = "draft/0") -> Worker[DraftEngineCore]:
    """Loads and measures the drafter on the device thread, then serves."""
    check(config)
    model = config.target or config.drafter
    return await start_worker(
        "draft", config, name=name, model=model, load=partial(_load, config), services=_services
    )


def _services(worker: Worker[DraftEngineCore]) -> Services:
    loop = asyncio.get_running_loop()

    def post(job: Callable[[], None], *, computes: bool) -> None:
        worker.device.post(job, loop, computes=computes)

    drafting = Drafting(worker.engine, worker.metrics, partial(post, computes=True))
    # Taking orders succeeds on a broken device too, so it must not count as a sign of health.
    open_rounds = partial(Rounds, worker, drafting, partial(post, computes=False))
    read_rounds = reading(draft_pb2.RoundsCommand.FromString, rounds.BOUNDS)
    own_port: RoundsServer | None = None
    config = worker.engine.config
    if config.rounds_port is not None:
        bind = join_endpoint(split_endpoint(config.bind)[0], config.rounds_port)
        own_port = RoundsServer(bind, worker.security, worker.metrics, read_rounds, open_rounds)
    receiver = FeatureReceiver(worker)
    chunks = {"Push": reading(features_pb2.FeatureChunk.FromString, feature_receiver.BOUNDS)}

    async def close() -> None:
        if own_port is not None:
            await asyncio.to_thread(own_port.close)

    drafts = DraftService(
        worker, drafting, open_rounds, own_port.port if own_port is not None else 0
    )
    return Services(
        (
            Servicer(
                draft_pb2_grpc.add_DraftServicer_to_server,
                drafts,
                service.NAME,
                {"Rounds": read_rounds},
            ),
            Servicer(
                features_pb2_grpc.add_FeaturesServicer_to_server,
                receiver,
                feature_receiver.NAME,
                chunks,
            ),
        ),
        close,
    )


def _load(config: DraftConfig) -> tuple[DraftEngineCore, Curve | None]:
    """Loads the engine and its cost curve; a synthetic engine is loaded without torch."""
    if config.engine == "synthetic":
        from draft_service.synthetic import SyntheticDraftEngine
        from dspark.synthetic.spec import load_spec

        spec = load_spec(config.synthetic or "")
        curve = spec.draft.curve() if config.measure_cost else None
        return SyntheticDraftEngine(spec, config), curve
    from draft_service import profiler
    from draft_service.engine import DraftEngine

    engine = DraftEngine.load(config)
    return engine, profiler.cost_curve(engine) if config.measure_cost else None


def check(config: DraftConfig) -> None:
    """Raises ConfigError naming a setting that cannot work, before anything is loaded."""
    if config.engine == "real" and not config.synthetic and config.drafter in ("", "none"):
        raise ConfigError("draft.drafter: required and not given")
    check_worker("draft", config)
    if config.context_tokens < config.page_size:
        raise ConfigError(
            f"draft.context_tokens: {config.context_tokens} does not hold one page of "
            f"{config.page_size}"
        )
