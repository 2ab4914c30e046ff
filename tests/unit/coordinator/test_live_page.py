"""The live page's files where an installer lays links."""

from __future__ import annotations

from pathlib import Path

import pytest
from starlette.exceptions import HTTPException

from coordinator.live import routes


async def test_a_folder_of_links_is_served_and_nothing_beyond_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for file in routes.FOLDER.iterdir():
        (tmp_path / file.name).symlink_to(file)
    monkeypatch.setattr(routes, "FOLDER", tmp_path)
    scope = {"type": "http", "method": "GET", "headers": []}
    served = routes.Page()
    assert (await served.get_response(routes.INDEX, scope)).status_code == 200
    for name in (f"../{tmp_path.name}x", "nothing.js"):
        with pytest.raises(HTTPException, match="404"):
            await served.get_response(name, scope)
