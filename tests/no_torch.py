"""A pytest plugin for `make test-fast`: torch and transformers cannot be imported, and test files
that do are left out.

Loading them takes longer than all the tests of the pure rooms together; that none of these rooms
loads them unseen is what the plugin proves on the way.
"""

import re
import sys
from collections.abc import Sequence
from importlib.machinery import ModuleSpec
from pathlib import Path
from types import ModuleType

SLOW = ("torch", "transformers")
_IMPORTS = re.compile(rf"^\s*(?:import|from)\s+(?:{'|'.join(SLOW)})\b", re.MULTILINE)


class _Refuse:
    """Finds nothing but the slow libraries, and refuses those."""

    @staticmethod
    def find_spec(
        name: str, path: Sequence[str] | None = None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        if name.split(".", 1)[0] in SLOW:
            raise ImportError(f"{name} is not loaded in the fast tests")
        return None


sys.meta_path.insert(0, _Refuse())


def pytest_ignore_collect(collection_path: Path) -> bool | None:
    """Leaves out files that say themselves that they need one of the libraries."""
    if collection_path.suffix == ".py" and _IMPORTS.search(
        collection_path.read_text(encoding="utf-8")
    ):
        return True
    return None
