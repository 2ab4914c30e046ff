"""What a worker frees it keeps for itself."""

from __future__ import annotations

import platform
import subprocess
import sys

import pytest

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
    def asked(how: str) -> int:
        made = subprocess.run(
            [sys.executable, "-c", ROUNDS, how], capture_output=True, text=True, check=True
        )
        return int(made.stdout)

    a_round = 20 << 18
    assert asked("as it was") > 10 * a_round, "it would be asked for again every round"
    assert asked("kept") < a_round
