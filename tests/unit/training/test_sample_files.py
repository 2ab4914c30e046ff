"""A file of samples that `dspark train encode` did not make is refused, and says what is wrong."""

from pathlib import Path

import pytest
import torch
from safetensors.torch import save_file
from torch import Tensor

from dspark.errors import ConfigError
from dspark.training.samples import Samples

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
