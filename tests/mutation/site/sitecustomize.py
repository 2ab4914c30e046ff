"""Loaded by every Python process that has this folder on PYTHONPATH: runs the build with the bug
that DSPARK_BROKEN names."""

import os
import sys

if _name := os.environ.get("DSPARK_BROKEN", ""):
    from tests.mutation.import_hook import BugOnImport, named

    sys.meta_path.insert(0, BugOnImport(named(_name)))
