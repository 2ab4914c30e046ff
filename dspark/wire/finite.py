"""Whether values that came are numbers, looked at as they travel: by their bits, without a copy of them. No torch."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

EXPONENT = {"bfloat16": 0x7F80, "float16": 0x7C00, "float32": 0x7F800000}  # all bits of it: infinity and NaN have them


def finite(dtype: str, bits: npt.NDArray[np.unsignedinteger]) -> bool:
    """Whether none of these is infinite or NaN; bits: unsigned integers of the dtype's size.

    As signed integers the positive ones of those are the largest there are, as unsigned ones the negative ones.
    """
    exponent, sign = EXPONENT[dtype], 1 << (8 * bits.itemsize - 1)
    signed = bits.view(f"<i{bits.itemsize}")
    return int(signed.max(initial=0)) < exponent and int(bits.max(initial=0)) < sign + exponent
