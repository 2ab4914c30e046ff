"""What a build of the image sees of this checkout."""

import re
import subprocess
from pathlib import Path

import pathspec

ROOT = Path(__file__).resolve().parents[3]


def test_an_image_holds_the_packages_and_the_drafter_and_no_more() -> None:
    lines = (ROOT / ".dockerignore").read_text().splitlines()
    # As in .gitignore, but that every pattern begins at the root.
    patterns = [re.sub("^!?", r"\g<0>/", line) for line in lines if line and line[0] != "#"]
    left_out = pathspec.PathSpec.from_lines("gitignore", patterns)
    listed = subprocess.run(
        ["git", "ls-files", "--cached", "--others", "--exclude-standard"],
        cwd=ROOT, capture_output=True, text=True, check=True, timeout=60,
    ).stdout.splitlines()  # fmt: skip
    files = {line for line in listed if (ROOT / line).is_file() and not left_out.match_file(line)}
    assert {name.partition("/")[0] for name in files} == {
        "pyproject.toml", "constraints.txt", "README.md", "LICENSE", "dspark", "coordinator",
        "verify_service",
        "draft_service", "deploy", "models",
    }  # fmt: skip
    assert "models/smollm2-dspark/model.safetensors" in files
    assert "dspark/wire/v1/control_pb2.py" in files
    assert not any("secrets/" in name or "__pycache__" in name for name in files)
