"""Child processes that note what code they let in, and log everything: see
`watched/sitecustomize.py`."""

from __future__ import annotations

import os
import tempfile
from pathlib import Path
from types import TracebackType
from typing import Self
from unittest import mock

_HOOK = Path(__file__).resolve().parent / "watched"


class Watch:
    """A context manager: whatever Python process is started inside is watched."""

    def __init__(self) -> None:
        self._folder = tempfile.TemporaryDirectory(prefix="dspark-watch-")
        self.folder = Path(self._folder.name)
        path = os.pathsep.join(filter(None, (str(_HOOK), os.environ.get("PYTHONPATH", ""))))
        self._environment = mock.patch.dict(
            os.environ, {"PYTHONPATH": path, "DSPARK_WATCH": str(self.folder)}
        )

    def arm(self) -> None:
        """From now on code that is compiled, run or loaded is noted too."""
        (self.folder / "armed").touch()

    def events(self) -> list[str]:
        """What was noted, of all processes."""
        files = sorted(self.folder.glob("events-*"))
        return [line for file in files for line in file.read_text(encoding="utf-8").splitlines()]

    def __enter__(self) -> Self:
        self._environment.start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._environment.stop()
        self._folder.cleanup()
