"""A target over several devices: tensor parallel by the library's own plan, a process per device.

Rank 0 is the verifier. The other ranks are its child processes on the same machine: each loads its
part of the weights as rank 0 does, keeps the keys and values of its heads, and runs the passes
that rank 0 tells it. Sequences, pages, rule, feature rows and streams are rank 0's alone.

Passes go to each child through a socket, as integers; what layers exchange goes through
torch.distributed. Ranks find each other by a file, and listen on loopback. After a pass that failed
halfway they would no longer agree on the next one, so that ends the verifier, as does the end of
any rank: the coordinator goes on elsewhere, as after every loss of a verifier.
"""

from __future__ import annotations

import atexit
import contextlib
import dataclasses
import json
import os
import socket
import subprocess
import sys
import tempfile
import threading
from collections.abc import Iterator, Sequence
from datetime import timedelta
from enum import IntEnum
from pathlib import Path
from typing import IO, NamedTuple

import numpy as np
import numpy.typing as npt
import structlog
import torch
from torch import distributed
from torch.distributed import FileStore  # type: ignore[attr-defined]

from dspark.errors import ConfigError
from dspark.model.config_keys import CONFIG_NAME, read_json, text_keys
from dspark.model.location import locate
from dspark.model.placement import pick_device
from dspark.pages import Slots, numbers_of
from verify_service.config import VerifyConfig
from verify_service.plan import Segment

log = structlog.get_logger("dspark.verify")

KEY = "verify.tensor_parallel_size"
EXCHANGE_S = 600.0  # longest wait of one rank for another within a pass or while loading
NOTICE_S = 5.0  # a verifier that refuses its target says so within it, after a rank's end
ENDS_S = 0.5  # a rank whose connections have closed has ended within it

Numbers = npt.NDArray[np.int64]


class Command(IntEnum):
    """What rank 0 tells the others to do."""

    RUN = 0
    FILL = 1
    RESET = 2


class Ranks:
    """The other ranks of this process, which is rank 0. They load once they are started, and run
    what the runner tells once both are loaded."""

    def __init__(self, config: VerifyConfig) -> None:
        self._config, self.size = config, config.tensor_parallel_size
        self._folder = tempfile.TemporaryDirectory(prefix="dspark-ranks-")
        self._children: list[subprocess.Popen[bytes]] = []
        self._pipes: list[socket.socket] = []
        self._codes: dict[int, int] = {}  # exit codes of ranks that have ended
        self._ended, self._closing = threading.Event(), threading.Event()

    def start(self) -> None:
        """Starts a process for each other rank, which begins to load. Raises ConfigError where they
        cannot have a device, or an equal part of the target, each."""
        check_devices(self._config)
        check_plan(self._config)
        atexit.register(self.close)  # of a process that is stopped while it loads
        told = {"config": dataclasses.asdict(self._config), "folder": self._folder.name}
        for rank in range(1, self._config.tensor_parallel_size):
            ours, theirs = socket.socketpair()
            ours.settimeout(EXCHANGE_S)
            self._pipes.append(ours)
            with theirs:
                child = subprocess.Popen(
                    [sys.executable, "-m", "verify_service.rank", str(rank), str(os.getpid())],
                    stdin=theirs.fileno(),
                    stdout=2,  # stdout is for the one line of a process that serves
                )
            self._children.append(child)
            threading.Thread(
                target=self._watch, args=(rank, child), name=f"rank-{rank}", daemon=True
            ).start()
            _send(ours, json.dumps(told).encode())
        join(self._config.tensor_parallel_size, 0, Path(self._folder.name))

    @contextlib.contextmanager
    def loading(self) -> Iterator[None]:
        """The other ranks, while the block loads this one; they end with it if it fails."""
        try:
            self.start()
            yield
        except BaseException as error:
            # A rank that ends breaks what this one exchanges with it, wherever that was.
            self._ended.wait(ENDS_S if self._children else 0)
            reasons = [self._reason(rank) for rank in self._first_ended()]
            self.close()
            if reasons:
                raise ConfigError(reasons[0]) from error
            raise

    @contextlib.contextmanager
    def running(self, segments: Sequence[Segment], rows: list[int] | None) -> Iterator[None]:
        """Has the other ranks run this pass while the block runs it here."""
        self._tell(Command.RUN, write_pass(segments, rows))
        try:
            yield
        except BaseException as error:
            self._end(f"a pass of several ranks failed: {error!r}")
            raise

    def fill(self, slots: Slots | Sequence[int]) -> None:
        self._tell(Command.FILL, numbers_of(slots))

    def reset(self) -> None:
        self._tell(Command.RESET, np.empty(0, np.int64))

    def close(self) -> None:
        """Ends the other ranks."""
        atexit.unregister(self.close)
        self._closing.set()
        for pipe in self._pipes:
            pipe.close()
        if distributed.is_initialized():
            distributed.destroy_process_group()
        os.environ.pop("LOCAL_RANK", None)
        for child in self._children:
            with contextlib.suppress(subprocess.TimeoutExpired):
                child.wait(NOTICE_S)
            child.kill()
            with contextlib.suppress(subprocess.TimeoutExpired):  # held by a driver
                child.wait(NOTICE_S)
        self._folder.cleanup()

    def _tell(self, what: Command, numbers: Numbers) -> None:
        frame = int(what).to_bytes(8, "little") + numbers.tobytes()
        try:
            for pipe in self._pipes:
                _send(pipe, frame)
        except OSError as error:  # of time, too: a rank that hangs does not read
            self._end(f"a rank cannot be told: {error}")
            raise

    def _watch(self, rank: int, child: subprocess.Popen[bytes]) -> None:
        self._codes[rank] = child.wait()
        self._ended.set()
        # While loading, this process mostly has the same reason to refuse its target, and a better
        # place to say so.
        if not self._closing.wait(NOTICE_S):
            self._end(self._reason(rank))

    def _first_ended(self) -> list[int]:
        """Ranks that have ended, first those that did not say why: what others say followed."""
        return sorted(self._codes, key=lambda rank: (self._said(rank).exists(), rank))

    def _reason(self, rank: int) -> str:
        said = self._said(rank)
        if said.exists():
            return said.read_text()
        return f"{KEY}: rank {rank} ended with {self._codes[rank]}; its own lines say more"

    def _said(self, rank: int) -> Path:
        return refusal(Path(self._folder.name), rank)

    def _end(self, reason: str) -> None:
        """Ends this process at once: a pass may wait for ranks that will never answer."""
        if not self._closing.is_set():
            log.critical("verify.ranks_lost", reason=reason)
            os._exit(1)


def check_devices(config: VerifyConfig) -> None:
    """Raises ConfigError unless each rank can have a device of its own; on processors they share
    them."""
    size, device = config.tensor_parallel_size, pick_device(config.device, key="verify.device")
    if device.index is not None:
        raise ConfigError(f"verify.device: {config.device} is one card, and {KEY} is {size}")
    if device.type == "cuda" and (there := torch.cuda.device_count()) < size:
        raise ConfigError(f"{KEY}: {size} ranks need a card each, and there are {there}")
    if device.type == "cpu" and torch.cuda.is_available():  # the library would take the cards
        raise ConfigError(f"{KEY}: with device cpu only where there is no card")


def check_plan(config: VerifyConfig) -> None:
    """Raises ConfigError for a target that the library cannot divide into so many equal parts."""
    from transformers import CONFIG_MAPPING

    size = config.tensor_parallel_size
    folder = locate(config.target, revision=config.target_revision)
    settings = text_keys(read_json(folder / CONFIG_NAME)).raw
    kind = settings.get("model_type")
    # a rule with a star is one for layers; some plans divide the embedding alone
    if kind in CONFIG_MAPPING and not any(
        "*" in rule for rule in CONFIG_MAPPING[kind].base_model_tp_plan or ()
    ):
        raise ConfigError(f"{KEY}: the library has no plan that divides a target of type {kind}")
    for name, heads in settings.items():
        counts = name.endswith(("attention_heads", "key_value_heads")) and type(heads) is int
        if counts and heads % size:
            raise ConfigError(f"{KEY}: {size} does not divide the target's {heads} {name}")


def join(size: int, rank: int, folder: Path) -> None:
    """Meets the other ranks; returns when all are there."""
    os.environ["LOCAL_RANK"] = str(rank)  # by which the library picks a card
    if any(name == "lo" for _, name in socket.if_nameindex()):
        for library in ("GLOO", "NCCL"):
            os.environ.setdefault(f"{library}_SOCKET_IFNAME", "lo")
    distributed.init_process_group(
        "cpu:gloo,cuda:nccl" if torch.cuda.is_available() else "gloo",
        store=FileStore(str(folder / "store"), size),
        rank=rank,
        world_size=size,
        timeout=timedelta(seconds=EXCHANGE_S),
    )


def smallest(number: int) -> int:
    """The smallest of all ranks' numbers, at every rank."""
    held = torch.tensor([number])
    distributed.all_reduce(held, distributed.ReduceOp.MIN)
    return int(held)


class PassOrder(NamedTuple):
    """A pass as another rank runs it."""

    segments: list[Segment]
    rows: list[int] | None


def write_pass(segments: Sequence[Segment], rows: list[int] | None) -> Numbers:
    """A pass in numbers: how many segments and rows (-1: all), the rows; then of each segment
    start, prompt, its tokens and its slots, a run of slots by its ends."""
    parts = [np.array([len(segments), -1 if rows is None else len(rows), *(rows or ())], np.int64)]
    for _, start, token_ids, slots, prompt in segments:
        run = isinstance(slots, range)
        ends = [slots.start, slots.stop] if isinstance(slots, range) else [0, len(slots)]
        parts.append(np.array([start, prompt, len(token_ids), run, *ends, *token_ids], np.int64))
        if not run:
            parts.append(numbers_of(slots))
    return np.concatenate(parts)


def read_pass(numbers: Numbers) -> PassOrder:
    """The pass that `write_pass` wrote, its keys by number."""
    count, many = numbers[:2].tolist()
    at = 2 + max(many, 0)
    segments = list[Segment]()
    for key in range(count):
        start, prompt, tokens, run, first, stop = numbers[at : at + 6].tolist()
        at += 6 + tokens
        token_ids = numbers[at - tokens : at].tolist()
        slots: Slots = range(first, stop)
        if not run:
            slots, at = numbers[at : at + stop], at + stop
        segments.append(Segment(key, start, token_ids, slots, prompt))
    return PassOrder(segments, None if many < 0 else numbers[2 : 2 + many].tolist())


def refusal(folder: Path, rank: int) -> Path:
    """The file in which a rank says why it cannot serve its part."""
    return folder / f"refused-{rank}"


def _send(pipe: socket.socket, frame: bytes) -> None:
    pipe.sendall(len(frame).to_bytes(8, "little") + frame)


def receive(pipe: IO[bytes]) -> bytes:
    """The next frame; empty once rank 0 has ended or closed."""
    head = pipe.read(8)
    return pipe.read(int.from_bytes(head, "little")) if len(head) == 8 else b""
