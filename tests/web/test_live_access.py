"""The page for everybody: contrast, names, keyboard, narrow screens, motion, both schemes."""

from collections.abc import Callable

import pytest
from axe_playwright_python.sync_playwright import Axe

from tests.web.browsing import Visit

Open = Callable[..., Visit]

SCREENS = [("light", 1280), ("dark", 1280), ("light", 390), ("dark", 390)]


@pytest.mark.parametrize(("scheme", "width"), SCREENS)
def test_axe_finds_nothing(visit: Open, scheme: str, width: int) -> None:
    seen = visit(
        width=width, color_scheme=scheme, bypass_csp=True
    ).ready()  # the checker itself is a script
    seen.open("system-field", "advanced").ask(tokens=48)
    seen.compare()
    found = Axe().run(seen.page).response["violations"]
    assert [(each["id"], [node["html"][:120] for node in each["nodes"]]) for each in found] == []


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_text_stands_out_from_its_ground(visit: Open, scheme: str) -> None:
    seen = visit(color_scheme=scheme).ready().open("system-field", "advanced")
    seen.ask(tokens=64)
    seen.page.wait_for_selector("#history svg text")
    ratios = seen.probe("contrast()")
    assert len(ratios) > 100
    assert [(what, round(ratio, 2)) for what, ratio in ratios if ratio < 4.5] == []


def test_the_scheme_is_the_systems_until_somebody_chooses(visit: Open) -> None:
    grounds = {}
    for scheme in ("light", "dark"):
        seen = visit(color_scheme=scheme).ready()
        ground = "getComputedStyle(document.documentElement).backgroundColor"
        grounds[scheme] = seen.page.evaluate(ground)
        seen.page.click("#theme")
        assert seen.text("#theme-text") == "Light"
        assert seen.page.evaluate(ground) == "rgb(246, 245, 241)"
        seen.page.click("#theme")
        assert seen.text("#theme-text") == "Dark"
        assert seen.page.evaluate(ground) == "rgb(19, 20, 23)"
    assert grounds == {"light": "rgb(246, 245, 241)", "dark": "rgb(19, 20, 23)"}


def test_every_control_has_a_name(visit: Open) -> None:
    seen = visit().ready().open("system-field", "advanced")
    assert seen.probe("nameless()") == []
    for role, name in (
        ("log", "Conversation"),
        ("textbox", "Message"),
        ("textbox", "System prompt"),
        ("combobox", "Policy"),
        ("combobox", "Acceptance rule"),
        ("combobox", "Drafter"),
        ("slider", "Temperature"),
        ("slider", "Background answers"),
        ("slider", "Round shown"),
        ("spinbutton", "Longest answer"),
        ("button", "Send"),
        ("button", "New conversation"),
    ):
        assert seen.page.get_by_role(role, name=name).count() == 1, name  # type: ignore[arg-type]


def test_the_keyboard_reaches_everything_in_order_and_is_seen(visit: Open) -> None:
    seen = visit().ready().open("system-field", "advanced")
    seen.ask(tokens=48)
    page = seen.page
    expected = seen.probe("focusable()")
    # where a new page begins
    page.evaluate("() => { document.body.tabIndex = -1; document.body.focus() }")
    walked = []
    for _ in range(len(expected) + 3):
        page.keyboard.press("Tab")
        name, shows = seen.probe("focused()")
        if not name:
            break
        walked.append(name)
        assert shows, f"{name} has the focus and does not show it"
    assert walked == expected
    page.focus("#which")
    page.keyboard.press("End")
    assert seen.text("#round-of") == f"{seen.rounds} of {seen.rounds}"
    page.keyboard.press("Home")
    assert seen.text("#round-of") == f"1 of {seen.rounds}"


def test_a_phone_shows_all_of_it_without_scrolling_sideways(visit: Open) -> None:
    seen = (
        visit(width=390, height=844, has_touch=True, is_mobile=True)
        .ready()
        .open("system-field", "advanced")
    )
    seen.ask(tokens=64)
    seen.compare()
    seen.page.wait_for_selector("#history svg")
    assert seen.probe("tooWide()") == []
    assert seen.page.evaluate("document.documentElement.scrollWidth <= innerWidth")
    assert seen.probe("tooSmall(32)") == []


def test_on_a_phone_every_answer_comes_into_sight_when_it_starts(visit: Open) -> None:
    seen = visit(width=390, height=844, has_touch=True, is_mobile=True).ready()
    page = seen.page
    for turn in range(1, 4):
        page.fill("#prompt", "Add 12 and 30.")
        page.fill("#length", "200")
        # the conversation is above
        page.evaluate("document.getElementById('go').scrollIntoView({ block: 'start' })")
        page.tap("#go")
        seen.until(f"document.querySelectorAll('#log .answer').length === {turn}")
        seen.until("document.querySelector('#log .answer:last-child .tok')")
        assert seen.probe("inSight()"), f"turn {turn}"
        seen.done()


def test_little_motion_where_it_is_asked_for(visit: Open) -> None:
    moving = "getComputedStyle(document.querySelector('#log .tok')).animationName"
    calm = visit(reduced_motion="reduce").ready()
    calm.ask(tokens=16)
    assert calm.page.evaluate(moving) == "none"
    lively = visit(reduced_motion="no-preference").ready()
    lively.ask(tokens=16)
    assert lively.page.evaluate(moving) == "appear"


def test_the_stream_is_announced_when_it_is_over_not_word_by_word(visit: Open) -> None:
    seen = visit().ready()
    assert seen.page.get_attribute("#status", "aria-live") == "polite"
    assert seen.page.locator("#log [aria-live]").count() == 0
    assert seen.page.get_attribute("#log", "aria-live") == "off"
    seen.ask(tokens=16)
    assert seen.text("#status").startswith("Done: 16 tokens")
