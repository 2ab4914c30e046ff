"""What an installation adds."""

import tomllib
from pathlib import Path

from setuptools import find_packages

ROOT = Path(__file__).parent.parent.parent


def test_five_names_and_nothing_else_can_be_imported_afterwards() -> None:
    asked = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["tool"][
        "setuptools"
    ]["packages"]
    packages = find_packages(str(ROOT), **asked["find"])
    assert {name.partition(".")[0] for name in packages} == {
        "dspark", "coordinator", "draft_service", "verify_service", "deploy",
    }  # fmt: skip
    assert "dspark.training" in packages
    assert "dspark.loadgen" in packages


def test_what_is_installed_does_not_need_what_is_not() -> None:
    for path in (
        ROOT / name
        for name in ("dspark", "coordinator", "draft_service", "verify_service", "deploy")
    ):
        for source in path.rglob("*.py"):
            text = source.read_text(encoding="utf-8")
            assert "from benchmarks" not in text, source
            assert "import benchmarks" not in text, source
            assert "from tests" not in text, source
