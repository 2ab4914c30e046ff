"""Infinities and NaN found by their bits, of every value that sixteen bits can be."""

import numpy as np
import pytest
import torch

from dspark.wire.finite import EXPONENT, finite

ALL = np.arange(1 << 16, dtype="<u4")


@pytest.mark.parametrize("dtype", EXPONENT)
def test_it_is_what_torch_says(dtype: str) -> None:
    wide = dtype == "float32"
    bits = ALL << 16 if wide else ALL.astype("<u2")
    values = torch.from_numpy(bits.view("<i4" if wide else "<i2").copy()).view(
        getattr(torch, dtype)
    )
    assert [finite(dtype, bits[at : at + 1]) for at in range(len(bits))] == torch.isfinite(
        values
    ).tolist()


def test_one_of_many_is_found_wherever_it_is_and_no_values_are_fine() -> None:
    bits = np.full(1000, 0x3F80, "<u2")
    assert finite("bfloat16", bits)
    for at, wrong in ((0, 0x7F80), (500, 0xFFC0), (999, 0xFF80)):
        spoilt = bits.copy()
        spoilt[at] = wrong
        assert not finite("bfloat16", spoilt)
    assert finite("bfloat16", bits[:0])
