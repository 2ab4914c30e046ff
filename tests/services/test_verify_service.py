"""A verifier over loopback: what it says of itself, caches of each request, scarce pages."""

from pathlib import Path
from typing import Any

import pytest
import torch

from dspark.rounds.events import Why
from dspark.rounds.plan import PlanKind
from dspark.runtime.channel import open_channel
from dspark.types import SamplingParams
from dspark.wire.v1 import types_pb2, verify_pb2_grpc
from tests.conductor import conducting, planned
from tests.faults.oracle import plain_greedy
from tests.services.cell import Cell

GREEDY = SamplingParams(temperature=0.0)
PROMPT = [3, 17, 90, 41, 5, 66, 12, 101, 33, 8, 77]


async def described(process: Any) -> Any:
    async with open_channel(process.endpoint) as channel:
        return await verify_pb2_grpc.VerifyStub(channel).Describe(types_pb2.DescribeRequest())


async def test_per_request_caches_give_the_same_tokens(cell: Cell, golden_target: Path) -> None:
    (expected,) = plain_greedy(golden_target, [PROMPT], 40)
    v = await cell.verifier(attention="stateful", prefill_chunk=4)
    said = await described(v)
    assert said.attention_path == "stateful"
    assert said.attention_reason == "asked for by configuration"
    async with conducting(v, planned(PlanKind.FIXED, 3)) as conductor:
        conductor.know(1, await cell.drafter())
        asked = [conductor.ask(PROMPT, GREEDY, 40, drafter=1) for _ in range(2)]
        assert await conductor.tokens(*asked) == [expected, expected]
        assert sum(each.verified for answer in asked for each in answer.rounds) > 0


class _Forgiving(list[Any]):
    """Remembers no refusal."""

    def append(self, refused: Any) -> None:
        pass


async def test_pages_run_out_and_the_youngest_begin_again(cell: Cell, golden_target: Path) -> None:
    prompts = [PROMPT[number:] for number in range(5)]
    v = await cell.verifier(kv_tokens=256)
    async with conducting(v, planned(PlanKind.FIXED, 3, window=2)) as conductor:
        conductor.know(1, await cell.drafter())
        asked = [conductor.ask(prompt, GREEDY, 60, drafter=1) for prompt in prompts]
        for answer in asked:  # whose prompt found no page comes again
            answer.refused = _Forgiving()
        assert await conductor.tokens(*asked) == plain_greedy(golden_target, prompts, 60)
        assert any(each.why is Why.OUT_OF_PAGES for each in conductor.released)


async def test_what_it_says_of_itself_and_the_stored_cost_curve(cell: Cell) -> None:
    settings = {"measure_cost": True, "cost_max_tokens": 4, "kv_tokens": 4096}
    v = await cell.verifier(**settings)
    said = await described(v)
    assert (said.incarnation, said.vocab_size, said.hidden_size) == (v.incarnation, 128, 64)
    assert (said.attention_path, said.dtype) == ("paged", "float32")
    assert said.feature_dtype == "bfloat16"
    assert list(said.stop_token_ids) == [1]
    assert len(said.fingerprint) == 16
    assert said.projection.startswith("dspark:0,1,2,3,4:")
    measured = said.cost
    assert said.cost.source == "measured"
    assert (list(measured.tokens), list(measured.contexts)) == ([1, 2, 3, 4], [128])
    assert v.engine.held.pages_held == 0, "what was held for timing is given back"
    said = await described(await cell.verifier(**settings))
    assert said.cost.source == "stored"
    assert said.cost.seconds == measured.seconds


@pytest.mark.parametrize("said", [{"threads": 2}, {}])
async def test_several_threads_are_those_of_passes_alone(
    cell: Cell, monkeypatch: pytest.MonkeyPatch, said: dict[str, int]
) -> None:
    # what counts where no setting says it
    monkeypatch.setenv("OMP_NUM_THREADS", "1" if said else "2")
    v = await cell.verifier(**said)
    assert await v.passes.run(torch.get_num_threads) == 2
    assert await v.device.run(torch.get_num_threads) == 1
    d = await cell.drafter(**said)
    assert await d.device.run(torch.get_num_threads) == 2
