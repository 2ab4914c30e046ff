"""The builds, one line each. Most are wrong in a way that leaves answers looking right."""

from __future__ import annotations

from tests.broken.planting import Build

BUILDS = (
    Build(
        "wrong ids at re-prefill", "1", "kill", "coordinator/lanes/request_state.py",
        "        ids = answer.ids()\n",
        "        ids = answer.ids()[:1] + (3,) * (answer.committed_len - 1) if self.epoch else "
        "answer.ids()\n",
    ),
    Build(
        "an epoch kept at failover", "1", "kill", "coordinator/lanes/request_state.py",
        "            self.epoch += 1\n",
        "            self.epoch += event is not "
        "LifeEvent.ORPHANED\n",
    ),
    Build(
        "q sent that was not sampled from", "2", "rules", "dspark/decoding/drafting.py",
        "drawn(probs.double(), u)", "drawn(probs.double().sqrt(), u)",
    ),
    Build(
        "the bonus token drawn from p, not from what is left of it", "2", "rules",
        "dspark/decoding/ratio.py",
        "probs = residual(last, slots.dense(rejected, last))", "probs = last",
    ),
    Build(
        "the same coins in every epoch", "2", "kill", "dspark/decoding/ratio.py",
        "key_of(case.params, case.cursor, purpose)",
        "key_of(case.params, case.cursor._replace(epoch=0), purpose)",
    ),
    Build(
        "a preempted answer begins from its prompt", "10", "preempt",
        "coordinator/answers/answer.py",
        "        return tuple(self._ids)\n",
        "        return tuple(self._ids[: self.prompt_len] + self._ids[: len(self._ids) - "
        "self.prompt_len])\n",
    ),
    Build(
        "a draft kept unseen", "11", "lying drafter", "dspark/decoding/acceptance.py",
        "            if token != top[row + accepted]:\n",
        "            if accepted and token != "
        "top[row + accepted]:\n",
    ),
    Build(
        "blocks that cannot be are nobody's fault", "35", "bad drafter",
        "coordinator/planning/watchdog.py",
        "            if share > BAD[kind]:\n", "            if share > 1.0:\n",
    ),
    Build(
        "rows shifted by a position", "12", "drafters gone", "verify_service/feature_push.py",
        "start_position=run.start,", "start_position=run.start + 1,",
    ),
    Build(
        "a resend that skips a page", "12", "drafters gone", "verify_service/engine_core.py",
        "self._holdings.rows(state, start, cursor.committed_len - 1)",
        "self._holdings.rows(state, start + self.config.page_size, cursor.committed_len - 1)",
    ),
    Build(
        "a verdict applied twice", "15", "rules", "coordinator/lanes/commits.py",
        "            said.tokens, logprobs, round=",
        "            said.tokens * 2, logprobs, round=",
    ),
    Build(
        "a repeated batch shown twice", "15", "batches", "coordinator/frontend/link.py",
        "        if not self._in_order.takes(batch.number):\n",
        "        if self._in_order.takes(batch.number) is None:\n",
    ),
    Build(
        "a release that keeps its pages", "17", "leave", "dspark/rounds/leaving.py",
        "        self._cache.free(sequence.number, sequence.epoch)\n", "        pass\n",
    ),
    Build(
        "another prefix's page", "20", "prefixes", "verify_service/prefix_cache.py",
        "name + ids[first : first + size].tobytes()", "ids[first : first + size].tobytes()",
    ),
    Build(
        "a page kept whose last slot is empty", "20", "prefixes",
        "verify_service/kv_cache_manager.py",
        "state.token_ids[: state.cached],\n"
        "                state.salt",
        "state.token_ids[: state.cached + 1],\n"
        "                state.salt",
    ),
    Build(
        "a journal that loses a commit", "21", "journal", "coordinator/cells/journal.py",
        "        batch.unix_s = self._now()\n",
        "        batch.unix_s, said = self._now(), said[1:]\n",
    ),
    Build(
        "an epoch kept at a resume", "21", "journal", "coordinator/cells/local_cell.py",
        "epoch=said.epoch + 1 if said is not None else 0",
        "epoch=said.epoch if said is not None "
        "else 0",
    ),
    Build(
        "a seed that changes at failover", "21", "journal", "coordinator/cells/resumption.py",
        "seed=entry.seed, rule=entry.rule)", "rule=entry.rule)",
    ),
    Build(
        "a first token shown before the log has it", "21", "first token",
        "coordinator/lanes/lane.py",
        "        self._write()\n" "        self._tell_orders()",
        "        if len(news) > 1 or any(\n"
        "            each.report.number for each in news if isinstance(each, PassReport)\n"
        "        ):\n"
        "            self._write()\n"
        "        self._tell_orders()",
    ),
    Build(
        "another tenant's page", "27", "tenants", "verify_service/prefix_cache.py",
        "hashlib.blake2b(salt.encode(), digest_size=16)", "hashlib.blake2b(b\"\", digest_size=16)",
    ),
)  # fmt: skip
