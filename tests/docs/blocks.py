"""Command blocks of the pages: where they stand, how they are marked, and how one is run.

A fence's first word is its language. A block of commands or of Python may carry one mark after it:

    (nothing)  runs by itself, quickly
    cell       needs a running cell
    servers    starts servers by hand in its first lines, then uses them
    long       takes minutes
    other      needs what one machine does not have: a hub, docker, a GPU, a cluster
"""

from __future__ import annotations

import os
import re
import select
import shlex
import signal
import subprocess
import sys
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
MARKS = ("", "cell", "servers", "long", "other")
RUNNABLE = ("sh", "python")
PAGES = [ROOT / "README.md", ROOT / "benchmarks" / "README.md", *sorted((ROOT / "docs").rglob("*.md"))]
PAIR = "tests/data/pair"  # what no download is needed for
# Names that stand for the reader's own, and what a test gives instead.
STANDS_FOR = {
    "PATH_OR_HUB_ID --drafter PATH_OR_HUB_ID": f"{PAIR}/target --drafter {PAIR}/drafter",
    "--target smollm2": f"--target {PAIR}/target",
    "models/smollm2-dspark": f"{PAIR}/drafter",
    "TARGET": f"{PAIR}/target",
    "DRAFTER": f"{PAIR}/drafter",
    ".venv/bin/": "",
}
_FENCE = re.compile(r"^(\s*)```(.*)$")
_SERVING = 90.0


@dataclass(frozen=True, slots=True)
class Block:
    """One fenced block: `language` and `mark` as written, the text without the fence's own indentation."""

    page: Path
    line: int
    language: str
    mark: str
    text: str

    @property
    def name(self) -> str:
        return f"{self.page.relative_to(ROOT)}:{self.line}"


def blocks() -> Iterator[Block]:
    """Every fenced block of every page, in order."""
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
    """The words of each line that calls a program of the project: continued lines joined, comments dropped."""
    found = []
    for line in text.replace("\\\n", " ").splitlines():
        line = re.sub(r"^\s*([A-Z_]+=\S* +)*", "", line)
        if line.startswith(("dspark ", "make ", "python ")):
            found.append(shlex.split(line, comments=True))
    return found


def filled(text: str, folder: Path) -> str:
    """The text with the reader's own names replaced; DIR and OUT become folders of this test."""
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
        "PYTHONPATH": f"{ROOT}{os.pathsep}{ROOT / 'tests'}",
        "HF_HUB_OFFLINE": "1",
        "OMP_NUM_THREADS": "1",
    }


def run(block: Block, folder: Path, home: Path, timeout: float) -> None:
    """Runs the block as a reader would; raises AssertionError with what it printed when a command fails."""
    text = filled(block.text, folder)
    command = [sys.executable, "-c", text] if block.language == "python" else ["bash", "-euo", "pipefail", "-c", text]
    done = subprocess.run(
        command, cwd=ROOT, env=environment(home), capture_output=True, text=True, timeout=timeout, check=False
    )
    assert done.returncode == 0, (
        f"{block.name} ended with {done.returncode}\n{done.stdout[-2000:]}\n{done.stderr[-2000:]}"
    )


def run_with_servers(block: Block, folder: Path, home: Path, timeout: float) -> None:
    """Runs lines of `dspark serve` in the background, each until it serves, and the others in the foreground."""
    started: list[subprocess.Popen[str]] = []
    lines = [
        line for line in filled(block.text, folder).replace("\\\n", " ").splitlines() if line.split("#")[0].strip()
    ]
    env = environment(home)
    try:
        for line in lines:
            if line.startswith("dspark serve"):
                started.append(_served(line, env))
                continue
            done = subprocess.run(
                ["bash", "-euo", "pipefail", "-c", line], cwd=ROOT, env=env, capture_output=True, text=True,
                timeout=timeout, check=False,
            )  # fmt: skip
            assert done.returncode == 0, f"{block.name}: {line}\n{done.stdout[-1000:]}\n{done.stderr[-2000:]}"
    finally:
        for process in started[::-1]:
            process.send_signal(signal.SIGTERM)
        for process in started:
            try:
                process.wait(30)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()
            if process.stdout is not None:
                process.stdout.close()


def _served(line: str, env: Mapping[str, str]) -> subprocess.Popen[str]:
    """The server of this line, when it has printed where it serves."""
    process = subprocess.Popen(
        ["bash", "-c", f"exec {line}"], cwd=ROOT, env=dict(env), stdout=subprocess.PIPE, text=True
    )
    assert process.stdout is not None
    answered, _, _ = select.select([process.stdout], [], [], _SERVING)
    if answered and process.stdout.readline():
        return process
    process.kill()
    process.stdout.close()
    raise AssertionError(f"{line}: does not serve (exit code {process.wait()})")
