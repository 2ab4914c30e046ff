"""Which vLLM is measured: its better setting, and nothing of the other left running."""

from __future__ import annotations

import argparse
from contextlib import ExitStack
from pathlib import Path
from typing import Self

import pytest

from benchmarks.peers import vllm_choice
from benchmarks.peers.contestant import NOT_INSTALLED, Absent
from benchmarks.peers.vllm_server import VllmServer

UP: list[str] = []
SECONDS = {"system": 3.0, "intel": 2.0}


class Server:
    """Stands in for the process: what is up is written down."""

    def __init__(self, python: Path, target: Path, cores: object, *, openmp: str, start_s: float) -> None:
        assert start_s == 60.0
        self.openmp = openmp

    def __enter__(self) -> Self:
        UP.append(self.openmp)
        return self

    def __exit__(self, *told: object) -> None:
        UP.remove(self.openmp)


def python_of(tmp_path: Path, *, intel: bool) -> Path:
    (tmp_path / "bin").mkdir()
    (tmp_path / "lib").mkdir()
    (tmp_path / "bin" / "python").touch()
    if intel:
        (tmp_path / "lib" / "libiomp5.so").touch()
    return tmp_path / "bin" / "python"


@pytest.mark.parametrize(
    ("asked", "intel", "quick", "chosen"),
    [
        ("auto", True, False, "intel"),
        ("auto", True, True, "system"),
        ("auto", False, False, "system"),
        ("system", True, False, "system"),
    ],
)
def test_the_faster_setting_stays_up_until_the_benchmark_ends(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, asked: str, intel: bool, quick: bool, chosen: str
) -> None:
    monkeypatch.setattr(vllm_choice, "VllmServer", Server)
    args = argparse.Namespace(vllm_python=python_of(tmp_path, intel=intel), vllm_openmp=asked, vllm_start_s=60.0)
    with ExitStack() as stack:
        best = vllm_choice.start_best(stack, args, tmp_path, (0, 1), lambda s: SECONDS[s.openmp], quick=quick)
        assert UP == [best.openmp] == [args.vllm_openmp] == [chosen]
    assert UP == []


def test_a_trial_that_fails_leaves_nothing_running(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    def fail(server: VllmServer) -> float:
        raise Absent("it broke")

    monkeypatch.setattr(vllm_choice, "VllmServer", Server)
    args = argparse.Namespace(vllm_python=python_of(tmp_path, intel=True), vllm_openmp="auto", vllm_start_s=60.0)
    with ExitStack() as stack, pytest.raises(Absent):
        vllm_choice.start_best(stack, args, tmp_path, (0, 1), fail, quick=False)
    assert UP == []


def test_without_it_the_reason_is_said(tmp_path: Path) -> None:
    for python, openmp, reason in (
        (None, "system", NOT_INSTALLED),
        (tmp_path / "none", "system", NOT_INSTALLED),
        (python_of(tmp_path, intel=False), "intel", "intel-openmp"),
    ):
        with pytest.raises(Absent, match=reason):
            VllmServer(python, tmp_path, (0, 1), openmp=openmp)
