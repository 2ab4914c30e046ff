"""Declares one setting of a configuration in one place: its default, description and bounds.

The description is the help of its flag and its line in the reference; values out of bounds are
refused. Light: it reads no files and needs nothing but Python.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from typing import Any, NamedTuple, TypeVar

from dspark.errors import ConfigError

T = TypeVar("T")

# No number is higher, unless its setting says so: what gRPC, threads and clocks count with holds
# it, doubled and summed.
MOST = 100_000_000


class SettingBounds(NamedTuple):
    """The bounds of a value; None and an empty tuple bound nothing, but no number is above MOST
    without a `most`."""

    least: float | None = None
    above: float | None = None
    most: float | None = None
    one_of: tuple[object, ...] = ()

    def problem(self, value: Any) -> str:
        """Why a value is out of bounds; empty for one that is not."""
        least, above, most, one_of = self
        if one_of:
            return (
                ""
                if value in one_of
                else f"{value!r} is none of {', '.join(filter(None, map(str, one_of)))}"
            )
        fits = (
            (least is None or value >= least)
            and (above is None or value > above)
            and (most is None or value <= most)
        )
        if fits:
            unbounded = most is None and isinstance(value, int | float) and value > MOST
            return f"{value} is more than {MOST}" if unbounded else ""
        if most is None:
            return (
                f"{value} is less than {least}"
                if above is None
                else f"{value} is not above {above}"
            )
        return (
            f"{value} is not in {least}..{most}"
            if above is None
            else f"{value} is not above {above}, up to {most}"
        )


def setting(
    default: T,
    doc: str,
    *,
    least: float | None = None,
    above: float | None = None,
    most: float | None = None,
    one_of: Sequence[object] = (),
) -> T:
    """A field of a dataclass, with its description and bounds. A value of None is not checked."""
    bounds = SettingBounds(least, above, most, tuple(one_of))
    return dataclasses.field(default=default, metadata={"doc": doc, "bounds": bounds})


def check_settings(config: Any, section: str = "") -> None:
    """Raises ConfigError for the first value out of its bounds, naming section and key."""
    for field in dataclasses.fields(config):
        value, bounds = getattr(config, field.name), field.metadata.get("bounds")
        if bounds is not None and value is not None and (problem := bounds.problem(value)):
            raise ConfigError(f"{section}.{field.name}: {problem}".removeprefix("."))
