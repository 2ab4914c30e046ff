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
from dspark.cli.checks import Finding, doubtful, fine, wrong
from dspark.errors import DsparkError

LEAST_FILES = 4096  # open files: a coordinator holds one socket per client
LEAST_SHARED_MEMORY = 100_000_000  # bytes of /dev/shm: Ray's store of objects takes 80 MB of it


def versions() -> Iterator[Finding]:
    """Checks Python, and the versions of all distributions in this one's metadata."""
    yield fine("python", platform.python_version())
    missing: dict[str, list[str]] = {}
    good = 0
    for each in extras.wanted():
        if each.extra in ("dev", "all", "train", "docs", "web"):
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
            yield wrong(each.name, f"{found}, wanted {each.specifier}", mend)
    yield fine("packages", f"{good} at versions that fit")
    for extra, names in missing.items():
        said = f"not installed: {', '.join(names)}"
        if extra:
            yield doubtful(f"extra {extra}", said, f"pip install '.[{extra}]' in the checkout")
        else:
            yield wrong("packages", said, "pip install . in the checkout")


def device() -> Iterator[Finding]:
    """Checks whether torch sees the GPU of this machine."""
    try:
        import torch
    except ModuleNotFoundError:
        mend = "pip install '.[serve]' in the checkout"
        yield doubtful("device", "torch is not installed", mend)
        return
    version = f"torch {torch.__version__}"
    if torch.cuda.is_available():
        names = map(torch.cuda.get_device_name, range(torch.cuda.device_count()))
        yield fine("device", f"{', '.join(names)}; {version}")
    elif Path("/proc/driver/nvidia/version").exists():
        cuda = torch.version.cuda
        built = f"built for CUDA {cuda}" if cuda else "a build without CUDA"
        mend = "install a CUDA build of torch that fits the driver "
        mend += "(`nvidia-smi` shows the driver's CUDA version)"
        yield wrong("device", f"a GPU is there; {version} is {built}", mend)
    else:
        yield fine("device", f"CPU, {os.cpu_count()} cores; {version}, no GPU here")


def limits() -> Iterator[Finding]:
    """Checks the limits of open files and of shared memory."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft == resource.RLIM_INFINITY:
        yield fine("open files", "unlimited")
    elif soft >= LEAST_FILES:
        yield fine("open files", f"at most {soft}")
    else:
        mend = f"ulimit -n {LEAST_FILES}"
        if hard != resource.RLIM_INFINITY and hard < LEAST_FILES:
            mend = f"raise the hard limit of open files ({hard}) in /etc/security/limits.conf or "
            mend += "the container's settings"
        yield doubtful("open files", f"at most {soft}, one is needed per client stream", mend)
    if Path("/dev/shm").is_dir():
        free = shutil.disk_usage("/dev/shm").free
        said = f"{free // 1_000_000} MB free in /dev/shm"
        if free < LEAST_SHARED_MEMORY:
            mend = "give the container --shm-size=256m; Ray is slow without it"
            yield doubtful("shared memory", said, mend)
        else:
            yield fine("shared memory", said)


def http_port(endpoint: str) -> Iterator[Finding]:
    """Checks whether the port is free now; no finding if the cell of this state folder has an HTTP
    port."""
    from dspark.client import find_cell
    from dspark.runtime.addresses import check_listeners

    with contextlib.suppress(DsparkError):  # a finding of `state`
        if find_cell().http:
            return
    try:
        check_listeners([("http", endpoint)])
    except DsparkError as error:
        mend = "choose another one, or end the process that listens there"
        yield doubtful("port http", str(error), mend)
    else:
        yield fine("port http", f"{endpoint} is free")
