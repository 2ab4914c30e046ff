"""All bugs, by the part of the system that they are put into."""

from __future__ import annotations

from tests.mutation.conformance import CONFORMANCE
from tests.mutation.round_mutants import MUTANTS as ROUNDS
from tests.mutation.rules import RULES

LISTS = {"rules": RULES, "rounds": ROUNDS, "conformance": CONFORMANCE}
MUTANTS = [mutant for bugs in LISTS.values() for mutant in bugs]
