"""A cell of the tiny pair, the browser and one open page, for tests and pictures."""

from __future__ import annotations

import os
import shutil
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from playwright.sync_api import Browser, Locator, Page, Playwright

from deploy.processes import ProcessCell
from dspark.client import Client

ROOT = Path(__file__).resolve().parents[2]
PAIR = ROOT / "tests" / "data" / "pair"
PROBES = Path(__file__).with_name("probes.js")
NAMES = ("chromium", "chromium-browser", "google-chrome", "google-chrome-stable")
QUESTION = "Add 12 and 30."
PATIENCE_MS = 60_000  # the slowest thing on the slowest machine


def find_chromium() -> str | None:
    return os.environ.get("DSPARK_CHROMIUM") or next(filter(None, map(shutil.which, NAMES)), None)


def launch(playwright: Playwright, chromium: str) -> Browser:
    """Headless. Chromium's own sandbox does not run as root."""
    alone = ["--no-sandbox"] if os.geteuid() == 0 else []
    return playwright.chromium.launch(executable_path=chromium, args=alone)


def tiny_cell(folder: Path, port: int) -> ProcessCell:
    """Of the tiny pair and two drafters, not started yet."""
    front = {"http": f"127.0.0.1:{port}"}
    return ProcessCell(
        PAIR / "target", PAIR / "drafter", drafters=2, coordinator=front, folder=folder
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

    @staticmethod
    def of(browser: Browser, **wishes: Any) -> Visit:
        """A page in a context of its own, which is not there yet."""
        context = browser.new_context(**wishes)
        context.set_default_timeout(PATIENCE_MS)
        context.add_init_script(path=PROBES)
        return Visit(context.new_page())

    def ready(self) -> Visit:
        self.page.wait_for_selector("#state[data-state=serving]")
        self.until("document.getElementById('pair').textContent")
        return self

    def until(self, holds: str) -> None:
        """Waits for an expression, asked from outside: the page's policy forbids it inside."""
        deadline = time.monotonic() + PATIENCE_MS / 1000
        while not self.page.evaluate(holds):
            assert time.monotonic() < deadline, f"it never held: {holds}"
            self.page.wait_for_timeout(50)

    def send(self, prompt: str = QUESTION, *, tokens: int = 96) -> None:
        """Says something."""
        self.page.fill("#prompt", prompt)
        self.page.fill("#length", str(tokens))
        self.page.click("#go")

    def ask(self, prompt: str = QUESTION, *, tokens: int = 96) -> None:
        """Says something and waits for the end of the answer."""
        self.send(prompt, tokens=tokens)
        self.done()

    def compare(self) -> None:
        """Asks for plain decoding beside the newest answer, and waits for what is said of it."""
        self.answer.get_by_role("button", name="Compare with plain decoding").click()
        words = "document.querySelector('.answer:last-child .verdict').textContent"
        self.until(f"/same tokens|differ|too short/.test({words})")

    def done(self) -> None:
        self.until("!document.querySelector('#go').hasAttribute('data-running')")

    def open(self, *details: str) -> Visit:
        """Unfolds what is not shown at first."""
        for name in details or ("advanced",):
            self.page.locator(f"#{name} > summary").click()
        return self

    def drafting(self) -> Visit:
        """Drafts from now on, whether they pay on this machine or not."""
        self.open().page.select_option("#policy", "fixed")
        return self

    @property
    def answer(self) -> Locator:
        return self.page.locator("#log .answer").last

    def said(self) -> str:
        return self.answer.locator(".said").text_content() or ""

    def text(self, selector: str) -> str:
        return self.page.text_content(selector) or ""

    def origins(self) -> dict[str, int]:
        return {
            name: int(self.text(f"#n-{name}"))
            for name in ("drafted", "bonus", "corrected", "plain")
        }

    def probe(self, call: str) -> Any:
        return self.page.evaluate(f"probe.{call}")

    def slide(self, slider: str, value: int) -> None:
        self.probe(f"slide({slider!r}, {value})")

    def look_at(self, number: int) -> None:
        """Shows a round, counted from 1."""
        self.slide("which", number)

    @property
    def rounds(self) -> int:
        return int(self.page.get_attribute("#which", "max") or 0)
