"""The pair that ships with the project: a target by name, and its drafter's folder in a checkout or
an installation."""

from __future__ import annotations

import os
import site
import sysconfig
from pathlib import Path

from dspark.errors import ConfigError

TARGET = "smollm2"
DRAFTER = "smollm2-dspark"
# below an installation's folder of data files
_INSTALLED = Path("share") / "dspark" / DRAFTER


def places() -> list[Path]:
    """Candidate folders of the drafter: in a checkout, then among an installation's data files."""
    bases = [Path(sysconfig.get_path("data"))]
    if site.ENABLE_USER_SITE:
        bases.append(Path(sysconfig.get_path("data", f"{os.name}_user")))
    return [
        Path(__file__).resolve().parents[1] / "models" / DRAFTER,
        *(base / _INSTALLED for base in bases),
    ]


def drafter() -> Path:
    """The first of `places` that holds a drafter; raises ConfigError if none does."""
    for place in places():
        if (place / "config.json").is_file():
            return place
    raise ConfigError(
        f"the drafter that ships with the project is not there ({', '.join(map(str, places()))}); "
        "say --target PATH_OR_ID --drafter PATH_OR_ID"
    )


def pair(target: str | None, drafts: str | None) -> dict[str, str | None]:
    """The pair to serve: as given, or the shipped one if no drafter and no other target is
    given."""
    if drafts is None and target in (None, TARGET):
        return {"target": TARGET, "drafter": str(drafter())}
    return {"target": target, "drafter": drafts}
