"""Bugs of the verifier's memory: pages and who holds them, rows that are taken back, prefixes that
are kept."""

from __future__ import annotations

from tests.mutation.mutant import caught_by, harmless, in_file

V = "tests/unit/verify_service/"
STATES = (f"{V}test_state_cache.py",)
POOL = ("tests/unit/test_pages.py",)
HOLD = (f"{V}test_kv_cache_manager.py",)
CHECKS = (f"{V}test_check_item.py",)
S = f"{V}test_scarce_memory.py"
U = f"{V}test_under_way.py"
SCARCE = (S,)
ENGINE = (f"{V}test_verify_engine.py",)
DEALT = (f"{S}::test_short_prompts_do_not_wait_for_long_ones_nor_long_ones_for_ever",)
STORE = (f"{V}test_feature_store.py",)

PAGES = [
    *in_file(
        "verify_service/under_way.py",
        (
            "pages of a pass that failed are found by others: of rounds",
            "    for state in _states(prepared):\n",
            "    for state in _states(prepared)[len(prepared.states) :]:\n",
            (f"{S}::test_nobody_finds_pages_that_a_failed_pass_may_have_written",),
        ),
        (
            "pages of a pass that failed are found by others: of prompts",
            "    for state in _states(prepared):\n",
            "    for state in prepared.states:\n",
            (f"{S}::test_nobody_finds_pages_that_a_failed_pass_may_have_written",),
        ),
    ),
    *in_file(
        "dspark/pages.py",
        *caught_by(
            POOL,
            (
                "pages that ascend are taken for a row",
                "table.in_row &= whole == list(range(whole[0], whole[0] + len(whole)))",
                "table.in_row &= whole == sorted(whole)",
            ),
            (
                "a page that two hold is free when one lets go",
                "empty = int((self._holders[these] == 0).sum())",
                "empty = int((self._holders[these] <= 1).sum())",
            ),
            (
                "what was wished for is taken though somebody holds it",
                "if page >= self.total or self._holders[page] != 0:",
                "if page >= self.total:",
            ),
            (
                "a page that another one wishes for is taken while others are free",
                "return wish[0] <= page < wish[1] or not self._wished[page]",
                "return True",
            ),
            (
                "a life takes the longest run",
                "return int(fitting[fitting[:, 1].argmin(), 0])",
                "return int(fitting[fitting[:, 1].argmax(), 0])",
            ),
            (
                "who finds none in its row takes of the longest run",
                "            fitting[[fitting[:, 1].argmin()]]\n",
                "            fitting[[fitting[:, 1].argmax()]]\n",
            ),
            (
                "a part that begins inside a run begins where the run does",
                "return range(first + start, first + stop)",
                "return range(first, first + stop - start)",
            ),
            (
                "slots of a table that grows are forgotten",
                "grown[:before] = table.slots[:before]",
                "grown[:before] = 0",
            ),
            (
                "a page is given twice to who finds none in a row",
                "            free[taken] = False\n",
                "",
            ),
        ),
        (
            "who shares pages does not hold them",
            "        self.retain(shared)\n",
            "",
            HOLD,
        ),
    ),
    *in_file(
        "verify_service/stateful.py",
        (
            "who goes on from a kept state writes into it",
            "KeptState(lambda: copied(cache), ",
            "KeptState(lambda: cache, ",
            STATES,
        ),
    ),
    *in_file(
        "verify_service/state_cache.py",
        *caught_by(
            STATES,
            (
                "a kept state goes on with its sequence",
                "copied(found.cache, apart=True)",
                "found.cache",
            ),
            (
                "a kept state is told to be a token shorter",
                "kept.cache, kept.length)",
                "kept.cache, kept.length - 1)",
            ),
            (
                "a state that prompts share is pushed out like any other",
                "if oldest in self._used:",
                "if oldest in ():",
            ),
            (
                "a state that prompts share is passed over for ever",
                "self._used.remove(oldest)",
                "pass",
            ),
        ),
    ),
    *in_file(
        "verify_service/prefix_cache.py",
        *caught_by(
            POOL,
            (
                "a salt keeps nobody apart",
                "hashlib.blake2b(salt.encode(), digest_size=16)",
                "hashlib.blake2b(digest_size=16)",
            ),
            (
                "a page is found by its own tokens behind any others",
                "name + ids[first : first + size]",
                "ids[first : first + size]",
            ),
            (
                "a page without rows serves who needs them",
                "if kept is None or (needs_rows and not kept.rows):",
                "if kept is None:",
            ),
            (
                "a page kept without rows says that it has them",
                "self._kept[name] = _Kept(page, rows)",
                "self._kept[name] = _Kept(page, True)",
            ),
            (
                "a page that is not full is kept",
                "range(0, len(ids) - size + 1, size)",
                "range(0, len(ids), size)",
            ),
        ),
        (
            "tokens are named by their last byte",
            'np.asarray(token_ids, "<u4")',
            'np.asarray(np.asarray(token_ids) % 256, "u1")',
            HOLD,
        ),
    ),
    *in_file(
        "verify_service/kv_cache_manager.py",
        *caught_by(
            HOLD,
            (
                "a page is kept whose last slot was never written",
                "state.token_ids[: state.cached],\n                state.salt,",
                "state.token_ids,\n                state.salt,",
            ),
            (
                "pages of a sequence that goes are kept without its salt",
                "                state.salt,\n                self.pool.pages",
                '                "",\n                self.pool.pages',
            ),
        ),
        (
            "a prefix that finds too few pages is verified whole",
            "return min(room - least, more)",
            "return more",
            SCARCE,
        ),
    ),
    *in_file(
        "verify_service/engine.py",
        (
            "kept prefixes leave no row to who comes",
            "kept=pages // (1 + scarce) if",
            "kept=pages if",
            SCARCE,
        ),
    ),
    *in_file(
        "verify_service/packed_step.py",
        *caught_by(
            ENGINE,
            (
                "rejected rows are not taken back",
                "state.cached += 1 + accepted",
                "state.cached += 1 + len(item.draft_ids)",
            ),
            (
                "feature rows of a round are those one token on",
                "item.draft_ids[: each[0]]], case.first_row\n",
                "item.draft_ids[: each[0]]], case.first_row + 1\n",
            ),
            (
                "rows that were sent are not kept",
                "            self._store.put(slots, rows)\n",
                "            pass\n",
            ),
        ),
        (
            "a prompt in a round draws its anchor from the round's logits",
            "row = last = prepared.tokens  # of",
            "row, last = prepared.tokens, 0  # of",
            SCARCE,
        ),
        (
            "a chunk of a prompt begins where the last one did",
            "Segment(state, state.cached, chunk.token_ids,",
            "Segment(state, state.spared, chunk.token_ids,",
            SCARCE,
        ),
    ),
    *in_file(
        "verify_service/feature_store.py",
        *caught_by(
            STORE,
            (
                "what is owed overwrites what was written since",
                "        self._owed[_numbers(slots)] = False\n",
                "        pass\n",
            ),
            (
                "rows that are owed in part are read as they are",
                "owed = numbers[self._owed[numbers]]",
                "owed = numbers if self._owed[numbers].all() else numbers[:0]",
            ),
            (
                "only the first slot of several is owed",
                "self._owed[numbers] = True",
                "self._owed[numbers[:1]] = True",
            ),
            (
                "taps are read in the dtype of rows",
                ".view(self._of_taps)",
                ".view(ROW_DTYPE)",
            ),
        ),
    ),
    *in_file(
        "verify_service/engine_core.py",
        ("short prompts wait for long ones", "if oldest.passed_over:", "if False:", DEALT),
        ("long prompts wait for ever", "if oldest.passed_over:", "if True:", DEALT),
        (
            "a resend ends with the row of the anchor, which nobody has made",
            "rows(state, start, cursor.committed_len - 1)",
            "rows(state, start, cursor.committed_len)",
            ENGINE,
        ),
        (
            "a resend holds another epoch's rows",
            "return None if state is None or state.epoch != epoch else state",
            "return state",
            (f"{S}::test_a_prompt_of_an_older_epoch_gives_way_to_the_newer_one",),
        ),
        (
            "an epoch that is over draws from the logits of the next one",
            "if state is None or epoch not in (None, state.epoch):",
            "if state is None:",
            (f"{S}::test_a_prompt_of_an_older_epoch_gives_way_to_the_newer_one",),
        ),
        (
            "an epoch that is followed may open again",
            "if state is not None and cursor.epoch <= state.epoch:",
            "if state is not None and cursor.epoch == state.epoch:",
            (f"{S}::test_a_prompt_of_an_older_epoch_gives_way_to_the_newer_one",),
        ),
    ),
    *in_file(
        "verify_service/kv_cache_manager.py",
        (
            "a prefix is refused for its length",
            "        if room < least or not self.grow(state, room):\n",
            "        if room < least + more or not self.grow(state, room):\n",
            (f"{S}::test_a_prefix_without_pages_is_cut_and_not_refused_for_its_length",),
        ),
    ),
    *in_file(
        "verify_service/sequences.py",
        *caught_by(
            CHECKS,
            (
                "a round that is over may run again",
                " or round <= state.round:",
                ":",
            ),
            (
                "an anchor of somebody else's is verified after",
                "committed_len, item.anchor)",
                "committed_len, state.token_ids[-1])",
            ),
            (
                "an epoch ahead is this one",
                "if epoch > state.epoch or not state.anchored:",
                "if not state.anchored:",
            ),
            (
                "a cursor that stands elsewhere is believed",
                "claimed = (epoch, committed_len,",
                "claimed = (epoch, state.committed_len,",
            ),
            (
                "tokens of an answer count as its prompt where it goes on elsewhere",
                "return min(self.params.prompt_len, self.prompt_len) or self.prompt_len",
                "return self.prompt_len",
            ),
        ),
    ),
    harmless(
        "a prefix with a gap is found",
        "verify_service/prefix_cache.py",
        "                return\n            yield name, kept.page",
        "                continue\n            yield name, kept.page",
        "there are none: who holds a page holds all before it, ends give way first, and rows come "
        "for a whole chain",
    ),
]
