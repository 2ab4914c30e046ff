"""Files of samples: one that `dspark train encode` did not make is refused, and says what is wrong;
the tokens that a cut head keeps are those that the target wrote most, where it wrote them."""

import json
from pathlib import Path

import pytest
import torch
from safetensors.torch import save_file
from torch import Tensor

from dspark.cli.main import main
from dspark.errors import ConfigError
from dspark.training.samples import Sample, Samples, most_written, write_samples

TENSORS = {
    "ids": torch.tensor([5, 6, 7, 8], dtype=torch.int32),
    "supervised": torch.tensor([0, 1, 0, 1], dtype=torch.uint8),
    "offsets": torch.tensor([0, 2, 4]),
}
EMPTY = {name: tensor[:0] for name, tensor in TENSORS.items()}
ROUND = [0, 2**63 - 1, -2, 4]  # by steps that are all above 0 where they overflow
WRONG = ([], [0], [4], [0, 3, 2, 4], [0, 2, 2, 4], [0, 2, 5], [0, 2], [1, 4], ROUND)


def _ids(*ids: int) -> dict[str, Tensor]:
    return {"ids": torch.tensor(ids, dtype=torch.int32)}


def _offsets(*offsets: int) -> dict[str, Tensor]:
    return {"offsets": torch.tensor(offsets, dtype=torch.int64)}


@pytest.mark.parametrize(
    ("changed", "said"),
    [
        ({"ids": torch.zeros(2, 2, dtype=torch.int32)}, "ids is torch.int32 [2, 2], not a list"),
        ({"ids": torch.tensor([5.0, 6.0, 7.0, 8.0])}, "ids is torch.float32 [4], not a list"),
        (_ids(5, -6, 7, 8), "ids holds -6"),
        (_ids(), "supervised has 4 marks for 0 ids"),
        ({"supervised": torch.ones(3, dtype=torch.uint8)}, "supervised has 3 marks for 4 ids"),
        ({"supervised": torch.zeros(4, dtype=torch.uint8)}, "supervised marks no token"),
        ({"offsets": torch.tensor([0.0, 2.0, 4.0])}, "offsets is torch.float32 [3], not a list"),
        ({"offsets": torch.tensor(4)}, "offsets is torch.int64 [], not a list"),
        *((_offsets(*wrong), "offsets do not ascend from 0 to 4") for wrong in WRONG),
        *(
            (EMPTY | _offsets(*without_tokens), "offsets do not ascend from 0 to 0")
            for without_tokens in ([], [0], [0, 0])
        ),
    ],
)
def test_what_is_no_file_of_samples_is_told(
    changed: dict[str, Tensor], said: str, tmp_path: Path
) -> None:
    path = tmp_path / "samples.safetensors"
    save_file(TENSORS, path)
    assert [len(sample.ids) for sample in Samples(path)] == [2, 2]
    save_file(TENSORS | changed, path)
    with pytest.raises(ConfigError) as refused:
        Samples(path)
    assert str(refused.value).startswith(f"{path}: not a file of samples: {said}")


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
