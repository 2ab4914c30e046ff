"""A child that does not outlive the process that started it, however that one ends (SIGKILL leaves no time to tidy)."""

from __future__ import annotations

import os
import signal
import threading
import time

LOOK_S = 0.5  # between looks at who the parent is
GRACE_S = 20.0  # for an orderly end after SIGTERM


def end_with(parent: int) -> None:
    """From now on this process ends soon after `parent`, a process id, is no longer its parent."""

    def watch() -> None:
        while os.getppid() == parent:
            time.sleep(LOOK_S)
        os.kill(os.getpid(), signal.SIGTERM)
        time.sleep(GRACE_S)
        os._exit(1)

    threading.Thread(target=watch, name="parent-watch", daemon=True).start()
