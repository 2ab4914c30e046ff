"""What tests of commands do to their process is undone."""

import signal
from collections.abc import Iterator

import pytest


@pytest.fixture
def handlers() -> Iterator[None]:
    """Those of signals are in the end as they were."""
    before = {
        each: signal.getsignal(each) for each in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP)
    }
    yield
    for number, handler in before.items():
        signal.signal(number, handler)
