"""A request and a row do not travel through more code than they do today; `tests.walk` prints the
whole way."""

from __future__ import annotations

import pytest

from tests import walk

# Most calls, files and stays, with a tenth of room.
MOST = {"submitted": (64, 14, 48), "first_token": (244, 26, 240), "feature_row": (218, 42, 180)}


@pytest.mark.parametrize("name", MOST)
def test_a_walk_stays_as_short_as_it_is(name: str) -> None:
    made = getattr(walk, name)()
    found = (made.calls, len(made.files), made.stays)
    assert all(one <= most for one, most in zip(found, MOST[name], strict=True)), made.told()
