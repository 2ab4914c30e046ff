"""Puts a bug into a file as it is imported; what is on disk is never touched."""

import importlib.abc
import importlib.machinery
import importlib.util
import os
from collections.abc import Mapping
from pathlib import Path
from types import CodeType

from tests.mutation.bugs import BUGS, ROOT, Bug

SITE = Path(__file__).parent / "site"


class _Changed(importlib.machinery.SourceFileLoader):
    """Loads the text with the bug in place of the file."""

    text = ""

    def get_code(self, fullname: str) -> CodeType:
        return compile(self.text, self.path, "exec", dont_inherit=True)


class BugOnImport(importlib.abc.MetaPathFinder):
    """To stand first in `sys.meta_path`, before the file is imported."""

    def __init__(self, bug: Bug) -> None:
        self._name = bug.module
        self._loader = _Changed(bug.module, str(ROOT / bug.file))
        self._loader.text = bug.changed()

    def find_spec(
        self, name: str, path: object = None, target: object = None
    ) -> importlib.machinery.ModuleSpec | None:
        if name != self._name:
            return None
        path = self._loader.path  # which `__file__` is, too
        return importlib.util.spec_from_file_location(name, path, loader=self._loader)


def named(name: str) -> Bug:
    return {bug.name: bug for bug in BUGS}[name]


def environment(bug: Bug) -> Mapping[str, str]:
    """Of processes that are to run the build with the bug."""
    paths = (str(SITE), str(ROOT), os.environ.get("PYTHONPATH", ""))
    return {"DSPARK_BROKEN": bug.name, "PYTHONPATH": os.pathsep.join(filter(None, paths))}
