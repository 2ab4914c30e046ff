"""Takes the pictures of docs/screenshots: `make screenshots`. Desktop in both schemes, and a phone."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from playwright.sync_api import Browser, sync_playwright

from tests.web.browsing import PATIENCE_MS, PROBES, ROOT, Visit, find_chromium, free_port, launch, tiny_cell

FOLDER = ROOT / "docs" / "screenshots"
LOADS = (1, 2, 5, 9, 14, 14, 7, 3, 2)  # background streams, three seconds each
STEP_MS = 3_000


@dataclass(frozen=True)
class Shot:
    name: str
    scheme: str
    width: int
    height: int
    scale: float
    phone: bool = False


SHOTS = (
    Shot("live-light", "light", 1360, 900, 1.5),
    Shot("live-dark", "dark", 1360, 900, 1.5),
    Shot("live-phone", "light", 390, 844, 2.0, phone=True),
)


def main() -> None:
    chromium = find_chromium()
    if chromium is None:
        raise SystemExit("no Chromium on PATH, and DSPARK_CHROMIUM names none")
    port = free_port()
    with tiny_cell(None, port, drafters=2), sync_playwright() as playwright:
        browser = launch(playwright, chromium)
        for shot in SHOTS:
            take(browser, f"http://127.0.0.1:{port}", shot, FOLDER)
        browser.close()


def take(browser: Browser, url: str, shot: Shot, folder: Path) -> None:
    """An answer under some load, one of its rounds, and a minute of changing load."""
    context = browser.new_context(
        viewport={"width": shot.width, "height": shot.height},
        color_scheme=shot.scheme,  # type: ignore[arg-type]
        device_scale_factor=shot.scale,
        is_mobile=shot.phone,
        has_touch=shot.phone,
    )
    context.set_default_timeout(PATIENCE_MS)
    context.add_init_script(path=PROBES)
    seen = Visit(context.new_page())
    seen.page.goto(url)
    seen.ready()
    for streams in LOADS:
        seen.slide("load", streams)
        seen.page.wait_for_timeout(STEP_MS)
    seen.page.click("#go")
    seen.done()
    best = seen.page.evaluate("probe.busiestRound()")
    seen.look_at(best)
    seen.page.evaluate("() => { document.activeElement.blur(); window.scrollTo(0, 0) }")
    seen.page.wait_for_timeout(600)
    seen.page.screenshot(path=folder / f"{shot.name}.png", full_page=True)
    seen.slide("load", 0)
    seen.page.wait_for_timeout(1_000)
    context.close()


if __name__ == "__main__":
    main()
