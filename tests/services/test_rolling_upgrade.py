"""A drafter of another projection takes over under load: no answer fails, every lane has one."""

import shutil
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file

from tests.faults.streams import Stream, asking
from tests.services.cell import Cell
from tests.waiting import until

PROMPTS = ([3, 17, 42, 9], [8, 5], list(range(2, 20)), [64, 64, 64])
TOKENS = 48


@pytest.fixture
def newer_drafter(golden_drafter: Path, tmp_path: Path) -> Path:
    """The same drafter, trained on: its context projection is another one."""
    folder = tmp_path / "newer"
    shutil.copytree(golden_drafter, folder)
    weights = load_file(folder / "model.safetensors")
    weights["fc.weight"] = weights["fc.weight"] + 0.01 * torch.ones_like(weights["fc.weight"])
    save_file(weights, folder / "model.safetensors")
    return folder


async def test_another_projection_is_rolled_out_under_load(cell: Cell, newer_drafter: Path) -> None:
    for _ in range(2):
        await cell.verifier()
    await cell.drafter()
    coordinator = await cell.coordinator((), (), max_handovers=0, policy="fixed:3")
    membership = coordinator.cell.membership
    client = cell.client(coordinator)
    membership.announce(cell.addresses())
    await membership.settled()
    streams = [Stream(ids, {"max_tokens": TOKENS, "temperature": 0.0}) for ids in PROMPTS]
    async with asking(coordinator, streams) as asked:
        await more(asked)
        await cell.drafter(path=newer_drafter)
        membership.announce(cell.addresses())
        await membership.settled()
        (waiting,) = [each for each in (await client.status()).processes if each.name == "draft/1"]
        assert waiting.state == "connecting"
        assert "projection" in waiting.detail
        assert "both must load the same drafter" in waiting.detail
        for place, leaves in enumerate(cell.verifiers[:]):
            await leaves.stop(1.0)
            await cell.verifier(drafter=str(newer_drafter), bind=leaves.endpoint)
            cell.verifiers[place] = cell.verifiers.pop()
            await until(lambda: [bool(lane.drafters) for lane in membership.lanes] == [True] * 2)
            await more(asked)
        await cell.drafters[0].stop(1.0)
        membership.announce([each for each in cell.addresses() if each.name != "draft/0"])
        drafts = coordinator.metrics.value("spec_decode_num_drafts_total")
        await more(asked)
    assert coordinator.metrics.value("spec_decode_num_drafts_total") > drafts, (
        "the newer one drafts"
    )
    assert not [each.error for each in asked if each.error]
    told = {(tuple(each.prompt), tuple(each.ids)) for each in asked}
    assert len(told) == len(PROMPTS)
    assert {lane.drafters[0].facts.name for lane in membership.lanes} == {"draft/1"}
    assert coordinator.metrics.value("worker_losses_total", pool="verify") == 0, (
        "they said that they would leave"
    )


async def more(asked: list[Stream]) -> None:
    """Until a few more of these have ended."""
    wanted = sum(each.over for each in asked) + len(PROMPTS)
    await until(lambda: sum(each.over for each in asked) >= wanted)
