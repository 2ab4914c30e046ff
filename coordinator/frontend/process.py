"""A front end process, from its configuration to SERVING. Imports neither torch nor lanes."""

from __future__ import annotations

import os

import structlog

from coordinator.config import FrontendConfig
from coordinator.frontend.front_end import ClientsProcess
from coordinator.frontend.remote_cell import RemoteCell
from coordinator.reception.tokenizer import load_tokenizer
from dspark.errors import ConfigError
from dspark.runtime.addresses import join_endpoint, split_endpoint
from dspark.runtime.setting import check_settings
from dspark.wire.v1 import frontend_pb2

log = structlog.get_logger("dspark.frontend")

SPARE_STREAMS = 64  # for calls being refused: beyond them gRPC refuses without a hint


async def start(config: FrontendConfig, *, name: str = "frontend/0") -> ClientsProcess[RemoteCell]:
    """Starts a front end. It listens at once, and reports SERVING whenever a coordinator with ready
    workers is attached."""
    check(config)
    most, interval_s = config.max_streams + SPARE_STREAMS, config.chunk_interval_ms / 1000
    process = ClientsProcess[RemoteCell]("frontend", config, most=most, interval_s=interval_s)
    tokenizer = await load_tokenizer(config.target, config.target_revision)
    hello = frontend_pb2.FrontendHello(name=name, incarnation=process.incarnation, pid=os.getpid())

    def changed(serving: bool) -> None:
        if cell.draining:
            return  # it stays NOT_SERVING, whatever becomes of the coordinator meanwhile
        event = "frontend.serving" if serving else "frontend.waiting"
        log.info(event, name=name, coordinator=config.coordinator)
        process.server.say_serving(serving)

    process.cell = cell = RemoteCell(
        join_endpoint(*split_endpoint(config.coordinator)),
        process.security,
        max_calls=config.max_streams,
        hello=hello,
        on_change=changed,
        metrics=process.metrics,
    )
    try:
        await process.listen(tokenizer)
        hello.endpoint, hello.metrics_port = process.endpoint, process.metrics_port
        await process.open_http()
        cell.start()
        await cell.attached(config.attach_wait_s)
    except BaseException:
        await process.abandon()
        raise
    return process


def check(config: FrontendConfig) -> None:
    """Raises ConfigError naming a key that cannot work, before anything is opened."""
    if not config.coordinator:
        raise ConfigError("frontend.coordinator: give the coordinator's host:port")
    split_endpoint(config.coordinator, "frontend.coordinator")
    check_settings(config, "frontend")
