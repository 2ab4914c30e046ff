"""Training and regeneration as processes that are killed outright and started again."""

import json
import random
import time
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file

from deploy.processes import ProcessCell
from dspark.cli.main import main
from dspark.training.disk import read_rows
from dspark.training.record import StepLog
from tests.commands import dspark, forked
from tests.unit.training.pipeline import random_samples

pytestmark = pytest.mark.timeout(1200)

PATIENCE_S = 600.0


def _kill_when(words: list[str], happened: Callable[[], bool], said: Path) -> bool:
    """Runs the command in a process and kills it as soon as something has happened; False when it
    ended before that. said: file for its output."""
    process = forked("train", *words, said=said)
    deadline = time.monotonic() + PATIENCE_S
    try:
        while process.is_alive() and not happened():
            assert time.monotonic() < deadline, "nothing happened"
            time.sleep(0.002)
        alive = process.is_alive()
    finally:
        process.kill()
        process.join(timeout=30)
    assert alive or process.exitcode == 0, said.read_text()
    return alive


@pytest.fixture(scope="module")
def samples(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return random_samples(tmp_path_factory.mktemp("samples") / "samples.safetensors", 24)


@pytest.mark.parametrize("family", ["dspark", pytest.param("eagle3", marks=pytest.mark.slow)])
def test_training_resumed_after_kills_at_random_steps_writes_the_same_curve(
    family: str, samples: Path, golden_target: Path, tmp_path: Path
) -> None:
    files = ("drafter", str(samples), "--target", str(golden_target), "--family", family)
    shape = "--layers 1 --steps 14 --batch 4 --anchors 4 --markov-rank 4 --held-out 2"
    how = "--log-every 1 --evaluate-every 2 --save-every 2 --precision fp32 --device cpu"

    def words(out: Path) -> list[str]:
        return [*files, *shape.split(), *how.split(), "--out", str(out)]

    whole, parts = tmp_path / "whole", tmp_path / "parts"
    assert main(["train", *words(whole)]) == 0
    rng = random.Random(family)

    def lines() -> int:
        try:
            return (parts / "log.csv").read_bytes().count(b"\n")
        except FileNotFoundError:
            # not yet, or a run that begins anew has just removed the one before
            return 0

    kills = 0
    for _ in range(2):
        wanted = lines() + rng.randrange(2, 6)
        kills += _kill_when(
            words(parts),
            lambda wanted=wanted: lines() >= wanted,  # type: ignore[misc]
            tmp_path / "said",
        )
    assert kills == 2
    dspark("train", *words(parts), within_s=PATIENCE_S)
    curve, again = (StepLog(folder / "log.csv").read() for folder in (whole, parts))
    for columns in (curve, again):
        del columns["seconds"]
    assert len(curve["step"]) == 14
    assert {name: list(map(repr, values)) for name, values in curve.items()} == {
        name: list(map(repr, values)) for name, values in again.items()
    }
    ends = [load_file(folder / "drafter" / "model.safetensors") for folder in (whole, parts)]
    assert all(torch.equal(tensor, ends[1][name]) for name, tensor in ends[0].items())


@pytest.mark.parametrize(
    "kills",
    [pytest.param(3, id="3 kills"), pytest.param(20, id="20 kills", marks=pytest.mark.slow)],
)
def test_regeneration_killed_and_resumed_has_every_row_once_and_in_order(
    kills: int, cell: ProcessCell, golden_target: Path, tmp_path: Path
) -> None:
    rng, rows = random.Random(kills), 40 + 12 * kills
    prompts = tmp_path / "prompts.jsonl"
    with prompts.open("w", encoding="utf-8") as file:
        for number in range(rows):
            ids = [rng.randrange(2, 128) for _ in range(rng.randrange(3, 12))]
            turns = [{"role": "user", "content": "", "token_ids": ids}]
            file.write(json.dumps({"id": f"row {number}", "conversations": turns}) + "\n")

    def words(out: Path) -> list[str]:
        told = ["regenerate", str(prompts), "--target", str(golden_target), "--out", str(out)]
        return [*told, "--endpoint", cell.endpoint, "--max-tokens", "12", "--concurrency", "4"]

    whole, parts = tmp_path / "whole.jsonl", tmp_path / "parts.jsonl"
    assert main(["train", *words(whole)]) == 0

    def size() -> int:
        return parts.stat().st_size if parts.exists() else 0

    step = whole.stat().st_size // (kills + 1)
    for _ in range(kills):
        wanted = size() + rng.randrange(1, step)
        assert _kill_when(
            words(parts),
            lambda wanted=wanted: size() >= wanted,  # type: ignore[misc]
            tmp_path / "said",
        )
    dspark("train", *words(parts), within_s=PATIENCE_S)
    assert [row["id"] for row in read_rows(parts)] == [f"row {number}" for number in range(rows)]
    assert parts.read_bytes() == whole.read_bytes()
