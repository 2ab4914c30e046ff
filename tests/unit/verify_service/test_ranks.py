"""What rank 0 tells the others of a pass and hears of their end, which devices and targets ranks
are refused, and what a slot takes of each."""

import itertools
import json
import os
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch

from dspark.errors import CheckpointError, ConfigError
from dspark.pages import numbers_of
from tests.architectures.families import FAMILIES, model_of
from tests.waiting import came
from verify_service import loading, ranks
from verify_service.config import VerifyConfig
from verify_service.plan import Segment
from verify_service.ranks import (
    KEY,
    Ranks,
    check_devices,
    check_plan,
    read_pass,
    refusal,
    write_pass,
)

# a rank, and no other one
ALONE = """
import sys
from verify_service import rank, ranks
ranks.join = lambda *_: None
sys.exit(rank.main(sys.argv[1:]))
"""
SEGMENTS = {
    "a prompt in a run of slots": Segment("one", 0, [5, 6, 7], range(32, 35), 3),
    "a draft on scattered slots": Segment("two", 4, [9, 8], np.array([7, 6, 90, 91, 3, 0]), 4),
    "a token": Segment("three", 1, [0], [70, 2]),
}


def spelled(segments: Sequence[Segment]) -> list[tuple[Any, ...]]:
    """All of segments but their keys."""
    return [
        (s.start, list(s.token_ids), type(s.slots) is range, numbers_of(s.slots).tolist(), s.prompt)
        for s in segments
    ]


@pytest.mark.parametrize("rows", [None, [], [0], [5, 0, 3]], ids=str)
@pytest.mark.parametrize("count", [1, 2, 3])
def test_another_rank_reads_the_pass_that_rank_0_runs(count: int, rows: list[int] | None) -> None:
    for chosen in itertools.permutations(SEGMENTS.values(), count):
        order = read_pass(write_pass(chosen, rows))
        assert spelled(order.segments) == spelled(chosen)
        assert len({segment.key for segment in order.segments}) == count
        assert order.rows == rows


@pytest.mark.parametrize(
    ("device", "cards", "problem"),
    [
        ("cuda:1", 4, "verify.device: cuda:1 is one card, and verify.tensor_parallel_size is 3"),
        ("auto", 2, "verify.tensor_parallel_size: 3 ranks need a card each, and there are 2"),
        ("cpu", 4, "verify.tensor_parallel_size: with device cpu only where there is no card"),
        ("cuda", 3, None),
        ("cpu", 0, None),
    ],
)
def test_each_rank_needs_a_device_of_its_own(
    device: str, cards: int, problem: str | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: cards > 0)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: cards)
    config = VerifyConfig(target="any", device=device, tensor_parallel_size=3)
    if problem is None:
        check_devices(config)
    else:
        with pytest.raises(ConfigError, match=f"^{problem}$"):
            check_devices(config)


@pytest.mark.parametrize(
    ("settings", "size", "problem"),
    [
        (
            {"num_attention_heads": 9, "num_key_value_heads": 3},
            2,
            "2 does not divide the target's 9 num_attention_heads",
        ),
        (
            {"num_attention_heads": 8, "num_key_value_heads": 2},
            4,
            "4 does not divide the target's 2 num_key_value_heads",
        ),
        (
            {"model_type": "gpt2", "text_config": {"num_attention_heads": 5}},
            2,
            "2 does not divide the target's 5 num_attention_heads",
        ),
        (
            {"model_type": "gpt2"},
            2,
            "the library has no plan that divides a target of type gpt2",
        ),
        (
            {"model_type": "gpt_oss", "num_attention_heads": 8, "num_key_value_heads": 2},
            2,
            "the library has no plan that divides a target of type gpt_oss",
        ),
        ({"model_type": "llama"}, 2, None),
        ({"num_attention_heads": 9, "num_key_value_heads": 3}, 3, None),
        ({"num_attention_heads": 8, "num_key_value_heads": None}, 2, None),
    ],
)
def test_a_target_is_divided_evenly(
    settings: dict[str, Any], size: int, problem: str | None, tmp_path: Path
) -> None:
    (tmp_path / "config.json").write_text(json.dumps(settings))
    config = VerifyConfig(target=str(tmp_path), tensor_parallel_size=size)
    if problem is None:
        check_plan(config)
    else:
        with pytest.raises(ConfigError, match=f"^verify.tensor_parallel_size: {problem}$"):
            check_plan(config)


@pytest.mark.parametrize(
    ("family", "device", "part"),
    [("llama", "cuda", 2), ("llama", "cpu", 1), ("olmo2", "cuda", 1), ("olmo2", "cpu", 0.5)],
)
def test_a_slot_takes_what_its_rank_keeps_of_it(family: str, device: str, part: float) -> None:
    """OLMo 2 normalises the keys of all heads together, so every rank has all of them."""
    target: Any = SimpleNamespace(model=model_of(FAMILIES[family]))

    def each(size: int) -> int:
        config = VerifyConfig(target="t", tensor_parallel_size=size)
        taken = loading._slot_bytes(config, target, torch.device(device), torch.float32)
        assert taken
        return taken

    assert each(1) == 4 * 2 * 2 * 16 * 4, "layers, keys and values, heads, their size, bytes"
    assert each(2) == each(1) / part


@pytest.fixture
def others(request: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Ranks:
    """One other rank: a program of the shell, which meets nobody."""
    program = tmp_path / "rank"
    program.write_text(f"#!/bin/sh\n{request.param}\n")
    program.chmod(0o700)
    monkeypatch.setattr(ranks.sys, "executable", str(program))
    for name in ("check_devices", "check_plan", "join"):
        monkeypatch.setattr(ranks, name, lambda *_: None)
    monkeypatch.setattr(ranks, "EXCHANGE_S", 0.2)
    return Ranks(VerifyConfig(target="t", tensor_parallel_size=2))


@pytest.mark.parametrize("others", ["exec sleep 60"], indirect=True)
def test_a_rank_that_hangs_is_not_waited_for_longer_than_in_a_pass(
    others: Ranks, monkeypatch: pytest.MonkeyPatch
) -> None:
    ended: list[int] = []
    monkeypatch.setattr(ranks.os, "_exit", ended.append)
    monkeypatch.setattr(ranks, "NOTICE_S", 0.1)
    others.start()
    with pytest.raises(TimeoutError):
        others.fill(range(1 << 20))  # more than waits on the way
    assert ended == [1]
    others.close()


@pytest.mark.parametrize(
    ("others", "refused", "said"),
    [
        (
            "head -c 1 >/dev/null; kill -9 $$",
            "",
            f"{KEY}: rank 1 ended with -9; its own lines say more",
        ),
        (
            "head -c 1 >/dev/null; exit 1",
            "verify.kv_tokens: 9 would fit",
            "verify.kv_tokens: 9 would fit",
        ),
    ],
    indirect=["others"],
)
def test_what_a_rank_that_ended_has_broken_is_not_taken_for_the_reason(
    others: Ranks, refused: str, said: str
) -> None:
    def load() -> None:
        with others.loading():
            if refused:
                refusal(Path(others._folder.name), 1).write_text(refused)
            assert came(lambda: others._ended.is_set())
            raise CheckpointError("not eligible as a target: connection reset")

    with pytest.raises(ConfigError, match=f"^{said}$"):
        load()


@pytest.mark.parametrize("others", ["read end"], indirect=True)
def test_a_target_that_rank_0_refuses_is_refused_with_its_reason(others: Ranks) -> None:
    with pytest.raises(CheckpointError, match=r"^of another width$"), others.loading():
        raise CheckpointError("of another width")


@pytest.mark.parametrize("others", ["exec cat >/dev/null"], indirect=True)
def test_a_process_that_is_stopped_while_it_loads_ends_its_ranks_before_python_ends(
    others: Ranks, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Else its loading thread is inside torch when Python is gone, which aborts the process."""
    last: list[Any] = []
    monkeypatch.setattr(ranks.atexit, "register", last.append)
    others.start()
    assert not others._ended.wait(0.1)
    for each in last:
        each()
    assert came(lambda: others._codes == {1: 0})


def test_a_rank_that_cannot_serve_its_part_leaves_the_reason(tmp_path: Path) -> None:
    told = {"config": {"target": str(tmp_path / "none"), "tensor_parallel_size": 1}}
    frame = json.dumps({**told, "folder": str(tmp_path)}).encode()
    ended = subprocess.run(
        [sys.executable, "-c", ALONE, "0", str(os.getpid())],
        input=len(frame).to_bytes(8, "little") + frame,
        capture_output=True,
        timeout=60,
    )
    said = refusal(tmp_path, 0).read_text()
    assert "no such folder" in said
    assert (ended.returncode, ended.stderr.decode().splitlines()[-1]) == (1, f"rank 0: {said}")
