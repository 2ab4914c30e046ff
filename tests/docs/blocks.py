"""Command blocks of the pages: where they stand, how they are marked, and how one is run.

A fence's first word is its language. A block of commands or of Python may carry one mark after it:

    (nothing)  runs by itself, quickly
    cell       needs a running cell
    servers    starts servers by hand in the background, uses them and ends them
    long       takes minutes
    other      needs what one machine does not have: a hub, docker, a GPU, a cluster
"""

import contextlib
import os
import re
import shlex
import signal
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
MARKS = ("", "cell", "servers", "long", "other")
RUNNABLE = ("sh", "python")
PAGES = [
    ROOT / "README.md",
    ROOT / "benchmarks" / "README.md",
    *sorted((ROOT / "docs").rglob("*.md")),
]
PAIR = "tests/data/pair"  # what no download is needed for
# Names that stand for the reader's own, and what a test gives instead.
STANDS_FOR = {
    "PATH_OR_HUB_ID --drafter PATH_OR_HUB_ID": f"{PAIR}/target --drafter {PAIR}/drafter",
    "--target smollm2": f"--target {PAIR}/target",
    "models/smollm2-dspark": f"{PAIR}/drafter",
    "TARGET": f"{PAIR}/target",
    "DRAFTER": f"{PAIR}/drafter",
    ".venv/bin/": "",
    "--wait 60": "--wait 250",  # four processes that start beside others
}
_FENCE = re.compile(r"^(\s*)```(.*)$")


@dataclass(frozen=True, slots=True)
class Block:
    """One fenced block, its language and mark as written, its text without the indentation."""

    page: Path
    line: int
    language: str
    mark: str
    text: str

    @property
    def name(self) -> str:
        return f"{self.page.relative_to(ROOT)}:{self.line}"


def blocks() -> Iterator[Block]:
    for page in PAGES:
        opened: tuple[int, str, str] | None = None
        inside: list[str] = []
        for number, line in enumerate(page.read_text(encoding="utf-8").splitlines(), 1):
            fence = _FENCE.match(line)
            if fence is None:
                inside.append(line)
            elif opened is None:
                opened, inside = (number, fence[1], fence[2].strip()), []
            else:
                start, indent, info = opened
                language, _, mark = info.partition(" ")
                text = "\n".join(kept.removeprefix(indent) for kept in inside)
                yield Block(page, start, language, mark.strip(), text)
                opened = None
        assert opened is None, f"{page}: the block opened in line {opened and opened[0]} has no end"


def commands(text: str) -> list[list[str]]:
    """The words of each line that calls a program of the project, joined and without comments."""
    found = []
    for line in text.replace("\\\n", " ").splitlines():
        line = re.sub(r"^\s*([A-Z_]+=\S* +)*", "", line)
        if line.startswith(("dspark ", "make ", "python ")):
            found.append(shlex.split(line, comments=True))
    return found


def filled(text: str, folder: Path) -> str:
    """The text with the reader's own names replaced; DIR and OUT become folders of this test.

    A cell of the shipped pair becomes one of the tiny pair, which needs no index.
    """
    text = re.sub(
        r"\bdspark up\b(?![^\n]*--target)",
        f"dspark up --target {PAIR}/target --drafter {PAIR}/drafter",
        text,
    )
    for name, value in STANDS_FOR.items():
        text = (
            re.sub(rf"(?<![\w/]){re.escape(name)}(?![\w])", value, text)
            if name.isupper()
            else text.replace(name, value)
        )
    return re.sub(r"(?<![\w/-])(DIR|OUT)(?!\w)", lambda match: str(folder / match[0].lower()), text)


def environment(home: Path) -> dict[str, str]:
    """What a shell at the root of the project has, with a state folder of its own."""
    path = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
    return {
        **os.environ,
        "PATH": path,
        "DSPARK_HOME": str(home),
        "PYTHONPATH": str(ROOT),
        "HF_HUB_OFFLINE": "1",
        "OMP_NUM_THREADS": "1",
        # a tiny pair needs no long curves
        "DSPARK_VERIFY__COST_MAX_TOKENS": "32",
        "DSPARK_DRAFT__COST_MAX_SEQUENCES": "8",
    }


def run(block: Block, folder: Path, home: Path, timeout: float) -> None:
    """Runs the block as a reader would. AssertionError: a command fails, with what it printed."""
    text = filled(block.text, folder)
    command = (
        [sys.executable, "-c", text]
        if block.language == "python"
        else ["bash", "-euo", "pipefail", "-c", text]
    )
    process = subprocess.Popen(
        command, cwd=ROOT, env=environment(home), stdout=subprocess.PIPE, stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )  # fmt: skip
    try:
        out, complaints = process.communicate(timeout=timeout)
    finally:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)  # what it left in the background
        process.wait()
    assert process.returncode == 0, (
        f"{block.name} ended with {process.returncode}\n{out[-2000:]}\n{complaints[-2000:]}"
    )
