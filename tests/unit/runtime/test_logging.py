"""What logs may hold: event names and numbers, and of an error its frames, never the values in them."""

from __future__ import annotations

import subprocess
import sys

import pytest

_PROGRAM = """
import sys, structlog
from dspark.runtime.telemetry import configure_logging
configure_logging(role="verify", name="verify/0", fmt=sys.argv[1])
def fail(prompt):
    token = "tok-" + "SECRET"
    raise ValueError("went wrong")
try:
    fail("a prompt with a " + "SECRET")
except ValueError as error:
    structlog.get_logger("t").error("rpc.failed", exc_info=error)
"""


@pytest.mark.parametrize("fmt", ["json", "console"])
def test_a_traceback_shows_frames_and_no_values(fmt: str) -> None:
    result = subprocess.run([sys.executable, "-c", _PROGRAM, fmt], capture_output=True, text=True, check=True)
    assert "rpc.failed" in result.stderr
    assert "went wrong" in result.stderr
    assert "fail" in result.stderr
    assert "tok-SECRET" not in result.stderr
    assert "with a SECRET" not in result.stderr
