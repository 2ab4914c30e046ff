"""Bugs of what outlives a coordinator: the journal, requests that go on, and what their clients are told again."""

from __future__ import annotations

from tests.mutation.mutant import caught_by, harmless, in_file

C = "tests/unit/coordinator/"
JOURNAL = (f"{C}test_journal.py",)
RESUME = (f"{C}test_resumption.py",)

JOURNALS = [
    *in_file(
        "coordinator/cells/journal.py",
        *caught_by(
            (*JOURNAL, *RESUME),
            (
                "a journal forgets the epoch of what goes on",
                "        said.epoch = max(said.epoch, epoch)\n        self._commits",
                "        self._commits",
            ),
            (
                "an epoch that began is not written before its first commit",
                "self._commits.append(_Commit(entry.number, index, epoch, (), ()))\n        self._dirty = True",
                "self._dirty = True",
            ),
            ("log-probabilities are not kept", "            said.logprobs += piece.logprobs\n", ""),
        ),
        *caught_by(
            JOURNAL,
            (
                "the epoch that began last counts, be it a lower one",
                "        said.epoch = max(said.epoch, epoch)\n",
                "        said.epoch = epoch\n",
            ),
            (
                "a journal reads epochs as the last one written",
                "said.epoch, entry.touched = max(said.epoch, epoch), batch.unix_s",
                "said.epoch, entry.touched = epoch, batch.unix_s",
            ),
            (
                "a journal writes no epochs",
                "batch.epochs.extend([commit.epoch for commit in commits])",
                "batch.epochs.extend([0 for commit in commits])",
            ),
            (
                "a segment that is begun again has no epochs",
                "yield _Commit(entry.number, index, said.epoch, tuple",
                "yield _Commit(entry.number, index, 0, tuple",
            ),
            ("a prompt's salt is no part of a request", ", request.choices, request.cache_salt)", ", request.choices)"),
            (
                "the number of answers is no part of a request",
                ", request.choices, request.cache_salt)",
                ", request.cache_salt)",
            ),
            ("stop ids are no part of a request", "sorted(request.stop_ids), ", ""),
            ("the length is no part of a request", "(request.max_tokens, sorted", "(sorted"),
            ("the law is no part of a request", ".tobytes() + rest + params)", ".tobytes() + rest)"),
            (
                "the prompt is no part of a request",
                "hashlib.sha256(np.asarray(request.prompt, np.uint32).tobytes() + rest + params)",
                "hashlib.sha256(rest + params)",
            ),
            (
                "what was said before is not written of a resumed request",
                "        self._commits += _commits(entry)\n",
                "",
            ),
            (
                "ends of before are not written of a resumed request",
                "        self._unwritten.ends.extend(_ends(entry))\n",
                "",
            ),
            ("seeds are not written", "seed=entry.seed,", "seed=0,"),
            ("log-probabilities are read of another commit", "told.get(place, ())", "told.get(place + 1, ())"),
            (
                "a segment that is begun again has no ends",
                "requests=[_request(entry)], ends=_ends(entry))",
                "requests=[_request(entry)])",
            ),
            (
                "what runs is forgotten with what nobody runs",
                "idle = [entry for entry in self._entries.values() if not entry.running]",
                "idle = [*self._entries.values()]",
            ),
            (
                "tokens of two answers in a batch are mixed up",
                "            start += length\n",
                "            start += 1\n",
            ),
            (
                "a journal loses a commit",
                "_Commit(entry.number, piece.index, said.epoch, piece.tokens, piece.logprobs)",
                "_Commit(entry.number, piece.index, said.epoch, (), ())",
            ),
        ),
    ),
    *in_file(
        "coordinator/cells/resumption.py",
        *caught_by(
            RESUME,
            (
                "a resumed request goes on under a new seed",
                "request = replace(request, params=replace(request.params, seed=entry.seed))",
                "request = replace(request, params=replace(request.params, seed=request.params.seed))",
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
                "if short and not _repeatable(order, entry):",
                "if short and entry is None:",
            ),
            (
                "answers that nobody knows are begun anew under another noise",
                "if short and not _repeatable(order, entry):",
                "if short and entry is not None:",
            ),
            (
                "a coupled answer without a seed can be repeated",
                "(params.rule is Rule.COUPLED and seeded)",
                "sampling.rule is Rule.COUPLED",
            ),
            ("any answer with a seed can be repeated", "(params.rule is Rule.COUPLED and seeded)", "seeded"),
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
                "a resumed sequence begins behind its prompt",
                "            log.append(said.tokens)\n",
                "            pass\n",
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
        "nothing is committed any more under a number of an earlier process: who goes on gets a new one",
    ),
]
