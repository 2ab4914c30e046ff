"""Hostile text stays text, a key is asked for and forgotten, other sites get nowhere."""

from collections.abc import Callable
from pathlib import Path

from tests.keys import token_files
from tests.services.http_cell import HttpCell, synthetic_pair
from tests.web.browsing import QUESTION, Site, Visit

Open = Callable[..., Visit]

HOSTILE = (
    '<img src=x onerror="window.hurt=1"></span><script>window.hurt=1</script> {{7*7}} <b>bold</b>'
)


def test_hostile_prompts_and_tokens_stay_text(visit: Open) -> None:
    seen = visit().ready()
    seen.ask(HOSTILE, tokens=32)
    page = seen.page
    assert seen.text("#log .asked") == HOSTILE
    assert (
        page.locator(
            "main img, main b:not(.legend b, .hop-list b, .lane-figures b), main script"
        ).count()
        == 0
    )
    # Whatever tokens say, they are put in as text: here one that no model would say so neatly.
    page.evaluate("text => probe.hurtBy(text)", HOSTILE)
    assert seen.said() == HOSTILE
    assert page.locator("main img, main script, #block b").count() == 0
    assert page.evaluate("window.hurt") is None


def test_the_policy_of_the_page_stops_what_is_injected(visit: Open) -> None:
    seen = visit(forgiven="Content Security Policy").ready()
    page = seen.page
    assert seen.probe("inject()") in ("refused", "stopped")
    assert seen.probe("overwrite()") == "refused"
    assert (
        page.evaluate("() => fetch('http://127.0.0.1:9/').then(() => 'sent', () => 'stopped')")
        == "stopped"
    )
    assert page.evaluate("window.hurt") is None
    seen.trouble[:] = [
        text for text in seen.trouble if "TrustedScript" not in text and "TrustedHTML" not in text
    ]
    seen.abroad.clear()


def test_a_key_is_asked_for_and_kept_nowhere(visit: Open, tmp_path: Path) -> None:
    tokens, files = token_files(tmp_path, "worker", "client")
    key = tokens["client"]
    with HttpCell(synthetic_pair(tmp_path), **files) as guarded:
        seen = visit(Site(guarded.url), forgiven="401")
        page = seen.page
        page.wait_for_selector("#key-dialog[open]")
        page.keyboard.type("wrong-key")
        page.keyboard.press("Enter")
        seen.until("document.getElementById('key-hint').textContent.includes('not accepted')")
        page.wait_for_selector("#key-dialog[open]")
        page.keyboard.type(key)
        page.keyboard.press("Enter")
        seen.ready()
        seen.ask(tokens=16)
        assert "Done: 16 tokens" in seen.text("#status")
        kept = "JSON.stringify([localStorage, sessionStorage, document.cookie, location.href])"
        assert key not in page.evaluate(kept)
        assert page.input_value("#key") == ""
        page.reload()
        page.wait_for_selector("#key-dialog[open]")
        page.goto("about:blank")
        seen.abroad.clear()


def test_with_a_clients_key_the_page_shows_the_answer_alone(visit: Open, tmp_path: Path) -> None:
    tokens, files = token_files(tmp_path, "worker", "client", "metrics")
    with HttpCell(synthetic_pair(tmp_path), **files) as guarded:
        seen = visit(Site(guarded.url), forgiven="40")
        seen.page.wait_for_selector("#key-dialog[open]")
        seen.page.keyboard.type(tokens["client"])
        seen.page.keyboard.press("Enter")
        seen.ready()
        assert seen.text("#state-text") == "ready"
        assert not seen.page.is_visible("#load")
        seen.ask(tokens=16)
        assert "Done: 16 tokens" in seen.text("#status")
        seen.page.goto("about:blank")
        seen.abroad.clear()


def test_what_is_wrong_is_said_in_the_servers_words_and_the_message_comes_back(visit: Open) -> None:
    seen = visit(forgiven="400").ready().open()
    page = seen.page
    page.select_option("#policy", "fixed")
    page.evaluate("document.getElementById('amount').removeAttribute('max')")
    page.fill("#amount", "99999")
    seen.send()
    page.wait_for_selector("#alert:not([hidden])")
    assert "fixed:k needs a whole number" in seen.text("#alert")
    assert page.get_attribute("#alert", "role") == "alert"
    assert page.input_value("#prompt") == QUESTION
    assert page.locator("#log .turn").count() == 0
    page.fill("#amount", "2")
    page.fill("#length", "8")
    page.click("#go")
    page.wait_for_selector("#log .tok")
    assert not page.is_visible("#alert")
