"""Bugs to put into both streams of rounds, `Verify.Control` and `Draft.Rounds`, and into what
drives them."""

from __future__ import annotations

from tests.mutation.mutant import Mutant, harmless, in_file

F = "tests/services/test_rounds_failing.py::test_"
D = "tests/services/test_rounds_at_drafter.py::test_"
S = "tests/services/test_rounds_served.py::test_"
B = "tests/unit/verify_service/test_drafters.py::test_"
U = "tests/unit/verify_service/test_under_way.py::test_"
N = "tests/unit/verify_service/test_round_news.py::test_"
P = "tests/unit/draft_service/test_drafting.py::test_"
LIES = (f"{F}whatever_a_drafter_says_answers_are_the_targets",)
MUTE = (f"{F}a_drafter_that_never_greets_and_one_that_never_answers",)
NONSENSE = (f"{F}a_coordinator_that_talks_nonsense_loses_its_stream_and_nobody_elses",)
SILENT = (f"{F}a_silent_coordinator_loses_its_sequences_and_one_with_nothing_to_say_does_not",)
LEAVES = (f"{F}a_verifier_that_leaves_says_so_and_takes_nobody",)
REFUSED = (f"{F}prompts_that_cannot_be_taken_are_refused_by_field",)
GONE = (f"{F}a_drafter_that_is_gone_is_let_go_and_one_that_leaves_opens_nobody",)
HOSTILE = (f"{D}what_does_not_fit_ends_the_stream_by_field_and_harms_nobody_else",)
TURNS = (f"{D}rows_that_never_come_and_orders_out_of_turn_end_the_stream",)
MEANT = (f"{D}who_is_not_meant_or_understands_other_rows_ends_the_stream",)
ONE_MESSAGE = (f"{D}rows_and_order_are_one_message_and_the_block_follows",)
HELD = (f"{D}a_silent_verifier_loses_its_contexts_and_one_with_little_to_say_does_not",)
TAKEN_BACK = (f"{F}what_is_told_and_taken_back_in_one_message_harms_nobody",)
W = "tests/unit/wire/test_drafted_blocks.py::test_"
PIECES = (
    "tests/unit/verify_service/test_row_feeds.py::test_rows_go_in_pieces_without_a_gap_and_their_drafter_is_ready_once_all_have_come",
)
ANSWERS = (f"{S}answers_are_those_of_the_reference_loop",)

STREAMS: list[Mutant] = [
    harmless(
        "a block longer than asked is verified",
        "verify_service/drafters.py",
        "> asked.slots]",
        "> asked.slots + 64]",
        "the loop cuts a block to the slots that were ordered before a prefix is chosen; here it "
        "is counted",
    ),
    *in_file(
        "verify_service/round_driver.py",
        (
            "a verifier that leaves takes newcomers",
            "self._worker.draining.is_set() and not self._runs",
            "False and not self._runs",
            LEAVES,
        ),
        (
            "a bug in a turn is kept quiet",
            "            self._events.call_soon_threadsafe(self._failed, error)\n",
            "",
            (f"{F}a_bug_beside_a_pass_ends_the_stream_and_frees_everything",),
        ),
        (
            "nobody hears why a prompt was not taken",
            "PrefillRefused(asked.sequence, asked.epoch, refusal)",
            "PrefillRefused(asked.sequence, asked.epoch)",
            REFUSED,
        ),
    ),
    *in_file(
        "verify_service/drafters.py",
        (
            "blocks that a pass found unsound are not counted",
            "            held.answer.blocks.spoil([held.row])\n",
            "            held.answer.blocks.spoil([])\n",
            (f"{B}so_are_those_that_a_pass_finds_out_unless_others_come_between",),
        ),
        (
            "a drafter is given up for any three orders",
            "known.malformed = known.malformed + 1 if whole else 0",
            "known.malformed += whole",
            (f"{B}so_are_those_that_a_pass_finds_out_unless_others_come_between",),
        ),
        (
            "blocks are taken for an order that was not given",
            "        if order is None or order.drafter != drafter:\n            raise PeerError(",
            "        order = order or next(iter(self._orders.values()))\n"
            "        if 0:\n            raise PeerError(",
            (f"{B}blocks_for_an_order_that_was_not_given_are_nobodys",),
        ),
        (
            "an order of another drafter's is answered",
            "        if order is None or order.drafter != drafter:\n",
            "        if order is None:\n",
            (f"{B}blocks_for_an_order_that_was_not_given_are_nobodys",),
        ),
        (
            "an order is answered twice",
            "        del self._orders[message.order]\n",
            "",
            (f"{B}blocks_of_an_order_that_was_answered_are_nobodys",),
        ),
        (
            "blocks of an earlier order take a later one's place",
            " and (held is None or held.answer.order < answer.order):",
            ":",
            (f"{B}blocks_answer_the_order_that_they_name",),
        ),
        (
            "a drafter that never greets is waited for",
            "            if not known.version and now >= known.begun + GREETING_S:",
            "            if not known.version and now >= known.begun + 1e6:",
            MUTE,
        ),
        (
            "a drafter that is gone keeps its contexts",
            'return self._lose(at.drafter, known, "lost: gone") '
            "if known.stream is not None else []",
            "return []",
            GONE,
        ),
        (
            "an address that cannot be one is asked",
            "        if known.stream is None and may and known.sink.sound:",
            "        if known.stream is None and may:",
            (f"{F}another_process_at_a_drafters_address_is_not_that_drafter",),
        ),
        (
            "a drafter without room is no news",
            '            self._news.add(DrafterEvent(drafter, "full"))',
            "            pass",
            (f"{F}a_drafter_without_room_says_so_and_others_are_drafted_for",),
        ),
    ),
    *in_file(
        "verify_service/round_passes.py",
        (
            "blocks that were judged are kept",
            "held = self._drafters.blocks.pop((row.sequence, row.epoch), None)",
            "held = self._drafters.blocks.get((row.sequence, row.epoch))",
            (f"{F}nothing_is_kept_of_a_block_that_was_judged",),
        ),
        (
            "a row that cannot be prepared takes its cohort along",
            "            except Exception as error:\n                "
            "refused[row.sequence] = failed(",
            "            except OSError as error:\n                refused[row.sequence] = failed(",
            (f"{F}a_pass_that_fails_takes_only_those_with_it_that_fail_alone",),
        ),
    ),
    *in_file(
        "verify_service/drafts.py",
        (
            "blocks are verified whatever they were drawn from",
            "return validate_q(*q.arrays(), ids, vocab_size) is None",
            "return True",
            LIES,
        ),
        (
            "bytes that are no distributions are read as some",
            " or (\n"
            "            len(item.q.ids),\n"
            "            len(item.q.probs),\n"
            "        ) != (size, size):",
            ":",
            (
                "tests/unit/verify_service/test_drafts.py::test_bytes_that_are_no_distributions_of_so_many_slots_are_none",
            ),
        ),
    ),
    *in_file(
        "verify_service/packed_step.py",
        (
            "what cannot have been drafted is judged",
            "            prepared = prepared.without_drafts(bad)\n",
            "            pass\n",
            (
                "tests/unit/verify_service/test_verify_engine.py"
                "::test_a_block_that_cannot_have_been_drafted_is_judged_as_an_empty_one",
            ),
        ),
    ),
    *in_file(
        "dspark/wire/blocks.py",
        (
            "q of slots that are not verified comes along",
            "last = first + slots * entries * _WORD",
            "last = first + self.lengths[row] * entries * _WORD",
            (f"{W}q_comes_back_as_the_very_bytes_and_is_cut_by_slots",),
        ),
        (
            "a row's slots begin behind those of the next one",
            "*starts, total = bounds(lengths)",
            "total, *starts = bounds(lengths)[::-1]",
            (f"{W}blocks_there_and_back",),
        ),
        (
            "a value that is none spoils nothing",
            "        blocks.spoil(np.unique(",
            "        list(np.unique(",
            (f"{W}a_value_that_is_none_spoils_its_own_block",),
        ),
        (
            "blocks that cannot have been drafted are not counted",
            "            self.spoilt.append(row)\n",
            "",
            (f"{B}values_that_are_none_are_counted_and_end_like_what_cannot_be_drafted",),
        ),
        (
            "bytes of q may be missing",
            "        if len(column) != size:",
            "        if len(column) > size:",
            (f"{W}columns_that_do_not_fit_are_refused_by_field",),
        ),
    ),
    *in_file(
        "verify_service/round_news.py",
        (
            "news wait for orders that never leave",
            "        if not self.leaving() or time.monotonic() >= self._say_by:\n",
            "        if not self.leaving():\n",
            (f"{N}they_wait_for_orders_to_leave_but_to_a_later_turn_at_most",),
        ),
        (
            "nobody looks after news that wait",
            "        if not self._watched:\n",
            "        if False:\n",
            (f"{N}orders_that_do_not_leave_hold_nothing_back_for_long_where_no_turn_comes",),
        ),
        (
            "nobody says news when orders have left",
            "    def orders_left(self) -> None:\n",
            "    def orders_left(self) -> None:\n        return\n",
            (f"{N}they_wait_for_orders_to_leave_but_to_a_later_turn_at_most",),
        ),
    ),
    *in_file(
        "verify_service/kv_cache_manager.py",
        (
            "rows of an order are a position late",
            "min(committed_len - 1, state.cached)",
            "min(committed_len - 2, state.cached)",
            ANSWERS,
        ),
    ),
    *in_file(
        "verify_service/drafters.py",
        (
            "who is freed in the turn in which it is opened ends the stream",
            "        if admission is None:\n            return []  # freed in the same turn\n",
            "        assert admission is not None\n",
            TAKEN_BACK,
        ),
        (
            "a drafter's own word of its time is believed",
            "draft_s = min(message.forward_ns * 1e-9, came - order.sent)",
            "draft_s = message.forward_ns * 1e-9",
            (f"{B}blocks_answer_the_order_that_they_name",),
        ),
    ),
    *in_file(
        "verify_service/round_driver.py",
        (
            "a prompt is kept that was dropped in the turn in which it came",
            "            return  # dropped in the same turn\n",
            "            pass\n",
            TAKEN_BACK,
        ),
    ),
    *in_file(
        "draft_service/feature_sink.py",
        (
            "a peer that reads no acknowledgements is read from",
            "while taken.done - taken.told > UNTOLD:",
            "while False:",
            (
                "tests/unit/draft_service/test_feature_sink.py::test_who_reads_no_acknowledgements_is_not_read_from",
            ),
        ),
    ),
    *in_file(
        "verify_service/engine_core.py",
        (
            "prompts stay in line when their clients have left",
            "        self._line.pop(state.sequence, None)\n",
            "",
            (f"{U}prompts_whose_clients_left_cost_the_next_one_no_pass",),
        ),
        (
            "all prompts of a stream run in one pass of their own",
            "if budget <= 0 or alone is not None:",
            "if budget <= 0:",
            (f"{U}prompts_whose_clients_left_cost_the_next_one_no_pass",),
        ),
        (
            "a prompt whose pass failed runs again",
            "if state.prefilled or state.broken is not None:",
            "if state.prefilled:",
            (
                "tests/unit/verify_service/test_scarce_memory.py::test_a_prompt_that_spoils_a_round_is_told_and_the_round_goes_on_without_it",
            ),
        ),
        (
            "a prompt is refused for whom it rides with",
            "            without = self._step.prepare(items, ())\n",
            "            without = self._step.prepare((), ())\n",
            (f"{U}a_prompt_is_not_to_blame_for_whom_it_rides_with",),
        ),
        (
            "a prompt that cannot be prepared takes those behind it along",
            "            if len(chunks) > 1:\n                return self._prepare(items, "
            "chunks[:1])\n",
            "",
            (f"{U}a_prompt_that_cannot_be_prepared_is_refused_and_takes_nobody_along",),
        ),
    ),
    *in_file(
        "verify_service/row_feeds.py",
        (
            "a context that has all its rows is not drafted for",
            "            if feed.held >= feed.stop:",
            "            if feed.held > feed.stop:",
            PIECES,
        ),
        (
            "rows of a piece are skipped",
            "                feed.next = last\n",
            "                feed.next = last + 1\n",
            PIECES,
        ),
        (
            "a piece has no bound",
            "last = min(feed.next + BULK_ROWS, feed.stop)",
            "last = feed.stop",
            PIECES,
        ),
    ),
    *in_file(
        "verify_service/control_stream.py",
        (
            "orders for another process are carried out",
            "            if message.incarnation != self._worker.incarnation:",
            "            if False:",
            (f"{F}orders_for_another_process_end_the_stream",),
        ),
        (
            "silence is no end",
            "        while (left := self._heard_at + lease_s - time.monotonic()) > 0:",
            "        while (left := self._heard_at + 1e6 + lease_s - time.monotonic()) > 0:",
            SILENT,
        ),
        (
            "an empty message keeps no lease",
            "            self._heard_at = time.monotonic()\n            if too_large",
            "            if too_large",
            SILENT,
        ),
        (
            "what is too large is carried out without it",
            "            if too_large is not None:\n                raise too_large\n",
            "",
            NONSENSE,
        ),
    ),
    *in_file(
        "verify_service/prompts.py",
        (
            "a bug at one prompt is everybody's",
            "            anchor = failed(sequence, error)\n",
            "            raise\n",
            (f"{F}a_bug_at_one_prompt_refuses_that_one",),
        ),
    ),
    *in_file(
        "draft_service/rounds.py",
        (
            "hello comes whenever it likes",
            '        if (kind == "hello") is (self._verifier is not None):',
            "        if False:",
            HOSTILE,
        ),
        (
            "what is said to another process is taken",
            "        if hello.drafter_incarnation != self._worker.incarnation:",
            "        if False:",
            MEANT,
        ),
        (
            "rows of another projection are taken",
            "        if hello.projection != self._engine.projection:",
            "        if False:",
            MEANT,
        ),
        ("orders come again", "        if order.number <= self._last:", "        if False:", TURNS),
        (
            "an order is forgotten for the next one",
            '        if self._arriving is not None and kind != "rows":',
            "        if False:",
            TURNS,
        ),
        (
            "rows of an order stand a position late",
            "start = order.committed_lens[row] - 1 - own + within",
            "start = order.committed_lens[row] - own + within",
            ONE_MESSAGE,
        ),
        (
            "what nobody wants any more is kept",
            "self._close_contexts([at for at in self._sequences if at not in wanted])",
            "self._close_contexts([])",
            (f"{D}contexts_that_nobody_names_any_more_are_freed",),
        ),
        ("silence is no end at the drafter", "        if left > 0:\n", "        if True:\n", HELD),
        (
            "a stream that is over keeps its contexts",
            "        freed = self._engine.release_owner(self._owner)\n",
            "        freed = 0\n",
            HELD,
        ),
        (
            "a drafter that leaves opens newcomers",
            "        if self._worker.draining.is_set():",
            "        if False:",
            (f"{D}a_drafter_that_leaves_says_so_to_coordinators_and_opens_nobody",),
        ),
    ),
    *in_file(
        "draft_service/interface.py",
        (
            "verifiers that name sequences alike meet",
            "return verifier << 64 | sequence",
            "return sequence",
            (f"{D}verifiers_that_name_sequences_alike_do_not_meet",),
        ),
    ),
    *in_file(
        "draft_service/drafting.py",
        (
            "a pass has no bound",
            "            room -= len(taken[-1].items)\n",
            "",
            (f"{P}verifiers_take_turns_within_the_largest_pass",),
        ),
        (
            "whoever has many orders goes first again",
            "                self._waiting[owner] = queue  # behind all others",
            "                self._waiting = {owner: queue, **self._waiting}",
            (f"{P}one_with_many_orders_never_goes_twice_before_another",),
        ),
        (
            "a stream that is over is drafted for",
            "        self._waiting.pop(owner, None)",
            "        pass",
            (f"{P}a_stream_that_is_over_is_not_drafted_for",),
        ),
        (
            "blocks of an order go to the next one",
            "                at += count\n            self._wake()",
            "            self._wake()",
            (f"{P}what_waits_is_one_pass_and_everybody_gets_its_own_blocks",),
        ),
    ),
]
