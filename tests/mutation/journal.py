"""Bugs of what outlives a coordinator: the journal, requests that go on, and what their clients are
told again."""

from __future__ import annotations

from tests.mutation.mutant import caught_by, harmless, in_file

C = "tests/unit/coordinator/"
JOURNAL = (f"{C}test_journal.py",)
RESUME = (f"{C}test_resumption.py",)
WIRE = (f"{C}test_cell_wire.py",)

JOURNALS = [
    *in_file(
        "coordinator/cells/journal.py",
        *caught_by(
            (*JOURNAL, *RESUME),
            (
                "a journal forgets the epoch of what goes on",
                "        entry.answers[index].begins(epoch, target)\n",
                "",
            ),
            (
                "an epoch that began is not written before its first commit",
                "        self._unwritten.epochs.add(number=entry.number, index=index, "
                "epoch=epoch, target=target)\n",
                "",
            ),
            *(
                (
                    f"log-probabilities are not {what}",
                    f"            said.logprobs += piece.logprobs\n            said.end = {end}",
                    f"            said.end = {end}",
                )
                for what, end in (("kept", "said.end or end"), ("read", "piece.end or"))
            ),
        ),
        *caught_by(
            JOURNAL,
            (
                "the epoch that began last counts, be it a lower one",
                "        if epoch >= self.epoch:\n",
                "        if True:\n",
            ),
            (
                "a segment that is begun again has no targets",
                "epoch=said.epoch, target=said.target\n",
                "epoch=said.epoch\n",
            ),
            (
                "a segment that is begun again has no epochs",
                "requests=[_request(entry)], epochs=_epochs(entry)\n",
                "requests=[_request(entry)]\n",
            ),
            (
                "an epoch without a commit is not kept in the next segment",
                "        if said.epoch or said.target\n",
                "        if said.tokens\n",
            ),
            (
                "a prompt's salt is no part of a request",
                ", request.choices, request.cache_salt)",
                ", request.choices)",
            ),
            (
                "the number of answers is no part of a request",
                ", request.choices, request.cache_salt)",
                ", request.cache_salt)",
            ),
            ("stop ids are no part of a request", "sorted(request.stop_ids), ", ""),
            ("the length is no part of a request", "(request.max_tokens, sorted", "(sorted"),
            (
                "the law is no part of a request",
                ".tobytes() + rest + params)",
                ".tobytes() + rest)",
            ),
            (
                "the prompt is no part of a request",
                "hashlib.sha256(np.asarray(request.prompt, np.uint32).tobytes() + rest + params)",
                "hashlib.sha256(rest + params)",
            ),
            (
                "what was said before is not written of a resumed request",
                "        self._said += _pieces(entry)\n",
                "",
            ),
            (
                "epochs of before are not written of a resumed request",
                "        self._unwritten.epochs.extend(_epochs(entry))\n",
                "",
            ),
            ("seeds are not written", "seed=entry.seed,", "seed=0,"),
            (
                "what was said before is told again without its end",
                "CommittedTokens(tuple(said.tokens), said.end, index",
                "CommittedTokens(tuple(said.tokens), None, index",
            ),
            (
                "what runs is forgotten with what nobody runs",
                "idle = [entry for entry in self._entries.values() if not entry.running]",
                "idle = [*self._entries.values()]",
            ),
            (
                "a journal loses a commit",
                "CommittedTokens(piece.tokens, end, piece.index, piece.logprobs)",
                "CommittedTokens((), end, piece.index)",
            ),
        ),
    ),
    *in_file(
        "coordinator/cells/journal_file.py",
        *caught_by(
            JOURNAL,
            (
                "a file of another format goes with the segments before",
                "old = [path for path in self._segments() if _is_segment(path)]",
                "old = self._segments()",
            ),
        ),
    ),
    *in_file(
        "coordinator/cells/cell_wire.py",
        *caught_by(
            WIRE,
            (
                "log-probabilities are read of another commit",
                "logprobs.get(at, ())",
                "logprobs.get(at + 1, ())",
            ),
            (
                "tokens of two answers in a batch are mixed up",
                "        start = stop\n",
                "        start += 1\n",
            ),
            (
                "an answer ends with its first commit in a batch",
                "at for at in range(count)} if ends",
                "at for at in reversed(range(count))} if ends",
            ),
            (
                "an end without a commit is not written",
                "        if piece.end is not None:\n",
                "        if piece.end is not None and piece.tokens:\n",
            ),
            (
                "an end without a commit is not read",
                "    for (call, index), end in ends.items():",
                "    for (call, index), end in [*ends.items()][:0]:",
            ),
        ),
    ),
    *in_file(
        "coordinator/cells/resumption.py",
        *caught_by(
            RESUME,
            (
                "a resumed request goes on under a new seed",
                "seed=entry.seed, rule=entry.rule)",
                "rule=entry.rule)",
            ),
            (
                "a resumed request goes on by the rule of the moment",
                "seed=entry.seed, rule=entry.rule)",
                "seed=entry.seed)",
            ),
            (
                "another request's answer is gone on with",
                "if entry is not None and entry.digest != digest(request):",
                "if entry is not None and not entry.digest:",
            ),
            (
                "a seed that is not the first one is taken",
                'HasField("seed") and entry.seed != request.params.seed:',
                'HasField("seed") and entry.seed < 0:',
            ),
            (
                "draws that cannot be repeated are repeated",
                "if short and not _repeatable(order, request, entry):",
                "if short and entry is None:",
            ),
            (
                "answers that nobody knows are begun anew under another noise",
                "if short and not _repeatable(order, request, entry):",
                "if short and entry is not None:",
            ),
            (
                "a coupled answer without a seed can be repeated",
                "(params.rule is Rule.COUPLED and seeded)",
                "params.rule is Rule.COUPLED",
            ),
            (
                "any answer with a seed can be repeated",
                "(params.rule is Rule.COUPLED and seeded)",
                "seeded",
            ),
            ("log-probabilities are not told again", "index, tuple(said.logprobs))", "index, ())"),
        ),
    ),
    *in_file(
        "coordinator/cells/local_cell.py",
        *caught_by(
            RESUME,
            (
                "a resumed sequence draws again under the epoch that was noted",
                "epoch=said.epoch + 1 if said is not None else 0)",
                "epoch=said.epoch if said is not None else 0)",
            ),
            (
                "a resumed answer goes on under any target",
                '"resumed", said.target\n',
                '"resumed", ""\n',
            ),
            (
                "a resumed sequence begins behind its prompt",
                "resumed=said.tokens if said is not None else (),",
                "resumed=(),",
            ),
            (
                "an answer that is complete goes on",
                "if known is None or known.answers[choice].end is None",
                "if known is None or choice >= 0",
            ),
        ),
        (
            "several answers draw alike",
            "request = replace(request, params=replace(request.params, choice=choice))",
            "pass",
            (*RESUME, f"{C}test_choices.py"),
        ),
        (
            "tenants share their salts and ids",
            "order = replace(order, request=owned(order.request))",
            "pass",
            (*RESUME, f"{C}test_tenancy.py"),
        ),
    ),
    *in_file(
        "coordinator/reception/output_processor.py",
        (
            "tokens of before a resume make the others look fast",
            "            self.again += kept\n",
            "            pass\n",
            (
                f"{C}test_output_processor.py::test_tokens_of_before_a_resume_are_in_no_time_per_token",
            ),
        ),
        (
            "tokens that the client holds are shown again",
            "had = min(max(self.held - self.answered, 0), len(piece.tokens))",
            "had = 0",
            (f"{C}test_held_text.py",),
        ),
        (
            "log-probabilities behind a stop string are told",
            "shown.logprobs += piece.logprobs[: len(kept)]",
            "shown.logprobs += piece.logprobs",
            (f"{C}test_held_text.py",),
        ),
    ),
    harmless(
        "a new request has the number of one of an earlier process",
        "coordinator/cells/journal.py",
        "        self._numbers = max(numbers, default=0)\n",
        "",
        "nothing is committed any more under a number of an earlier process: who goes on gets a "
        "new one",
    ),
]
