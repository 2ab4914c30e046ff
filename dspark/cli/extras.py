"""Which extra of this distribution installs what, by its metadata. Standard library only."""

from __future__ import annotations

import operator
import re
from collections.abc import Iterator
from importlib import metadata
from typing import NamedTuple

PACKAGE = "dspark-serving"
# Top-level module -> distribution, where its name is another or another one installs it.
_DISTRIBUTIONS = {
    "yaml": "pyyaml",
    "google": "protobuf",
    "grpc": "grpcio",
    "grpc_health": "grpcio-health-checking",
    "grpc_reflection": "grpcio-reflection",
    "opentelemetry": "opentelemetry-sdk",
    "starlette": "fastapi",
}
_COMPARE = {">=": operator.ge, "<": operator.lt, "==": operator.eq}


class Requirement(NamedTuple):
    """A distribution that this one requires. extra: the one that requires it; "": always."""

    name: str
    specifier: str  # as in the metadata, without spaces
    extra: str

    def fits(self, found: str) -> bool:
        """Whether an installed version satisfies the specifier."""
        for part in filter(None, self.specifier.split(",")):
            compared = re.fullmatch(r"(>=|<|==)([0-9.]+)", part)
            if compared and not _COMPARE[compared[1]](_numbers(found), _numbers(compared[2])):
                return False
        return True


def wanted() -> Iterator[Requirement]:
    """All distributions that this one requires; none if it is not installed."""
    try:
        lines = metadata.requires(PACKAGE) or []
    except metadata.PackageNotFoundError:
        return
    for line in lines:
        named, _, marker = line.partition(";")
        found = re.match(r"\s*([A-Za-z0-9._-]+)\s*(?:\[[^\]]*\])?\s*(.*)", named)
        if found is None or _same(found[1]) == PACKAGE:
            continue
        extra = re.search(r"extra\s*==\s*[\"']([^\"']+)", marker)
        yield Requirement(
            found[1], found[2].replace(" ", "").strip("()"), extra[1] if extra else ""
        )


def extra_of(module: str) -> str:
    """The extra that installs a module; "serve" for an unknown one."""
    top = module.partition(".")[0]
    name = _same(_DISTRIBUTIONS.get(top, top))
    return next(
        (each.extra for each in wanted() if _same(each.name) == name and each.extra), "serve"
    )


def how_to_install(module: str) -> str:
    """How to install a module, as the end of a sentence."""
    return f"install it with `pip install '.[{extra_of(module)}]'` in the checkout"


def _same(name: str) -> str:
    return re.sub(r"[-_.]+", "-", name).lower()


def _numbers(version: str) -> list[int]:
    """The numbers of a version, without zeros at its end; suffixes (rc1, +cpu) do not count."""
    numbers = [int(part) for part in re.findall(r"\d+", re.split(r"[^0-9.]", version)[0])]
    while numbers and not numbers[-1]:
        numbers.pop()
    return numbers
