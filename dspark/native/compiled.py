"""Loads the compiled kernels for CPUs, where the installation built them.

They take fp32. A library is used only if it was built from sources with the same interface.
"""

from __future__ import annotations

import ctypes
import functools
import os
from importlib.machinery import EXTENSION_SUFFIXES
from pathlib import Path

import torch

P, F32 = ctypes.c_void_p, ctypes.c_float

_INTERFACE = 10  # what `dspark_interface` returns

_ARGUMENTS: dict[str, tuple[list[type], type | None]] = {
    "dspark_attend": ([*[P] * 9, F32, P, ctypes.c_int], ctypes.c_int),
    "dspark_attend_most": ([], ctypes.c_int),
}


@functools.cache
def kernels() -> ctypes.CDLL | None:
    """The library; None if it is absent, of another interface or cannot be loaded."""
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


@functools.cache
def parallel() -> int | None:
    """Address of `GOMP_parallel`, which runs a function on torch's own threads, as torch itself
    finds it: in a library that the process preloaded, or in the runtime that torch is linked with.
    None if torch uses another runtime."""
    library = Path(torch.__file__).with_name("lib") / "libtorch_cpu.so"
    for name in (None, str(library)):
        try:
            found = ctypes.CDLL(name, mode=os.RTLD_NOLOAD | os.RTLD_NOW)
            return ctypes.cast(found.GOMP_parallel, P).value
        except (OSError, AttributeError):
            continue
    return None
