"""A rank of a target over several devices, other than rank 0: loads its part, runs what it is told.

`python -m verify_service.rank RANK PARENT`, started by rank 0, which tells the rest on stdin.
"""

from __future__ import annotations

import contextlib
import json
import signal
import sys
from pathlib import Path

import numpy as np

from dspark.errors import DsparkError
from dspark.runtime.process import end_with, wait_briefly
from dspark.runtime.telemetry import configure_logging
from verify_service.config import VerifyConfig


def main(arguments: list[str]) -> int:
    rank, parent = map(int, arguments)
    end_with(parent)
    # of the whole group: rank 0 ends in order
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, signal.SIG_IGN)
    wait_briefly()
    configure_logging(role="verify", name=f"rank/{rank}")
    # behind the environment that torch reads once
    from verify_service import ranks
    from verify_service.loading import load_rank
    from verify_service.ranks import Command

    told = json.loads(ranks.receive(sys.stdin.buffer))
    config, folder = VerifyConfig(**told["config"]), Path(told["folder"])
    try:
        ranks.join(config.tensor_parallel_size, rank, folder)
        runner = load_rank(config, rank)
    except DsparkError as error:  # rank 0 tells it, while it is there
        print(f"rank {rank}: {error}", file=sys.stderr)
        with contextlib.suppress(OSError):
            ranks.refusal(folder, rank).write_text(str(error))
        return 1
    while frame := ranks.receive(sys.stdin.buffer):
        numbers = np.frombuffer(frame[8:], np.int64)
        match Command(int.from_bytes(frame[:8], "little")):
            case Command.RUN:
                runner.run(*ranks.read_pass(numbers))
            case Command.FILL:
                runner.fill(None, numbers, len(numbers))
            case Command.RESET:
                runner.reset()
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
