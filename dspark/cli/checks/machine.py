"""Checks of this machine: versions, device, limits, ports. Nothing is changed: a port is bound and
released."""

from __future__ import annotations

import contextlib
import os
import platform
import resource
import shutil
from collections.abc import Iterator
from importlib import metadata
from pathlib import Path

from dspark.cli import extras
from dspark.cli.checks.finding import Finding, Level
from dspark.errors import DsparkError

LEAST_FILES = 4096  # open files: a coordinator holds one socket per client
LEAST_SHARED_MEMORY = 100_000_000  # bytes of /dev/shm: Ray's store of objects takes 80 MB of it


def versions() -> Iterator[Finding]:
    """Checks Python, and the versions of all distributions in this one's metadata."""
    yield Finding("python", Level.OK, platform.python_version())
    missing: dict[str, list[str]] = {}
    good = 0
    for each in extras.wanted():
        if each.extra in ("dev", "all", "train", "web"):
            continue
        try:
            found = metadata.version(each.name)
        except metadata.PackageNotFoundError:
            missing.setdefault(each.extra, []).append(each.name)
            continue
        if each.fits(found):
            good += 1
        else:
            mend = f"pip install '{each.name}{each.specifier}'"
            yield Finding(each.name, Level.FAIL, f"{found}, wanted {each.specifier}", mend)
    yield Finding("packages", Level.OK, f"{good} at versions that fit")
    for extra, names in missing.items():
        what, level = (f"extra {extra}", Level.WARN) if extra else ("packages", Level.FAIL)
        mend = (
            f"pip install '.[{extra}]' in the checkout"
            if extra
            else "pip install . in the checkout"
        )
        yield Finding(what, level, f"not installed: {', '.join(names)}", mend)


def device() -> Iterator[Finding]:
    """Checks whether torch sees the GPU of this machine."""
    try:
        import torch
    except ModuleNotFoundError:
        yield Finding(
            "device", Level.WARN, "torch is not installed", "pip install '.[serve]' in the checkout"
        )
        return
    there = Path("/proc/driver/nvidia/version").exists()
    if torch.cuda.is_available():
        names = ", ".join(
            torch.cuda.get_device_name(index) for index in range(torch.cuda.device_count())
        )
        yield Finding("device", Level.OK, f"{names}; torch {torch.__version__}")
    elif there:
        built = (
            f"built for CUDA {torch.version.cuda}" if torch.version.cuda else "a build without CUDA"
        )
        mend = (
            "install a CUDA build of torch that fits the driver (`nvidia-smi` shows the "
            "driver's CUDA version)"
        )
        yield Finding(
            "device", Level.FAIL, f"a GPU is there; torch {torch.__version__} is {built}", mend
        )
    else:
        yield Finding(
            "device",
            Level.OK,
            f"CPU, {os.cpu_count()} cores; torch {torch.__version__}, no GPU here",
        )


def limits() -> Iterator[Finding]:
    """Checks the limits of open files and of shared memory."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft != resource.RLIM_INFINITY and soft < LEAST_FILES:
        mend = (
            f"ulimit -n {LEAST_FILES}"
            if hard == resource.RLIM_INFINITY or hard >= LEAST_FILES
            else (
                f"raise the hard limit of open files ({hard}) in /etc/security/limits.conf or the "
                "container's settings"
            )
        )
        yield Finding(
            "open files", Level.WARN, f"at most {soft}, one is needed per client stream", mend
        )
    else:
        yield Finding(
            "open files",
            Level.OK,
            "unlimited" if soft == resource.RLIM_INFINITY else f"at most {soft}",
        )
    if Path("/dev/shm").is_dir():
        free = shutil.disk_usage("/dev/shm").free
        if free < LEAST_SHARED_MEMORY:
            mend = "give the container --shm-size=256m; Ray is slow without it"
            yield Finding(
                "shared memory", Level.WARN, f"{free // 1_000_000} MB free in /dev/shm", mend
            )
        else:
            yield Finding("shared memory", Level.OK, f"{free // 1_000_000} MB free in /dev/shm")


def http_port(endpoint: str) -> Iterator[Finding]:
    """Checks whether the port is free now; no finding if the cell of this state folder has an HTTP
    port."""
    from dspark.client import NoCell, find_cell
    from dspark.runtime.security import check_listeners

    with contextlib.suppress(NoCell):
        if find_cell().http:
            return
    try:
        check_listeners([("http", endpoint)])
    except DsparkError as error:
        yield Finding(
            "port http",
            Level.WARN,
            str(error),
            "choose another one, or end the process that listens there",
        )
    else:
        yield Finding("port http", Level.OK, f"{endpoint} is free")
