"""Bounds of settings: what is out of them is refused by name, from files and flags as in code."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import pytest

from dspark.errors import ConfigError
from dspark.runtime.config import load_config
from dspark.runtime.setting import check_settings, setting


@dataclass(frozen=True)
class Sample:
    count: int = setting(1, "From one on.", least=1)
    span: float = setting(0.5, "A share.", above=0, most=1)
    port: int | None = setting(None, "A port, or none.", least=0, most=65535)
    wait_s: float = setting(1.0, "Longer than nothing.", above=0)
    mode: str = setting("one", "One or two.", one_of=("one", "two"))


@pytest.mark.parametrize(
    ("given", "said"),
    [
        ({"count": 0}, "count: 0 is less than 1"),
        ({"span": 0.0}, "span: 0.0 is not above 0, up to 1"),
        ({"span": 1.5}, "span: 1.5 is not above 0, up to 1"),
        ({"port": 65536}, "port: 65536 is not in 0..65535"),
        ({"port": -1}, "port: -1 is not in 0..65535"),
        ({"wait_s": 0.0}, "wait_s: 0.0 is not above 0"),
        ({"mode": "three"}, "mode: 'three' is none of one, two"),
    ],
)
def test_a_value_out_of_its_bounds_is_refused_by_name(given: dict[str, Any], said: str) -> None:
    with pytest.raises(ConfigError, match=f"^{said}"):
        check_settings(Sample(**given))
    with pytest.raises(ConfigError, match=rf"^part\.{said}"):
        load_config(Sample, section="part", flags=given)


def test_what_is_at_its_bounds_will_do() -> None:
    for given in ({"count": 1, "span": 1.0, "port": 0}, {"port": 65535, "mode": "two"}, {}):
        check_settings(Sample(**given))  # type: ignore[arg-type]
