"""Cells and pages for the tests of the live page. Run by `make web-test`, and by nothing else."""

from collections.abc import Callable, Iterator

import pytest
from playwright.sync_api import Browser, sync_playwright

from deploy.head import free_ports
from tests.web.browsing import NAMES, Site, Visit, find_chromium, launch, tiny_cell


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
    visits: list[Visit] = []

    def opened(
        where: Site = site,
        *,
        width: int = 1280,
        height: int = 900,
        forgiven: str = "",
        **wishes: object,
    ) -> Visit:
        visit = Visit.of(browser, viewport={"width": width, "height": height}, **wishes)
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
        visits.append(visit)
        page.goto(where.url)
        return visit

    yield opened
    for visit in visits:
        visit.page.context.close()
        assert visit.trouble == []
        assert visit.abroad == []
