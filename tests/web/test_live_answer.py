"""Somebody types a prompt, watches it answered, and looks at how."""

from collections.abc import Callable

import pytest

from coordinator.http.template import find_template
from tests.waiting import wait_until
from tests.web.browsing import PAIR, Site, Visit

Open = Callable[..., Visit]

WORKSHEET = "Worksheet on averages\n\nProblem 1: Find the average of the numbers 19, 26, 7, 20."


def test_a_typed_message_is_answered_as_it_is_over_grpc(visit: Open, site: Site) -> None:
    with site.client() as client:
        expected = client.complete(WORKSHEET, max_tokens=96, temperature=0.0)
    seen = visit().ready()
    page = seen.page
    seen.probe("grow()")
    page.fill("#length", "96")
    page.click("#prompt")
    for line in WORKSHEET.splitlines():
        page.keyboard.type(line)
        if line != WORKSHEET.splitlines()[-1]:
            page.keyboard.press("Shift+Enter")
    page.keyboard.press("Enter")
    page.wait_for_selector("#log .tok")
    seen.done()
    assert seen.text("#log .asked") == WORKSHEET
    assert page.input_value("#prompt") == ""
    assert seen.said() == expected.text
    growth = seen.probe("growth")
    assert len(set(growth)) > 3, "it came in parts"
    assert growth == sorted(growth)
    assert f"Done: {expected.end.usage.completion_tokens} tokens" in seen.text("#status")


def test_every_token_is_coloured_by_its_origin(visit: Open) -> None:
    seen = visit().ready().drafting()
    seen.ask(WORKSHEET)
    origins = seen.origins()
    total = seen.answer.locator(".tok").count()
    assert sum(origins.values()) == total > 48
    assert origins["drafted"] > 0
    assert origins["bonus"] + origins["corrected"] > 0
    looks = seen.probe("legend()")
    assert len({colour for _, colour, _ in looks}) == 4, "by colour"
    assert len({line for _, _, line in looks}) >= 3, "and not by colour alone"
    shares = seen.probe("shares()")
    assert float(shares["drafted"].rstrip("%")) == pytest.approx(
        100 * origins["drafted"] / total, abs=0.1
    )


def test_the_block_view_walks_through_the_rounds(visit: Open) -> None:
    seen = visit().ready().drafting()
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
        marked = page.locator("#log .tok.shown")
        assert marked.count() <= accepted + 1
        assert page.locator("#log .tok.shown[data-origin=drafted]").count() == accepted
        if rows:
            widths = seen.probe("survivals()")
            assert widths == sorted(widths, reverse=True), "survival never rises along a block"
            assert page.locator("#hop-list li").count() == 4
    assert len(shown) > 2
    page.locator("#log .tok[data-round='1']").first.click()
    assert seen.text("#round-of") == f"2 of {count}"
    page.click("#later")
    assert seen.text("#round-of") == f"3 of {count}"


def test_after_an_answer_the_round_that_drafting_brought_most_in_is_shown(visit: Open) -> None:
    seen = visit().ready().drafting()
    seen.ask(WORKSHEET)
    page = seen.page
    drafted = [
        page.locator(f"#log .tok[data-round='{index}'][data-origin=drafted]").count()
        for index in range(seen.rounds)
    ]
    best = drafted.index(max(drafted))  # the first of several
    assert max(drafted) > 0
    assert seen.text("#round-of") == f"{best + 1} of {seen.rounds}"
    assert page.locator("#log .tok.shown").first.get_attribute("data-round") == str(best)
    page.click("#anew")
    assert (seen.text("#round-of"), seen.text("#block")) == ("", "")


def test_turns_go_through_the_targets_template_and_a_new_conversation_forgets_them(
    visit: Open, site: Site
) -> None:
    template = find_template(str(PAIR / "target"), None)
    assert template is not None
    seen = visit().ready().open("system-field")
    said = [{"role": "system", "content": "Worksheet on sums"}]
    seen.page.fill("#system", said[0]["content"])
    with site.client() as client:
        for question in ("Add 12 and 30.", "Find the average of 19 and 26."):
            seen.ask(question, tokens=24)
            said.append({"role": "user", "content": question})
            prompt = template.render(said, {}, add_generation_prompt=True)
            expected = client.complete(prompt, max_tokens=24, temperature=0.0).text
            assert seen.said() == expected
            said.append({"role": "assistant", "content": expected})
        seen.page.click("#anew")
        assert seen.page.locator("#log .turn").count() == 0
        assert sum(seen.origins().values()) == 0
        seen.page.fill("#system", "")
        seen.ask("import socket", tokens=24)
        assert seen.said() == client.complete("import socket", max_tokens=24, temperature=0.0).text


def test_the_same_prompt_without_drafts_is_measured_beside_it(visit: Open) -> None:
    seen = visit().ready().drafting()
    page = seen.page
    seen.ask(WORKSHEET, tokens=48)
    sent: list[str] = []
    page.on("request", lambda request: sent.append(request.post_data_json["policy"]))
    seen.compare()
    assert sent == ["off", "fixed:4", "off"]
    drafts, plain = (
        [float(word) for word in text.replace(",", "").split() if word[0].isdigit()]
        for text in seen.answer.locator(".speed b").all_text_contents()
    )
    assert len(drafts) == len(plain) == 2
    assert f"{drafts[0]} tokens/s" in (
        seen.answer.locator(".figures").text_content() or ""
    ).replace(",", "")
    verdict = seen.answer.locator(".verdict").text_content() or ""
    assert ("Drafting paid" in verdict) == (min(drafts) > max(plain))
    assert ("did not pay here" in verdict) == (max(drafts) < min(plain))
    assert page.locator("#log .turn").count() == 2, "it is no turn of the conversation"


def test_a_comparison_that_is_stopped_can_be_asked_for_again(visit: Open) -> None:
    seen = visit().ready()
    seen.ask(WORKSHEET, tokens=512)
    button = seen.answer.get_by_role("button", name="Compare")
    button.click()
    seen.page.click("#go")
    seen.until("document.getElementById('status').textContent === 'Stopped.'")
    assert button.is_visible()
    assert seen.answer.locator(".against").is_hidden()


@pytest.mark.parametrize(
    ("drafts", "plain", "ids", "drafted", "said"),
    [
        (
            [30, 30],
            [20, 20],
            40,
            50,
            "Drafting paid: 1.50 times as fast as plain decoding. Both gave the same tokens.",
        ),
        (
            [20, 20],
            [30, 30],
            40,
            50,
            "Drafting did not pay here: plain decoding was 1.50 times as fast.",
        ),
        (
            [20, 30],
            [25, 25],
            40,
            0,
            "No difference in speed that two runs of each could tell. Nothing was drafted",
        ),
        ([30, 30], [20, 20], 39, 50, "The texts differ from token 40 on."),
        ([30, 30], [20, 20], 9, 50, "too short to tell"),
    ],
)
def test_a_comparison_is_told_as_it_is(
    visit: Open, drafts: list[int], plain: list[int], ids: int, drafted: int, said: str
) -> None:
    assert said in visit().ready().probe(f"verdict({drafts}, {plain}, {ids}, {drafted})")


def test_words_are_not_pulled_apart(visit: Open) -> None:
    seen = visit().ready().open()
    for policy in ("off", "fixed"):
        seen.page.select_option("#policy", policy)
        seen.ask(WORKSHEET, tokens=64)
        gaps = seen.probe("gaps()")
        assert len(gaps) > 16
        assert [gap for gap in gaps if abs(gap) > 0.5] == []


def test_policies_and_rules_are_switched(visit: Open) -> None:
    seen = visit().ready()
    page = seen.page
    assert not page.is_visible("#policy")
    seen.open()
    assert page.input_value("#policy") == "adaptive", "the cell's own"
    page.select_option("#policy", "off")
    seen.ask(WORKSHEET, tokens=24)
    assert seen.origins() == {"drafted": 0, "bonus": 0, "corrected": 0, "plain": 24}
    assert "policy is off" in seen.text("#why")
    assert seen.answer.get_by_role("button", name="Compare").count() == 0, (
        "it is plain decoding already"
    )
    page.select_option("#policy", "fixed")
    assert page.is_visible("#amount")
    page.fill("#amount", "2")
    page.select_option("#rule", "coupled")
    page.click("#anew")
    seen.ask(WORKSHEET, tokens=24)
    seen.look_at(1)
    assert "as the policy says" in seen.text("#why")
    for number in range(1, seen.rounds + 1):
        seen.look_at(number)
        verified = "[data-fate=accepted], [data-fate=rejected], [data-fate=void]"
        assert page.locator(f"#block tr:is({verified})").count() <= 2
    page.select_option("#policy", "off")
    assert not page.is_visible("#amount")


def test_what_a_form_forces_and_forbids_is_seen(visit: Open) -> None:
    seen = visit().ready().drafting()
    page = seen.page
    assert not page.is_visible("#forced-legend")
    page.fill("#shape", "abc[0-9]{4}xyz")
    seen.ask(WORKSHEET, tokens=24)
    assert seen.said()[:3] + seen.said()[7:] == "abcxyz"
    forced = page.locator("#log .tok.forced").count()
    assert forced >= 1
    assert seen.text("#n-forced") == str(forced)
    assert page.is_visible("#forced-legend")
    fell = []
    for number in range(1, seen.rounds + 1):
        seen.look_at(number)
        fell.append(page.locator("#block tr[data-fate=forbidden]").count())
        assert ("left the form" in seen.text("#why")) == bool(fell[-1])
    assert max(fell) == 1, "no drafter expects this"
    page.click("#anew")
    assert not page.is_visible("#forced-legend")


def test_suggestions_are_sent_and_temperature_draws(visit: Open) -> None:
    seen = visit().ready()
    page = seen.page
    first = page.locator("#tries button").first
    question = first.text_content()
    page.fill("#length", "16")
    first.click()
    page.wait_for_selector("#log .tok")
    seen.done()
    assert seen.text("#log .asked") == question
    assert not page.is_visible("#tries")
    page.focus("#temperature")
    for _ in range(7):
        page.keyboard.press("ArrowRight")
    assert seen.text("#temperature-text") == "0.7"
    page.keyboard.press("End")
    assert seen.text("#temperature-text") == "1.5"
    answers = set()
    for _ in range(2):
        page.click("#anew")
        seen.ask("import socket", tokens=32)
        answers.add(seen.said())
    assert len(answers) == 2, "draws differ"


def test_slowly_means_round_by_round_and_stop_keeps_what_was_said(visit: Open, site: Site) -> None:
    seen = visit().ready().open()
    page = seen.page
    page.select_option("#pace", "slow")
    seen.send(WORKSHEET, tokens=200)
    page.wait_for_selector("#log .tok[data-round='1']")
    assert seen.text("#go-text") == "Stop"
    assert page.locator("#block table").count() == 1
    page.click("#go")
    seen.until("document.getElementById('status').textContent === 'Stopped.'")
    stopped = page.locator("#log .tok").count()
    assert 0 < stopped < 200
    page.wait_for_timeout(1000)
    assert page.locator("#log .tok").count() == stopped
    assert page.locator("#log .caret").is_hidden()
    with site.client() as client:
        seen.until("document.querySelector('#go-text').textContent === 'Send'")
        assert sum(process.sequences for process in client.status().processes) == 0
    half = seen.said()
    with page.expect_request("**/live/generate") as asked:
        page.select_option("#pace", "live")
        seen.ask("And then?", tokens=8)
    roles = [(each["role"], each["content"]) for each in asked.value.post_data_json["messages"]]
    assert roles == [("user", WORKSHEET), ("assistant", half), ("user", "And then?")]


def test_a_new_conversation_ends_the_answer_that_is_coming(visit: Open, site: Site) -> None:
    seen = visit().ready().open()
    page = seen.page
    page.select_option("#pace", "slow")
    seen.send(WORKSHEET)
    page.wait_for_selector("#log .tok")
    page.click("#anew")
    assert seen.text("#go-text") == "Send"
    page.wait_for_timeout(1000)
    assert page.locator("#log .turn").count() == 0
    assert page.is_visible("#tries")


def test_the_load_slider_adds_streams_and_the_budget_follows(visit: Open) -> None:
    seen = visit().ready()
    page = seen.page
    page.focus("#load")
    for _ in range(6):
        page.keyboard.press("ArrowRight")
    assert seen.text("#load-text") == "6"
    seen.until(
        "document.getElementById('history').getAttribute('aria-label').includes('6 answers')"
    )
    seen.until("document.querySelector('#history .verified-line').getAttribute('d').length > 40")
    seen.until(
        "document.getElementById('curve').getAttribute('aria-label').includes('tokens per second')"
    )
    assert not page.is_visible("#alert")
    seen.ask(WORKSHEET, tokens=48)
    assert "shared the pass" in seen.text("#why")
    assert page.locator(".worker").count() == 3
    seen.until(
        "[...document.querySelectorAll('.worker .held')].some(held => "
        "/[1-9]/.test(held.textContent))"
    )
    seen.slide("load", 0)
    seen.until(
        "document.getElementById('history').getAttribute('aria-label').includes('Now 0 answers')"
    )


def test_two_pages_see_one_load_and_it_ends_when_both_have_left(visit: Open, site: Site) -> None:
    one, other = visit().ready(), visit().ready()
    one.slide("load", 3)
    other.until("document.getElementById('load').value === '3'")
    with site.client() as client:
        one.page.goto("about:blank")
        other.page.wait_for_timeout(1500)
        lane = client.status().lanes[0]
        assert lane.running + lane.waiting > 0
        other.page.goto("about:blank")
        # background streams do not go on where nobody watches
        wait_until(lambda: not sum(lane.running for lane in client.status().lanes))
    one.abroad.clear()
    other.abroad.clear()
