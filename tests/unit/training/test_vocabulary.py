"""The tokens a cut head keeps: those the target wrote most, counted where it wrote them."""

import json
from pathlib import Path

import pytest
import torch

from dspark.cli.main import main
from dspark.errors import ConfigError
from dspark.training.samples import Sample, most_written, write_samples


@pytest.fixture
def samples(tmp_path: Path) -> Path:
    path = tmp_path / "samples.safetensors"
    rows = [([9, 9, 9, 9, 3, 5, 3], [0, 0, 0, 0, 1, 1, 1]), ([9, 5, 7, 3], [0, 1, 1, 1])]
    write_samples(
        path,
        (Sample(torch.tensor(ids), torch.tensor(marks, dtype=torch.bool)) for ids, marks in rows),
    )
    return path


def test_what_the_target_only_read_does_not_count(samples: Path, tmp_path: Path) -> None:
    said = most_written(samples, 2, tmp_path / "kept.json")
    assert json.loads((tmp_path / "kept.json").read_text()) == [3, 5]
    assert (said["of"], said["share_of_text"]) == (3, pytest.approx(5 / 6, abs=1e-6))


@pytest.mark.parametrize("count", [0, 4])
def test_more_tokens_than_there_are_is_said(samples: Path, tmp_path: Path, count: int) -> None:
    with pytest.raises(ConfigError, match=f"tokens: {count} is not from 1 to 3"):
        most_written(samples, count, tmp_path / "kept.json")


def test_the_command_writes_ids_and_tells_their_share(
    samples: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    kept = tmp_path / "kept.json"
    assert main(f"train vocabulary {samples} --tokens 3 --out {kept} --json".split()) == 0
    assert json.loads(capsys.readouterr().out)["share_of_text"] == 1.0
    assert json.loads(kept.read_text()) == [3, 5, 7]
