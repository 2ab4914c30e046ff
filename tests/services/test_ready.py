"""Ready means ready: whoever is told that a cell serves is not the first to make it work."""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from typing import Any

import httpx
import pytest
import structlog

from coordinator.lanes import lane
from coordinator.lanes.facts import DrafterPort
from coordinator.workers import membership
from coordinator.workers.clients import VerifierClient
from coordinator.workers.warming import WarmUpFailed
from deploy.head import free_ports
from dspark.cli.main import main
from dspark.wire.v1 import verify_pb2, verify_pb2_grpc
from tests.services import workers
from tests.services.cell import Cell, standing_in
from tests.waiting import until

LONG_S = 200.0  # nobody waits so long


def before_warming(
    monkeypatch: pytest.MonkeyPatch, happens: Callable[[VerifierClient], Awaitable[None]]
) -> None:
    """Before the first requests of a verifier."""
    real = membership.warm

    async def warm(verifier: VerifierClient, drafter: DrafterPort | None, **options: Any) -> None:
        await happens(verifier)
        await real(verifier, drafter, **options)

    monkeypatch.setattr(membership, "warm", warm)


async def test_a_request_of_every_kind_has_run_before_anybody_asks(
    cell: Cell, monkeypatch: pytest.MonkeyPatch
) -> None:
    for module in (lane, membership):  # loggers that no test before this one has configured
        monkeypatch.setattr(module, "log", structlog.get_logger())
    with structlog.testing.capture_logs() as lines:
        coordinator = await cell.whole(warm_up_s=LONG_S)
    told = [line["event"] for line in lines]
    assert told.count("lane.no_cost_curve") == 1, "of the lane that serves"
    (v,), (d,) = cell.verifiers, cell.drafters
    assert coordinator.cell.membership.ready
    assert v.metrics.value("forward_seconds_count", kind="prefill") > 0
    assert v.metrics.value("forward_seconds_count", kind="verify") > 1
    assert d.metrics.value("forward_seconds_count", kind="draft") > 0
    counted = ("prompt_tokens", "generation_tokens", "spec_decode_num_draft_tokens")
    for name in (*counted, "rounds", "requests"):
        assert coordinator.metrics.value(f"{name}_total") == 0, name
    assert coordinator.cell.membership.lanes[0].rounds == 0
    await until(lambda: cell.held == 0)
    answer = await cell.client(coordinator).complete([3, 4, 5], max_tokens=8, policy="fixed:4")
    assert answer.end.speculation.draft_tokens > 0


async def test_nothing_says_that_it_serves_before(
    cell: Cell, capsys: pytest.CaptureFixture[str]
) -> None:
    """A drafter that was announced is not there yet: requests are taken, the cell is not ready."""
    await cell.verifier()
    place = f"127.0.0.1:{free_ports(1)[0]}"
    coordinator = await cell.coordinator(
        draft=(place,), http="127.0.0.1:0", warm_up_s=LONG_S, describe_deadline_s=0.2
    )
    front = await cell.frontend()
    assert coordinator.cell.membership.lanes
    async with httpx.AsyncClient(base_url=str(coordinator.http_url)) as http:
        assert (await http.get("/health")).status_code == 503
        for endpoint in (coordinator.endpoint, front.endpoint):
            assert await asyncio.to_thread(main, ["health", endpoint, "--wait", "0"]) == 1
            assert "is not_serving" in capsys.readouterr().err
            assert await asyncio.to_thread(main, ["health", endpoint]) == 0
            assert capsys.readouterr().out == "alive\n", "which is all that was asked"
        await cell.drafter(bind=place)
        await until(lambda: coordinator.cell.membership.ready)
        for endpoint in (coordinator.endpoint, front.endpoint):
            assert await asyncio.to_thread(main, ["health", endpoint, "--wait", "60"]) == 0
        assert (await http.get("/health")).status_code == 200


async def test_a_cell_whose_drafter_does_not_come_is_ready_without(cell: Cell) -> None:
    await cell.verifier()
    nobody = f"127.0.0.1:{free_ports(1)[0]}"
    coordinator = await cell.coordinator(draft=(nobody,), warm_up_s=5.0, describe_deadline_s=0.2)
    await until(lambda: coordinator.cell.membership.ready)


@pytest.mark.parametrize(
    ("error", "said"),
    [
        (
            WarmUpFailed("there is no page for it"),
            "its first requests failed: there is no page for it",
        ),
        (ZeroDivisionError("a bug"), "is not understood"),
    ],
)
async def test_a_verifier_whose_first_requests_fail_is_not_taken_in_until_they_do_not(
    cell: Cell, monkeypatch: pytest.MonkeyPatch, error: Exception, said: str
) -> None:
    fails = True

    async def failing(verifier: VerifierClient) -> None:
        if fails:
            raise error

    before_warming(monkeypatch, failing)
    await cell.verifier(drafter=None)
    coordinator = await cell.coordinator(warm_up_s=LONG_S, flap_limit=0)
    (worker,) = coordinator.cell.membership.workers
    await until(lambda: said in worker.detail)
    assert worker.port is None
    assert not coordinator.cell.membership.lanes
    assert not coordinator.cell.membership.ready
    fails = False
    await until(lambda: coordinator.cell.membership.ready)
    states = (await cell.client(coordinator).status()).processes
    assert {each.name: each.state for each in states}["verify/0"] == "serving"


class _Odd(verify_pb2_grpc.VerifyServicer):
    """A verifier of no vocabulary."""

    streams = 0

    async def Describe(self, request: Any, context: Any) -> verify_pb2.VerifierDescription:
        return verify_pb2.VerifierDescription(
            incarnation=7, model="odd", fingerprint="odd", context_length=64
        )

    async def Control(
        self, orders: AsyncIterator[Any], context: Any
    ) -> AsyncIterator[verify_pb2.ControlUp]:
        self.streams += 1
        async for _ in orders:
            yield verify_pb2.ControlUp()


async def test_a_verifier_that_says_what_none_is_is_refused_by_the_field() -> None:
    odd = _Odd()
    async with (
        standing_in(verify_pb2_grpc.add_VerifyServicer_to_server, odd) as place,
        workers.coordinator(verify=(place,), warm_up_s=LONG_S) as coordinator,
    ):
        (worker,) = coordinator.cell.membership.workers
        await until(lambda: "vocab_size: 0, and at least 1 is wanted" in worker.detail)
        assert worker.port is None
        assert not odd.streams


async def test_a_worker_that_is_lost_again_and_again_before_it_serves_is_held_off(
    cell: Cell, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def lost(verifier: VerifierClient) -> None:
        if verifier.facts.name == "verify/1":
            verifier.close("it went away")
            raise WarmUpFailed("it went away")

    before_warming(monkeypatch, lost)
    for _ in range(2):
        await cell.verifier(drafter=None)
    coordinator = await cell.coordinator(warm_up_s=LONG_S, flap_limit=2)
    _, worker = coordinator.cell.membership.workers
    await until(lambda: worker.detail.startswith("lost too often; tried again in "))
    assert len(coordinator.cell.membership.lanes) == 1


async def test_answers_wait_for_the_verifier_that_is_about_to_serve(
    cell: Cell, monkeypatch: pytest.MonkeyPatch
) -> None:
    go = asyncio.Event()

    async def waits(verifier: VerifierClient) -> None:
        if verifier.facts.name == "verify/1":
            await go.wait()

    before_warming(monkeypatch, waits)
    options: Any = {"max_tokens": 60, "temperature": 0.0, "ignore_eos": True}
    first, _ = [await cell.verifier(drafter=None) for _ in range(2)]
    coordinator = await cell.coordinator([first], warm_up_s=LONG_S, verifier_wait_s=0.05)
    admission, looks = coordinator.cell.admission, 0
    warms = admission.verifier_warms

    def looked() -> bool:
        nonlocal looks
        looks += 1
        return warms()

    admission.verifier_warms = looked
    coordinator.cell.membership.announce(cell.addresses())
    await until(warms)
    client = cell.client(coordinator)
    whole = await client.complete([3, 4, 5], **options)
    stream = client.generate([3, 4, 5], **options)
    tokens = list((await anext(stream)).token_ids)
    await first.server._server.stop(None)
    await until(lambda: looks > 1)
    go.set()
    async for event in stream:
        tokens += event.token_ids
    assert tuple(tokens) == whole.token_ids


async def test_a_drafter_that_joins_drafts_first_for_nobody(cell: Cell) -> None:
    await cell.verifier()
    coordinator = await cell.coordinator(warm_up_s=LONG_S)
    assert coordinator.cell.membership.ready
    d = await cell.drafter()
    coordinator.cell.membership.announce(cell.addresses())
    await coordinator.cell.membership.settled()
    assert len(coordinator.cell.membership.drafters) == 1
    assert d.metrics.value("forward_seconds_count", kind="draft") > 0


async def test_a_coordinator_that_comes_back_finds_workers_that_have_run(cell: Cell) -> None:
    """Streams that resume wait for no first requests, and the cost curve is the measured one."""
    v = await cell.verifier(measure_cost=True, cost_max_tokens=8)
    await cell.drafter()
    first = await cell.coordinator(warm_up_s=LONG_S)
    assert first.cell.membership.lanes[0].facts.cost is not None
    await first.stop(0.0)
    run = v.metrics.value("forward_seconds_count", kind="verify")
    again = await cell.coordinator(warm_up_s=LONG_S)
    assert again.cell.membership.ready
    assert v.metrics.value("forward_seconds_count", kind="verify") == run
