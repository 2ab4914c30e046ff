"""The Dockerfile without a container: every step that can run in a folder does, the others are listed in `left`.

COPY takes what .dockerignore lets through; RUN runs in a shell with the image's paths moved under a temporary folder
(a virtual environment is made and the package installed for real); entry points and health checks are called with
--help. Steps that change a system (apt-get, useradd) are not run.
"""

from __future__ import annotations

import fnmatch
import json
import os
import re
import shlex
import shutil
import subprocess
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path, PurePosixPath

ROOT = Path(__file__).resolve().parents[3]
DOCKERFILE = ROOT / "deploy" / "docker" / "Dockerfile"
SYSTEM = ("apt-get", "useradd")  # programs that change a system
MOVED = ("/opt/dspark", "/src", "/models", "/cache", "/home/dspark")
STEP_S = 1500.0


@dataclass(frozen=True)
class Step:
    """One instruction: its word, and the rest with continued lines joined."""

    word: str
    rest: str


@dataclass
class Stage:
    """variables: ARG and ENV so far."""

    name: str
    base: str
    variables: dict[str, str] = field(default_factory=dict)
    folder: str = "/"


def steps(text: str) -> Iterator[Step]:
    """Instructions in order; comments and empty lines dropped."""
    lines = [line for line in text.replace("\\\n", " ").splitlines() if line.strip() and not line.startswith("#")]
    for line in lines:
        word, _, rest = line.strip().partition(" ")
        yield Step(word.upper(), rest.strip())


def let_through(path: PurePosixPath, patterns: list[str]) -> bool:
    """Whether .dockerignore lets a file into the build: the last pattern that fits it decides."""
    inside = True
    for pattern in patterns:
        bare = pattern.removeprefix("!").strip("/")
        ways = [str(path), *map(str, path.parents)]
        if any(_fits(way, bare) for way in ways if way != "."):
            inside = pattern.startswith("!")
    return inside


def _fits(name: str, pattern: str) -> bool:
    expression = "/".join(
        ".*" if part == "**" else fnmatch.translate(part)[4:-3].replace(".*", "[^/]*") for part in pattern.split("/")
    )
    return re.fullmatch(expression.replace(".*/", "(?:.*/)?"), name) is not None


def context() -> list[PurePosixPath]:
    """Files that a build of this checkout would see."""
    patterns = [line for line in (ROOT / ".dockerignore").read_text().splitlines() if line and line[0] != "#"]
    listed = subprocess.run(
        ["git", "ls-files", "--cached", "--others", "--exclude-standard"],
        cwd=ROOT, capture_output=True, text=True, check=True, timeout=60,
    ).stdout.splitlines()  # fmt: skip
    files = [PurePosixPath(line) for line in listed if (ROOT / line).is_file()]
    return [path for path in files if let_through(path, patterns)]


class Build:
    """The stages, in a folder."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._stages: dict[str, Stage] = {}
        self.ran: list[str] = []
        self.left: list[str] = []

    def run(self) -> None:
        arguments: dict[str, str] = {}
        stage: Stage | None = None
        for step in steps(DOCKERFILE.read_text(encoding="utf-8")):
            if step.word == "FROM":
                base, _, name = step.rest.partition(" AS ")
                above = self._stages.get(base)
                stage = Stage(name, base, dict(above.variables if above else arguments), above.folder if above else "/")
                self._stages[name] = stage
                self.left += [] if above else [f"FROM {base}: an image of others"]
            elif stage is None:
                arguments |= _variables(step)
            else:
                self._step(stage, step)

    def _step(self, stage: Stage, step: Step) -> None:
        if step.word in ("ARG", "ENV"):
            stage.variables |= _variables(step)
        elif step.word == "WORKDIR":
            stage.folder = step.rest
            self._at(step.rest).mkdir(parents=True, exist_ok=True)
        elif step.word == "COPY":
            self._copy(stage, step)
        elif step.word == "RUN":
            self._shell(stage, step.rest)
        elif step.word in ("ENTRYPOINT", "HEALTHCHECK"):
            words = json.loads(step.rest[step.rest.index("[") :])
            words = [word for word in words if word not in ("tini", "--")]
            if words:
                self._shell(stage, shlex.join([*words, "--help"]))
        elif step.word not in ("CMD", "EXPOSE", "VOLUME", "USER", "STOPSIGNAL"):
            raise AssertionError(f"{step.word}: an instruction this build does not know")

    def _copy(self, stage: Stage, step: Step) -> None:
        words = step.rest.split()
        if words[0].startswith("--from="):
            assert words[0].removeprefix("--from=") in self._stages, step.rest
            return  # stages share one folder here
        source, target = words
        wanted = [path for path in context() if source == "." or PurePosixPath(source) in path.parents]
        if not wanted:
            raise AssertionError(f"COPY {step.rest}: .dockerignore leaves nothing of it")
        place = self._at(stage.folder if target == "." else target)
        for path in wanted:
            to = place / (path if source == "." else path.relative_to(source))
            to.parent.mkdir(parents=True, exist_ok=True)
            shutil.copyfile(ROOT / path, to)
        self.ran.append(f"COPY {step.rest}")

    def _shell(self, stage: Stage, command: str) -> None:
        if any(program in command for program in SYSTEM):
            self.left.append(f"RUN {command}: changes a system")
            return
        variables = {key: self._moved(value) for key, value in stage.variables.items() if key != "PATH"}
        path = f"{self._at('/opt/dspark')}/bin:{os.environ['PATH']}"
        environment = {**os.environ, **variables, "PATH": path, "DSPARK_HOME": str(self._folder / "state")}
        done = subprocess.run(
            ["sh", "-euc", self._moved(command)],
            cwd=self._at(stage.folder), env=environment, capture_output=True, text=True, timeout=STEP_S,
        )  # fmt: skip
        if done.returncode:
            raise AssertionError(f"RUN {command}: {done.stderr[-2000:]}")
        self.ran.append(f"RUN {command}")

    def _at(self, path: str) -> Path:
        return self._folder / path.lstrip("/")

    def _moved(self, text: str) -> str:
        for path in MOVED:
            text = re.sub(rf"(?<![\w./-]){re.escape(path)}(?![\w-])", str(self._at(path)), text)
        return text


def _variables(step: Step) -> dict[str, str]:
    return dict(word.partition("=")[::2] for word in shlex.split(step.rest))
