"""A cell of the demo pair, and the live page in a real Chromium. Run by `make web-test`, and by nothing else."""

from __future__ import annotations

import os
import shutil
import socket
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
from playwright.sync_api import Browser, BrowserContext, Page, sync_playwright

from deploy.processes import LocalCell

ROOT = Path(__file__).resolve().parents[2]
NAMES = ("chromium", "chromium-browser", "google-chrome", "google-chrome-stable")
PATIENCE_MS = 60_000  # the slowest thing on the slowest machine


@dataclass
class Site:
    """A cell and the address of its page."""

    cell: LocalCell
    url: str


@dataclass
class Visit:
    """One open page, and everything that went wrong on it or left this machine."""

    page: Page
    trouble: list[str] = field(default_factory=list)
    abroad: list[str] = field(default_factory=list)

    def ready(self) -> Visit:
        self.page.wait_for_selector("#state[data-state=serving]")
        self.page.wait_for_function("document.querySelectorAll('#domains input').length > 0")
        return self

    def ask(self, prompt: str | None = None, *, tokens: int = 96) -> None:
        """Generates and waits for the end."""
        if prompt is not None:
            self.page.fill("#prompt", prompt)
        self.page.fill("#length", str(tokens))
        self.page.click("#go")
        self.done()

    def done(self) -> None:
        self.page.wait_for_function(
            "!document.querySelector('#go').hasAttribute('data-running') && document.querySelector('#tokens .tok')"
        )

    def text(self, selector: str) -> str:
        return self.page.text_content(selector) or ""

    def origins(self) -> dict[str, int]:
        return {name: int(self.text(f"#n-{name}")) for name in ("drafted", "bonus", "corrected", "plain")}

    def probe(self, call: str) -> Any:
        """Asks `probes.js`."""
        return self.page.evaluate(f"probe.{call}")

    def slide(self, slider: str, value: int) -> None:
        self.probe(f"slide({slider!r}, {value})")

    def look_at(self, number: int) -> None:
        """Shows a round, counted from 1."""
        self.slide("which", number)

    @property
    def rounds(self) -> int:
        return int(self.page.get_attribute("#which", "max") or 0)


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


@pytest.fixture(scope="session")
def open_site(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Callable[..., Site]]:
    cells: list[LocalCell] = []

    def opened(drafters: int = 1, **settings: object) -> Site:
        port = free_port()
        cell = LocalCell(
            ROOT / "models" / "demo-target",
            ROOT / "models" / "demo-dspark",
            drafters=drafters,
            coordinator={"http": f"127.0.0.1:{port}", **settings},
            folder=tmp_path_factory.mktemp("cell"),
        )
        cells.append(cell.start())
        return Site(cell, f"http://127.0.0.1:{port}")

    yield opened
    for cell in cells:
        cell.stop()


@pytest.fixture(scope="session")
def site(open_site: Callable[..., Site]) -> Site:
    return open_site(drafters=2)


@pytest.fixture(scope="session")
def browser() -> Iterator[Browser]:
    found = os.environ.get("DSPARK_CHROMIUM") or next(filter(None, map(shutil.which, NAMES)), None)
    if not found:
        pytest.exit(f"no Chromium: none of {', '.join(NAMES)} on PATH, and DSPARK_CHROMIUM names none", returncode=2)
    alone = ["--no-sandbox"] if os.geteuid() == 0 else []  # Chromium's own sandbox does not run as root
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=found, args=alone)
        yield browser
        browser.close()


@pytest.fixture
def visit(browser: Browser, site: Site) -> Iterator[Callable[..., Visit]]:
    """Opens the page; at the end nothing may have gone wrong on it."""
    contexts: list[tuple[BrowserContext, Visit]] = []

    def opened(
        where: Site = site, *, width: int = 1280, height: int = 900, forgiven: str = "", **wishes: object
    ) -> Visit:
        context = browser.new_context(viewport={"width": width, "height": height}, **wishes)  # type: ignore[arg-type]
        context.set_default_timeout(PATIENCE_MS)
        context.add_init_script(path=Path(__file__).with_name("probes.js"))
        visit = Visit(context.new_page())
        page = visit.page

        def said(text: str) -> None:
            if not forgiven or forgiven not in text:
                visit.trouble.append(text)

        page.on("console", lambda message: said(message.text) if message.type in ("error", "warning") else None)
        page.on("pageerror", lambda error: said(str(error)))
        page.on("request", lambda sent: None if sent.url.startswith(where.url) else visit.abroad.append(sent.url))
        contexts.append((context, visit))
        page.goto(where.url)
        return visit

    yield opened
    for context, visit in contexts:
        context.close()
        assert visit.trouble == []
        assert visit.abroad == []
