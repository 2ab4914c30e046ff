"""The name of every draw that is made while a test looks on."""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any
from unittest import mock

import numpy as np

from dspark.decoding import gumbel, philox

Words = tuple[int, int, int, int]
Name = tuple[int, Words]  # key, counter


@contextmanager
def record(into: list[Name]) -> Iterator[None]:
    """Appends the draws of the process, from any thread, while the block runs."""
    one, many = philox.philox, philox.philox_array

    def told(counter: Words, key: tuple[int, int]) -> Words:
        into.append((key[0] | key[1] << 32, counter))
        return one(counter, key)

    def all_told(counter: Any, key: Any) -> Any:
        words = np.broadcast_arrays(key[0] | key[1] << np.uint64(32), *counter)
        names = zip(*(word.ravel().tolist() for word in words), strict=True)
        into.extend((seed, (a, b, c, d)) for seed, a, b, c, d in names)
        return many(counter, key)

    with (
        mock.patch.object(philox, "philox", told),
        mock.patch.object(philox, "philox_array", all_told),
        mock.patch.object(gumbel, "philox_array", all_told),
    ):
        yield
