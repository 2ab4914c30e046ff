"""Cells and pages for the tests of the live page. Run by `make web-test`, and by nothing else."""

from collections.abc import Callable, Iterator

import pytest
from playwright.sync_api import Browser, BrowserContext, sync_playwright

from deploy.head import free_ports
from tests.web.browsing import (
    NAMES,
    PATIENCE_MS,
    PROBES,
    Site,
    Visit,
    find_chromium,
    launch,
    tiny_cell,
)


@pytest.fixture(scope="session")
def site(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Site]:
    (port,) = free_ports(1)
    with tiny_cell(tmp_path_factory.mktemp("cell"), port) as cell:
        yield Site(f"http://127.0.0.1:{port}", cell.client)


@pytest.fixture(scope="session")
def browser() -> Iterator[Browser]:
    chromium = find_chromium()
    if chromium is None:
        pytest.exit(
            f"no Chromium: none of {', '.join(NAMES)} on PATH, and DSPARK_CHROMIUM names none",
            returncode=2,
        )
    with sync_playwright() as playwright:
        browser = launch(playwright, chromium)
        yield browser
        browser.close()


@pytest.fixture
def visit(browser: Browser, site: Site) -> Iterator[Callable[..., Visit]]:
    """Opens the page; at the end nothing may have gone wrong on it."""
    contexts: list[tuple[BrowserContext, Visit]] = []

    def opened(
        where: Site = site,
        *,
        width: int = 1280,
        height: int = 900,
        forgiven: str = "",
        **wishes: object,
    ) -> Visit:
        context = browser.new_context(viewport={"width": width, "height": height}, **wishes)  # type: ignore[arg-type]
        context.set_default_timeout(PATIENCE_MS)
        context.add_init_script(path=PROBES)
        visit = Visit(context.new_page())
        page = visit.page

        def said(text: str) -> None:
            if not forgiven or forgiven not in text:
                visit.trouble.append(text)

        page.on(
            "console",
            lambda message: said(message.text) if message.type in ("error", "warning") else None,
        )
        page.on("pageerror", lambda error: said(str(error)))
        page.on(
            "request",
            lambda sent: None if sent.url.startswith(where.url) else visit.abroad.append(sent.url),
        )
        contexts.append((context, visit))
        page.goto(where.url)
        return visit

    yield opened
    for context, visit in contexts:
        context.close()
        assert visit.trouble == []
        assert visit.abroad == []
