"""What logs may hold: event names and numbers, and of an error its frames, never the values in
them; and many values told to a histogram at once."""

import json
import subprocess
import sys
from collections.abc import Sequence
from types import SimpleNamespace
from typing import Any

import pytest

from coordinator.config import CoordinatorConfig
from coordinator.frontend.front_end import ClientsProcess
from dspark.runtime.telemetry import Metrics, observe_all

_PROGRAM = """
import sys, structlog
from dspark.errors import PeerError
from dspark.runtime.telemetry import configure_logging
fmt, secret = sys.argv[1:]  # not in the source, whose lines some Pythons show
configure_logging(role="verify", name="verify/0", fmt=fmt)
def fail(prompt):
    token = "tok-" + secret
    int(prompt)
def explain():
    try:
        fail("a prompt with a " + secret)
    except ValueError as error:
        raise PeerError("rows.dtype: wrong") from error
def several():
    raise ExceptionGroup("both", [ValueError("val-" + secret), KeyError("key-" + secret)])
for attempt in (explain, several):
    try:
        attempt()
    except Exception as error:
        structlog.get_logger("t").error("rpc.failed", exc_info=error)
try:
    open("/nowhere/at/all")
except OSError:
    structlog.get_logger("t").exception("file.failed")
"""


def _said(*words: str) -> str:
    """What a program of Python writes to stderr."""
    command = [sys.executable, "-c", *words]
    return subprocess.run(command, capture_output=True, text=True, check=True).stderr


@pytest.mark.parametrize("fmt", ["json", "console"])
def test_a_traceback_shows_frames_and_no_values(fmt: str) -> None:
    said = _said(_PROGRAM, fmt, "SECRET")
    for shown in (
        "rpc.failed",
        "rows.dtype: wrong",
        "fail",
        "ValueError",
        "KeyError",
        "PeerError",
        "/nowhere/at/all",
    ):
        assert shown in said
    assert "SECRET" not in said


_CHOSEN = """
import structlog
from dspark.runtime.telemetry import configure_logging
configure_logging(role="coordinator", name="c/0", fmt="console")
structlog.get_logger("t").info("request.accepted", request="\x1b]0;owned\x07\\nline")
"""


def test_what_clients_choose_does_not_control_the_terminal_of_an_operator() -> None:
    said = _said(_CHOSEN)
    assert "owned" in said
    assert "\x1b]0" not in said
    assert len(said.splitlines()) == 1


_OTHERS = """
import contextvars, logging, structlog
from dspark.runtime.telemetry import configure_logging
before = contextvars.Context()
configure_logging(role="verify", name="verify/0", fmt="json")
before.run(structlog.get_logger("t").info, "ours")
before.run(logging.getLogger("library").warning, "theirs")
"""


def test_every_line_says_whose_it_is_whatever_context_it_comes_from() -> None:
    lines = [json.loads(line) for line in _said(_OTHERS).splitlines()]
    assert [line["event"] for line in lines] == ["ours", "theirs"]
    assert {(line["role"], line["process"]) for line in lines} == {("verify", "verify/0")}


@pytest.mark.parametrize("values", [[], [3], [0, 1, 1, 7, 8, 9, 16, 17, 1000], [0.5, 2.0, 2.5]])
def test_a_histogram_told_at_once_equals_one_told_one_by_one(values: Sequence[float]) -> None:
    once, each = Metrics(), Metrics()
    observe_all(once.scheduled_verify_length, values)
    for value in values:
        each.scheduled_verify_length.observe(value)

    def samples(metrics: Metrics) -> list[tuple[str, str, float]]:
        (family,) = metrics.scheduled_verify_length.collect()
        return [
            (s.name, s.labels.get("le", ""), s.value)
            for s in family.samples
            if not s.name.endswith("_created")
        ]

    assert samples(once) == samples(each)


def test_samples_keep_the_name_of_a_model_that_is_not_connected_for_a_while() -> None:
    name = ""
    process = ClientsProcess[Any]("coordinator", CoordinatorConfig(), most=1)
    process.cell = SimpleNamespace(terms=lambda: SimpleNamespace(model=name))

    def shown() -> set[str]:
        families = process.metrics.exposed.collect()
        return {each.labels["model_name"] for family in families for each in family.samples}

    assert shown() == {"unknown"}
    for name, label in (("one", "one"), ("", "one"), ("other", "other"), ("", "other")):  # noqa: B007
        assert shown() == {label}
