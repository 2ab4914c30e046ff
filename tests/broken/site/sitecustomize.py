"""Loaded by every Python process that has this folder on PYTHONPATH: runs the build that
DSPARK_BROKEN names."""

import os

if _name := os.environ.get("DSPARK_BROKEN", ""):
    from tests.broken.planting import BUILDS, plant

    plant(next(build for build in BUILDS if build.name == _name))
