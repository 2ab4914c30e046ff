"""Compiles and caches the grammars of one target, by content and salt.

A separate process tries them (`compiling`). Threads here wait for it and compile what stayed within
its limits. Refusals are cached too, so a repeated request costs nothing. A grammar is not shared
between tenants, so the time it takes tells a tenant nothing about the grammars of others. Tenants
with fewer running jobs go first, and a tenant with more waiting jobs gets less CPU time for each. A
grammar without time left is refused soon with BUSY and may be requested again.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import socket
import subprocess
import sys
import threading
import time
import weakref
from collections import Counter, OrderedDict, deque
from collections.abc import Callable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from functools import partial
from importlib.util import find_spec
from pathlib import Path
from typing import Any, NamedTuple

from dspark.runtime.process import usable
from dspark.token_bytes import FILE
from dspark.types import Constraint, Refusal, RefusalReason
from verify_service.batch_runner import Grammar
from verify_service.grammars.compiling import compiled, make_compiler
from verify_service.grammars.matcher import GrammarMatcher
from verify_service.sequences import invalid

# grammars compiled at a time; the other processors serve
AT_ONCE = max(min(4, (len(usable()) or os.cpu_count() or 1) // 2), 1)
MAX_WAITING, MAX_OF_ONE = 256, 64  # most waiting grammars in all and per tenant
KEPT_BYTES = 256 << 20  # of cached grammars
KEPT = 4096  # cached grammars
_REFUSED_BYTES = 1024
CPU_S = 0.5  # CPU limit of one grammar
CROWDED_S = 0.1  # CPU limit while more of its tenant wait
# from request to answer, so that the client knows within a second
WALL_S = 0.75
TOO_MUCH = "it takes too long or too much memory to compile"
BUSY = Refusal(RefusalReason.BUSY, "no time was left to compile the form of its answer")
_START_S = 60.0  # timeout for the compiler process to start on a busy machine


class _CompileJob(NamedTuple):
    key: bytes
    constraint: Constraint
    future: Future[Grammar | Refusal]
    until: float  # deadline in monotonic seconds


class Grammars:
    """The grammars of one target. Any thread may call `compile`."""

    def __init__(self, folder: Path, vocab_size: int, stop_ids: Sequence[int]) -> None:
        self._folder, self._vocab_size, self._stop_ids = folder, vocab_size, stop_ids
        # future and bytes, by `_key`
        self._kept: OrderedDict[bytes, tuple[Future[Grammar | Refusal], int]] = OrderedDict()
        # jobs by tenant; the tenant whose last turn is longest ago first
        self._lines: dict[str, deque[_CompileJob]] = {}
        self._in_work: Counter[str] = Counter()  # jobs in work by tenant
        self._lock = threading.Lock()
        self._starting = threading.Lock()
        self._pool = ThreadPoolExecutor(
            AT_ONCE, thread_name_prefix="grammars", initializer=_step_back
        )
        self._waiting = 0
        self._process: subprocess.Popen[bytes] | None = None
        self._answers = False  # whether the process has answered: it takes seconds to start
        self._requests: socket.socket | None = None
        self._let_go: Callable[[], object] = lambda: None  # ends the process
        self._compiler: Any = None

    def compile(self, constraint: Constraint, salt: str) -> Future[Grammar | Refusal]:
        """A future of the grammar, or of why there is none. salt: only equal ones share it."""
        key = _key(salt, constraint)
        # a tenant may use many salts and has one queue
        tenant = salt.partition("/")[0] if "/" in salt else ""
        with self._lock:
            if key in self._kept:
                self._kept.move_to_end(key)
                return self._kept[key][0]
            future: Future[Grammar | Refusal] = Future()
            if self._waiting >= MAX_WAITING or len(self._lines.get(tenant, ())) >= MAX_OF_ONE:
                future.set_result(BUSY)
                return future
            self._waiting += 1
            self._kept[key] = (future, 0)
            until = time.monotonic() + (WALL_S if self._answers else _START_S)
            self._lines.setdefault(tenant, deque()).append(
                _CompileJob(key, constraint, future, until)
            )
        try:
            self._pool.submit(self._work)
        except RuntimeError as error:  # no thread can be started
            if not self._in_work:  # else one that works takes it up
                self._work(error)
        return future

    def _work(self, failure: Exception | None = None) -> None:
        """Runs a waiting job: of the tenant with the fewest in work, then of the oldest turn.
        failure: why none can run."""
        with self._lock:
            if not self._lines:  # it has failed
                return
            tenant = min(self._lines, key=self._in_work.__getitem__)
            line = self._lines.pop(tenant)
            job = line.popleft()
            if line:
                self._lines[tenant] = line
            self._in_work[tenant] += 1
        try:
            self._make(job, CROWDED_S if line else CPU_S, failure)
        finally:
            with self._lock:
                self._in_work[tenant] -= 1
                self._in_work += Counter()  # removes zero counts

    def _make(self, job: _CompileJob, cpu_s: float, failure: Exception | None) -> None:
        key, constraint, future, until = job
        try:
            if failure is not None:
                raise failure
            result, size = self._made(constraint, cpu_s, until)
        except Exception as error:
            result, size = Refusal(RefusalReason.INTERNAL, f"its compiler failed: {error}"), 0
        # not the job's own future: that holds the callbacks of all who waited for it
        kept: Future[Grammar | Refusal] = Future()
        kept.set_result(result)
        with self._lock:
            self._waiting -= 1
            if isinstance(result, Refusal) and result.reason is not RefusalReason.INVALID:
                del self._kept[key]  # not the grammar's fault: may be tried again
            else:
                self._kept[key] = (kept, size + _REFUSED_BYTES)
                self._forget()
        future.set_result(result)

    def _made(
        self, constraint: Constraint, cpu_s: float, until: float
    ) -> tuple[Grammar | Refusal, int]:
        """(grammar or refusal, bytes). Raises errors that are not the grammar's fault."""
        if (missing := _missing(self._folder, self._stop_ids)) is not None:
            return invalid(f"unsupported: {missing}"), 0
        compiler = self._started()
        left = until - time.monotonic()
        answer = self._ask(constraint, cpu_s, min(left, WALL_S)) if left > 0 else None
        if answer is None or (not answer and cpu_s < CPU_S):
            return BUSY, 0
        kind, said = answer[:2], answer[2:].decode()
        if kind == b"er":
            raise ChildProcessError(said)
        if kind != b"ok":
            return invalid(said or TOO_MUCH), 0
        return partial(GrammarMatcher, compiled(compiler, constraint), self._stop_ids), int(said)

    def _forget(self) -> None:
        """Evicts the least recently requested entries until the limits hold."""
        total = sum(size for _, size in self._kept.values())
        for key, (_, size) in list(self._kept.items())[:-1]:
            if total <= KEPT_BYTES and len(self._kept) <= KEPT:
                return
            if size:  # else it is not compiled yet
                del self._kept[key]
                total -= size

    def _started(self) -> Any:
        """The compiler of this process; starts the process that tries grammars if there is none."""
        with self._starting:
            if self._compiler is None:
                self._compiler = make_compiler(self._folder, self._vocab_size, self._stop_ids)
            if self._process is None or self._process.poll() is not None:
                self._start()
            return self._compiler

    def _start(self) -> None:
        self._let_go()
        self._requests, theirs = socket.socketpair()
        command = [sys.executable, "-m", "verify_service.grammars.compiling"]
        command += [str(theirs.fileno()), str(self._folder), str(self._vocab_size)]
        command.append(json.dumps(list(self._stop_ids)))
        self._answers = False
        self._process = subprocess.Popen(
            command, pass_fds=(theirs.fileno(),), stdin=subprocess.DEVNULL
        )
        theirs.close()
        self._let_go = weakref.finalize(self, _end, self._requests, self._process)

    def _ask(self, constraint: Constraint, cpu_s: float, wall_s: float) -> bytes | None:
        """A child's answer; None after `wall_s` seconds from its start, empty after another limit.

        Raises TimeoutError if the child did not start, and kills the process, so that the next
        request starts another. Raises ChildProcessError if the process ended."""
        ours, theirs = socket.socketpair()
        process, requests = self._process, self._requests
        with ours:
            assert process is not None
            assert requests is not None
            with theirs:
                socket.send_fds(requests, [b"1"], [theirs.fileno()])
            ours.settimeout(_START_S)
            try:
                self._answers = bool(ours.recv(1))  # the child has started, or ended
            except TimeoutError:
                process.kill()
                with contextlib.suppress(subprocess.TimeoutExpired):
                    process.wait(timeout=1.0)
                raise
            answer = b""
            began = time.monotonic()  # the child's time begins with the request
            ours.settimeout(wall_s)
            with contextlib.suppress(ConnectionError):
                try:
                    asked = [cpu_s, wall_s, int(constraint.kind), constraint.text]
                    ours.sendall(json.dumps(asked).encode())
                    ours.shutdown(socket.SHUT_WR)
                    with ours.makefile("rb") as said:
                        answer = said.read()
                except TimeoutError:
                    return None
        late = time.monotonic() - began >= wall_s  # this thread may come behind the child's end
        if not answer:
            with contextlib.suppress(subprocess.TimeoutExpired):  # it runs, or is about to end
                process.wait(timeout=0.05)
                raise ChildProcessError("its process ended")
            if late:
                return None
        return answer


def _key(salt: str, constraint: Constraint) -> bytes:
    """Cache key of fixed length, from salt and constraint."""
    parts = [salt, int(constraint.kind), constraint.text]
    return hashlib.sha256(json.dumps(parts).encode()).digest()


def _end(requests: socket.socket, process: subprocess.Popen[bytes]) -> None:
    """Ends the process by closing its socket, and waits for it."""
    requests.close()
    process.wait(timeout=_START_S)


def _missing(folder: Path, stop_ids: Sequence[int]) -> str | None:
    """Why this verifier cannot serve grammars, or None."""
    if find_spec("xgrammar") is None:
        return (
            "xgrammar is not installed beside the verifier: pip install "
            "'dspark-serving[structured]'"
        )
    if not (folder / FILE).is_file():
        return "the target has no tokenizer"
    return None if stop_ids else "the target has no token that ends an answer"


def _step_back() -> None:
    """Lowers this thread's priority below serving threads, on systems with thread priorities."""
    thread = threading.get_native_id()
    with contextlib.suppress(OSError):
        os.setpriority(os.PRIO_PROCESS, thread, os.getpriority(os.PRIO_PROCESS, thread) + 5)
