"""What the journal holds after any end of the process, and that it stays bounded."""

import errno
import os
from dataclasses import replace
from pathlib import Path
from typing import Any
from unittest.mock import Mock

import pytest
import structlog

from coordinator.answers.answer import CommittedTokens, End, Reason
from coordinator.cells import journal_file
from coordinator.cells.journal import MAX_KEPT, Journal, JournalEntry, digest
from coordinator.cells.journal_file import JournalFile
from coordinator.config import CoordinatorConfig
from coordinator.process import _journal
from coordinator.requests.request import Request
from dspark.errors import ConfigError
from dspark.rounds.policy import parse_policy
from dspark.runtime.telemetry import Metrics
from dspark.types import SamplingParams, ScoredToken
from dspark.whole_file import placed
from tests.waiting import wait_until


def request(
    name: str = "r", *, seed: int = 7, choices: int = 1, prompt: tuple[int, ...] = (5, 6)
) -> Request:
    sampling = SamplingParams(temperature=0.7, seed=seed)
    return Request(name, prompt, sampling, 100, parse_policy("adaptive"), choices=choices)


class Hand:
    """A clock turned by hand."""

    def __init__(self) -> None:
        self.now = 1000.0

    def __call__(self) -> float:
        return self.now


def on_disk(folder: Path, *, segment: int = 1 << 20, sync: str = "always", **more: Any) -> Journal:
    file = JournalFile(folder, sync=sync, sync_s=60.0, segment_bytes=segment)
    given: dict[str, Any] = {"keep_s": 60.0, "metrics": Metrics(), "clock": Hand(), **more}
    return Journal(file, **given)


def commit(journal: Journal, entry: JournalEntry, tokens: tuple[int, ...]) -> None:
    """And it is written."""
    journal.committed(entry, CommittedTokens(tokens, None))
    journal.write()


def test_what_was_written_is_there_when_the_process_is_not(tmp_path: Path) -> None:
    first = on_disk(tmp_path)
    entry = first.open(request(choices=3))
    told = (ScoredToken(-0.5, (1, 2), (-0.5, -1.0)),) * 2
    first.committed(entry, CommittedTokens((1, 2), None, 0, told))
    first.committed(entry, CommittedTokens((9,), End(Reason.STOP, token_id=9), 1))
    first.begins(entry, 0, 3, "a target")
    first.committed(entry, CommittedTokens((3,), None, 0, told[:1]))
    first.begins(entry, 2, 4, "a target")  # and nothing was committed under it
    first.write()
    # noted, never shown: the process dies here
    first.committed(entry, CommittedTokens((4,), None, 0, told[:1]))
    os.close(first._file._lock)  # nothing is finished, locks are gone
    first._file._lock = -1
    second = on_disk(tmp_path)
    found = second.find("r")
    wanted = digest(request(seed=1, choices=3))
    assert found.opened.digest == wanted, "the draws' key is not part of it"
    assert (found.opened.seed, found.running) == (7, False)
    assert [(said.tokens, said.epoch, said.target, said.end) for said in found.answers] == [
        ([1, 2, 3], 3, "a target", None),
        ([9], 0, "", End(Reason.STOP, token_id=9)),
        ([], 4, "a target", None),
    ]
    assert found.answers[0].logprobs[0].top_ids == (1, 2)
    assert len(found.answers[0].logprobs) == 3
    second.close()


def test_a_process_that_was_killed_as_it_began_a_segment_keeps_no_other_from_starting(
    tmp_path: Path,
) -> None:
    first = on_disk(tmp_path)
    first.open(request())
    first.close()
    killed = placed(tmp_path / "journal-000000000002.log", mode=0o600, lasts=True)
    killed.__enter__().write_bytes(b"half of it")
    second = on_disk(tmp_path)
    assert second.find("r") is not None
    second.close()
    assert sorted(file.name for file in tmp_path.iterdir()) == ["journal-000000000002.log", "lock"]


@pytest.mark.parametrize("damage", ["cut", "flipped", "no magic"])
def test_a_damaged_tail_costs_the_tail_alone(tmp_path: Path, damage: str) -> None:
    journal = on_disk(tmp_path)
    entry = journal.open(request())
    commit(journal, entry, (1, 2))
    commit(journal, entry, (3,))
    journal.close()
    (path,) = tmp_path.glob("journal-*.log")
    content = bytearray(path.read_bytes())
    if damage == "cut":
        content = content[:-3]
    elif damage == "flipped":
        content[-1] ^= 1
    else:
        content[0] ^= 1
    path.write_bytes(content)
    again = on_disk(tmp_path)
    found = again.find("r")
    tokens = None if found is None else found.answers[0].tokens
    assert tokens == (None if damage == "no magic" else [1, 2])
    again.close()


def test_a_disk_that_fails_behind_a_write_is_told_of_with_the_next_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, metrics: Metrics
) -> None:
    sync = Mock(side_effect=OSError(errno.EIO, "Input/output error"))
    file = JournalFile(tmp_path, sync="interval", sync_s=0.01, segment_bytes=1 << 20)
    journal = Journal(file, keep_s=60.0, metrics=metrics)
    entry = journal.open(request())
    monkeypatch.setattr(journal_file.os, "fdatasync", sync)
    journal.write()
    wait_until(lambda: sync.called)

    def told() -> float:
        commit(journal, entry, (1,))
        return metrics.value("journal_failed")

    wait_until(told)
    commit(journal, entry, (1,))  # requests go on
    monkeypatch.undo()
    file.close()


def test_another_format_is_told_and_stays(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    # one that no test before this one has configured
    monkeypatch.setattr(journal_file, "log", structlog.get_logger())
    other, content = tmp_path / "journal-000000000007.log", b"DSPKJNL1" + bytes(64)
    other.write_bytes(content)
    for tokens in ([], [1], [1, 2]):  # processes that go on beside it
        with structlog.testing.capture_logs() as lines:
            journal = on_disk(tmp_path, segment=64)
        told = [(line["event"], line["file"]) for line in lines if "file" in line]
        assert told == [("journal.other_format", other.name)]
        found = journal.find("r")
        assert (found.answers[0].tokens if found is not None else []) == tokens
        entry = journal.open(request(), found and found.answers)
        commit(journal, entry, (len(tokens) + 1,))
        journal.close()
        assert other.read_bytes() == content
        assert len([*tmp_path.glob("journal-*")]) == 2


def test_what_is_not_its_own_in_the_folder_stays(tmp_path: Path) -> None:
    foreign = {"journal-old.log", "journal-mine.new", "journal-000000000001.log.gz", "notes"}
    for name in foreign:
        (tmp_path / name).write_bytes(b"DSPKJNL3")
    (tmp_path / "journal-000000000004.log").mkdir()
    on_disk(tmp_path).close()
    mine = {"lock", "journal-000000000004.log", "journal-000000000005.log"}
    assert {path.name for path in tmp_path.iterdir()} == foreign | mine


def test_a_disk_that_is_full_at_the_start_is_told_by_key_and_nothing_is_left(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    config = CoordinatorConfig(journal=str(tmp_path))
    full = OSError(errno.ENOSPC, "No space left on device")
    monkeypatch.setattr(os, "fsync", Mock(side_effect=full))
    opened = len(os.listdir("/proc/self/fd"))
    with pytest.raises(ConfigError, match=f"^coordinator.journal: {tmp_path}: No space left"):
        _journal(config, Metrics())
    assert [path.name for path in tmp_path.iterdir()] == ["lock"]
    assert len(os.listdir("/proc/self/fd")) == opened


def test_a_folder_that_cannot_be_locked_is_told_by_key_and_left_closed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    none = OSError(errno.ENOLCK, "No locks available")
    monkeypatch.setattr("dspark.whole_file.fcntl.flock", Mock(side_effect=none))
    opened = len(os.listdir("/proc/self/fd"))
    with pytest.raises(ConfigError, match=f"^coordinator.journal: {tmp_path}: No locks available"):
        _journal(CoordinatorConfig(journal=str(tmp_path)), Metrics())
    assert len(os.listdir("/proc/self/fd")) == opened


def test_a_disk_that_is_full_at_the_end_is_said_and_everything_is_closed(
    tmp_path: Path, metrics: Metrics, monkeypatch: pytest.MonkeyPatch
) -> None:
    opened = len(os.listdir("/proc/self/fd"))
    journal = on_disk(tmp_path, metrics=metrics)
    commit(journal, journal.open(request()), (1,))
    full = OSError(errno.ENOSPC, "No space left on device")
    monkeypatch.setattr(os, "fsync", Mock(side_effect=full))
    journal.close()
    assert metrics.value("journal_failed") == 1
    assert len(os.listdir("/proc/self/fd")) == opened


def test_the_folder_stays_bounded_and_nothing_that_runs_is_lost(tmp_path: Path) -> None:
    clock = Hand()
    journal = on_disk(tmp_path, segment=4096, keep_s=5.0, clock=clock)
    lasting = journal.open(request("lasting"))
    for number in range(400):
        clock.now += 1.0
        entry = journal.open(request(f"r{number}"))
        journal.committed(lasting, CommittedTokens((number,), None))
        journal.committed(entry, CommittedTokens(tuple(range(20)), End(Reason.LENGTH)))
        journal.left(entry)
        journal.write()
        assert sum(path.stat().st_size for path in tmp_path.glob("journal-*")) < 3 * 4096
    assert len(journal._entries) <= 8, "those that may still be resumed"
    journal.close()
    again = on_disk(tmp_path, keep_s=5.0, clock=clock)
    found = again.find("lasting")
    assert found.answers[0].tokens == list(range(400))
    clock.now += 6.0
    again.open(request("next"))
    assert again.find("lasting") is None, "nobody came for it"
    again.close()


@pytest.mark.parametrize(
    ("segment", "keep_s"), [(1 << 20, 1e3), (2048, 5.0)], ids=["appended", "begun again"]
)
def test_the_highest_epoch_that_began_and_what_ended_outlive_every_process(
    tmp_path: Path, segment: int, keep_s: float
) -> None:
    """Or a draw would be used twice, or an answer that is complete go on."""
    clock = Hand()
    first = on_disk(tmp_path, segment=segment, keep_s=keep_s, clock=clock)
    entry = first.open(request(seed=77, choices=3))
    first.committed(entry, CommittedTokens((1,), None, 0))
    first.begins(entry, 0, 5, "a target")
    first.committed(entry, CommittedTokens((2,), None, 0))
    first.begins(entry, 0, 2, "a target")  # said late
    first.committed(entry, CommittedTokens((3,), None, 0))
    first.begins(entry, 1, 0, "a target")
    first.committed(entry, CommittedTokens((4,), End(Reason.STOP, token_id=4), 1))
    for epoch in (4, 3):  # and nothing was committed under them
        first.begins(entry, 2, epoch, "a target")
    for number in range(100):
        clock.now += 1.0
        noise = first.open(request(f"noise {number}"))
        first.committed(noise, CommittedTokens((number,) * 20, None))
        first.left(noise)
        first.write()
    first.begins(entry, 2, 1, "a target")  # somebody was there a moment ago
    first.close()
    for number in range(3):  # processes that read it and go on with it
        journal = on_disk(tmp_path, segment=segment, keep_s=keep_s, clock=clock)
        found = journal.find("r")
        assert found.opened.seed == 77
        assert [(said.tokens, said.epoch, said.target) for said in found.answers] == [
            ([1, 2, 3, *range(number)], 5, "a target"),
            ([4], 0, "a target"),
            ([], 4, "a target"),
        ]
        over = End(Reason.LENGTH) if number else None  # as the first who went on with it wrote
        assert [said.end for said in found.answers] == [None, End(Reason.STOP, token_id=4), over]
        again = journal.open(request(seed=77, choices=3), found.answers)
        journal.committed(again, CommittedTokens((number,), None, 0))
        journal.committed(again, CommittedTokens((), End(Reason.LENGTH), 2))
        journal.close()


def test_those_nobody_runs_are_bounded_by_number(metrics: Metrics) -> None:
    journal = Journal(None, keep_s=1e9, metrics=metrics)
    for number in range(2 * MAX_KEPT + 10):  # however many come between two searches
        journal.left(journal.open(request(f"r{number}")))
        assert len(journal._entries) <= 2 * MAX_KEPT + 1
    dropped = metrics.value("dropped_total", kind="journaled", reason="too_many")
    assert dropped == 2 * MAX_KEPT + 10 - len(journal._entries)
    assert journal.find("r0") is None


def test_one_process_writes_a_folder(tmp_path: Path) -> None:
    journal = on_disk(tmp_path)
    with pytest.raises(ConfigError, match="another coordinator writes"):
        on_disk(tmp_path)
    journal.close()
    on_disk(tmp_path).close()


def test_a_disk_that_fails_is_said_once_and_answers_go_on(tmp_path: Path, metrics: Metrics) -> None:
    journal = on_disk(tmp_path, metrics=metrics)
    entry = journal.open(request())
    os.close(journal._file._descriptor)
    commit(journal, entry, (1,))
    assert metrics.value("journal_failed") == 1
    commit(journal, entry, (2,))
    assert entry.answers[0].tokens == [1, 2]


@pytest.mark.parametrize(
    "other",
    [
        request(prompt=(5, 7)),
        request(choices=2),
        Request("r", (5, 6), SamplingParams(), 100, parse_policy("adaptive")),
        replace(request(), cache_salt="another"),
        replace(request(), stop_ids=frozenset({2})),
        replace(request(), max_tokens=101),
    ],
    ids=["prompt", "answers", "law", "salt", "stops", "length"],
)
def test_another_request_has_another_digest(other: Request) -> None:
    assert digest(other) != digest(request())


def test_a_segment_that_begins_full_is_not_begun_again_with_every_round(tmp_path: Path) -> None:
    journal = on_disk(tmp_path, segment=4096)
    running = journal.open(request("runs"))
    # more than a segment, and nobody may drop it
    journal.committed(running, CommittedTokens(tuple(range(5000)), None))
    begun = set()
    for number in range(500):
        commit(journal, running, (number,))
        begun |= {path.name for path in tmp_path.glob("journal-*.log")}
    assert len(begun) <= 4
    journal.close()


def test_what_nobody_runs_takes_half_a_segment_at_most(tmp_path: Path) -> None:
    metrics, clock = Metrics(), Hand()
    journal = on_disk(tmp_path, segment=4096, keep_s=1e9, clock=clock, metrics=metrics)
    for number in range(20):
        clock.now += 1.0
        entry = journal.open(request(f"r{number}"))
        journal.committed(entry, CommittedTokens(tuple(range(200)), End(Reason.LENGTH)))
        journal.left(entry)
        journal.write()
    clock.now += 1.0
    journal.open(request("last"))
    kept = [number for number in range(20) if journal.find(f"r{number}") is not None]
    assert kept == [17, 18, 19], "the newest"
    dropped = metrics.value("dropped_total", kind="journaled", reason="too_large")
    assert dropped == 17
    journal.close()
