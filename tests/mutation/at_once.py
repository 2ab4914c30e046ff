"""Bugs of the rules as tensors alone, which judge on cards."""

from __future__ import annotations

from tests.mutation.mutant import caught_by, in_file

A = "tests/unit/decoding/test_judge_at_once.py"
SAME = (f"{A}::test_verdicts_are_those_of_the_rules_on_the_host",)
LIKED = (f"{A}::test_blocks_that_the_target_likes_are_kept_as_far_as_on_the_host",)
TIES = (f"{A}::test_near_ties_of_coupled_sequences_are_counted",)
SENT = (f"{A}::test_a_slot_that_its_q_cannot_give_counts_as_not_sent",)

AT_ONCE = [
    *in_file(
        "dspark/decoding/at_once.py",
        *caught_by(
            SAME,
            (
                "greedy keeps a token behind a wrong one",
                "matched.long().cumprod(dim=-1)",
                "matched.long()",
            ),
            (
                "the token rule keeps a token behind a rejected one",
                "& counts).long().cumprod(dim=-1)",
                "& counts).long()",
            ),
            (
                "the shortest candidate is kept",
                "(heads * (slots + 1)).amax(dim=-1)",
                "heads.long().cumprod(dim=-1).sum(dim=-1)",
            ),
        ),
        *caught_by(
            LIKED,
            (
                "slots of nobody are matched",
                " & (slots < at.lengths.unsqueeze(-1))\n    return",
                "\n    return",
            ),
            (
                "the residual forgets what the block is worth",
                "last = _at(probs, accepted) * weight",
                "last = _at(probs, accepted) * weight.clamp(min=1.0)",
            ),
            ("q is taken off behind whole blocks", " * stopped.unsqueeze(-1)", ""),
            (
                "the last candidate is judged like the others",
                "(slots == counting - 1) | (later <= 0)",
                "later <= 0",
            ),
        ),
        (
            "a token that its q cannot give may be kept",
            "possible = (q > 0) & ",
            "possible = ",
            SENT,
        ),
        ("near-ties behind the end are counted", "NEAR_TIE) & looked_at", "NEAR_TIE)", TIES),
    ),
    *in_file(
        "dspark/decoding/judge_at_once.py",
        *caught_by(
            SAME,
            (
                "the race of a position is that of the one before",
                "anchor_position + 1 + min(",
                "anchor_position + min(",
            ),
            (
                "draft and acceptance share noise, judged at once",
                "coins(Purpose.ACCEPT,",
                "coins(Purpose.DRAFT,",
            ),
            (
                "emissions of an anchor share a coin",
                "slots[: length + 1] + 1 for",
                "slots[: length + 1] * 0 + 1 for",
            ),
            (
                "rows of short blocks run on into their neighbours'",
                " + np.minimum(\n        slots, reach\n    )",
                " + slots",
            ),
        ),
    ),
]
