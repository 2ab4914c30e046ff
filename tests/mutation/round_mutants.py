"""Bugs to put into the rounds between a verifier and its drafters, at least one for each of their
invariants, and into their planner."""

from __future__ import annotations

from tests.mutation.mutant import Mutant, caught_by, in_file

R = "tests/unit/rounds/"
KEPT, L = f"{R}test_round_invariants.py::test_", f"{R}test_round_loop.py::test_"
P = "tests/unit/planning/test_planner.py::test_"
U = "tests/unit/verify_service/test_under_way.py::test_"
D = "tests/unit/verify_service/test_drafter_stream.py::test_"
F = "tests/services/test_rounds_failing.py::test_"
X = "tests/unit/decoding/test_exact_rounds.py::test_"
R1 = (f"{KEPT}r1_nothing_of_a_block_leaves_before_its_prefix_is_fixed",)
R2 = (f"{KEPT}r2_a_newer_plan_meets_the_next_order_only", f"{KEPT}r2_a_weight_is_frozen_too")
R3 = (
    f"{KEPT}r3_what_comes_after_a_slot_never_decides_whether_it_is_verified",
    f"{KEPT}r3_a_prefix_is_the_longest_of_which_every_slot_reaches_the_price",
    f"{KEPT}r3_a_cap_leaves_what_ranks_first_earlier_slots_before_later_ones",
    f"{KEPT}r3_pages_are_asked_for_oldest_first_and_cut_the_prefixes_of_the_others",
)
R4 = (f"{KEPT}r4_an_anchor_is_ordered_once",)
R5 = (
    f"{KEPT}r5_a_deadline_is_fixed_with_its_order",
    f"{KEPT}r5_a_deadline_is_never_shorter_than_its_floor",
)
R6 = (
    f"{KEPT}r6_what_is_drawn_for_whoever_settles_is_reported_before_it_is_released",
    f"{KEPT}r6_the_youngest_reports_everything_before_it_makes_room",
)
R8 = (
    f"{KEPT}r8_no_round_begins_more_than_the_window_ahead",
    f"{KEPT}r8_a_narrower_window_holds_at_the_next_round",
)
R9 = (f"{KEPT}r9_an_epoch_that_was_seen_is_not_admitted_again",)
R10 = (f"{KEPT}r10_what_the_coordinator_thinks_of_a_drafter_never_stops_orders_to_it",)
R11 = (
    f"{L}an_order_carries_the_rows_since_the_last_one_the_anchor_and_the_slots",
    f"{L}missing_rows_at_a_drafter_empty_the_block_and_are_sent_in_bulk",
)
LAW = (f"{X}what_is_reported_follows_the_target_s_law_exactly",)
PEEKING = (f"{X}a_plan_that_knows_the_block_it_comes_before_does_not_meet_it",)
TAKEN = (f"{X}whoever_is_taken_away_for_what_its_pass_says_has_it_reported",)

TURNS = (f"{L}two_cohorts_take_turns_by_the_number_of_a_sequence",)

MUTANTS: list[Mutant] = [
    *in_file(
        "dspark/rounds/loop.py",
        (
            "R1: a block is told of when it comes",
            "sequence.apply(BLOCK_CAME)",
            "sequence.apply(BLOCK_CAME), self._ask(DrafterEvent(0, str(len(sequence.block))))",
            R1,
        ),
        (
            "R1: a block is counted by its length before it is cut",
            "sequence.apply(BLOCK_CAME)",
            "sequence.apply(BLOCK_CAME), self.counts.update(drafted=len(sequence.block))",
            R1,
        ),
        (
            "R2: a plan meets orders that are out",
            "        self.plan = plan\n        for number",
            "        self.plan = plan\n        for each in self._live.values():\n"
            "            each.terms = plan.terms_of(each.number)\n        for number",
            R2,
        ),
        (
            "R2: a plan that knows a block meets it",
            "        self.plan = plan\n        for number",
            "        self.plan = plan\n        for each in self._live.values():\n"
            "            each.terms = plan.terms_of(each.number)\n        for number",
            PEEKING,
        ),
        (
            "R4: an anchor without a page is ordered again",
            "if sequence.ordered_len == sequence.committed_len:",
            "if sequence.ordered_len == sequence.committed_len < 0:",
            R4,
        ),
        (
            "R5: a deadline has no floor",
            "until = now + self._waits.order_s(plan.draft_s)",
            "until = now + 3.0 * plan.draft_s",
            R5,
        ),
        (
            "R6: whoever settles is released before its report",
            "if sequence.state is SETTLING:\n                settled.append(sequence)",
            "if sequence.state is SETTLING:\n                self._leaving.settled(sequence)",
            R6,
        ),
        *caught_by(
            R8,
            (
                "R8: one round too many",
                "or sequence.ahead > plan.window",
                "or sequence.ahead > plan.window + 1",
            ),
            (
                "R8: one round too few",
                "or sequence.ahead > plan.window",
                "or sequence.ahead >= max(plan.window, 1)",
            ),
            (
                "R8: acknowledgements of what was not reported count",
                "if told.through_round >= sequence.round:",
                "if told.through_round >= sequence.round + 1000:",
            ),
        ),
        (
            "who lost rows is not told",
            "sequence.asked or sequence.drafter",
            "sequence.drafter",
            (f"{L}missing_rows_at_a_drafter_empty_the_block_and_are_sent_in_bulk",),
        ),
        (
            "R9: who is admitted twice is said to be gone",
            "and live.epoch == epoch:",
            "and False:",
            R9,
        ),
        (
            "R9: an epoch is admitted twice",
            "epoch <= self._epochs.get(",
            "epoch < self._epochs.get(",
            R9,
        ),
        (
            "R11: a gap in a drafter's rows goes unnoticed",
            "elif told.watermarks[place] != sequence.rows_sent:",
            "elif told.watermarks[place] > sequence.rows_sent:",
            R11,
        ),
        (
            "what nobody wants is kept",
            "            self._leaving.drop(sequence)\n\n    # From the engine.",
            "            pass\n\n    # From the engine.",
            (f"{L}whatever_is_not_wanted_any_more_is_dropped",),
        ),
        (
            "what is wanted is dropped",
            "if (each.number, each.epoch) not in told.wanted\n",
            "if (each.number, each.epoch) in told.wanted\n",
            (f"{L}whatever_is_not_wanted_any_more_is_dropped",),
        ),
        (
            "a context that a drafter forgot is not opened again",
            "if reasons[place] == FORGOTTEN:",
            "if False:",
            (f"{L}a_drafter_that_forgot_a_sequence_gets_it_again",),
        ),
        (
            "a drafter that owes a reply is asked again",
            "if self._orders.owes(sequence.drafter):",
            "if self._orders.owes(-1):",
            (f"{L}a_late_block_is_an_empty_one_and_its_drafter_is_asked_nothing_until_it_came",),
        ),
        (
            "a cohort runs before all its blocks are there",
            "elif sequence.state is ORDERED:\n                return",
            "elif sequence.state is ORDERED:\n                pass",
            (f"{L}a_cohort_waits_for_all_of_its_blocks",),
        ),
        (
            "a block is longer than its order",
            "told.confidence[place][:slots]",
            "told.confidence[place]",
            (f"{L}a_block_is_clamped_to_the_slots_of_its_order",),
        ),
    ),
    *in_file(
        "dspark/rounds/plan.py",
        (
            "R2: caps are not looked at",
            "min((own.cap for own in terms), default=NO_CAP)",
            "NO_CAP",
            R2,
        ),
        (
            "R3: a pass is cut down to a tier below its total",
            "min((own.cap for own in terms), default=NO_CAP)",
            "sum(chosen) // 2 * 2",
            LAW,
        ),
        *caught_by(
            R3,
            (
                "R3: the price is compared with a slot's own confidence",
                "for slot, alive in enumerate(_alive(block)):",
                "for slot, alive in enumerate(block):",
            ),
            (
                "R3: slots behind one that fails are verified",
                "            if not confidence >= price:\n                return slot\n",
                "            if not confidence >= price:\n                continue\n",
            ),
            (
                "R3: a cap leaves later slots first",
                "(-each, slot, row) for",
                "(-each, -slot, row) for",
            ),
        ),
        (
            "cohorts are one",
            "return sequence & (self.cohorts - 1)",
            "return 0",
            TURNS,
        ),
    ),
    *in_file(
        "dspark/rounds/orders.py",
        (
            "R2: weights are not frozen",
            "= terms if slots ==",
            "= terms._replace(weight=1.0) if slots ==",
            R2,
        ),
        (
            "R5: a deadline moves when another block comes",
            "        order = self._open.pop(number, None)\n",
            "        order = self._open.pop(number, None)\n        for each in "
            "self._open.values():\n"
            "            each.until += 1.0\n",
            R5,
        ),
        (
            "R11: a row is left out",
            "sequence.rows_sent = sequence.committed_len - 1",
            "sequence.rows_sent = sequence.committed_len",
            R11,
        ),
        (
            "a block may fill the answer",
            "slots = min(terms.slots, sequence.room - 1)",
            "slots = terms.slots",
            (f"{L}a_block_is_clamped_to_the_slots_of_its_order",),
        ),
    ),
    *in_file(
        "dspark/rounds/passes.py",
        (
            "R3: a prefix that finds too few pages is left out",
            "if given is not None:",
            "if given is not None and given == slots:",
            (f"{L}a_prefix_is_cut_to_the_pages_there_are",),
        ),
        (
            "R3: the youngest is asked first",
            "sorted(ready, key=lambda sequence: sequence.number)",
            "sorted(ready, key=lambda sequence: -sequence.number)",
            R3,
        ),
    ),
    *in_file(
        "dspark/rounds/state.py",
        (
            "R6: in a pass settling is dropping",
            "(RUNNING, SETTLE): SETTLING",
            "(RUNNING, SETTLE): GONE",
            R6,
        ),
        (
            "R6: a verdict is thrown away for what it says",
            "(RUNNING, SETTLE): SETTLING",
            "(RUNNING, SETTLE): GONE",
            TAKEN,
        ),
    ),
    *in_file(
        "dspark/rounds/leaving.py",
        ("R6: the youngest is dropped", "self.settle(youngest)", "self.drop(youngest)", R6),
        (
            "pages are taken from a sequence in a pass",
            "if not self._passes.hold(sequence):",
            "if sequence not in (None,):",
            (f"{L}dropped_it_is_gone_at_once_and_its_pages_when_its_pass_is_over",),
        ),
    ),
    *in_file(
        "dspark/rounds/loop.py",
        (
            "rows are sent though no drafts are planned",
            "if unfed and terms.drafts and sequence.room > 1:",
            "if unfed and sequence.room > 1:",
            (f"{L}no_row_is_sent_before_drafts_are_planned_and_then_all_in_bulk",),
        ),
        (
            "rows are not sent once drafts are planned",
            "if unfed and terms.drafts and sequence.room > 1:",
            "if False:",
            (f"{L}no_row_is_sent_before_drafts_are_planned_and_then_all_in_bulk",),
        ),
        (
            "rows are sent for a last token",
            "if unfed and terms.drafts and sequence.room > 1:",
            "if unfed and terms.drafts:",
            (f"{L}no_row_is_sent_for_a_last_token",),
        ),
        (
            "rows of a late order count as arrived",
            "                sequence.rows_sent = sequence.rows_held  # those",
            "                # those",
            (f"{L}rows_of_a_late_order_are_sent_again_once_its_drafter_replied",),
        ),
    ),
    *in_file(
        "dspark/rounds/feeding.py",
        (
            "another drafter is sent rows though no drafts are planned",
            "if drafts or drafter in (sequence.drafter, sequence.feeding):",
            "if True:",
            (f"{L}plain_rounds_name_another_drafter_and_send_it_nothing",),
        ),
        (
            "rows are sent to nobody once a drafter is closed",
            "    if not sequence.drafter:  # closed",
            "    if False:  # closed",
            (f"{L}a_drafter_that_was_closed_behind_its_order_is_sent_nothing",),
        ),
        (
            "rows lost at a drafter stop the one that takes over",
            "sequence.drafter, 0\n    if sequence.feeding:",
            "sequence.drafter, 0\n    if False:",
            (f"{L}a_drafter_that_lost_rows_gets_none_where_another_takes_over",),
        ),
        (
            "a lost drafter stays named",
            "        sequence.named = 0\n    if sequence.drafter",
            "        pass\n    if sequence.drafter",
            (f"{L}a_drafter_that_was_lost_gets_nothing_until_it_is_named_again",),
        ),
        (
            "R10: naming another drafter stops the present one",
            "        sequence.feeding = drafter\n        ask(Open",
            "        sequence.feeding, sequence.drafter = drafter, 0\n        ask(Open",
            R10,
        ),
        (
            "R11: a new drafter is taken for one that has all rows",
            "sequence.drafter, sequence.rows_sent, sequence.feeding = drafter, rows, 0",
            "sequence.drafter, sequence.rows_sent, sequence.feeding = drafter, "
            "sequence.committed_len - 1, 0",
            (f"{KEPT}r11_few_missing_rows_go_with_the_next_order",),
        ),
    ),
    *in_file(
        "dspark/rounds/bounds.py",
        (
            "what was accepted behind a stop token is said",
            "return index + 1, True",
            "return min(len(tokens), room), True",
            (f"{L}a_stop_token_or_the_length_holds_it",),
        ),
    ),
    *in_file(
        "coordinator/planning/planner.py",
        (
            "drafting nothing is no candidate",
            "best = max((plain, *drafted)",
            "best = max((*drafted,)",
            (f"{P}where_drafting_does_not_pay_nearly_nothing_is_drafted",),
        ),
        (
            "what a drafter is worth is left out of the weight",
            "weights = [float(w) * trust[key]",
            "weights = [float(w)",
            (f"{P}a_drafter_s_trust_is_in_the_weight_that_the_verifier_compares_with",),
        ),
        (
            "empty blocks count as usual ones",
            "enumerate(rounds) if len(each.confidence)]",
            "enumerate(rounds)]",
            (f"{P}empty_blocks_in_a_drafted_round_say_nothing",),
        ),
        (
            "a try out of plain rounds drafts for all",
            "if chosen.slots else few_of(lane.keys)",
            "if True else few_of(lane.keys)",
            (f"{P}out_of_plain_rounds_a_try_drafts_for_some_of_each_kind_and_one_in_four",),
        ),
        (
            "what is tried takes cohorts of its own",
            "if each.cohorts == chosen.cohorts] or drafted",
            "]",
            (f"{P}what_is_tried_for_one_plan_keeps_the_cohorts_in_force",),
        ),
        (
            "drafts begin as easily as they go on",
            "BEGINS if best.slots and not kept.slots else STAYS",
            "STAYS",
            (f"{P}drafts_begin_where_they_bring_more_than_beginning_costs",),
        ),
        (
            "passes with prompts are learned from",
            "if again and not report.prefill_tokens:",
            "if again:",
            (f"{P}passes_with_prompts_say_nothing_of_rounds",),
        ),
        (
            "the first round of another kind is learned from",
            "again, self._drafted = self._drafted is (width > 0), width > 0",
            "again, self._drafted = True, width > 0",
            (f"{P}plain_rounds_are_tried_too_where_they_were_thought_too_dear",),
        ),
    ),
    *in_file(
        "coordinator/planning/options.py",
        (
            "a try costs what it would if all were drafted for",
            "if few == count or not option.slots:",
            "if True:",
            (f"{P}a_try_that_drafts_for_few_of_many_is_as_rare_as_it_is_dear",),
        ),
        (
            "sending contexts costs a try nothing",
            "sent = 1.0 + SENT",
            "sent = 1.0",
            (f"{P}a_try_that_drafts_for_few_is_charged_for_sending_their_contexts",),
        ),
        (
            "options stay though plain rounds became slower",
            "due = moved or self._news",
            "due = self._news",
            ("tests/unit/planning/test_lane_plans.py",),
        ),
    ),
    *in_file(
        "coordinator/planning/tries.py",
        (
            "a try is over before its rows came",
            "times < (IN_A_ROW if self._met else WAITED)",
            "times < IN_A_ROW",
            (f"{P}a_try_lasts_until_its_rows_came_and_no_longer_than_they_are_waited_for",),
        ),
        (
            "a try waits for rows for ever",
            "times < (IN_A_ROW if self._met else WAITED)",
            "(not self._met or times < IN_A_ROW)",
            (f"{P}a_try_lasts_until_its_rows_came_and_no_longer_than_they_are_waited_for",),
        ),
        (
            "whole blocks are never tried",
            "self.tried = whole if drawn < least",
            "self.tried = whole if False",
            (f"{P}plans_try_something_now_and_then_by_a_key_and_rarely_where_it_is_dear",),
        ),
        (
            "a lane that drafts never goes without",
            "(1.0, PLAINLY) if best.slots",
            "(1.0, 0.0) if best.slots",
            (f"{P}plain_rounds_are_tried_too_where_they_were_thought_too_dear",),
        ),
        (
            "a kind of round is tried once, so that nothing is learned of it",
            "times < (IN_A_ROW if self._met else WAITED)",
            "times < (1 if self._met else WAITED)",
            (f"{P}a_try_lasts_until_its_rows_came_and_no_longer_than_they_are_waited_for",),
        ),
    ),
    *in_file(
        "coordinator/planning/acceptance.py",
        (
            "slots that were never reached count as refused",
            "reached: Floats = (slots <= accepted[:, None]).astype(np.float64)",
            "reached: Floats = np.ones(own.shape)",
            (f"{P}verifying_the_promising_slots_alone_does_not_bend_the_estimate",),
        ),
    ),
    *in_file(
        "coordinator/planning/cost.py",
        (
            "two cohorts hide everything",
            "np.maximum(np.maximum(2.0 * step, 2.0 * draft), alone)",
            "2.0 * step",
            (f"{P}what_two_cohorts_take_is_the_longest_of_what_must_follow_each_other",),
        ),
        (
            "a slow moment of plain rounds makes drafts look fast",
            "            other.value *= own.value / before\n",
            "            pass\n",
            (f"{P}a_verifier_that_becomes_slower_is_so_in_rounds_of_both_kinds",),
        ),
        (
            "what is tried moves what is usual",
            "        if own is self._usual:\n",
            "        if self._usual is not None:\n",
            (f"{P}what_is_tried_says_what_it_takes_beside_the_usual",),
        ),
    ),
    *in_file(
        "dspark/rounds/spans.py",
        (
            "what a cohort stood still is part of a round",
            "if own.isdisjoint(others)",
            "if not others",
            (
                "tests/unit/rounds/test_round_spans.py::test_what_a_cohort_stood_still_is_no_part_of_a_round",
            ),
        ),
    ),
    *in_file(
        "verify_service/packed_step.py",
        (
            "rows of a pass are committed before it has ended",
            "        items, chunks = prepared.items, prepared.chunks\n        result =",
            "        items, chunks = prepared.items, prepared.chunks\n"
            "        for state in prepared.states:\n            state.cached += 1\n"
            "        result =",
            (f"{U}nothing_of_a_pass_is_known_before_its_end",),
        ),
        (
            "a part of a failed pass is judged at the rows of the whole",
            "cases.append(dataclasses.replace(self.cases[place], first_row=row))",
            "cases.append(self.cases[place])",
            (f"{U}a_pass_that_fails_is_tried_again_though_one_in_it_has_left",),
        ),
        (
            "a part of a failed pass is judged without its drafts",
            "items=[self.items[place] for place in places],",
            "items=[self.items[place].without_draft() for place in places],",
            (f"{U}a_pass_that_fails_is_tried_again_though_one_in_it_has_left",),
        ),
    ),
    *in_file(
        "verify_service/under_way.py",
        (
            "what fails behind a pass takes its whole cohort",
            "nothing of it is committed\n        except Exception as error:",
            "nothing of it is committed\n        except OSError as error:",
            (f"{F}a_pass_that_fails_takes_only_those_with_it_that_fail_alone",),
        ),
        (
            "a pass that failed loses the other half",
            "return [batch[:middle], batch[middle:]] if middle else []",
            "return [batch[:middle]] if middle else []",
            (f"{U}a_pass_that_fails_is_tried_again_though_one_in_it_has_left",),
        ),
    ),
    *in_file(
        "verify_service/engine_core.py",
        (
            "pages of who leaves in the middle of a pass are free at once",
            "if state.in_pass:",
            "if False:",
            (
                f"{U}who_leaves_in_the_middle_of_a_pass_frees_its_pages_when_it_has_ended_and_harms_nobody",
            ),
        ),
        (
            "who leaves in the middle of a pass takes a successor of its number along",
            "self._holdings.drop(state)",
            "self._holdings.states.pop(state.sequence, None), self._holdings.drop(state)",
            (
                f"{U}who_leaves_in_the_middle_of_a_pass_frees_its_pages_when_it_has_ended_and_harms_nobody",
            ),
        ),
        (
            "a sequence is in two passes at once",
            "if problem is None and state.in_pass:",
            "if False:",
            (f"{U}a_sequence_is_in_one_pass_at_a_time",),
        ),
        (
            "a prompt is in two passes at once",
            "elif not state.in_pass and alone in (None, state.owner):",
            "elif alone in (None, state.owner):",
            (f"{U}a_prompt_is_in_one_pass_at_a_time_and_others_ride_meanwhile",),
        ),
        (
            "who left in the middle of a pass keeps its pages",
            "if self._holdings.states.get(state.sequence) is not state:",
            "if False:",
            (f"{U}a_session_that_ends_in_the_middle_of_a_pass_leaves_nothing",),
        ),
    ),
    *in_file(
        "verify_service/round_driver.py",
        (
            "a pass that was under way when its stream ended is never ended",
            "            else:\n                self._engine.end(step)\n",
            "",
            (
                f"{F}a_stream_that_ends_in_the_middle_of_a_pass_frees_what_the_pass_held",
                f"{F}a_bug_beside_a_pass_ends_the_stream_and_frees_everything",
            ),
        ),
    ),
    *in_file(
        "verify_service/drafters.py",
        (
            "one stream that cannot be closed keeps the others open",
            "                except Exception as error:  # the others are closed all the same\n",
            "                except ZeroDivisionError as error:\n",
            (f"{D}one_stream_that_cannot_be_closed_keeps_no_other_one_open",),
        ),
    ),
    *in_file(
        "verify_service/drafter_stream.py",
        (
            "a stream that was closed while its drafter was looked for goes on",
            "                if self._closed:\n                    self._call.cancel()\n",
            "",
            (f"{D}a_stream_closed_while_its_drafter_is_looked_for_ends_without_a_word",),
        ),
        (
            "a port that cannot be reached loses its drafter",
            "except grpc.FutureTimeoutError:",
            "except ZeroDivisionError:",
            (f"{D}so_is_one_whose_port_cannot_be_reached",),
        ),
    ),
]
