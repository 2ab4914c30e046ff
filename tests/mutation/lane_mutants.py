"""Bugs to put into a lane: what it decides, believes and tells."""

from __future__ import annotations

from tests.mutation.mutant import Mutant, caught_by, in_file

L = "tests/unit/coordinator/test_lane.py::test_"
SEVERAL = "tests/unit/coordinator/test_choices.py::test_"
SETTLES = (f"{L}a_verifier_that_will_leave_settles_its_sequences_and_they_move",)
WRITTEN = (f"{L}r7_a_commit_is_written_then_acknowledged_then_shown",)
IN_ORDER = (f"{L}r7_a_report_that_is_not_the_next_one_orphans_its_sequence",)
EPOCHS = (f"{L}r9_an_epoch_is_written_before_the_verifier_hears_of_it_and_never_given_twice",)
LIES = (f"{L}a_verifier_that_says_what_cannot_be_ends_that_request_and_no_other",)
REACH = (f"{L}r10_a_drafter_that_only_this_process_lost_goes_on_drafting_for_who_is_there",)
NO_PAGE = (f"{L}a_prompt_that_finds_no_page_waits_in_front_and_comes_again_under_another_epoch",)
POLICIES = (f"{L}several_policies_share_the_rounds_of_a_lane",)
BEFORE_YOUNGER = (
    "tests/unit/coordinator/test_preemption.py::test_who_was_preempted_goes_before_everybody_younger",
)

SILENT = (f"{L}a_sequence_that_its_verifier_is_silent_about_moves_and_no_other_does",)

LANES: list[Mutant] = [
    *in_file(
        "coordinator/queue/scheduler.py",
        (
            "a tenant whose requests run is forgotten",
            "tuple(self._alive())",
            "self._alive()",
            (
                "tests/unit/coordinator/test_fairness.py::test_a_tenant_that_has_a_request_is_not_forgotten",
            ),
        ),
        (
            "who fits into no lane stands at the head of the queue",
            "[self._line.first(tenant, able) for tenant in tenants]",
            "[each if able(each) else None for tenant in tenants\n"
            "            if (each := self._line.first(tenant, lambda one: True)) is not None]",
            (
                "tests/unit/coordinator/test_preemption.py::test_whom_only_a_leaving_verifier_could_hold_delays_nobody",
            ),
        ),
        (
            "who waits for a large verifier keeps a small one idle",
            "                kept.update(each for each in self._lanes if each.could_take(state))\n"
            "                continue\n",
            "                break\n",
            (
                "tests/unit/coordinator/test_preemption.py::test_who_waits_for_the_large_verifier_leaves_the_small_one_to_others",
            ),
        ),
        (
            "a lane that closes takes the metrics of the next one of its name",
            "            each.show()\n",
            "            pass\n",
            (f"{L}a_lane_that_closes_leaves_the_metrics_of_the_next_one_of_its_name",),
        ),
    ),
    *in_file(
        "coordinator/lanes/lane.py",
        (
            "R6: whoever moves is dropped",
            "Release(placed.number, placed.epoch, How.SETTLE)",
            "Release(placed.number, placed.epoch, How.DROP)",
            SETTLES,
        ),
        (
            "R6: whoever moves is handed back at once",
            "            if placed.admitted:\n                self._settle(placed)",
            "            if False:\n                self._settle(placed)",
            SETTLES,
        ),
        (
            "R7: a commit is written late",
            "        self._write()\n        self._tell_orders()",
            "        asyncio.get_running_loop().call_later(0.001, self._write)\n"
            "        self._tell_orders()",
            WRITTEN,
        ),
        ("R7: any round is the next one", "each.round == placed.round and ", "", IN_ORDER),
        (
            "R7: wherever it stood before",
            " and each.committed_before == stands",
            "",
            IN_ORDER,
        ),
        ("R9: an epoch is not noted", "state.note_epoch(", "print(", EPOCHS),
        (
            "R9: an epoch is told of before it is written",
            "self._write()  # epochs, before anything is drawn under them",
            "pass",
            EPOCHS,
        ),
        (
            "what ended stays at its verifier",
            "Release(placed.number, placed.epoch, How.DROP)",
            "Release(placed.number, placed.epoch + 1, How.DROP)",
            (f"{L}cancelling_at_any_moment_leaves_nothing_behind",),
        ),
        (
            "whoever is never settled waits for ever",
            "if placed.leaving is not None and now >= placed.settled_by:",
            "if False:",
            (f"{L}a_verifier_that_never_settles_a_sequence_loses_it",),
        ),
        (
            "whoever is silent about is not asked back",
            "            self._settle(placed)\n        self._assignment",
            "            pass\n        self._assignment",
            SILENT,
        ),
        (
            "a lost release is lost for good",
            "        self._orders.append(Keep(self._kept))\n",
            "",
            (f"{L}what_a_lost_release_left_behind_is_dropped",),
        ),
    ),
    *in_file(
        "coordinator/lanes/members.py",
        (
            "silence begins anew with everybody who comes",
            "since = min(",
            "since = max(",
            (f"{L}a_verifier_that_never_prefills_is_let_go_although_more_are_asked_of_it",),
        ),
        (
            "a sequence that its verifier forgot waits for ever",
            "late = now >= placed.heard + self._config.verify_deadline_s",
            "late = False",
            SILENT,
        ),
        (
            "whoever waits for a page is taken for forgotten",
            "placed.heard = now if self._no_page else placed.heard",
            "pass",
            (f"{L}nobody_moves_for_silence_while_the_verifier_has_no_page_left",),
        ),
        (
            "a prompt that was overtaken waits on",
            "if not self._members.overtook(placed):",
            "if True:",
            (f"{L}a_prompt_that_others_overtook_is_run_again",),
        ),
        (
            "prompts of others that get on are not seen",
            "if said.started is not None or said.prefill_tokens:",
            "if said.started is not None:",
            (f"{L}a_prompt_is_waited_for_while_prompts_get_on",),
        ),
        (
            "answers of one request have their prompt run side by side",
            "if request.id in self._prompts:",
            "if False:",
            (f"{SEVERAL}the_other_answers_come_when_the_prompt_of_the_first_is_in",),
        ),
        (
            "a prompt that is not coming is waited for",
            "            del self._prompts[placed.state.request.id]",
            "            pass",
            (f"{SEVERAL}answers_do_not_wait_for_a_first_that_left",),
        ),
    ),
    *in_file(
        "coordinator/lanes/commits.py",
        *caught_by(
            LIES,
            ("any token is believed", "max(tokens) < self._vocab_size", "True"),
            (
                "more may be verified than was drafted",
                "said.verified <= len(said.confidence)\n",
                "said.verified\n",
            ),
            (
                "more may be accepted than was verified",
                "said.accepted <= said.verified <=",
                "said.verified <=",
            ),
            (
                "a round may say less than it accepted",
                "(piece.end is None and count != said.accepted + 1)",
                "False",
            ),
        ),
        (
            "a token may come without its log-probability",
            "state.request.params.logprobs is not None and",
            "False and",
            (f"{SEVERAL}a_verifier_that_keeps_log_probabilities_to_itself_fails_the_request",),
        ),
    ),
    *in_file(
        "coordinator/lanes/lane_drafters.py",
        (
            "R10: out of this process's reach is gone",
            "return Use.NO_NEW if self.sequences else Use.GONE",
            "return Use.GONE",
            REACH,
        ),
        (
            "who has no rows stays with a drafter that is lost to this process",
            "and (fed or known.there)",
            "and True",
            (f"{L}who_has_no_rows_at_a_drafter_that_this_process_lost_gets_another_one",),
        ),
        (
            "every refusal of many at once doubles the pause",
            "if now >= known.not_before:",
            "if True:",
            (f"{L}a_drafter_that_had_no_room_for_many_at_once_is_asked_again_as_soon_as_for_one",),
        ),
        (
            "a drafter that leaves gets newcomers",
            "free = known.there and not known.leaves and",
            "free = known.there and",
            (f"{L}a_drafter_that_leaves_hands_its_sequences_to_another_one",),
        ),
        (
            "a drafter's alarm is not heard",
            "return _reaches(port, state) and self._monitor.trusts(\n"
            "            port.facts.fingerprint, state.request.params\n"
            "        )",
            "return _reaches(port, state)",
            (f"{L}a_distrusted_drafter_drafts_no_more_under_the_ratio_rules",),
        ),
    ),
    *in_file(
        "coordinator/lanes/drafter_assignment.py",
        (
            "who lost its drafter waits as if it had looked for one",
            "                each.not_before = 0.0\n",
            "                each.not_before = 1e9\n",
            (f"{L}another_drafter_takes_over_without_a_second_prefill",),
        ),
    ),
    *in_file(
        "coordinator/lanes/request_state.py",
        (
            "who made room is taken for lost",
            "return LifeEvent.PREEMPTED",
            "return LifeEvent.ORPHANED",
            (f"{L}the_youngest_makes_room_and_comes_back",),
        ),
        (
            "a busy verifier ends the answers beside the one that it has no time for",
            "reason is RefusalReason.BUSY and not shown",
            "reason is RefusalReason.BUSY and not self.state.answer.length",
            (f"{L}of_several_answers_one_waits_for_a_busy_verifier_once_another_is_shown",),
        ),
        (
            "an epoch is kept when a prompt finds no page",
            "self.epoch += 1",
            "self.epoch += event is not LifeEvent.TURNED_AWAY",
            NO_PAGE,
        ),
    ),
    *in_file(
        "coordinator/planning/lane_plans.py",
        (
            "what a drafter out of reach drafts is learned as free",
            "        if not drafters:\n            return\n",
            "        if not drafters:\n            self._drafters = drafters\n            return\n",
            (
                "tests/unit/planning/test_lane_plans.py::"
                "test_a_drafter_out_of_reach_that_drafts_on_costs_what_it_did",
            ),
        ),
        (
            "blocks of fixed lengths end a try of the planner's",
            "each.confidence and self._adapts(each.sequence)",
            "each.confidence",
            (
                "tests/unit/planning/test_lane_plans.py::"
                "test_the_planner_is_told_whether_its_own_sequences_drafted",
            ),
        ),
        (
            "everybody goes by the planner's terms",
            "sequences[member.number] = SequencePlan(member.own)",
            "pass",
            POLICIES,
        ),
        (
            "a newcomer of its own policy waits for the next report",
            "return member.own == self.in_force.terms",
            "return True",
            (f"{L}a_plan_is_told_once_and_names_a_newcomer_with_terms_of_its_own",),
        ),
    ),
    *in_file(
        "coordinator/queue/waiting_queue.py",
        (
            "who lost a place stands last",
            "line.insert(place, state)",
            "line.append(state)",
            BEFORE_YOUNGER,
        ),
    ),
]
