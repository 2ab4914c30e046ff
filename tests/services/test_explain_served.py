"""`Control.Explain` over a real cell: the rounds of a running request, told to operators while they are settled."""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from dspark.cli.explaining import line, shape
from dspark.cli.main import main
from dspark.client import AsyncClient, Client, InvalidRequest, LaneStatus, RoundExplanation
from dspark.errors import Denied
from dspark.runtime.identity import write_token
from tests.services.http_cell import HttpCell, synthetic_pair, until

pytestmark = pytest.mark.services


@pytest.fixture(scope="module")
def cell(tmp_path_factory: pytest.TempPathFactory) -> Iterator[HttpCell]:
    pair = synthetic_pair(tmp_path_factory.mktemp("pair"), step_ms=4.0)
    with HttpCell(pair, http=None, policy="fixed:2") as running:
        yield running


def test_a_running_request_is_explained_until_it_ends(cell: HttpCell) -> None:
    with Client(cell.coordinator.endpoint) as client:
        tokens: list[int] = []

        def answer() -> None:
            stream = client.generate([5, 6, 7], max_tokens=200, temperature=0.0, ignore_eos=True, request_id="mine")
            tokens.extend(token for event in stream for token in event.token_ids)

        asking = threading.Thread(target=answer)
        asking.start()
        until(lambda: cell.coordinator.admission.find("mine") is not None)
        rounds = list(client.explain("mine", timeout=60.0))
        asking.join()
    assert len(rounds) > 5
    for told in rounds:
        assert list(told.token_ids) == tokens[told.offset : told.offset + len(told.token_ids)]
        assert told.prefix <= 2
        assert told.policy == "fixed:2"
    assert rounds[-1].offset + len(rounds[-1].token_ids) == 200
    whole = next(told for told in rounds if told.prefix == 2)
    assert whole.why == "fixed"
    assert {slot.fate for slot in whole.slots} <= {"accepted", "rejected", "void", "unverified", "cut"}
    assert shape(whole)["why"] == "fixed"
    assert "verified 2" in line(whole)
    assert "the policy's number" in line(whole)
    until(lambda: not cell.coordinator.membership.explain.watched)


async def test_the_asyncio_client_explains_too(cell: HttpCell) -> None:
    async with AsyncClient(cell.coordinator.endpoint) as client:
        stream = client.generate([5, 6, 7], max_tokens=2000, temperature=0.0, ignore_eos=True, request_id="other")
        await anext(stream)
        told = [one async for one in client.explain("other", rounds=3, timeout=60.0)]
        assert [type(one) for one in told] == [RoundExplanation] * 3
        stream.close()
        with pytest.raises(InvalidRequest):
            _ = [one async for one in client.explain("nobody", timeout=10.0)]
        lane = (await client.status()).lanes[0]
        assert (type(lane), lane.verifier) == (LaneStatus, "verify/0")


def test_so_many_rounds_and_no_more(cell: HttpCell, capsys: pytest.CaptureFixture[str]) -> None:
    endpoint = cell.coordinator.endpoint
    with Client(endpoint) as client:
        stream = client.generate([5, 6, 7], max_tokens=2000, temperature=0.0, ignore_eos=True, request_id="long")
        next(stream)
        assert len(list(client.explain("long", rounds=3, timeout=60.0))) == 3
        assert main(["status", "--explain", "long", "--rounds", "2", "--json", "--endpoint", endpoint]) == 0
        assert client.abort(["long"]) == ("long",)
    told = [json.loads(text) for text in capsys.readouterr().out.splitlines() if text.startswith("{")]
    assert [each["policy"] for each in told] == ["fixed:2"] * 2


def test_a_request_that_does_not_run_is_not_explained(cell: HttpCell) -> None:
    with Client(cell.coordinator.endpoint) as client, pytest.raises(InvalidRequest, match="request_id"):
        list(client.explain("nobody", timeout=10.0))


def test_only_operators_may_ask(tmp_path: Path) -> None:
    _, operator, tenant = (write_token(tmp_path / name) for name in ("worker", "operator", "client"))
    files = {f"{role}_token_file": str(tmp_path / role) for role in ("operator", "client")}
    with HttpCell(workers=False, http=None, token_file=str(tmp_path / "worker"), **files) as guarded:
        endpoint = guarded.coordinator.endpoint
        with Client(endpoint, token=tenant) as client, pytest.raises(Denied):
            list(client.explain("mine", timeout=10.0))
        with Client(endpoint, token=operator) as client, pytest.raises(InvalidRequest, match="request_id"):
            list(client.explain("mine", timeout=10.0))
