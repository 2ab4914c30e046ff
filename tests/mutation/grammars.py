"""Bugs of forms: masks that are missing, late or misplaced, matchers that stand where the answer
does not."""

from __future__ import annotations

from tests.mutation.mutant import caught_by, in_file

G = "tests/unit/grammars/"
LAW = (f"{G}test_exact_masks.py::test_what_is_emitted_follows_the_masked_law_exactly",)
SAYS = (f"{G}test_exact_masks.py::test_the_coupled_rule_says_what_plain_decoding_says",)
MOVED = (f"{G}test_moved_answers.py",)
SHAPES = ("tests/unit/decoding/test_shaping.py",)
FIRST = ("tests/unit/draft_service/test_sample_block.py",)
SCHEMA = (f"{G}test_grammars.py",)

GRAMMARS = [
    *in_file(
        "verify_service/grammars/matcher.py",
        *caught_by(
            LAW,
            (
                "the bonus is not masked",
                "return made[:filled]",
                "return made[: min(filled, max(len(drafted), 1))]",
            ),
            (
                "a mask is that of the slot before",
                "fill_next_token_bitmask(made, filled)",
                "fill_next_token_bitmask(made, min(filled + 1, len(drafted)))",
            ),
            ("an answer ends anywhere", "if not made[filled].any():", "if True:"),
            ("a matcher is not rolled back", "        if taken:\n", "        if False:\n"),
        ),
        (
            "the bonus is not masked, coupled",
            "return made[:filled]",
            "return made[: max(filled - 1, 1)]",
            SAYS,
        ),
        (
            "what came next is still to come",
            "        self._first = None\n        with",
            "        with",
            (*LAW, *SAYS),
        ),
    ),
    *in_file(
        "verify_service/packed_step.py",
        (
            "masks lie a row too low",
            "                (case.first_row, each)\n",
            "                (case.first_row + 1, each[:-1])\n",
            (*LAW, *SAYS),
        ),
        (
            "a matcher goes on over what was rejected",
            "state.matcher.accept(tokens)",
            "[state.matcher.accept([t]) for t in item.draft_ids[: accepted + 1]]",
            LAW,
        ),
        (
            "a matcher never goes on",
            "state.matcher.accept(tokens)",
            "state.matcher.accept(tokens[:0])",
            LAW,
        ),
        (
            "truncation comes before the mask",
            "        mask(\n            result.logits,\n",
            "        low = result.logits < result.logits.topk(2).values[:, -1:]\n"
            "        result.logits.masked_fill_(low, -50.0)\n"
            "        mask(\n"
            "            result.logits,\n",
            LAW,
        ),
    ),
    *in_file(
        "verify_service/judging.py",
        (
            "a matcher begins anew where an answer goes on elsewhere",
            "matcher.accept(state.token_ids[state.given :])",
            "matcher.accept([])",
            MOVED,
        ),
        (
            "a matcher reads the prompt",
            "matcher.accept(state.token_ids[state.given :])",
            "matcher.accept(state.token_ids)",
            MOVED,
        ),
    ),
    *in_file(
        "verify_service/engine.py",
        (
            "the first token is not masked",
            "mask(logits, [(0, matcher.masks(()))])",
            "mask(logits, [])",
            MOVED,
        ),
        (
            "the first token is not taken in",
            "matcher.accept([anchor])",
            "matcher.accept([])",
            MOVED,
        ),
    ),
    *in_file(
        "dspark/decoding/shaping.py",
        (
            "min_tokens leaves nothing that may come",
            "torch.where(nothing, ends, flat[index])",
            "flat[index]",
            SHAPES,
        ),
    ),
    *in_file(
        "draft_service/sample_block.py",
        ("a mask is of every slot", "if slot == 0 and any(masks)", "if any(masks)", FIRST),
        ("the first slot is drawn freely", "if slot == 0 and any(masks)", "if slot < 0", FIRST),
    ),
    *in_file(
        "verify_service/drafters.py",
        (
            "orders bring no masks",
            "asked.rows, *kept)",
            "asked.rows, *kept[:3])",
            (
                "tests/services/test_rounds_failing.py::test_an_order_brings_the_mask_of_each_sequence",
            ),
        ),
    ),
    *in_file(
        "verify_service/kv_cache_manager.py",
        (
            "a mask is that of the next sequence",
            "rows, masks if any(masks) else ())",
            "rows, masks[::-1] if any(masks) else ())",
            ("tests/unit/verify_service/test_under_way.py",),
        ),
    ),
    *in_file(
        "dspark/decoding/masking.py",
        (
            "a mask is another sequence's",
            "logits.index_copy(0, index, left)",
            "logits.index_copy(0, index * 0, left)",
            FIRST,
        ),
        (
            "a form leaves nothing to draft",
            "torch.where(left.amax(dim=-1, keepdim=True) > -torch.inf, left, free)",
            "left",
            FIRST,
        ),
    ),
    *in_file(
        "verify_service/grammars/grammars.py",
        (
            "a tenant is given another's grammar",
            "key = _key(salt, constraint)",
            'key = _key("", constraint)',
            SCHEMA,
        ),
        (
            "a kept grammar holds those who waited for it",
            "(kept, size + _REFUSED_BYTES)",
            "(future, size + _REFUSED_BYTES)",
            (f"{G}test_grammars.py::test_who_waited_for_a_grammar_is_not_kept_with_it",),
        ),
    ),
]
