"""All bugs, by the part of the system that they are put into."""

from __future__ import annotations

from tests.mutation.answers import ANSWERS
from tests.mutation.at_once import AT_ONCE
from tests.mutation.conformance import CONFORMANCE
from tests.mutation.grammars import GRAMMARS
from tests.mutation.journal import JOURNALS
from tests.mutation.lane_mutants import LANES
from tests.mutation.loading import LOADING
from tests.mutation.masks import MASKS
from tests.mutation.pages import PAGES
from tests.mutation.round_mutants import MUTANTS as ROUNDS
from tests.mutation.rules import RULES
from tests.mutation.sampling_mutants import MUTANTS as SAMPLING
from tests.mutation.stream_mutants import STREAMS

LISTS = {
    "rules": RULES,
    "at once": AT_ONCE,
    "rounds": ROUNDS,
    "streams": STREAMS,
    "lanes": LANES,
    "pages": PAGES,
    "answers": ANSWERS,
    "grammars": GRAMMARS,
    "journal": JOURNALS,
    "sampling": SAMPLING,
    "loading": LOADING,
    "masks": MASKS,
    "conformance": CONFORMANCE,
}
MUTANTS = [mutant for bugs in LISTS.values() for mutant in bugs]
