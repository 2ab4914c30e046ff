"""A file is there whole or not at all, whoever reads meanwhile and whatever fails."""

import os
import resource
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch

from dspark.cli.main import _sentence
from dspark.model.weights_file import write_file
from dspark.whole_file import placed


@pytest.mark.parametrize("lasts", [False, True])
def test_who_reads_meanwhile_finds_what_was_there(tmp_path: Path, lasts: bool) -> None:
    path = tmp_path / "file"
    for before, after in (("", "first"), ("first", "second")):
        with placed(path, mode=0o600, lasts=lasts) as partial:
            partial.write_text(after)
            assert (path.read_text() if path.exists() else "") == before
        assert (path.read_text(), path.stat().st_mode & 0o777) == (after, 0o600)
    assert [*tmp_path.iterdir()] == [path]


@pytest.mark.parametrize("failure", [ValueError, KeyboardInterrupt])
def test_of_a_failed_block_nothing_is_left(tmp_path: Path, failure: type[BaseException]) -> None:
    path = tmp_path / "file"
    for before in ([], [path]):
        for each in before:
            each.write_text("before")
        with pytest.raises(failure):
            _fail_half_way(path, failure)
        assert [*tmp_path.iterdir()] == before
    assert path.read_text() == "before"


def _fail_half_way(path: Path, failure: type[BaseException]) -> None:
    with placed(path) as partial:
        partial.write_text("half")
        partial.with_name("beside").write_text("half")  # as safetensors writes
        raise failure


@pytest.mark.parametrize("mode", [0o666, 0o600])
def test_a_file_that_its_writer_renames_into_place_has_the_permissions_asked_for(
    tmp_path: Path, mode: int
) -> None:
    path, asked, theirs = (tmp_path / name for name in ("file", "asked", "theirs"))
    asked.touch(mode)
    theirs.touch(0o640)
    with placed(path, mode=mode) as partial:
        theirs.rename(partial)
    assert path.stat().st_mode == asked.stat().st_mode


@pytest.fixture
def full() -> Iterator[None]:
    """No file of this process grows beyond 4 KiB, as on a disk that is full."""
    limits = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (4096, limits[1]))
    yield
    resource.setrlimit(resource.RLIMIT_FSIZE, limits)


@pytest.mark.usefixtures("full")
def test_a_file_that_cannot_be_written_is_named(tmp_path: Path) -> None:
    path = tmp_path / "file"

    def text() -> None:
        with placed(path) as partial:
            partial.write_text(100_000 * " ")

    for write in (text, lambda: write_file(path, {"x": torch.zeros(100_000)})):
        with pytest.raises(OSError, match="too large") as failed:
            write()
        assert failed.value.filename == str(path)
        assert _sentence(failed.value) == f"{path}: File too large"
        assert [*tmp_path.iterdir()] == []


def test_an_error_without_a_number_keeps_its_words(tmp_path: Path) -> None:
    def write() -> None:
        with placed(tmp_path / "file", mode=0o600):
            raise OSError("10 requested and 0 written")

    with pytest.raises(OSError, match=r"^10 requested and 0 written$"):
        write()


def test_what_is_no_file_is_not_replaced(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe")  # as /dev/null would be
    for path in (tmp_path / "pipe", tmp_path):
        with pytest.raises(OSError, match="no regular file"), placed(path):
            pass
    assert (tmp_path / "pipe").is_fifo()
    assert [*tmp_path.iterdir()] == [tmp_path / "pipe"]
