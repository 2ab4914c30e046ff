"""Which processors a process is kept to."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest

from dspark.errors import ConfigError
from dspark.runtime.process import keep_to, parse_cpus, usable

linux = pytest.mark.skipif(not usable(), reason="the platform tells nothing of processors")


@pytest.mark.parametrize(
    ("text", "found"), [("0", {0}), ("0,2", {0, 2}), ("0-3", {0, 1, 2, 3}), (" 1 , 4-5", {1, 4, 5}), ("7-7", {7})]
)
def test_lists_name_processors(text: str, found: set[int]) -> None:
    assert parse_cpus(text) == found


@pytest.mark.parametrize("text", ["x", "-1", "1-", "0,,1", "3-1", "0-99999999999", "1.5", "²", "0x1", ","])
def test_what_is_no_list_is_refused(text: str) -> None:
    with pytest.raises(ConfigError, match=r"verify\.cpus: "):
        keep_to(text, "verify.cpus")


@linux
def test_processors_that_are_not_there_are_named() -> None:
    missing = usable()[-1] + 1
    with pytest.raises(ConfigError, match=rf"draft\.cpus: {missing} is none of the processors .*\({usable()[0]}"):
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
    told = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True, timeout=60)
    assert told.stdout.strip() == f"[{{{only}}}, {{{only}}}] {{{only}}}"


def test_a_platform_that_knows_no_such_thing_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delattr(os, "sched_getaffinity", raising=False)
    keep_to("", "verify.cpus")
    with pytest.raises(ConfigError, match=r"verify\.cpus: this platform"):
        keep_to("0", "verify.cpus")
