"""Synthetic workers behind real services, fed by a real coordinator."""

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest
import structlog

from draft_service import process as draft_process
from draft_service.config import DraftConfig
from dspark.errors import ConfigError, Unsupported
from dspark.runtime import worker
from tests.commands import python
from tests.services.cell import Cell
from tests.synthetic_file import synthetic_file
from verify_service import process as verify_process
from verify_service.config import VerifyConfig

ACCEPT = {"easy": [0.9, 0.9, 0.9, 0.9], "hard": [0.4, 0.3, 0.3, 0.2]}


@pytest.fixture
def pair(tmp_path: Path) -> str:
    curves = {
        "verify": {"tokens": [1, 64], "ms": [0.3, 1.0]},
        "draft": {"sequences": [1, 16], "ms": [0.1, 0.2]},
    }
    return synthetic_file(tmp_path, ACCEPT, concentration=1.0, **curves)


@pytest.fixture
async def cell(pair: str) -> AsyncIterator[Cell]:
    # Steps of a millisecond: on a crowded machine drafts do not pay, and a lane that may would go
    # without.
    async with Cell(pair=pair) as made:
        await made.whole(bypass=False)
        yield made
        await made.freed()


async def test_the_lane_knows_the_cost_curves_of_the_file(cell: Cell) -> None:
    (lane,) = cell.serving.cell.membership.lanes
    tokens, contexts, seconds = lane.facts.cost.grid()
    assert (tokens, contexts) == ([1, 64], [0])
    assert seconds == pytest.approx([0.0003, 0.001])
    assert lane.drafters[0].facts.cost is not None


@pytest.mark.parametrize("name", ["logprobs", "prompt_logprobs"])
async def test_what_a_synthetic_target_has_not_is_refused_by_name(cell: Cell, name: str) -> None:
    asked: Any = {"max_tokens": 4, name: 1}
    with pytest.raises(Unsupported, match=f"sampling_params.{name}: a synthetic"):
        await cell.client(cell.serving).complete([1, 5, 6, 7], **asked)


async def test_acceptance_over_the_wire_follows_the_domains(cell: Cell) -> None:
    client = cell.client(cell.serving)
    options: Any = {"max_tokens": 60, "policy": "fixed:4", "temperature": 1.0, "rule": "block"}
    asked = (client.complete([n, 5, 6, 7], seed=n, **options) for n in range(16))
    drafted = await asyncio.gather(*asked)
    easy, hard = ([one.end.speculation for one in drafted[domain::2]] for domain in (0, 1))
    for said, accept in ((easy, 0.9), (hard, 0.4)):
        first = sum(sum(one.acceptance_histogram[1:]) for one in said) / sum(
            sum(one.verified_histogram[1:]) for one in said
        )
        assert abs(first - accept) < 0.1


@pytest.mark.parametrize(
    ("config", "message"),
    [
        (
            VerifyConfig(engine="synthetic"),
            "verify.synthetic: required with the synthetic engine and not given",
        ),
        (VerifyConfig(engine="pretend"), "verify.engine: 'pretend' is none of real, synthetic"),
        (
            VerifyConfig(target="x", synthetic="y"),
            "verify.synthetic: of use with `engine: synthetic` only",
        ),
        (
            VerifyConfig(engine="synthetic", synthetic="y", tensor_parallel_size=2),
            "verify.tensor_parallel_size: a synthetic engine has nothing to divide",
        ),
    ],
)
async def test_settings_that_cannot_work_are_named(config: VerifyConfig, message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        await verify_process.start(config)


@pytest.mark.parametrize(
    ("start", "made", "served"),
    [(verify_process.start, VerifyConfig, "a/target"), (draft_process.start, DraftConfig, "a/d")],
)
async def test_a_worker_says_which_model_it_serves(
    pair: str, start: Any, made: Any, served: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    # one that no test before this one has configured
    monkeypatch.setattr(worker, "log", structlog.get_logger())
    models = {"target": "a/target", "drafter": "a/d"}
    config = made(engine="synthetic", synthetic=pair, metrics_port=None, **models)
    with structlog.testing.capture_logs() as lines:
        await (await start(config)).stop(0.0)
    assert [line["model"] for line in lines if "model" in line] == [served]


ALONE = """
import asyncio, sys
from tests.services.workers import drafter, simulated, verifier

async def main(**pair):
    async with verifier(**pair), drafter(**pair):
        pass

asyncio.run(main(**simulated(sys.argv[1])))
print([name for name in ("torch", "transformers") if name in sys.modules])
"""


def test_a_synthetic_worker_never_loads_torch(pair: str) -> None:
    assert python(ALONE, pair).splitlines()[-1] == "[]"
