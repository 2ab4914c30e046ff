"""An epoch is in the journal before anything is drawn under it, and survives a crash in which nothing was committed."""

from __future__ import annotations

from pathlib import Path

import pytest

from coordinator.answers.answer import CommittedTokens
from coordinator.cells.journal import Entry, Journal
from coordinator.cells.journal_file import JournalFile
from coordinator.requests.request import Request
from dspark.rounds.policy import Off
from dspark.runtime.telemetry import Metrics
from dspark.types import SamplingParams


def _journal(folder: Path) -> Journal:
    file = JournalFile(folder, sync="interval", sync_s=1.0, segment_bytes=1 << 20)
    return Journal(file, keep_s=600.0, metrics=Metrics())


def _request() -> Request:
    return Request("r", (1, 2), SamplingParams(seed=5), 8, Off(), choices=2)


def _read(folder: Path) -> Entry:
    """As the next coordinator finds it."""
    journal = _journal(folder)
    found = journal.find("r")
    assert found is not None
    journal.close()
    return found


@pytest.mark.parametrize("epoch", [1, 7])
def test_an_epoch_without_a_commit_is_known_after_a_crash(tmp_path: Path, epoch: int) -> None:
    journal = _journal(tmp_path)
    entry = journal.open(_request())
    journal.begins(entry, 1, epoch)
    journal.close()
    assert [said.epoch for said in _read(tmp_path).answers] == [0, epoch]


def test_it_outlives_a_second_crash_and_commits_of_lower_ones(tmp_path: Path) -> None:
    journal = _journal(tmp_path)
    entry = journal.open(_request())
    journal.committed(entry, CommittedTokens((4, 5), None))
    journal.begins(entry, 0, 3)
    journal.begins(entry, 1, 2)
    journal.close()
    _read(tmp_path)  # which writes a snapshot of its own
    again = _read(tmp_path)
    assert [(said.tokens, said.epoch) for said in again.answers] == [([4, 5], 3), ([], 2)]
