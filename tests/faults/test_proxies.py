"""Connections between real processes that are cut."""

from typing import Any

from tests.faults.processes import FaultCell


def test_a_cell_whose_drafter_s_connections_are_cut_answers_the_same() -> None:
    with FaultCell(between="tcp") as cell, cell.client() as client:
        options: dict[str, Any] = {
            "max_tokens": 64,
            "seed": 1,
            "ignore_eos": True,
            "policy": "fixed:3",
        }
        options |= {"rule": "coupled", "timeout": 60.0}
        calm = client.complete([5, 9, 17, 33], **options).token_ids
        ids, taken = list[int](), cell.proxies["draft/0"].taken
        for event in client.generate([5, 9, 17, 33], **options):
            ids += event.token_ids
            if len(ids) in range(9, 30):
                cell.proxies["draft/0"].cut()
        assert tuple(ids) == calm
        assert cell.proxies["draft/0"].taken > taken, "they are made again"
