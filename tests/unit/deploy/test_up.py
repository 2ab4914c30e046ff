"""Bringing a cell up, as far as it goes without Ray."""

from __future__ import annotations

import fcntl
import os

import pytest

from deploy.config import ClusterConfig
from deploy.up import bring_up
from dspark.errors import ConfigError, DsparkError
from dspark.runtime.identity import state_dir


def test_of_two_that_start_at_one_time_one_is_refused() -> None:
    def fails() -> None:
        bring_up(ClusterConfig(), file=None, environ={}, say=print, scaling={"sometimes": 1})

    other = os.open(state_dir(), os.O_RDONLY)
    fcntl.flock(other, fcntl.LOCK_EX)
    with pytest.raises(DsparkError, match="another `dspark up`"):
        fails()
    os.close(other)
    for _ in range(2):  # nor is one that failed in the way of the next
        with pytest.raises(DsparkError, match="sometimes"):
            fails()


def test_an_address_that_no_server_here_can_have_is_refused_at_once() -> None:
    with pytest.raises(ConfigError, match=r"cluster.bind: cannot listen on 192\.0\.2\.1:"):
        bring_up(ClusterConfig(bind="192.0.2.1", insecure=True), file=None, environ={}, say=print)
