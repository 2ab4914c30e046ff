"""Which extra of this distribution brings what, by its own lists. Needs nothing but Python."""

from __future__ import annotations

import re
from collections.abc import Iterator
from importlib import metadata
from typing import NamedTuple

PACKAGE = "dspark-serving"
# Top modules that are not called like their distribution, and of those that bring others' modules.
_DISTRIBUTIONS = {
    "yaml": "pyyaml",
    "google": "protobuf",
    "grpc": "grpcio",
    "grpc_health": "grpcio-health-checking",
    "grpc_reflection": "grpcio-reflection",
    "opentelemetry": "opentelemetry-sdk",
    "starlette": "fastapi",
}
_COMPARE = {
    ">=": lambda found, wanted: found >= wanted,
    "<": lambda found, wanted: found < wanted,
    "==": lambda found, wanted: found == wanted,
}


class Wanted(NamedTuple):
    """A distribution that this one asks for. extra: of which; "" is asked for always."""

    name: str
    specifier: str  # as it is written, without spaces
    extra: str

    def fits(self, found: str) -> bool:
        """Whether a version is one of those that are asked for."""
        for part in filter(None, self.specifier.split(",")):
            compared = re.fullmatch(r"(>=|<|==)([0-9.]+)", part)
            if compared and not _COMPARE[compared[1]](*_padded(found, compared[2])):
                return False
        return True


def wanted() -> Iterator[Wanted]:
    """All of them; nothing where the distribution is not installed."""
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
        yield Wanted(found[1], found[2].replace(" ", "").strip("()"), extra[1] if extra else "")


def extra_of(module: str) -> str:
    """The extra that brings a module; "serve" for what is not known."""
    top = module.partition(".")[0]
    name = _same(_DISTRIBUTIONS.get(top, top))
    return next(
        (each.extra for each in wanted() if _same(each.name) == name and each.extra), "serve"
    )


def how_to_install(module: str) -> str:
    """A sentence without its subject."""
    return f"install it with `pip install '.[{extra_of(module)}]'` in the checkout"


def _same(name: str) -> str:
    return re.sub(r"[-_.]+", "-", name).lower()


def _padded(*versions: str) -> list[tuple[int, ...]]:
    """Their numbers, as many of each; what follows the numbers (rc1, +cpu) does not count."""
    numbers = [
        [int(part) for part in re.findall(r"\d+", re.match(r"[0-9.]*", text)[0])]
        for text in versions
    ]  # type: ignore[index]
    most = max(map(len, numbers))
    return [tuple(each + [0] * (most - len(each))) for each in numbers]
