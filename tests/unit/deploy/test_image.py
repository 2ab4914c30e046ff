"""What a build of the image sees of this checkout."""

from __future__ import annotations

import fnmatch
import re
import subprocess
from pathlib import Path, PurePosixPath

import pytest

ROOT = Path(__file__).resolve().parents[3]
PATTERNS = ["**", "!keep", "!some/*.py", "**/*.pyc"]


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


@pytest.mark.parametrize(
    ("path", "inside"),
    [
        ("other/file.txt", False),
        ("keep/deep/file.txt", True),
        ("keep/deep/file.pyc", False),
        ("some/module.py", True),
        ("some/deep/module.py", False),
        ("keeper/file", False),
    ],
)
def test_the_last_pattern_that_fits_decides(path: str, inside: bool) -> None:
    assert let_through(PurePosixPath(path), PATTERNS) is inside


def test_an_image_holds_the_packages_and_the_drafter_and_no_more() -> None:
    patterns = [line for line in (ROOT / ".dockerignore").read_text().splitlines() if line and line[0] != "#"]
    listed = subprocess.run(
        ["git", "ls-files", "--cached", "--others", "--exclude-standard"],
        cwd=ROOT, capture_output=True, text=True, check=True, timeout=60,
    ).stdout.splitlines()  # fmt: skip
    files = {line for line in listed if (ROOT / line).is_file() and let_through(PurePosixPath(line), patterns)}
    assert {name.partition("/")[0] for name in files} == {
        "pyproject.toml", "constraints.txt", "README.md", "LICENSE", "dspark", "coordinator", "verify_service",
        "draft_service", "deploy", "models",
    }  # fmt: skip
    assert "models/smollm2-dspark/model.safetensors" in files
    assert "dspark/wire/v1/control_pb2.py" in files
    assert not any("secrets/" in name or "__pycache__" in name for name in files)
