"""Somebody types a prompt, watches it answered, and looks at how."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from tests.web.browsing import Site, Visit

Open = Callable[..., Visit]

WORKSHEET = "Worksheet on averages\n\nProblem 1: Find the average of the numbers 19, 26, 7, 20.\n"


def test_a_typed_prompt_is_answered_as_it_is_over_grpc(visit: Open, site: Site) -> None:
    with site.client() as client:
        expected = client.complete(WORKSHEET, max_tokens=96, temperature=0.0)
    seen = visit().ready()
    page = seen.page
    seen.probe("grow()")
    page.click("#prompt")
    page.keyboard.press("Control+A")
    page.keyboard.type(WORKSHEET)
    page.fill("#length", "96")
    page.focus("#prompt")
    page.keyboard.press("Control+Enter")
    seen.done()
    assert seen.text("#said") == WORKSHEET
    assert seen.text("#tokens") == expected.text
    growth = seen.probe("growth")
    assert len(set(growth)) > 3, "it came in parts"
    assert growth == sorted(growth)
    assert f"Done: {expected.end.usage.completion_tokens} tokens" in seen.text("#status")


def test_every_token_is_coloured_by_its_origin(visit: Open) -> None:
    seen = visit().ready()
    seen.ask(WORKSHEET)
    origins = seen.origins()
    total = seen.page.locator("#tokens .tok").count()
    assert sum(origins.values()) == total > 48
    assert origins["drafted"] > 0
    assert origins["bonus"] + origins["corrected"] > 0
    looks = seen.probe("legend()")
    assert len({colour for _, colour, _ in looks}) == 4, "by colour"
    assert len({line for _, _, line in looks}) >= 3, "and not by colour alone"
    shares = seen.probe("shares()")
    assert float(shares["drafted"].rstrip("%")) == pytest.approx(100 * origins["drafted"] / total, abs=0.1)


def test_the_block_view_walks_through_the_rounds(visit: Open) -> None:
    seen = visit().ready()
    seen.ask(WORKSHEET)
    page = seen.page
    count = seen.rounds
    assert count > 2
    shown = set()
    for number in range(1, count + 1):
        seen.look_at(number)
        assert seen.text("#round-of") == f"{number} of {count}"
        shown.add(seen.text("#block") + seen.text("#why"))
        rows = page.locator("#block tbody tr[data-fate]:not([data-fate=target])").count()
        accepted = page.locator("#block tr[data-fate=accepted]").count()
        marked = page.locator("#tokens .tok.shown")
        assert marked.count() <= accepted + 1
        assert page.locator("#tokens .tok.shown[data-origin=drafted]").count() == accepted
        if rows:
            widths = seen.probe("survivals()")
            assert widths == sorted(widths, reverse=True), "survival never rises along a block"
            assert page.locator("#hop-list li").count() == 5
    assert len(shown) > 2
    page.locator("#tokens .tok[data-round='1']").first.click()
    assert seen.text("#round-of") == f"2 of {count}"
    page.click("#later")
    assert seen.text("#round-of") == f"3 of {count}"


def test_policies_and_rules_are_switched(visit: Open) -> None:
    seen = visit().ready()
    page = seen.page
    page.select_option("#policy", "off")
    seen.ask(WORKSHEET, tokens=24)
    assert seen.origins() == {"drafted": 0, "bonus": 0, "corrected": 0, "plain": 24}
    assert "policy is off" in seen.text("#why")
    page.select_option("#policy", "fixed")
    assert page.is_visible("#amount")
    page.fill("#amount", "2")
    page.select_option("#rule", "coupled")
    seen.ask(tokens=24)
    seen.look_at(1)
    assert "as the policy says" in seen.text("#why")
    for number in range(1, seen.rounds + 1):
        seen.look_at(number)
        verified = "[data-fate=accepted], [data-fate=rejected], [data-fate=void]"
        assert page.locator(f"#block tr:is({verified})").count() <= 2
    page.select_option("#policy", "greedy")
    assert not page.is_visible("#amount")


def test_examples_and_temperature(visit: Open) -> None:
    seen = visit().ready()
    page = seen.page
    prompts = set()
    for domain in page.locator("#domains input").all():
        domain.check(force=True)
        for _ in range(2):
            prompts.add(page.input_value("#prompt"))
            page.click("#another")
    assert len(prompts) == 6
    page.focus("#temperature")
    for _ in range(7):
        page.keyboard.press("ArrowRight")
    assert seen.text("#temperature-text") == "0.7"
    page.keyboard.press("End")
    assert seen.text("#temperature-text") == "1.5"
    answers = set()
    for _ in range(2):
        seen.ask("import socket\n\n", tokens=32)
        answers.add(seen.text("#tokens"))
    assert len(answers) == 2, "draws differ"


def test_slowly_means_round_by_round_and_stop_means_now(visit: Open, site: Site) -> None:
    seen = visit().ready()
    page = seen.page
    page.select_option("#pace", "slow")
    page.fill("#length", "200")
    page.click("#go")
    page.wait_for_selector("#tokens .tok[data-round='1']")
    assert seen.text("#go-text") == "Stop"
    assert page.locator("#block table").count() == 1
    page.click("#go")
    seen.until("document.getElementById('status').textContent === 'Stopped.'")
    stopped = page.locator("#tokens .tok").count()
    assert stopped < 200
    page.wait_for_timeout(1000)
    assert page.locator("#tokens .tok").count() == stopped
    with site.client() as client:
        seen.until("document.querySelector('#go-text').textContent === 'Generate'")
        assert sum(process.sequences for process in client.status().processes) == 0


def test_the_load_slider_adds_streams_and_the_budget_follows(visit: Open) -> None:
    seen = visit().ready()
    page = seen.page
    page.focus("#load")
    for _ in range(6):
        page.keyboard.press("ArrowRight")
    assert seen.text("#load-text") == "6"
    seen.until("document.getElementById('history').getAttribute('aria-label').includes('6 sequences')")
    seen.until("document.querySelector('#history .verified-line').getAttribute('d').length > 40")
    seen.until("document.getElementById('curve').getAttribute('aria-label').includes('tokens per second')")
    assert not page.is_visible("#alert")
    seen.ask(WORKSHEET, tokens=48)
    assert "shared the step" in seen.text("#why")
    assert page.locator(".worker").count() == 3
    seen.until("[...document.querySelectorAll('.worker .held')].some(held => /[1-9]/.test(held.textContent))")
    seen.slide("load", 0)
    seen.until("document.getElementById('history').getAttribute('aria-label').includes('Now 0 sequences')")


def test_two_pages_see_one_load_and_it_ends_when_both_have_left(visit: Open, site: Site) -> None:
    one, other = visit().ready(), visit().ready()
    one.slide("load", 3)
    other.until("document.getElementById('load').value === '3'")
    with site.client() as client:
        one.page.goto("about:blank")
        other.page.wait_for_timeout(1500)
        assert client.status().lanes[0].running > 0
        other.page.goto("about:blank")
        for _ in range(60):
            if not sum(lane.running for lane in client.status().lanes):
                break
            other.page.wait_for_timeout(500)
        else:
            raise AssertionError("background streams go on though nobody watches")
    one.abroad.clear()
    other.abroad.clear()
