"""A verifier's connections break, or the coordinator goes and comes back at its address, in the
middle of answers of every kind: they go on word for word."""

import json
import threading
from collections import Counter
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import jsonschema
import pytest
from tokenizers import Tokenizer

from deploy.head import free_ports
from dspark.client import Chunk, Completion
from tests.services.cell import Cell
from tests.services.http_cell import DRAFTER, TARGET
from tests.waiting import PATIENCE_S
from verify_service.batch_runner import ExecutedBatch, PreparedBatch
from verify_service.packed_runner import PackedRunner

OPTIONS: dict[str, Any] = {
    "max_tokens": 60,
    "ignore_eos": True,
    "policy": "fixed:3",
    "timeout": 60.0,
    "resume_s": 20.0,
}
WORDS = {"type": "array", "items": {"type": "string", "maxLength": 8}, "minItems": 6, "maxItems": 6}
FORM: dict[str, Any] = {
    "constraint": {"json_schema": WORDS},
    "n": 2,
    "max_tokens": 300,
    "ignore_eos": False,
}
ALL_PARAMS: dict[str, dict[str, Any]] = {
    "logprobs": {"temperature": 0.0, "logprobs": 3},
    "penalties": {
        "temperature": 0.0,
        "presence_penalty": 0.6,
        "frequency_penalty": 0.2,
        "repetition_penalty": 1.2,
    },
    "least length": {
        "temperature": 0.0,
        "min_tokens": 50,
        "ignore_eos": False,
        "logit_bias": {7: 3.0},
    },
    "several": {"temperature": 0.8, "seed": 5, "rule": "coupled", "n": 3, "top_k": 20},
    "in a form": {**FORM, "temperature": 0.0, "repetition_penalty": 1.2},
    "in a form, coupled": {**FORM, "temperature": 1.0, "seed": 11, "rule": "coupled"},
}
FAR = "coordinator of a front end"
CASES = [(lost, name) for lost in ("verifier", "coordinator") for name in ALL_PARAMS]
CASES += [(FAR, "logprobs"), (FAR, "several")]


@pytest.fixture
def place(tmp_path: Path) -> dict[str, str]:
    return {"bind": f"127.0.0.1:{free_ports(1)[0]}", "journal": str(tmp_path / "journal")}


@pytest.fixture
async def site(place: dict[str, str]) -> AsyncIterator[Cell]:
    """Two verifiers of the pair that has texts, and a coordinator with a journal."""
    async with Cell(TARGET, DRAFTER) as made:
        await made.whole(verifiers=2, **place)
        yield made


class Brake:
    """Lets verifiers begin no pass once `ENOUGH` tokens were drawn since `pull`, until `release`:
    answers are not over before somebody is lost, however late a client reads on a loaded
    machine."""

    ENOUGH = 24

    def __init__(self) -> None:
        self._off = threading.Event()
        self._drawn: dict[int, int] = {}  # by sequence
        self.release = self._off.set
        self.release()

    def pull(self) -> None:
        self._drawn.clear()
        self._off.clear()

    def before(self, batch: PreparedBatch[Any]) -> None:
        for state in batch.states:
            self._drawn[state.sequence] = len(state.token_ids) - state.prompt_len
        if sum(self._drawn.values()) >= self.ENOUGH:
            assert self._off.wait(PATIENCE_S)


@pytest.fixture
def brake(monkeypatch: pytest.MonkeyPatch) -> Brake:
    made, execute = Brake(), PackedRunner.execute

    def braked(runner: PackedRunner, batch: PreparedBatch[Any]) -> ExecutedBatch:
        made.before(batch)
        return execute(runner, batch)

    monkeypatch.setattr(PackedRunner, "execute", braked)
    return made


@pytest.mark.parametrize(("lost", "name"), CASES)
async def test_answers_go_on_word_for_word(
    site: Cell, place: dict[str, str], lost: str, name: str, brake: Brake
) -> None:
    options = {**OPTIONS, **ALL_PARAMS[name]}
    client = site.client(await site.frontend() if lost == FAR else site.serving)
    calm = await client.complete([5, 9, 17], **options)
    brake.pull()
    stream = client.generate([5, 9, 17], **options)
    events: list[Any] = []
    held, there = Counter[int](), True
    async for event in stream:
        events.append(event)
        if isinstance(event, Chunk):
            assert event.offset == held[event.index], "neither twice nor skipped"
            held[event.index] += len(event.token_ids)
        if there and held.total() >= 20:
            there = False
            # as when it is killed; see row 21 of docs/reliability.md for that
            if lost == "verifier":
                holder = max(site.verifiers, key=lambda each: each.engine.held.sequences)
                await holder.server._server.stop(None)
                brake.release()
            else:  # running streams end with UNAVAILABLE
                await site.serving.stop(0.0)
                brake.release()
                await site.coordinator(**place)
    for after, before in zip(Completion.of(events).choices, calm.choices, strict=True):
        assert (after.token_ids, after.finish_reason) == (before.token_ids, before.finish_reason)
        for told, other in zip(after.logprobs, before.logprobs, strict=True):
            assert [token for token, _ in told.top] == [token for token, _ in other.top]
            assert told.logprob == pytest.approx(other.logprob, abs=1e-4)
        if "constraint" in options:
            text = Tokenizer.from_file(str(TARGET / "tokenizer.json")).decode(after.token_ids)
            jsonschema.validate(json.loads(text), WORDS)
    value = site.serving.metrics.value
    if lost == "verifier":
        assert value("handovers_total", reason="lost") >= 1
        assert stream.resumed == 0, "the coordinator mends it, not the client"
    else:
        assert stream.resumed >= 1
        assert value("prefills_total", reason="resumed") >= 1
