"""The short form of `make wire-law`: three processes, three settings, few answers."""

from __future__ import annotations

from collections import Counter
from pathlib import Path

from deploy.processes import ProcessCell
from tests.wire_law import forms
from tests.wire_law.pair import write_tiny_pair
from tests.wire_law.settings import PARAMETERS, VOCABULARY, Setting
from tests.wire_law.verdict import P_BAR, corrected, draw

NEAR = 0.6  # of verified drafts are kept: 1.8 tokens a round and more
KINDS = list(PARAMETERS)
SETTINGS = (
    Setting("block", "adaptive", KINDS[0]),
    Setting("token", "fixed:3", KINDS[1]),
    Setting("coupled", "fixed:3", KINDS[2]),
)


def test_sampled_answers_follow_the_law_and_drafts_are_both_kept_and_refused(
    tmp_path: Path,
) -> None:
    target, drafter = write_tiny_pair(tmp_path, vocabulary=VOCABULARY, seed=20_000)
    with ProcessCell(target, drafter, draft={"q_entries": VOCABULARY - 1}) as cell:
        rows = draw(cell.endpoint, target, 800, seed=7, settings=SETTINGS)
    assert min(corrected(rows)) > P_BAR
    for row in rows:
        # the drafter is near; how many rounds had a draft in time hangs on the machine
        assert NEAR * row["verified"] < row["accepted"] < row["verified"]


def test_answers_in_a_form_follow_the_masked_law(tmp_path: Path) -> None:
    target, drafter = forms.write_pair(tmp_path, forms.SEED)
    with ProcessCell(target, drafter, draft={"q_entries": forms.VOCABULARY - 1}) as cell:
        rows = forms.measure(cell.endpoint, target, 1200, seed=9)
    for row in rows:
        assert row["p_corrected"] > P_BAR, row
        assert not row["unfit"], row
    law = forms.law_of(target)
    even = Counter(dict.fromkeys(law, 20))
    assert forms.judge(law, even) < P_BAR, "another law would be seen"
