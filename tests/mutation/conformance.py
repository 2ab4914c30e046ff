"""Broken builds of what is served, each of which `dspark conformance` has to find.

Every one breaks what only a served engine has: its way to load, its pages, its prompts in chunks,
its kept rows.
"""

from __future__ import annotations

from tests.mutation.mutant import harmless, in_file

A = "tests/unit/cli/test_conformance.py::test_a_few_cases_pass"
CASES = (f"{A}[dspark_vanilla-7]",)

CONFORMANCE = [
    *in_file(
        "dspark/model/drafter.py",
        (
            "conformance: attention negated in the drafter that is served on CPUs",
            "return attention.output(out.view(n, size, -1))",
            "return -attention.output(out.view(n, size, -1))",
            CASES,
        ),
    ),
    *in_file(
        "draft_service/contexts.py",
        (
            "conformance: a drafter's page table reversed",
            "row[: len(held)] = held",
            "row[: len(held)] = held[::-1]",
            CASES,
        ),
    ),
    *in_file(
        "verify_service/engine_core.py",
        (
            "conformance: prompt ids plus one in the served prefill",
            "PromptChunk(state, state.prompt[start:stop], behind)",
            "PromptChunk(state, [each + 1 for each in state.prompt[start:stop]], behind)",
            CASES,
        ),
    ),
    *in_file(
        "dspark/pages.py",
        (
            "conformance: slots of scattered pages read backwards",
            "return table.slots[start:stop]",
            "return table.slots[start:stop][::-1]",
            CASES,
        ),
    ),
    *in_file(
        "verify_service/feature_store.py",
        (
            "conformance: owed rows negated when read",
            "self.put(part, self.project(",
            "self.put(part, -self.project(",
            CASES,
        ),
    ),
    *in_file(
        "draft_service/engine.py",
        (
            "conformance: calibration never loaded",
            "calibration = load_calibration(folder, block_size=drafter.config.block_size)",
            "calibration = IDENTITY",
            CASES,
        ),
    ),
    harmless(
        "conformance: a verifier's page table reversed",
        "verify_service/paged_plan.py",
        "made.blocks[n, : len(pages)] = pages",
        "made.blocks[n, : len(pages)] = pages[::-1]",
        "the self-test at load finds it, and the verifier serves without the kernel that reads "
        "pages in place",
    ),
]
