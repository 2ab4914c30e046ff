"""The command `dspark`, as a user runs it."""

import multiprocessing
import os
import subprocess
import sys
from collections.abc import Mapping
from multiprocessing.context import ForkServerProcess
from pathlib import Path

from tests.faults.pair import FLAT, ROOT

DSPARK = (sys.executable, "-m", "dspark.cli.main")
SYNTHETIC = ("up", "--engine", "synthetic", "--synthetic", str(FLAT))
LIMIT_S = 240

_FORKS = multiprocessing.get_context("forkserver")
_FORKS.set_forkserver_preload(
    ["dspark.cli.main", "dspark.training.trainer", "transformers.models.qwen3.modeling_qwen3"]
)


def run(
    *words: str, environment: Mapping[str, str] = {}, within_s: float = LIMIT_S
) -> subprocess.CompletedProcess[str]:
    """environment: beside this process's own."""
    return subprocess.run(
        [*DSPARK, *words],
        capture_output=True,
        text=True,
        timeout=within_s,
        env={**os.environ, **environment},
    )


def dspark(*words: str, environment: Mapping[str, str] = {}, within_s: float = LIMIT_S) -> str:
    """What it prints where all is well."""
    ran = run(*words, environment=environment, within_s=within_s)
    assert ran.returncode == 0, ran.stdout + ran.stderr
    return ran.stdout


def python(program: str, *words: str) -> str:
    """What a program prints in a process of its own."""
    command = [sys.executable, "-c", program, *words]
    return subprocess.run(command, stdout=subprocess.PIPE, text=True, check=True, cwd=ROOT).stdout


def forked(*words: str, said: Path) -> ForkServerProcess:
    """A process of its own that runs the command, without the time that imports of torch take. Its
    output goes to the end of `said`."""
    process = _FORKS.Process(target=_run, args=(words, said, dict(os.environ)))
    process.start()
    return process


def _run(words: tuple[str, ...], said: Path, environment: dict[str, str]) -> None:
    from dspark.cli.main import main

    with said.open("ab") as file:
        for stream in (1, 2):
            os.dup2(file.fileno(), stream)
    os.environ.clear()
    os.environ.update(environment)
    sys.exit(main(list(words)))
