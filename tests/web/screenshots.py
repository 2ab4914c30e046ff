"""The pictures of docs/screenshots, of the shipped pair: desktop in both schemes, and a phone."""

import argparse
from dataclasses import dataclass
from pathlib import Path

from playwright.sync_api import Browser, sync_playwright

from deploy.head import free_ports
from deploy.processes import ProcessCell
from dspark import shipped
from tests.web.browsing import ROOT, Visit, find_chromium, launch

FOLDER = ROOT / "docs" / "screenshots"
LOADS = (1, 2, 4, 2, 1, 0)  # background answers, three seconds each
STEP_MS = 3_000
TURNS = (
    "Hello! Who are you?",
    "Write a Python function that checks whether a word is a palindrome.",
)


@dataclass(frozen=True)
class Shot:
    name: str
    scheme: str
    width: int
    height: int
    scale: float
    phone: bool = False
    policy: str = ""  # of the last answer, and amount; the cell's own where none is named


SHOTS = (
    Shot("live-light", "light", 1360, 1000, 1.5),
    Shot("live-dark", "dark", 1360, 1000, 1.5, policy="fixed:3"),
    Shot("live-phone", "light", 390, 844, 2.0, phone=True),
)


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m tests.web.screenshots", description=__doc__)
    parser.add_argument(
        "--url", help="of a page that is served already; a cell of the shipped pair without it"
    )
    parser.add_argument("--only", choices=[shot.name for shot in SHOTS], help="one of them")
    parser.add_argument("--to", type=Path, default=FOLDER, metavar="FOLDER")
    args = parser.parse_args()
    chromium = find_chromium()
    if chromium is None:
        raise SystemExit("no Chromium on PATH, and DSPARK_CHROMIUM names none")
    shots = [shot for shot in SHOTS if args.only in (None, shot.name)]
    if args.url:
        take_all(chromium, args.url, shots, args.to)
        return
    (port,) = free_ports(1)
    with ProcessCell(shipped.TARGET, shipped.drafter(), coordinator={"http": f"127.0.0.1:{port}"}):
        take_all(chromium, f"http://127.0.0.1:{port}", shots, args.to)


def take_all(chromium: str, url: str, shots: list[Shot], folder: Path) -> None:
    with sync_playwright() as playwright:
        browser = launch(playwright, chromium)
        for shot in shots:
            take(browser, url, shot, folder)
        browser.close()


def take(browser: Browser, url: str, shot: Shot, folder: Path) -> None:
    """Changing load, then a conversation alone, and its last answer without drafts beside it."""
    seen = Visit.of(
        browser,
        viewport={"width": shot.width, "height": shot.height},
        color_scheme=shot.scheme,
        device_scale_factor=shot.scale,
        is_mobile=shot.phone,
        has_touch=shot.phone,
    )
    seen.page.goto(url)
    seen.ready()
    for streams in () if shot.phone else LOADS:
        seen.slide("load", streams)
        seen.page.wait_for_timeout(STEP_MS)
    if shot.policy:
        name, amount = shot.policy.split(":")
        seen.open().page.select_option("#policy", name)
        seen.page.fill("#amount", amount)
    for question in TURNS:
        seen.ask(question, tokens=96)
    seen.compare()
    seen.page.evaluate("() => document.activeElement.blur()")
    if not shot.phone:
        seen.page.evaluate("() => window.scrollTo(0, 0)")
    seen.page.wait_for_timeout(600)
    seen.page.screenshot(path=folder / f"{shot.name}.png", full_page=not shot.phone)
    seen.page.context.close()


if __name__ == "__main__":
    main()
