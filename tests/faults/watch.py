"""Child processes that note what code they let in, by `watched/sitecustomize.py`."""

import contextlib
import os
import tempfile
from pathlib import Path
from typing import Self
from unittest import mock

_HOOK = Path(__file__).resolve().parent / "watched"


class Watch(contextlib.ExitStack):
    """A context manager: whatever Python process is started inside is watched."""

    def __enter__(self) -> Self:
        self.folder = Path(self.enter_context(tempfile.TemporaryDirectory(prefix="dspark-watch-")))
        path = os.pathsep.join(filter(None, (str(_HOOK), os.environ.get("PYTHONPATH", ""))))
        told = {"PYTHONPATH": path, "DSPARK_WATCH": str(self.folder)}
        self.enter_context(mock.patch.dict(os.environ, told))
        return self

    def arm(self) -> None:
        """From now on code that is compiled, run or loaded is noted too."""
        (self.folder / "armed").touch()

    def events(self) -> list[str]:
        """What was noted, of all processes."""
        files = sorted(self.folder.glob("events-*"))
        return [line for file in files for line in file.read_text(encoding="utf-8").splitlines()]
