"""Bugs of the rules, the race, the scheduler, the shaping and the drafters.

Most of them happened to somebody: shared or position-keyed noise, thresholds and residuals of the
block rule, q that is not what was sampled, searches that peek, penalties that ignore drafted
tokens.
"""

from __future__ import annotations

from tests.mutation.mutant import in_file

D, ROUNDS = "tests/unit/decoding/", "tests/unit/rounds/"
LAW = f"{D}test_exact_law.py::test_output_distribution_equals_target"
TOKEN = (
    f"{LAW}[adaptive-token-logits]",
    f"{LAW}[fixed-token-zeros]",
    f"{LAW}[threshold-token-ties]",
)
BLOCK = (
    f"{LAW}[adaptive-block-logits]",
    f"{LAW}[adaptive, by older rounds-block-zeros]",
    f"{LAW}[threshold-block-ties]",
)
COINS_TOKEN = (f"{D}test_forced_coins.py::test_the_rule_induces_its_law_on_every_table",)
COINS_BLOCK = (
    f"{D}test_forced_coins.py::test_the_block_rule_decides_as_the_paper_says_on_every_table",
)
REAL = (f"{D}test_real_draws.py",)
RACE = (
    f"{D}test_gumbel.py::test_the_first_one_home_follows_the_distribution",
    f"{D}test_gumbel.py::test_a_time_is_the_logarithm_of_64_bits_of_its_block",
)
ONCE = (f"{D}test_reference.py::test_no_draw_of_a_ratio_rule_is_ever_used_twice",)
PLACE = (f"{D}test_reference.py::test_coupled_noise_is_named_by_seed_choice_and_position_alone",)
PACKED = (f"{D}test_acceptance.py::test_a_packed_pass_judges_every_sequence_as_if_it_were_alone",)
NUMBERS = (f"{D}test_acceptance.py::test_the_very_numbers_that_were_sent_are_weighed",)
FIRST = (f"{D}test_acceptance.py::test_a_coupled_first_token_is_the_one_a_round_would_have_added",)
LIES = (
    f"{D}test_acceptance.py::test_a_token_its_q_cannot_produce_ends_the_prefix_and_is_not_kept",
)
KEYS = (f"{D}test_sampling.py::test_draft_draws_of_a_cohort_are_those_of_each_sequence",)
SURVIVAL = (f"{ROUNDS}test_survival.py",)
WALKED = (
    "tests/paper/test_algorithm_1.py::test_the_price_is_where_algorithm_1_stops_when_theta_has_one_peak",
    "tests/paper/test_algorithm_1.py::test_an_improvement_must_be_strict",
)
WALK = ("tests/unit/draft_service/test_sample_block.py",)
C = "tests/unit/draft_service/test_family_contexts.py"
CONTEXTS = (f"{C}::test_blocks_are_the_model_s_however_rows_came",)
F = "tests/unit/model/test_formats.py"
SHAPES = (
    f"{D}test_shaping.py::test_rows_follow_the_definition_with_drafted_tokens_as_said",
    f"{D}test_shaping.py::test_what_transformers_means_by_repetition_least_length_and_bias",
)

RULES = [
    *in_file(
        "dspark/decoding/ratio.py",
        (
            "the correction is drawn from p",
            "rest = (p - q).clamp_(min=0.0)",
            "rest = p.clone()",
            TOKEN,
        ),
        (
            "the correction is drawn from q",
            "rest = (p - q).clamp_(min=0.0)",
            "rest = (q - p).clamp_(min=0.0)",
            BLOCK,
        ),
        ("the residual is not clipped", "(p - q).clamp_(min=0.0)", "(p - q).abs_()", TOKEN),
        (
            "draft and acceptance share noise",
            "coins(Purpose.ACCEPT,",
            "coins(Purpose.DRAFT,",
            (*REAL, *ONCE),
        ),
        (
            "acceptance and emission share noise",
            "coins(Purpose.EMIT,",
            "coins(Purpose.ACCEPT,",
            (*ONCE, *PACKED),
        ),
        (
            "all emissions of an anchor share a draw's name",
            "np.array(kept) + 1",
            "np.array(kept) * 0 + 1",
            PACKED,
        ),
        (
            "the packed pass adds from the row before",
            "list(zip(cases, kept, strict=True))",
            "[(c, max(k - 1, 0)) for c, k in zip(cases, kept)]",
            COINS_TOKEN,
        ),
        (
            "the bonus is drawn like a correction",
            "start + count if count < counting else None",
            "start + min(count, counting - 1) if counting else None",
            COINS_TOKEN,
        ),
        (
            "the residual forgets the chance to be alive",
            "return last * torch.from_numpy(alive)",
            "return last * torch.ones_like(torch.from_numpy(alive))",
            BLOCK,
        ),
        (
            "the packed pass forgets the chance to be alive",
            "last = scaled(last, alive)",
            "pass",
            COINS_BLOCK,
        ),
        (
            "q is that of the slot before",
            'np.frombuffer(case.q.probs, "<f4")',
            "_late(case)",
            NUMBERS,
        ),
        (
            "q is read as the verifier rounds it",
            'np.frombuffer(case.q.probs, "<f4")',
            "_rough(case)",
            NUMBERS,
        ),
    ),
    *in_file(
        "dspark/decoding/token_rule.py",
        (
            "coins that equal the ratio accept",
            "(accept_u < accept_probability",
            "(accept_u <= accept_probability",
            COINS_TOKEN,
        ),
        (
            "the ratio is upside down",
            "np.divide(p, q, out=kept, where=q > p)",
            "np.divide(q, p, out=kept, where=p > q)",
            TOKEN,
        ),
        (
            "the ratio is relaxed by 1 %",
            "np.divide(p, q, out",
            "np.divide(np.minimum(1.01 * p, q), q, out",
            TOKEN,
        ),
        (
            "q is clamped in the ratio",
            "np.divide(p, q, out",
            "np.divide(p, np.maximum(q, 0.02), out",
            TOKEN,
        ),
        (
            "a kept token after a rejected one counts",
            "if not kept[start + k])",
            "if not any(kept[start + k : start + counting]))",
            COINS_TOKEN,
        ),
    ),
    *in_file(
        "dspark/decoding/block_rule.py",
        (
            "coins that equal the chance accept",
            "(accept_u < made.candidate)",
            "(accept_u <= made.candidate)",
            COINS_BLOCK,
        ),
        (
            "the threshold forgets what was lost",
            "rest, rest + lost,",
            "rest, rest + 0 * lost,",
            BLOCK,
        ),
        ("the threshold is the chance to be alive", "candidate[inner] =", "_ =", BLOCK),
        (
            "the first candidate that fails ends the block",
            "for k in range(counting, 0, -1) if heads[start + k - 1]), 0)",
            "for k in range(counting + 1) if k == counting or not heads[start + k]), 0)",
            COINS_BLOCK,
        ),
        (
            "the chance to be alive is not capped",
            "alive = min(1.0, alive * ratio[slot])",
            "alive = alive * ratio[slot]",
            BLOCK,
        ),
        (
            "the chance to be alive forgets earlier slots",
            "alive = min(1.0, alive * ratio[slot])",
            "alive = min(1.0, ratio[slot])",
            BLOCK,
        ),
        ("the last slot sent is weighed like an inner one", "& ~last)", ")[:-1]", BLOCK),
    ),
    *in_file(
        "dspark/decoding/slots.py",
        (
            "a token that its q cannot produce counts",
            "(k for k in range(length) if not possible[start + k])",
            "(k for k in range(0) if not possible[start + k])",
            LIES,
        ),
        (
            "q is not divided by its sum",
            "probs=weights / np.bincount(slot, weights, minlength=total)[slot]",
            "probs=weights",
            COINS_TOKEN,
        ),
        (
            "rows of a neighbour are read",
            "[case.first_row + slot for case, slot in spots]",
            "[max(case.first_row - 1, 0) + slot for case, slot in spots]",
            PACKED,
        ),
    ),
    *in_file(
        "dspark/decoding/philox.py",
        (
            "a handed-over sequence draws again",
            'epochs = _word("epoch", epoch, 32)',
            'epochs = _word("epoch", 0, 32)',
            ONCE,
        ),
        (
            "rules share their streams",
            ' | _word("rule", rule, 8) << 24',
            "",
            (f"{D}test_philox.py",),
        ),
        (
            "slots share their draws",
            '_word("slots", slots, 16)\n',
            '_word("slots", slots, 16) * 0\n',
            ONCE,
        ),
        (
            "choices share their draws",
            '_word("choice", choice, 32))',
            '_word("choice", 0, 32))',
            ONCE,
        ),
        ("choices of a request share their coins", "        params.choice,", "        0,", KEYS),
        ("epochs share their coins", "        cursor.epoch,", "        0,", KEYS),
        ("anchors share their coins", "        cursor.anchor_position,", "        0,", KEYS),
    ),
    *in_file(
        "dspark/decoding/sampling.py",
        (
            "drafts of a ratio rule are keyed by position",
            "uniforms(seed, choice, rule, purpose, epoch, position, np.arange(1, slots + 1))",
            "uniforms(seed, choice, rule, purpose, epoch, position + np.arange(1, slots + 1, "
            "dtype='u8'), 0)",
            (*REAL, *ONCE),
        ),
        (
            "the temperature is ignored",
            "copy=True).div_(columns.temperature)",
            "copy=True)",
            (f"{D}test_sampling.py",),
        ),
        (
            "q is not renormalised after the cut",
            "probs = probs / probs.sum(dim=-1, keepdim=True)\n    if columns.any_top_p:",
            "pass\n    if columns.any_top_p:",
            (f"{D}test_sampling.py",),
        ),
    ),
    *in_file(
        "dspark/decoding/gumbel.py",
        (
            "slow tokens win the race",
            "pace = probs.double() / e",
            "pace = probs.double() * e",
            RACE,
        ),
        (
            "noise forgets the choice",
            "(params.seed, params.choice, position)",
            "(params.seed, 0, position)",
            (f"{D}test_gumbel.py",),
        ),
        (
            "noise forgets the position",
            "(params.seed, params.choice, position)",
            "(params.seed, params.choice, 9)",
            PLACE,
        ),
        (
            "four neighbours share their noise",
            "wide[lane] + wide[(lane + 1) % _LANES]",
            "wide[0] + wide[1]",
            RACE,
        ),
    ),
    *in_file(
        "dspark/decoding/coupled_rule.py",
        (
            "the verifier races one position early",
            "case.cursor.anchor_position + 1 + slot",
            "case.cursor.anchor_position + slot",
            FIRST,
        ),
        ("drafts that differ are kept", "and token == case.draft_ids[slot]", "", PACKED),
        (
            "noise follows the round",
            "case.cursor.anchor_position + 1 + slot",
            "case.cursor.anchor_position + 1 + slot + case.cursor.round",
            PACKED,
        ),
        (
            "a prefill races at its last token",
            "[cursor.anchor_position + 1]",
            "[cursor.anchor_position]",
            FIRST,
        ),
    ),
    *in_file(
        "dspark/decoding/drafting.py",
        (
            "the drafter races at other positions",
            "[cursors[row].anchor_position + 1 for row in raced]",
            "[cursors[row].anchor_position for row in raced]",
            (f"{D}test_gumbel.py",),
        ),
        (
            "the draft is drawn at another temperature",
            "drawn(probs.double(), u)",
            "drawn(probs.double() ** 1.1, u)",
            ("tests/unit/draft_service/test_sample_block.py",),
        ),
    ),
    *in_file(
        "draft_service/contexts.py",
        (
            "a row is paired with its own token",
            "self._known_ids(context, context.made + lag, stop + lag)",
            "self._known_ids(context, context.made, stop)",
            CONTEXTS,
        ),
        (
            "a language model's tokens stand one position late",
            "made.unsqueeze(1) + torch.arange(",
            "made.unsqueeze(1) + 1 + torch.arange(",
            CONTEXTS,
        ),
    ),
    *in_file(
        "dspark/model/formats/vocabulary.py",
        (
            "draft ids are taken for target ids",
            "whole.index_copy(-1, self.target_ids, logits)",
            "whole.index_copy(-1, torch.arange(len(self.target_ids)), logits)",
            (
                f"{F}::test_a_cut_head_says_the_same_of_the_tokens_it_keeps_and_nothing_of_the_others",
            ),
        ),
    ),
    *in_file(
        "dspark/model/formats/speculators.py",
        (
            "taps are not shifted",
            "[each - 1 for each in value]",
            "[each for each in value]",
            (f"{F}::test_a_file_of_the_other_library_reads_as_the_released_one",),
        ),
        (
            "the anchor's slot drafts where it must not",
            "size if anchor else size - 1",
            "size",
            (f"{F}::test_without_sampling_from_the_anchor_its_slot_is_passed_over",),
        ),
    ),
    *in_file(
        "dspark/model/heads.py",
        (
            "a slot without a head is as sure as of its first token",
            "wide.amax(dim=-1)",
            "wide[..., 0]",
            ("tests/unit/model/test_drafter_families.py",),
        ),
    ),
    *in_file(
        "draft_service/sample_block.py",
        (
            "q is rounded after sampling",
            "q_probs.astype(np.float32), confidence)",
            "torch.from_numpy(q_probs).bfloat16().float().numpy(), confidence)",
            WALK,
        ),
        (
            "a confidence knows its own token",
            "confidence_logits(torch.stack(previous[:-1], dim=1))",
            "confidence_logits(torch.stack(previous[1:], dim=1))",
            WALK,
        ),
    ),
    *in_file(
        "dspark/rounds/survival.py",
        ("survival is not a running product", "np.cumprod(own, axis=0, out=own)", "pass", SURVIVAL),
        (
            "what is no number is certain",
            "inside & (by_slot > 0.0)",
            "inside & ~(by_slot <= 0.0)",
            SURVIVAL,
        ),
    ),
    *in_file(
        "coordinator/planning/options.py",
        (
            "the price is that of the next slot",
            "compared[chosen - 1]",
            "compared[min(chosen, len(compared) - 1)]",
            WALKED,
        ),
        (
            "a lane that changed is planned for as it was",
            "of = (frozenset(lane.keys), len(lane.sequences), worth, near, lane.cohorts, "
            "lane.others)",
            "of = (lane.cohorts,)",
            ("tests/unit/planning/test_lane_plans.py",),
        ),
        (
            "a lane is never looked at anew",
            "due = moved or self._news > RENEWED * min(self.blocks, WINDOW)",
            "due = False",
            ("tests/unit/planning/test_lane_plans.py",),
        ),
        (
            "a lane is planned by what others draft",
            "if alike.sum() >= ENOUGH:",
            "if False:",
            ("tests/unit/planning/test_lane_plans.py",),
        ),
        ("no drafted slot is ever worth it", "rates.argmax()", "rates[:1].argmax()", WALKED),
        (
            "a walk forgets what is drafted anyhow",
            "rates = (worth + brought) / seconds",
            "rates = brought / seconds",
            WALKED,
        ),
    ),
    *in_file(
        "dspark/decoding/shaping.py",
        (
            "penalties ignore drafted tokens",
            "for k, column in enumerate(drafts, start=1):",
            "for k, column in enumerate(drafts[:0], start=1):",
            SHAPES,
        ),
        (
            "penalties know the token they judge",
            "for k, column in enumerate(drafts, start=1):",
            "for k, column in enumerate(drafts, start=0):",
            SHAPES,
        ),
    ),
]
# What two of them put in the place of q: the numbers one slot late, and the numbers in half
# precision.
SPOILED_Q = """

def _late(case):
    rows = np.frombuffer(case.q.probs, "<f4").reshape(-1, max(case.q.entries, 1))
    return np.roll(rows, 1, axis=0).ravel()


def _rough(case):
    return np.frombuffer(case.q.probs, "<f4").astype(np.float16).astype(np.float32)
"""
