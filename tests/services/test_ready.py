"""Ready means ready: whoever is told that a cell serves is not the first to make it work."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import httpx
import pytest
from worker_stream import drafter, until, verifier

from coordinator import process as coordinator_process
from coordinator.config import CoordinatorConfig
from coordinator.frontend import process as frontend_process
from coordinator.frontend.config import FrontendConfig
from coordinator.lanes.ports import DrafterPort, VerifierPort
from coordinator.workers import membership
from coordinator.workers.warming import Unwarmed
from dspark.cli.main import main
from dspark.client import AsyncClient

pytestmark = pytest.mark.services

LONG_S = 200.0  # nobody waits so long


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


async def _states(endpoint: str) -> dict[str, str]:
    async with AsyncClient(endpoint) as client:
        return {process.name: process.state for process in (await client.status()).processes}


async def test_a_request_of_every_kind_has_run_before_anybody_asks(golden_target: Path, golden_drafter: Path) -> None:
    async with verifier(golden_target, golden_drafter) as v, drafter(golden_drafter) as d:
        coordinator = await coordinator_process.start(
            CoordinatorConfig(verify=(v.endpoint,), draft=(d.endpoint,), warm_up_s=LONG_S)
        )
        try:
            assert coordinator.membership.ready
            assert v.metrics.value("forward_seconds_count", kind="prefill") > 0
            assert v.metrics.value("forward_seconds_count", kind="verify") > 1
            assert d.metrics.value("forward_seconds_count", kind="draft") > 0
            for counted in ("prompt_tokens_total", "generation_tokens_total", "rounds_total", "requests_total"):
                assert coordinator.metrics.value(counted) == 0, counted
            assert coordinator.metrics.value("spec_decode_num_draft_tokens_total") == 0
            assert coordinator.membership.lanes[0].rounds == 0
            await until(lambda: v.engine.held.sequences == d.engine.held.sequences == 0)
            async with AsyncClient(coordinator.endpoint) as client:
                answer = await client.complete([3, 4, 5], max_tokens=8, temperature=0.0, policy="fixed:4")
            assert answer.end.speculation.draft_tokens > 0
        finally:
            await coordinator.stop(0.0)


async def test_nothing_says_that_it_serves_before(
    golden_target: Path, golden_drafter: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """A drafter that was announced is not there yet: requests are taken, and the cell is not ready."""
    port = _free_port()
    async with verifier(golden_target, golden_drafter) as v:
        coordinator = await coordinator_process.start(
            CoordinatorConfig(
                verify=(v.endpoint,), draft=(f"127.0.0.1:{port}",), http="127.0.0.1:0", warm_up_s=LONG_S,
                describe_deadline_s=0.2,
            )
        )  # fmt: skip
        front = await frontend_process.start(FrontendConfig(coordinator=coordinator.endpoint))
        try:
            assert coordinator.membership.lanes
            async with httpx.AsyncClient(base_url=str(coordinator.http_url)) as http:
                assert (await http.get("/health")).status_code == 503
                for endpoint in (coordinator.endpoint, front.endpoint):
                    words = ["health", endpoint, "--wait", "0"]
                    assert await asyncio.to_thread(main, words) == 1
                    assert "is not_serving" in capsys.readouterr().err
                    assert await asyncio.to_thread(main, ["health", endpoint]) == 0, "it lives"
                async with drafter(golden_drafter, bind=f"127.0.0.1:{port}"):
                    await until(lambda: coordinator.membership.ready)
                    assert await asyncio.to_thread(main, ["health", coordinator.endpoint, "--wait", "60"]) == 0
                    assert await asyncio.to_thread(main, ["health", front.endpoint, "--wait", "60"]) == 0
                    assert (await http.get("/health")).status_code == 200
        finally:
            await front.stop(0.0)
            await coordinator.stop(0.0)


async def test_a_cell_whose_drafter_does_not_come_is_ready_without(golden_target: Path, golden_drafter: Path) -> None:
    async with verifier(golden_target, golden_drafter) as v:
        coordinator = await coordinator_process.start(
            CoordinatorConfig(
                verify=(v.endpoint,), draft=(f"127.0.0.1:{_free_port()}",), warm_up_s=5.0, describe_deadline_s=0.2
            )
        )
        try:
            await until(lambda: coordinator.membership.ready)
        finally:
            await coordinator.stop(0.0)


async def test_a_verifier_whose_first_requests_fail_is_not_taken_in(
    golden_target: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    real, fails = membership.warm, True

    async def warm(verifier: VerifierPort, drafters: Sequence[DrafterPort], **options: Any) -> None:
        if fails:
            raise Unwarmed("there is no page for it")
        await real(verifier, drafters, **options)

    monkeypatch.setattr(membership, "warm", warm)
    async with verifier(golden_target, None) as v:
        coordinator = await coordinator_process.start(
            CoordinatorConfig(verify=(v.endpoint,), warm_up_s=LONG_S, flap_limit=0)
        )
        try:
            assert not coordinator.membership.lanes
            assert not coordinator.membership.ready
            (worker,) = coordinator.membership.workers
            assert "its first requests failed: there is no page for it" in worker.detail
            fails = False
            await until(lambda: coordinator.membership.ready)
            assert (await _states(coordinator.endpoint))["verify/0"] == "serving"
        finally:
            await coordinator.stop(0.0)


async def test_a_drafter_that_joins_drafts_first_for_nobody(golden_target: Path, golden_drafter: Path) -> None:
    async with verifier(golden_target, golden_drafter) as v:
        coordinator = await coordinator_process.start(CoordinatorConfig(verify=(v.endpoint,), warm_up_s=LONG_S))
        try:
            assert coordinator.membership.ready
            async with drafter(golden_drafter) as d:
                address = coordinator_process.Address(coordinator_process.Role.DRAFT, d.endpoint, 0, "draft/0")
                known = [worker.address for worker in coordinator.membership.workers]
                await coordinator.membership.announce([*known, address], wait_s=LONG_S)
                assert len(coordinator.membership.drafters) == 1
                assert d.metrics.value("forward_seconds_count", kind="draft") > 0
        finally:
            await coordinator.stop(0.0)


async def test_a_coordinator_that_comes_back_finds_workers_that_have_run(
    golden_target: Path, golden_drafter: Path
) -> None:
    """Streams that resume wait for no first requests, and the cost curve is the measured one."""
    async with (
        verifier(golden_target, golden_drafter, measure_cost=True, cost_max_tokens=8) as v,
        drafter(golden_drafter) as d,
    ):
        config = CoordinatorConfig(verify=(v.endpoint,), draft=(d.endpoint,), warm_up_s=LONG_S)
        first = await coordinator_process.start(config)
        cost = first.membership.lanes[0].cost.verify
        assert cost is not None
        assert not cost.live.seen, "first steps correct nothing"
        await first.stop(0.0)
        run = v.metrics.value("forward_seconds_count", kind="verify")
        again = await coordinator_process.start(config)
        try:
            assert again.membership.ready
            assert v.metrics.value("forward_seconds_count", kind="verify") == run
        finally:
            await again.stop(0.0)
