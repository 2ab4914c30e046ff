"""What a build of the image sees, and how its steps are read."""

from __future__ import annotations

from pathlib import PurePosixPath

import pytest

from benchmarks.image import DOCKERFILE, context, let_through, steps

PATTERNS = ["**", "!keep", "!some/*.py", "**/*.pyc"]


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
    files = {str(path) for path in context()}
    tops = {name.partition("/")[0] for name in files}
    assert tops == {
        "pyproject.toml", "constraints.txt", "README.md", "LICENSE", "dspark", "coordinator", "verify_service",
        "draft_service", "training", "deploy", "benchmarks", "models",
    }  # fmt: skip
    assert "models/smollm2-dspark/model.safetensors" in files
    assert "dspark/wire/v1/control_pb2.py" in files
    assert not any("secrets/" in name or "__pycache__" in name for name in files)


def test_every_instruction_is_known_and_continued_lines_are_one() -> None:
    words = {step.word for step in steps(DOCKERFILE.read_text())}
    assert words == {
        "ARG", "FROM", "ENV", "RUN", "WORKDIR", "COPY", "VOLUME", "USER", "STOPSIGNAL", "EXPOSE", "HEALTHCHECK",
        "ENTRYPOINT", "CMD",
    }  # fmt: skip
    assert [(step.word, step.rest) for step in steps("# a\nRUN one \\\n  two\n\nCMD x")] == [
        ("RUN", "one    two"),
        ("CMD", "x"),
    ]
