"""Bugs of answers in a form: masks, the matcher behind them, and how a form is written for the
compiler."""

from __future__ import annotations

from tests.mutation.mutant import in_file

G = "tests/unit/grammars/"
LAW = (f"{G}test_exact_masks.py::test_what_is_emitted_follows_the_masked_law_exactly",)
SLOW = f"{G}test_slow_grammars.py::test_"
HALVES = (
    f"{G}test_kept_forms.py::test_no_answer_has_half_a_character_or_a_token_beyond_the_vocabulary",
)
FIT = (f"{G}test_kept_forms.py::test_answers_fit_their_form",)
SERVED = "tests/services/test_forms_served.py::test_"
READ = (f"{G}test_readings.py",)
BYTES = ("tests/unit/test_token_bytes.py",)
TRUE = (f"{G}test_true_masks.py",)

MASKS = [
    *in_file(
        "verify_service/grammars/matcher.py",
        ("a matcher goes back one token too few", "rollback(taken)", "rollback(taken - 1)", LAW),
        (
            "any token that a mask allows ends a form",
            "self._masks((), until)[0] & self._ends",
            "self._masks((), until)[0]",
            TRUE,
        ),
        (
            "a form is never too slow",
            "spent > longest or self._slow > FORGIVEN",
            "False",
            (f"{SLOW}an_answer_that_goes_on_elsewhere_is_read_again_within_bounds",),
        ),
        (
            "what others compute counts",
            "        began = time.thread_time()\n        try:\n            yield began + longest\n"
            "        finally:\n            spent = time.thread_time() - began",
            "        began = time.monotonic()\n        try:\n            yield began + longest\n"
            "        finally:\n            spent = time.monotonic() - began",
            (f"{SLOW}what_others_compute_is_nobody_s_fault",),
        ),
        (
            "one slow call is the last",
            "self._slow > FORGIVEN",
            "self._slow > 0",
            (f"{SLOW}what_others_compute_is_nobody_s_fault",),
        ),
    ),
    *in_file(
        "verify_service/packed_step.py",
        (
            "masks stand one row late",
            "masks = [masks_of(state, item) for",
            "masks = [None if (m := masks_of(state, item)) is None else m[[0, *range(len(m) - 1)]] "
            "for",
            LAW,
        ),
    ),
    *in_file(
        "verify_service/engine.py",
        (
            "no mask is made for the first token",
            "mask(logits, [(0, matcher.masks(()))])",
            "pass",
            (f"{SERVED}vllm_s_words",),
        ),
    ),
    *in_file(
        "verify_service/grammars/mending.py",
        (
            "texts have halves of characters",
            "_HALVES = (0xD800, 0xDFFF)",
            "_HALVES = (0xD800, 0xD800)",
            HALVES,
        ),
        (
            "classes stand behind rules as they were",
            "for place in sorted(behind):",
            "for place in ():",
            TRUE,
        ),
    ),
    *in_file(
        "verify_service/grammars/expressions.py",
        ("a class that begins with a caret is its contrary", "if low == 94:", "if low == 95:", FIT),
    ),
    *in_file(
        "verify_service/grammars/readings.py",
        ("counts of repetitions do not multiply", "else min(most, COUNTED))", "else 1)", READ),
        (
            "whatever is repeated can be read in many ways",
            "if most == 1 or not _doubtful(",
            "if most == 1 or not max(",
            READ,
        ),
    ),
    *in_file(
        "dspark/decoding/logprobs.py",
        (
            "tokens that may not come are told of",
            "np.isfinite(told.top_logprobs).sum(axis=-1)",
            "(told.top_logprobs < 1.0).sum(axis=-1)",
            (f"{SERVED}log_probabilities_tell_of_no_token_that_may_not_come",),
        ),
    ),
    *in_file(
        "dspark/token_bytes.py",
        ("marks of spaces are text", "name = name.replace(old, new)", "pass", BYTES),
        (
            "single bytes are text",
            'if "ByteFallback" in kinds else None',
            "if False else None",
            BYTES,
        ),
    ),
]
