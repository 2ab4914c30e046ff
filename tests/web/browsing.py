"""A cell of the tiny pair, the browser, and one open page: what tests and pictures of the live page share."""

from __future__ import annotations

import os
import shutil
import socket
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from playwright.sync_api import Browser, Page, Playwright

from deploy.processes import ProcessCell
from dspark.client import Client

ROOT = Path(__file__).resolve().parents[2]
PROBES = Path(__file__).with_name("probes.js")
NAMES = ("chromium", "chromium-browser", "google-chrome", "google-chrome-stable")
PATIENCE_MS = 60_000  # the slowest thing on the slowest machine


def find_chromium() -> str | None:
    return os.environ.get("DSPARK_CHROMIUM") or next(filter(None, map(shutil.which, NAMES)), None)


def launch(playwright: Playwright, chromium: str) -> Browser:
    """Headless. Chromium's own sandbox does not run as root."""
    alone = ["--no-sandbox"] if os.geteuid() == 0 else []
    return playwright.chromium.launch(executable_path=chromium, args=alone)


def tiny_cell(folder: Path | None, port: int, *, drafters: int = 1, **settings: object) -> ProcessCell:
    """Of the tiny pair, not started yet; `settings` go to the coordinator."""
    return ProcessCell(
        ROOT / "tests" / "data" / "pair" / "target",
        ROOT / "tests" / "data" / "pair" / "drafter",
        drafters=drafters,
        coordinator={"http": f"127.0.0.1:{port}", **settings},
        folder=folder,
    )


@dataclass
class Site:
    """The address of a page, and how to reach its cell otherwise."""

    url: str
    client: Callable[[], Client] = Client


@dataclass
class Visit:
    """One open page, and everything that went wrong on it or left this machine."""

    page: Page
    trouble: list[str] = field(default_factory=list)
    abroad: list[str] = field(default_factory=list)

    def ready(self) -> Visit:
        self.page.wait_for_selector("#state[data-state=serving]")
        self.until("document.querySelectorAll('#domains input').length > 0")
        return self

    def until(self, holds: str) -> None:
        """Waits for an expression. Asked from outside: the page's own policy lets nobody evaluate text inside."""
        deadline = time.monotonic() + PATIENCE_MS / 1000
        while not self.page.evaluate(holds):
            assert time.monotonic() < deadline, f"it never held: {holds}"
            self.page.wait_for_timeout(50)

    def ask(self, prompt: str | None = None, *, tokens: int = 96) -> None:
        """Generates and waits for the end."""
        if prompt is not None:
            self.page.fill("#prompt", prompt)
        self.page.fill("#length", str(tokens))
        self.page.click("#go")
        self.done()

    def done(self) -> None:
        self.until(
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
