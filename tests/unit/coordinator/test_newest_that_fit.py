"""What of a long conversation goes into a prompt: the newest turns, found in few tries."""

import pytest

from coordinator.http.template import Turn, newest_that_fit

SYSTEM = {"role": "system", "content": "s"}


def conversation(turns: int, *, system: bool) -> list[Turn]:
    said = [{"role": ("user", "assistant")[n % 2], "content": str(n)} for n in range(2 * turns - 1)]
    return [SYSTEM, *said] if system else said


@pytest.mark.parametrize("system", [False, True])
@pytest.mark.parametrize("turns", [1, 2, 3, 40])
@pytest.mark.parametrize("room", [1, 3, 4, 20, 61, 79, 80, 200])
def test_the_oldest_turns_are_left_out_and_no_more(system: bool, turns: int, room: int) -> None:
    said, asked = conversation(turns, system=system), 0

    def encode(kept: list[Turn]) -> tuple[int, ...]:
        nonlocal asked
        asked += 1
        return tuple(int(each["content"]) if each["content"] != "s" else 999 for each in kept)

    prompt, left_out = newest_that_fit(said, room, encode)
    first = 1 if system else 0
    assert prompt == encode([*said[:first], *said[first + left_out :]])
    least = next((2 * n for n in range(turns) if len(said) - 2 * n <= room), 2 * (turns - 1))
    assert left_out == least
    assert asked <= 9, "a conversation of 40 turns is not rendered 40 times"
