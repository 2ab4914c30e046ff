"""Which processors a process is kept to, and what it does with memory that it frees."""

import os
import platform
from pathlib import Path

import pytest

from dspark.errors import ConfigError
from dspark.runtime.process import keep_to, parse_cpus, threads_for, usable
from tests.commands import python

linux = pytest.mark.skipif(not usable(), reason="the platform tells nothing of processors")


@pytest.mark.parametrize(
    ("text", "found"),
    [("0", {0}), ("0,2", {0, 2}), ("0-3", {0, 1, 2, 3}), (" 1 , 4-5", {1, 4, 5}), ("7-7", {7})],
)
def test_lists_name_processors(text: str, found: set[int]) -> None:
    assert parse_cpus(text, "verify.cpus") == found


@pytest.mark.parametrize(
    "text", ["x", "-1", "1-", "0,,1", "3-1", "0-99999999999", "1.5", "²", "0x1", ","]
)
def test_what_is_no_list_is_refused(text: str) -> None:
    with pytest.raises(ConfigError, match=r"verify\.cpus: "):
        keep_to(text, "verify.cpus")


@linux
def test_processors_that_are_not_there_are_named() -> None:
    missing = usable()[-1] + 1
    with pytest.raises(
        ConfigError, match=rf"draft\.cpus: {missing} is none of the processors .*\({usable()[0]}"
    ):
        keep_to(f"{usable()[0]},{missing}", "draft.cpus")
    assert os.sched_getaffinity(0) == set(usable())


@linux
def test_every_thread_is_kept_there_those_of_before_and_those_of_later() -> None:
    only = usable()[-1]
    program = f"""
import os, threading
from dspark.runtime.process import keep_to
stop, found = threading.Event(), []
def tell():
    stop.wait(10)
    found.append(os.sched_getaffinity(threading.get_native_id()))
before = threading.Thread(target=tell); before.start()
keep_to("{only}", "verify.cpus")
after = threading.Thread(target=tell); after.start()
stop.set(); before.join(); after.join()
print(found, os.sched_getaffinity(0))
"""
    assert python(program).strip() == f"[{{{only}}}, {{{only}}}] {{{only}}}"


def test_a_platform_that_knows_no_such_thing_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delattr(os, "sched_getaffinity", raising=False)
    keep_to("", "verify.cpus")
    with pytest.raises(ConfigError, match=r"verify\.cpus: this platform"):
        keep_to("0", "verify.cpus")


@pytest.mark.parametrize(
    ("processors", "alike", "verify", "draft"),
    [
        (1, 1, 1, 1),
        (2, 1, 2, 1),
        (2, 2, 1, 1),
        (4, 1, 3, 1),
        (8, 1, 6, 2),
        (16, 3, 4, 1),
        (96, 1, 16, 16),
    ],
)
def test_the_processors_are_divided_among_the_workers_of_a_lane(
    monkeypatch: pytest.MonkeyPatch, processors: int, alike: int, verify: int, draft: int
) -> None:
    monkeypatch.delenv("OMP_NUM_THREADS", raising=False)
    monkeypatch.setattr("dspark.runtime.process.usable", lambda: tuple(range(processors)))
    monkeypatch.setattr("dspark.runtime.process.CPU_QUOTA", Path("none"))
    for verifies, threads in ((True, verify), (False, draft)):
        assert threads_for(verifies=verifies, alike=alike) == threads
        assert threads_for(verifies=verifies, alike=alike, processors=1) == 1
        monkeypatch.setenv("OMP_NUM_THREADS", "5")
        # whoever says so has divided already
        assert threads_for(verifies=verifies, alike=alike) == 5
        monkeypatch.delenv("OMP_NUM_THREADS")


@pytest.mark.parametrize(
    ("quota", "threads"), [("max 100000", 6), ("400000 100000", 3), ("50000 100000", 1), ("", 6)]
)
def test_a_container_has_what_its_quota_allows(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, quota: str, threads: int
) -> None:
    (tmp_path / "cpu.max").write_text(quota)
    monkeypatch.delenv("OMP_NUM_THREADS", raising=False)
    monkeypatch.setattr("dspark.runtime.process.usable", lambda: tuple(range(8)))
    monkeypatch.setattr("dspark.runtime.process.CPU_QUOTA", tmp_path / "cpu.max")
    assert threads_for(verifies=True) == threads


ROUNDS = """
import resource, sys
from dspark.runtime.process import keep_freed_memory

def parts():
    return [bytearray(1 << 18) for _ in range(20)]

def faults():
    return resource.getrusage(resource.RUSAGE_SELF).ru_minflt

if sys.argv[1] == "kept":
    keep_freed_memory()
for _ in range(5):
    parts()
before = faults()
for _ in range(20):
    parts()
print((faults() - before) * resource.getpagesize())
"""


@pytest.mark.skipif(platform.libc_ver()[0] != "glibc", reason="other C libraries are not told")
def test_memory_of_a_round_is_asked_of_the_system_once() -> None:
    a_round = 20 << 18
    assert int(python(ROUNDS, "as it was")) > 10 * a_round, "it would be asked for every round"
    assert int(python(ROUNDS, "kept")) < a_round


CYCLES = """
import atexit, gc
from dspark.runtime.process import COLLECT_AFTER, collect_rarely

atexit.register(lambda: print(gc.get_freeze_count()))  # runs last
loaded = [[] for _ in range(10_000)]
collect_rarely()
visited = len(gc.get_objects())
looks = []
gc.callbacks.append(lambda phase, info: looks.append(phase))
kept = [[] for _ in range(COLLECT_AFTER // 2)]
rare = len(looks)
for _ in range(3 * COLLECT_AFTER):
    cycle = []
    cycle.append(cycle)
print(visited, rare, len(looks) > 0, len(gc.get_objects()) < 2 * COLLECT_AFTER)
"""


def test_cycles_are_looked_for_rarely_and_not_among_what_is_loaded() -> None:
    visited, *told = python(CYCLES).split()
    assert int(visited) < 1_000, "what is loaded would be visited"
    assert told[:3] == ["0", "True", "True"], "rarely, but cycles are freed in the end"
    assert told[3:] == ["0"], "what is still frozen at the end looks like a leak to libraries"
