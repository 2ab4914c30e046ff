"""The folder of a user's state, wherever the process that asks for it stands."""

from pathlib import Path

import pytest

from dspark.runtime.identity import NoState, state_dir


def test_a_relative_folder_stays_where_it_was_when_the_process_goes_elsewhere(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As one does that joins a Ray cluster: it goes into the state folder."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("DSPARK_HOME", "mine")
    monkeypatch.chdir(state_dir())
    assert state_dir() == tmp_path.resolve() / "mine"


def test_a_relative_folder_for_everybody_s_state_is_ignored(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As the specification of XDG_STATE_HOME asks."""
    monkeypatch.delenv("DSPARK_HOME", raising=False)
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.setenv("XDG_STATE_HOME", "states")
    assert state_dir() == tmp_path.resolve() / ".local/state/dspark"
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "states"))
    assert state_dir() == tmp_path.resolve() / "states/dspark"


@pytest.mark.parametrize("home", ["~nobody-of-this-name/state", "mine", "/tmp/st\udce4te"])
def test_a_folder_that_cannot_be_found_is_named(
    home: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """No such user; a working folder that was removed; a name in another encoding."""
    here = tmp_path / "here"
    here.mkdir()
    monkeypatch.chdir(here)
    here.rmdir()
    monkeypatch.setenv("DSPARK_HOME", home)
    with pytest.raises(NoState, match=f"^{home}: .*DSPARK_HOME names another"):
        state_dir()
