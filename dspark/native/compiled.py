"""The compiled kernels for CPUs, where the installation could build them.

They serve one torch thread in fp32: with more, torch's own operations share the work and are used instead. A library
counts only if it was built from sources with the same interface.
"""

from __future__ import annotations

import ctypes
import functools
from importlib.machinery import EXTENSION_SUFFIXES
from pathlib import Path

import torch

P, I32, F32 = ctypes.c_void_p, ctypes.c_int32, ctypes.c_float

_INTERFACE = 1  # what `dspark_interface` says

_ARGUMENTS: dict[str, tuple[list[type], type | None]] = {
    "dspark_attend": ([*[P] * 9, F32], ctypes.c_int),
    "dspark_norm": ([P, P, P, I32, I32, F32], None),
    "dspark_gate": ([P, P, I32, I32], None),
    "dspark_turn": ([P, P, P, P, I32, I32, I32, ctypes.c_int64, F32], None),
    "dspark_spread": ([*[P] * 10, F32], ctypes.c_int),
}


def kernels(threads: int | None = None) -> ctypes.CDLL | None:
    """Their functions by name; None where they were not built, or where several threads share the work."""
    return _built() if (torch.get_num_threads() if threads is None else threads) == 1 else None


@functools.cache
def _built() -> ctypes.CDLL | None:
    for suffix in EXTENSION_SUFFIXES:
        path = Path(__file__).with_name(f"_kernels{suffix}")
        if path.exists():
            try:
                found = ctypes.CDLL(str(path))
                if found.dspark_interface() != _INTERFACE:
                    return None
                for name, (arguments, result) in _ARGUMENTS.items():
                    function = getattr(found, name)
                    function.argtypes, function.restype = arguments, result
            except (OSError, AttributeError):  # built for another machine, or from other sources
                return None
            return found
    return None
