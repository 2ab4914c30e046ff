"""Every command block of the pages is run, or at least understood: what a reader types works."""

import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from dspark.cli.main import build_parser
from tests.docs.blocks import (
    MARKS,
    PAIR,
    ROOT,
    RUNNABLE,
    Block,
    blocks,
    commands,
    environment,
    filled,
    run,
)

EVERY = list(blocks())
RUN = [block for block in EVERY if block.language in RUNNABLE]


def _with(*marks: str) -> list[Any]:
    return [pytest.param(block, id=block.name) for block in RUN if block.mark in marks]


@pytest.mark.parametrize("block", [pytest.param(block, id=block.name) for block in EVERY])
def test_a_block_says_what_it_is(block: Block) -> None:
    assert block.language, "name the language after the fence: sh, python, text, yaml, json"
    if block.language in RUNNABLE:
        assert block.mark in MARKS, f"{block.mark!r} is none of {MARKS}"
    else:
        assert not block.mark


@pytest.mark.parametrize("block", _with(*MARKS))
def test_it_is_understood(block: Block, tmp_path: Path) -> None:
    text = filled(block.text, tmp_path)
    if block.language == "python":
        compile(text, block.name, "exec")
        return
    checked = subprocess.run(
        ["bash", "-n", "-c", text], capture_output=True, text=True, check=False, timeout=20
    )
    assert checked.returncode == 0, checked.stderr
    for words in commands(text):
        if words[0] == "dspark":
            _parsed(words[1:])
        elif words[0] == "make":
            assert all(
                f"\n{name}:" in (ROOT / "Makefile").read_text()
                for name in words[1:]
                if "=" not in name
            )
        elif words[0] in ("python", "python3") and words[1].endswith(".py"):
            assert (ROOT / words[1]).is_file(), words[1]


def _parsed(words: list[str]) -> None:
    words = words[
        : next(
            (i for i, word in enumerate(words) if word in ("|", ">", "&", "&&", ";")), len(words)
        )
    ]
    if "..." in words:
        return  # a sketch
    # ends with what is wrong; what stands behind `ray` is Ray's own
    build_parser().parse_args(words[:1] if words[0] == "ray" else words)


@pytest.mark.parametrize("block", _with(""))
def test_it_runs_by_itself(block: Block, tmp_path: Path) -> None:
    run(block, tmp_path, tmp_path / "home", timeout=120)


@pytest.mark.parametrize("block", _with("servers"))
def test_servers_by_hand(block: Block, tmp_path: Path) -> None:
    run(block, tmp_path, tmp_path / "home", timeout=290)


@pytest.fixture(scope="module")
def home(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """The state folder of a running cell of the tiny pair."""
    home = tmp_path_factory.mktemp("cell-home")
    began = subprocess.run(
        ["dspark", "up", "--target", f"{PAIR}/target", "--drafter", f"{PAIR}/drafter"],
        cwd=ROOT,
        env=environment(home),
        capture_output=True,
        text=True,
        timeout=280,
        check=False,
    )
    try:
        assert began.returncode == 0, began.stderr[-3000:]
        yield home
    finally:
        subprocess.run(
            ["dspark", "down"], cwd=ROOT, env=environment(home), timeout=120, check=False
        )


@pytest.mark.ray
@pytest.mark.parametrize("block", _with("cell"))
def test_it_runs_beside_a_cell(block: Block, home: Path, tmp_path: Path) -> None:
    run(block, tmp_path, home, timeout=120)


@pytest.mark.slow
@pytest.mark.timeout(3600)
@pytest.mark.parametrize("block", _with("long"))
def test_it_runs_in_minutes(block: Block, tmp_path: Path) -> None:
    run(block, tmp_path, tmp_path / "home", timeout=3500)
