"""Stored cost curves: found under their own key only, and never trusted when damaged."""

import os
import threading
from pathlib import Path
from unittest.mock import Mock

import numpy as np
import pytest
import structlog

from dspark.runtime import cost_store, quiet
from dspark.runtime.cost_store import Curve, load_curve, store_curve, stored_or_measured

KEY = {"role": "verify", "model": "abc", "threads": 1}


def curve() -> Curve:
    seconds = np.array([[1.0, 2], [2, 3], [4, 5]])
    return Curve(
        np.array([1, 2, 4]), np.array([128, 1024]), seconds, "measured", (0.25, 0.5), 8, (5,)
    )


def test_a_curve_is_found_under_its_own_key_alone() -> None:
    store_curve(KEY, curve())
    found = load_curve(KEY)
    assert found.source == "stored"
    np.testing.assert_array_equal(found.seconds, curve().seconds)
    np.testing.assert_array_equal(found.tokens, [1, 2, 4])
    assert (found.sequence_seconds, found.tokens_per_sequence, found.borrowed) == (
        (0.25, 0.5),
        8,
        (5,),
    )
    assert load_curve(KEY | {"threads": 2}) is None


@pytest.mark.parametrize(
    "damage",
    [
        lambda text: text[: len(text) // 2],
        lambda text: text.replace("4.0", "NaN"),
        lambda text: text.replace("4.0", "-4.0"),
        lambda text: text.replace("128", "4096"),
        lambda text: text.replace("0.25", "NaN"),
        lambda text: text.replace("0.25,", ""),
        lambda text: text.replace('"borrowed": [\n  5', '"borrowed": [\n  6'),
        lambda text: "[]",
        lambda text: text.replace('"tokens"', '"tokins"'),
    ],
)
def test_a_damaged_file_is_as_good_as_none(damage) -> None:
    path = store_curve(KEY, curve())
    path.write_text(damage(path.read_text()))
    assert load_curve(KEY) is None


def test_a_state_folder_that_cannot_be_written_costs_convenience_alone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "file").write_text("no folder")
    monkeypatch.setenv("DSPARK_HOME", str(tmp_path / "file" / "inside"))
    # one that no test before this one has configured
    monkeypatch.setattr(cost_store, "log", structlog.get_logger())
    with structlog.testing.capture_logs() as lines:
        found = stored_or_measured(KEY, curve)
    assert found is not None
    assert found.source == "measured"
    (told,) = [line for line in lines if line["event"] == "cost.not_stored"]
    assert "DSPARK_HOME names another" in told["reason"]


ON_CPU = KEY | {"device": "cpu"}


@pytest.mark.parametrize(
    ("others", "threads", "processors", "stored"),
    [(0.9, 2, 2, False), (0.2, 2, 2, True), (0.9, 1, 2, True), (0.9, 2, 8, True)],
)
def test_a_curve_is_stored_unless_others_needed_its_processors(
    others: float, threads: int, processors: int, stored: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    key = ON_CPU | {"threads": threads}
    monkeypatch.setattr(cost_store.OthersWork, "processors", lambda self: others)
    monkeypatch.setattr(cost_store.os, "cpu_count", lambda: processors)
    assert stored_or_measured(key, curve).source == "measured"
    assert (load_curve(key) is not None) is stored
    on_card = KEY | {"device": "a card"}
    assert stored_or_measured(on_card, curve) is not None
    assert load_curve(on_card) is not None


def test_what_others_take_of_the_processors_is_told(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    tick, stat = os.sysconf("SC_CLK_TCK"), tmp_path / "stat"
    monkeypatch.setattr(quiet, "STAT", stat)
    clock, own = Mock(return_value=100.0), Mock(return_value=7.0)
    monkeypatch.setattr(quiet, "time", Mock(monotonic=clock, process_time=own))
    stat.write_text(f"cpu {9 * tick} 0 {tick} 500 600 0 0 {tick} 8 9\ncpu0 1 2 3\n")
    others = quiet.OthersWork()
    clock.return_value, own.return_value = 104.0, 13.0
    stat.write_text(f"cpu {15 * tick} 0 {tick} 900 990 0 0 {3 * tick} 8 9\n")
    assert others.processors() == pytest.approx((8 - 6) / 4.0), "stolen time is taken, too"
    stat.unlink()
    assert others.processors() == quiet.OthersWork().processors() == 0.0


def test_processes_of_a_state_folder_measure_one_after_the_other(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The second of two equal ones has nothing left to measure."""
    sources = list[str]()
    begun, goes_on = threading.Event(), threading.Event()

    def slow() -> Curve:
        begun.set()
        assert goes_on.wait(10.0)
        return curve()

    monkeypatch.setattr(cost_store.OthersWork, "processors", lambda self: 0.0)
    key = ON_CPU | {"threads": 1}
    first, second = (
        threading.Thread(target=lambda: sources.append(stored_or_measured(key, slow).source))
        for _ in range(2)
    )
    first.start()
    assert begun.wait(10.0)
    begun.clear()
    second.start()
    goes_on.set()
    first.join(10.0)
    second.join(10.0)
    assert sorted(sources) == ["measured", "stored"]
    assert not begun.is_set()
    monkeypatch.setattr(quiet, "WAIT_S", 0.0)
    with quiet.one_at_a_time(), quiet.one_at_a_time():
        pass  # one that takes long is not waited for any longer
