"""What every test may rely on: one torch thread, a state folder of its own, and no Ray outside
tests/ray; and the order in which files of tests run beside each other."""

import itertools
import os
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import structlog
from hypothesis import settings
from xdist.scheduler import LoadFileScheduling

settings.register_profile("untimed", deadline=None)  # a busy machine fails no example
settings.load_profile("untimed")
os.environ.setdefault("OMP_NUM_THREADS", "1")
os.environ["HF_HUB_OFFLINE"] = "1"
# Tracebacks as Python writes them: the usual ones, in boxes with every variable, take seconds each.
_plain = structlog.dev.ConsoleRenderer(exception_formatter=structlog.dev.plain_traceback)
structlog.configure(processors=[*structlog.get_config()["processors"][:-1], _plain])

ROOT = Path(__file__).parent.parent

# Files that take longest. Each begins EVERY files behind the one before: what begins last is waited
# for by everybody, and several at once, of many processes each, crowd two cores.
EVERY = 5
LONGEST = (
    "ray/test_cluster.py",
    "e2e/test_training_killed.py",
    "e2e/test_wire_law.py",
    "ray/test_guests.py",
    "e2e/test_examples.py",
    "docs/test_blocks.py",
    "test_types.py",
    "faults/test_promises.py",
    "faults/test_every_message.py",
    "mutation/test_mutation.py",
    "services/test_training_workers.py",
)
_homes = itertools.count()


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    files = dict.fromkeys(item.path for item in items)
    longest = [path for name in LONGEST if (path := ROOT / "tests" / name) in files]
    order = [path for path in files if path not in longest]
    for place, path in enumerate(longest):
        order.insert(place * EVERY, path)
    ranks = {path: rank for rank, path in enumerate(order)}
    items.sort(key=lambda item: ranks[item.path])


class _Files(LoadFileScheduling):
    """One worker runs all files that share the cell of `tests/e2e/conftest.py`."""

    def _split_scope(self, nodeid: str) -> str:
        scope: str = super()._split_scope(nodeid)
        return "tests/e2e" if scope in _OF_ONE_CELL else scope


_OF_ONE_CELL = {
    f"tests/e2e/test_{name}.py" for name in ("bench", "three_processes", "training_killed")
}


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config: pytest.Config, log: Any) -> _Files | None:
    if config.getoption("dist") != "loadfile":
        return None
    config.option.loadscopereorder = False  # else files of few tests come last, however long
    return _Files(config, log)


@pytest.hookimpl(optionalhook=True)
def pytest_testnodedown(node: Any, error: object | None) -> None:
    """A worker that crashes breaks the run off: xdist would wait for another one that it gives
    nothing to do."""
    if error is not None:
        raise RuntimeError(f"{node.gateway.id} crashed: {error}")


_broken: list[str] = []


def pytest_internalerror(excrepr: object) -> None:
    _broken.append(str(excrepr))


def pytest_unconfigure(config: pytest.Config) -> None:
    """A run that breaks off shows no failures by itself, and why it broke off far above."""
    reporter = config.pluginmanager.get_plugin("terminalreporter")
    if _broken and reporter is not None:
        failed = [report.longreprtext for report in reporter.stats.get("failed", [])]
        for text in (*failed, *_broken):
            reporter.write_line(f"{text[:1500]}\n...\n{text[-1500:]}")


@pytest.fixture(autouse=True)
def _own_state_folder(
    tmp_path_factory: pytest.TempPathFactory,
    monkeypatch: pytest.MonkeyPatch,
    request: pytest.FixtureRequest,
) -> None:
    """Nothing a test does may touch the user's clusters or stored cost curves."""
    if request.node.get_closest_marker("ray") is None:
        home = tmp_path_factory.getbasetemp() / f"dspark-home-{next(_homes)}"
        monkeypatch.setenv("DSPARK_HOME", str(home))


@pytest.fixture(autouse=True)
def _logging_as_it_was() -> Iterator[None]:
    """What a test sets up for a process of its own is not half of the next one's."""
    before = structlog.get_config()
    yield
    structlog.configure(**before)


@pytest.fixture(autouse=True)
def _ray_stays_at_the_edge(request: pytest.FixtureRequest) -> None:
    """A test that needs a cluster carries the mark `ray`; any other that starts one is in the wrong
    folder."""
    if request.node.get_closest_marker("ray") is None:
        ray = sys.modules.get("ray")
        assert ray is None or not ray.is_initialized()


@pytest.fixture(scope="session")
def golden_target() -> Path:
    """A tiny Qwen3 target: 6 layers, hidden 64, vocabulary 128."""
    return ROOT / "tests" / "data" / "target_qwen3"


@pytest.fixture(scope="session")
def golden_drafter() -> Path:
    """A tiny DSpark drafter for it: block 7, vanilla head, confidence head."""
    return ROOT / "tests" / "data" / "dspark_vanilla"
