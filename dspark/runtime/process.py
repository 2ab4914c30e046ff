"""Where a process runs: its processors, its memory, its parent."""

from __future__ import annotations

import atexit
import ctypes
import gc
import os
import signal
import threading
import time
from pathlib import Path

from dspark.errors import ConfigError

MOST_PROCESSORS = 4096  # no machine has a processor of a higher number
SPINS = 50_000  # some tenths of a millisecond
MOST_THREADS = 16  # matrix products of a pass hardly gain by more
TASKS = Path("/proc/self/task")
# microseconds of processor time, and of the period they are for
CPU_QUOTA = Path("/sys/fs/cgroup/cpu.max")
LOOK_S = 0.5  # seconds between checks of the parent
GRACE_S = 20.0  # seconds for an orderly end after SIGTERM
_TRIM_THRESHOLD, _MMAP_THRESHOLD = -1, -3  # of mallopt
COLLECT_AFTER = 50_000  # objects made and not freed, before cycles among them are looked for


def keep_freed_memory() -> None:
    """Makes glibc keep freed memory instead of returning it to the system. It is needed again soon,
    for rows and messages of the next round, and returned memory costs a page fault per page. By
    itself glibc raises its thresholds after single large pieces, up to these bounds, and not after
    many smaller ones."""
    mallopt = getattr(ctypes.CDLL(None), "mallopt", None)  # other C libraries have none
    if mallopt is not None:
        mallopt(_MMAP_THRESHOLD, 32 << 20)
        mallopt(_TRIM_THRESHOLD, 64 << 20)


def collect_rarely() -> None:
    """Lets Python look for garbage cycles rarely, and never among what is loaded by now. A full
    look stops every thread for as long as there are objects to visit, and what streams and rounds
    make is nearly all freed without one."""
    gc.collect()
    gc.freeze()
    atexit.register(gc.unfreeze)  # else libraries warn of leaks at the end
    gc.set_threshold(COLLECT_AFTER)


def wait_briefly() -> None:
    """Shortens the spinning of idle OpenMP threads; call it before torch is loaded. They spin for
    some milliseconds, which in a lane are taken from the other process, drafter or verifier, whose
    turn it is. Within a pass they wait for less than this."""
    os.environ.setdefault("GOMP_SPINCOUNT", str(SPINS))


def usable() -> tuple[int, ...]:
    """Numbers of the processors this process may run on, ascending; empty where the platform does
    not tell."""
    return tuple(sorted(os.sched_getaffinity(0))) if hasattr(os, "sched_getaffinity") else ()


def threads_for(*, verifies: bool, alike: int = 1, processors: int = 0) -> int:
    """Default number of threads of one of `alike` workers of a machine: OMP_NUM_THREADS, or its
    part of the processors (0: those that this process may use).

    A quarter of them drafts, the others verify. Of two, both verify and one drafts as well: in a
    lane the two work by turns, and the larger model gains more (ADR 31).
    """
    said = os.environ.get("OMP_NUM_THREADS", "").partition(",")[0]
    if said.isdecimal() and int(said):
        return int(said)
    processors = processors or _processors()
    draft = max(processors // 4, 1)
    part = max(processors - draft, min(processors, 2)) if verifies else draft
    return min(max(part // max(alike, 1), 1), MOST_THREADS)


def _processors() -> int:
    """Number of processors that this process may use: a container's quota may allow less time than
    all of them have."""
    count = len(usable()) or os.cpu_count() or 1
    try:
        quota, _, period = CPU_QUOTA.read_text(encoding="ascii").partition(" ")
        return max(min(count, int(quota) // int(period)), 1)
    except (OSError, ValueError):  # not Linux, an older kind of control groups, or "max": no quota
        return count


def parse_cpus(text: str, key: str) -> frozenset[int]:
    """The processors of a list like `0-3,8`. Raises ConfigError naming `key` for any other text."""
    found: set[int] = set()
    for part in text.split(","):
        first, dash, last = part.strip().partition("-")
        if not (first.isdecimal() and (last.isdecimal() if dash else not last)):
            raise ConfigError(f"{key}: {text!r} is not a list of processors like 0-3,8")
        least, most = int(first), int(last or first)
        if not least <= most < MOST_PROCESSORS:
            raise ConfigError(
                f"{key}: {part.strip()!r} is not a range of processors below {MOST_PROCESSORS}"
            )
        found.update(range(least, most + 1))
    return frozenset(found)


def usable_of(text: str, key: str) -> frozenset[int]:
    """As `parse_cpus`. Raises ConfigError too for processors that this process may not use, and
    where the platform cannot pin."""
    may, wanted = usable(), parse_cpus(text, key)
    if not may:
        raise ConfigError(f"{key}: this platform cannot keep a process to processors")
    if missing := sorted(wanted.difference(may)):
        listed = ",".join(map(str, may))
        raise ConfigError(
            f"{key}: {missing[0]} is none of the processors this process may use ({listed})"
        )
    return wanted


def keep_to(text: str, key: str) -> None:
    """Pins this process, with the threads it has and will have, to a list of processors; an empty
    text changes nothing. Raises ConfigError as `usable_of`."""
    if not text:
        return
    wanted = usable_of(text, key)
    for task in TASKS.iterdir():
        try:
            os.sched_setaffinity(int(task.name), wanted)
        except ProcessLookupError:  # a thread that has just ended
            continue


def end_with(parent: int) -> None:
    """Makes this process end soon after `parent`, a process id, is no longer its parent, whatever
    ended that."""

    def watch() -> None:
        while os.getppid() == parent:
            time.sleep(LOOK_S)
        os.kill(os.getpid(), signal.SIGTERM)
        time.sleep(GRACE_S)
        os._exit(1)

    threading.Thread(target=watch, name="parent-watch", daemon=True).start()
