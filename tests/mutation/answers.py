"""Bugs of what becomes of verdicts: commits, sequences that begin again, answers, and rows that
drafters are fed."""

from __future__ import annotations

from tests.mutation.mutant import caught_by, harmless, in_file

C = "tests/unit/coordinator/"
LANES = f"{C}test_lane.py::test_"
LOST = (f"{C}test_sequence.py",)
RESUME = (f"{C}test_resumption.py",)
ANSWER = (f"{C}test_answer.py", f"{C}test_sequence.py")
FAMILY = "tests/unit/draft_service/test_family_contexts.py"
ROWS = ("tests/unit/draft_service/test_contexts.py",)

ANSWERS = [
    *in_file(
        "coordinator/lanes/request_state.py",
        *caught_by(
            LOST,
            (
                "an epoch is kept when a verifier is lost",
                "self.epoch += 1",
                "self.epoch += event is not LifeEvent.ORPHANED",
            ),
            (
                "an epoch is kept when a verifier leaves",
                "self.epoch += 1",
                "self.epoch += event is not LifeEvent.MOVED",
            ),
            (
                "an epoch is kept when pages are given up",
                "self.epoch += 1",
                "self.epoch += event is not LifeEvent.PREEMPTED",
            ),
        ),
        (
            "a resumed sequence begins at epoch 0",
            "self.epoch = epoch",
            "self.epoch = 0 * epoch",
            RESUME,
        ),
        (
            "a hand-over takes the prompt alone",
            "        ids = answer.ids()",
            "        ids = request.prompt",
            (f"{LANES}a_verifier_that_will_leave_settles_its_sequences_and_they_move",),
        ),
        (
            "cache salts are not passed on",
            "            request.cache_salt,\n",
            '            "",\n',
            (f"{LANES}a_prompt_is_run_under_its_own_salt_wherever_it_goes",),
        ),
    ),
    *in_file(
        "coordinator/lanes/lane.py",
        (
            "tokens of a round are shown before the journal has them",
            "        self._write()\n        self._tell_orders()",
            "        self._tell_orders()",
            RESUME,
        ),
        (
            "the first token is shown before the journal has it",
            "        self._write()\n        self._tell_orders()",
            "        len(news) > 1 or not isinstance(news[0], PassReport) or "
            "news[0].report.number == 0 or self._write()\n"
            "        self._tell_orders()",
            RESUME,
        ),
    ),
    *in_file(
        "coordinator/answers/answer.py",
        (
            "a resumed answer has all of its room again",
            "self.room = max_tokens - len(resumed)",
            "self.room = max_tokens",
            (*ANSWER, *RESUME),
        ),
        (
            "log-probabilities behind a stop are told",
            "tuple(logprobs[: len(kept)]) if logprobs else ()",
            "tuple(logprobs)",
            ANSWER,
        ),
        (
            "a part of a piece has the log-probabilities of its beginning",
            "logprobs=self.logprobs[start:stop],",
            "logprobs=self.logprobs[: len(self.tokens[start:stop])],",
            (f"{C}test_held_text.py",),
        ),
        (
            "a piece that is shown is not committed",
            "        self._ids.extend(kept)\n",
            "        self._ids.extend(kept[:1])\n",
            ANSWER,
        ),
    ),
    *in_file(
        "dspark/rounds/bounds.py",
        (
            "a stop token is not committed",
            "return index + 1, True",
            "return index, True",
            ANSWER,
        ),
        (
            "the length ends an answer one token late",
            "return min(len(tokens), room), len(tokens) >= room",
            "return min(len(tokens), room + 1), len(tokens) >= room",
            ANSWER,
        ),
    ),
    *in_file(
        "draft_service/context_table.py",
        *caught_by(
            ROWS,
            (
                "a gap of one row counts as filled",
                "            if low <= joined[-1][1]:\n",
                "            if low <= joined[-1][1] + 1:\n",
            ),
            (
                "rows that overlap what is there are dropped",
                "low <= start and stop <= high for",
                "low <= start < high for",
            ),
            (
                "rows of another epoch are taken",
                "return None if context is None or context.epoch != epoch else context",
                "return context",
            ),
            (
                "a context that is opened again keeps its rows",
                "            self._drop(before)\n",
                "            before.epoch = cursor.epoch\n            return None\n",
            ),
        ),
    ),
    *in_file(
        "draft_service/contexts.py",
        (
            "rows stand a position late",
            "positions.append(range(chunk.start, stop))",
            "positions.append(range(chunk.start + 1, stop + 1))",
            (f"{FAMILY}::test_blocks_are_the_model_s_however_rows_came",),
        ),
        (
            "a watermark claims rows that were not taken in",
            "context.add(chunk.start, chunk.start + len(chunk.rows))",
            "context.add(chunk.start, chunk.start + len(chunk.rows) + 1)",
            ROWS,
        ),
    ),
    *in_file(
        "draft_service/engine_core.py",
        (
            "blocks are drafted although rows are missing",
            "if watermark < item.features_through:",
            "if watermark < 0:",
            ("tests/unit/draft_service/test_draft_engine.py",),
        ),
    ),
    *in_file(
        "coordinator/requests/request.py",
        (
            "a tenant may spell another's salt",
            'return f"{tenant}/{name}" if tenant or "/" in name else name',
            'return f"{tenant}/{name}" if tenant else name',
            (f"{C}test_tenancy.py",),
        ),
        (
            "tenants share kept prefixes",
            "cache_salt=inside(tenant, request.cache_salt)",
            "cache_salt=request.cache_salt",
            (f"{C}test_tenancy.py",),
        ),
    ),
    harmless(
        "an answer's room shrinks by what was cut off",
        "coordinator/answers/answer.py",
        "self.room -= len(kept)",
        "self.room -= len(tokens)",
        "an answer that was cut has ended",
    ),
    harmless(
        "a stop token at the last place is a length",
        "dspark/rounds/bounds.py",
        "for index, token in enumerate(tokens[:room]):",
        "for index, token in enumerate(tokens[: room - 1]):",
        "as many tokens are kept, and the last of them says by itself why the answer ends",
    ),
]
