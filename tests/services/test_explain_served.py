"""`Control.Explain` over a real cell: rounds of a running request, told as they are settled."""

import json
import math
from typing import Any

import pytest

from coordinator.watching.answer_log import AnswerLog
from dspark.cli.main import main
from dspark.cli.status import line, lines, shape
from dspark.client import (
    AsyncClient,
    Client,
    EndedAnswer,
    InvalidRequest,
    LaneStatus,
    RoundExplanation,
)
from dspark.client.fields import copied
from dspark.runtime.telemetry import Metrics
from dspark.wire.v1 import control_pb2
from tests.services.http_cell import HttpCell, explained, of_module, slowly
from tests.waiting import wait_until

PROMPT = [5, 6, 7]
GREEDY: Any = {"temperature": 0.0, "ignore_eos": True}


cell = of_module(slowly, http=None, policy="fixed:2")


def test_a_running_request_is_explained_until_it_ends(cell: HttpCell) -> None:
    rounds, answer = explained(cell, "mine", prompt=PROMPT, max_tokens=200, ignore_eos=True)
    assert len(rounds) > 5
    for told in rounds:
        assert told.token_ids == answer.token_ids[told.offset :][: len(told.token_ids)]
        assert told.prefix <= 2
        assert told.policy == "fixed:2"
    assert rounds[-1].offset + len(rounds[-1].token_ids) == 200
    whole = next(told for told in rounds if told.prefix == 2)
    assert whole.why == "fixed"
    fates = {"accepted", "rejected", "void", "unverified", "cut"}
    assert {slot.fate for slot in whole.slots} <= fates
    assert shape(whole)["why"] == "fixed"
    assert "verified 2" in line(whole)
    assert "the policy's number" in line(whole)
    wait_until(lambda: not cell.coordinator.cell.membership.explain.watches)


async def test_the_asyncio_client_explains_too(cell: HttpCell) -> None:
    async with AsyncClient(cell.coordinator.endpoint) as client:
        stream = client.generate(PROMPT, max_tokens=2000, request_id="other", **GREEDY)
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
        stream = client.generate(PROMPT, max_tokens=2000, request_id="long", **GREEDY)
        next(stream)
        assert len(list(client.explain("long", rounds=3, timeout=60.0))) == 3
        words = ["status", "--explain", "long", "--rounds", "2", "--json", "--endpoint", endpoint]
        assert main(words) == 0
        assert client.abort("long") == ("long",), "a text is one id"
    told = [text for text in capsys.readouterr().out.splitlines() if text.startswith("{")]
    assert [json.loads(text)["policy"] for text in told] == ["fixed:2"] * 2


def test_an_answer_that_ended_is_still_known(
    cell: HttpCell, capsys: pytest.CaptureFixture[str]
) -> None:
    endpoint = cell.coordinator.endpoint
    with Client(endpoint) as client:
        answer = client.complete(PROMPT, max_tokens=40, request_id="done", n=2, **GREEDY)
        one, two = client.ended("done")
        assert ((one.index, two.index), one.outcome, one.error) == ((0, 1), "length", "")
        assert (one.prompt_tokens, one.completion_tokens) == (3, 40)
        assert (one.policy, one.verifier, one.drafter) == ("fixed:2", "verify/0", "draft/0")
        assert 0 < one.ttft_ms <= one.total_ms
        assert sum(one.verified_histogram) == sum(one.accepted_histogram) > 0
        counts = [pair for each in (one, two) for pair in enumerate(each.accepted_histogram)]
        assert sum(map(math.prod, counts)) == answer.end.speculation.accepted_tokens
        assert client.ended(most=1)[0].request_id == "done", "the newest first"
        assert client.ended("nobody") == ()
        for tokens, answers in ((2, 3), (3, 2)):
            client.complete(PROMPT, max_tokens=tokens, request_id="again", n=answers, **GREEDY)
        told = [(one.index, one.completion_tokens) for one in client.ended("again")]
        assert told == [(0, 3), (1, 3)]
    capsys.readouterr()
    assert main(["status", "--explain", "done", "--endpoint", endpoint]) == 0
    said = capsys.readouterr().out
    assert "done ended: length" in said
    assert "done answer 1 ended: length" in said
    assert main(["status", "--explain", "done", "--json", "--endpoint", endpoint]) == 0
    rows = capsys.readouterr().out.splitlines()
    assert [json.loads(row)["outcome"] for row in rows] == ["length"] * 2
    assert main(["status", "--explain", "nobody", "--endpoint", endpoint]) == 1
    assert "nor any of the last that ended" in capsys.readouterr().err


def test_a_request_that_had_no_token_is_told_without_a_first_one() -> None:
    told = control_pb2.EndedAnswer(request_id="a", outcome="overloaded", queue_ms=974.6)
    said = lines(copied(EndedAnswer, told))
    assert "no token (974.6 ms queued)" in said
    assert "first token" not in said


def test_only_so_many_ended_answers_are_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("coordinator.watching.answer_log.KEPT", 3)
    endings = AnswerLog(Metrics())
    endings._ring.extend((0.0, control_pb2.EndedAnswer(request_id=name)) for name in "aabb")
    assert [each.request_id for each in endings.last(9)] == ["b", "b", "a"]
    assert len(endings.of("b")) == 2
