"""Loaded by every Python process that has this folder on PYTHONPATH: notes what code it lets in,
and logs everything.

DSPARK_WATCH names a folder. Unpickling is noted always; code that is compiled or run, libraries
that are loaded and processes that are begun are noted from the moment the folder holds a file
`armed`, but for imports and for tracebacks, which parse the lines of source that they show.
"""

import logging
import os
import sys
import traceback

_FOLDER = os.environ.get("DSPARK_WATCH", "")
_ALWAYS = {"pickle.find_class"}
_RUNS = {"exec", "compile", "marshal.loads", "ctypes.dlopen"}
_BEGINS = {"os.system", "os.exec", "os.posix_spawn", "subprocess.Popen"}
_busy = False


def _own(event: str) -> bool:
    """Whether it is an import's, as a first request's modules, or a traceback's."""
    frame = sys._getframe(2)
    while frame is not None:
        file = frame.f_code.co_filename
        if file.startswith("<frozen importlib") or (
            event == "compile" and file == traceback.__file__
        ):
            return True
        frame = frame.f_back  # type: ignore[assignment]
    return False


def _note(event: str, arguments: tuple[object, ...]) -> None:
    global _busy
    if _busy or (event not in _ALWAYS and event not in _RUNS | _BEGINS):
        return
    _busy = True
    try:
        if event in _ALWAYS or (os.path.exists(os.path.join(_FOLDER, "armed")) and not _own(event)):
            frame = sys._getframe(1)
            where = f"{os.path.basename(frame.f_code.co_filename)}:{frame.f_lineno}"
            with open(
                os.path.join(_FOLDER, f"events-{os.getpid()}"), "a", encoding="utf-8"
            ) as file:
                file.write(f"{event} {str(arguments)[:200]} at {where}\n")
    finally:
        _busy = False


def _debug(self: logging.Logger, level: object) -> None:
    self.level = logging.DEBUG
    self.manager._clear_cache()  # type: ignore[attr-defined]


if _FOLDER:
    logging.RootLogger.setLevel = _debug  # type: ignore[method-assign]
    sys.addaudithook(_note)
