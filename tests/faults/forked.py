"""Calls in a child of their own, so that the memory that each takes is known."""

import multiprocessing
import resource
from collections.abc import Callable
from multiprocessing.connection import Connection
from typing import TypeVar

T = TypeVar("T")
_FORK = multiprocessing.get_context("fork")  # imports and sound models are there already


def forked(call: Callable[[], T], limit_s: float) -> tuple[T, float]:
    """(what `call` returns, megabytes by which resident memory grew at most).

    RuntimeError when the child dies or says nothing for `limit_s`. What the child maps of files
    counts as well as what it allocates, but for libraries: how much of them comes with their first
    use is up to the system's cache.
    """
    mine, its = _FORK.Pipe(duplex=False)
    child = _FORK.Process(target=_run, args=(call, its), daemon=True)
    child.start()
    its.close()
    try:
        if not mine.poll(limit_s):
            raise RuntimeError(f"nothing heard of the child for {limit_s:g} s")
        result, grown_mb = mine.recv()
    except EOFError:
        child.join()
        raise RuntimeError(f"the child ended with {child.exitcode}") from None
    finally:
        child.kill()
        child.join()
        mine.close()
    return result, grown_mb


def _run(call: Callable[[], T], to: Connection) -> None:
    before, libraries = _resident_mb(), _libraries_mb()
    result = call()
    grown = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024 - before
    to.send((result, grown - (_libraries_mb() - libraries)))


def _resident_mb() -> float:
    with open("/proc/self/status", encoding="ascii") as lines:
        return next(int(line.split()[1]) for line in lines if line.startswith("VmRSS")) / 1024


def _libraries_mb() -> float:
    """Resident pages of shared libraries, which stay mapped once they are."""
    total, library = 0, False
    with open("/proc/self/smaps", encoding="utf-8", errors="replace") as lines:
        for line in lines:
            first = line.split(maxsplit=1)[0]
            if not first.endswith(":"):  # a mapping begins: addresses, ..., file
                library = ".so" in line.rpartition("/")[2]
            elif library and first == "Rss:":
                total += int(line.split()[1])
    return total / 1024
