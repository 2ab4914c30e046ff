"""constraints.txt holds a version of everything that `make install` installs, and pyproject.toml
allows each."""

from importlib import metadata
from pathlib import Path

import pytest
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

ROOT = Path(__file__).parents[2]
PACKAGE = "dspark-serving"
WITH_TORCH = {"triton"}  # which version fits, the build of torch says


def _held() -> dict[str, str]:
    """Package -> version."""
    lines = (ROOT / "constraints.txt").read_text().splitlines()
    pairs = (line.split("==") for line in lines if not line.startswith("#"))
    return {canonicalize_name(name): version for name, version in pairs}


def _wanted(
    package: str, extras: frozenset[str], seen: set[tuple[str, frozenset[str]]]
) -> list[Requirement]:
    """Requirements of an installed package with these extras, and theirs; those that hold here.
    What is installed at another version than the one held asks for nothing."""
    if (package, extras) in seen or _held().get(
        package, installed := metadata.version(package)
    ) != installed:
        return []
    seen.add((package, extras))
    found = []
    for line in metadata.requires(package) or []:
        requirement = Requirement(line)
        if requirement.name in WITH_TORCH:
            continue
        if requirement.marker is None or any(
            requirement.marker.evaluate({"extra": e}) for e in (extras or {""})
        ):
            found += [
                requirement,
                *_wanted(canonicalize_name(requirement.name), frozenset(requirement.extras), seen),
            ]
    return found


def test_every_package_that_is_installed_has_a_version_that_is_allowed() -> None:
    held, wanted = _held(), _wanted(PACKAGE, frozenset({"all"}), set())
    assert len(wanted) > 100
    for requirement in wanted:
        name = canonicalize_name(requirement.name)
        if name == PACKAGE:
            continue
        assert name in held, f"constraints.txt lacks {name}"
        assert requirement.specifier.contains(held[name], prereleases=True), (
            f"{requirement}: held at {held[name]}"
        )


@pytest.mark.parametrize("file", ["Makefile", "deploy/docker/Dockerfile"])
def test_nothing_is_installed_without_them(file: str) -> None:
    lines = [
        line
        for line in (ROOT / file).read_text().splitlines()
        if '".[' in line and "NEWEST" not in line
    ]
    assert lines
    assert not [
        line for line in lines if "$(PIP) " not in line and "-c constraints.txt" not in line
    ]
