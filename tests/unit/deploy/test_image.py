"""What a build of the image sees, and how its steps are read."""

from __future__ import annotations

import os
from pathlib import Path, PurePosixPath

import pytest

from tests.unit.deploy.image import DOCKERFILE, Build, context, let_through, steps

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
        "draft_service", "deploy", "models",
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


@pytest.mark.slow
@pytest.mark.timeout(3600)
@pytest.mark.skipif("DSPARK_TEST_INSTALLS" not in os.environ, reason="installs torch and Ray from the package registry")
def test_every_step_that_can_run_without_a_container_ends_well(tmp_path: Path) -> None:
    build = Build(tmp_path)
    build.run()
    assert any(step.startswith("RUN pip install") for step in build.ran)
    assert all("apt-get" in step or "useradd" in step or step.startswith("FROM") for step in build.left)
