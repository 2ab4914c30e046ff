"""What `mkdocs build` needs beyond its own words: the marks that tests read behind a block's
language are taken off."""

from __future__ import annotations

import re
from typing import Any

_MARKED = re.compile(r"^(\s*```\w+) .*$", re.MULTILINE)


def on_page_markdown(markdown: str, **_: Any) -> str:
    return _MARKED.sub(r"\1", markdown)
