"""The short form of `make wire-law`: three processes, three settings, few answers."""

from collections import Counter

from tests.wire_law import forms
from tests.wire_law.pair import served, write_tiny_pair
from tests.wire_law.settings import PARAMETERS, VOCABULARY, Setting
from tests.wire_law.verdict import P_BAR, corrected, draw

NEAR = 0.6  # of verified drafts are kept: 1.8 tokens a round and more
KINDS = list(PARAMETERS)
SETTINGS = (
    Setting("block", "adaptive", KINDS[0]),
    Setting("token", "fixed:3", KINDS[1]),
    Setting("coupled", "fixed:3", KINDS[2]),
)


def test_sampled_answers_follow_the_law_and_drafts_are_both_kept_and_refused() -> None:
    with served(write_tiny_pair, VOCABULARY, 20_000) as (endpoint, target):
        rows = draw(endpoint, target, 800, seed=7, settings=SETTINGS)
    assert min(corrected(rows)) > P_BAR
    for row in rows:
        # the drafter is near; how many rounds had a draft in time hangs on the machine
        assert NEAR * row["verified"] < row["accepted"] < row["verified"]


def test_answers_in_a_form_follow_the_masked_law() -> None:
    with served(forms.write_pair, forms.VOCABULARY, forms.SEED) as (endpoint, target):
        rows = forms.measure(endpoint, target, 1200, seed=9)
        law = forms.law_of(target)
    for row in rows:
        assert row["p_corrected"] > P_BAR, row
        assert not row["unfit"], row
    even = Counter(dict.fromkeys(law, 20))
    assert forms.judge(law, even) < P_BAR, "another law would be seen"
