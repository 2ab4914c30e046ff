"""Forms that read one text in too many ways are refused wherever that begins; those that people
write are not."""

import json
import random

import pytest

from benchmarks.forms.cases import expressions, schemas
from dspark.types import Constraint, ConstraintKind
from tests.unit.grammars.fitting import TARGET, compiler, in_tag, of, refused, tagged
from verify_service.grammars.compiling import _written, try_parts
from verify_service.grammars.grammars import Grammars
from verify_service.grammars.readings import MOST, ways

KIND = ConstraintKind
EXPLODES = "(([a-z]{1,50}){1,50}){1,50}"


def most(kind: ConstraintKind, text: str) -> int:
    return max((ways(written)[0] for written in _written(Constraint(kind, text))), default=1)


HOSTILE = [
    EXPLODES,
    f"[a-z]{{400}}{EXPLODES}",
    f"(never|[a-z]{{9}} {EXPLODES}z)?",
    "((([a-z]{1,50}[a-z]){1,50})x?){1,50}",
    "((a|aa){1,50}){1,50}",
    "((q{1,50}|[a-p]{40}z){1,50}){1,50}",
    "((([a-z]+){1,50})+)+",
    "(((x*)*)*y?)*" * 4 + "((x{0,60}){0,60}x*){2}",
    "(([^a]{1,40} ?){1,40}[b-d]?){1,40}",
    "((é{1,50}|[ä-ü]{2}){1,50}){1,50}",
]


@pytest.mark.parametrize("text", HOSTILE)
def test_repetitions_of_repetitions_multiply_wherever_they_stand(text: str) -> None:
    assert most(KIND.REGEX, text) > MOST
    assert most(KIND.JSON_SCHEMA, json.dumps({"items": {"type": "string", "pattern": text}})) > MOST
    assert (
        most(KIND.JSON_SCHEMA, json.dumps({"type": "object", "patternProperties": {text: {}}}))
        > MOST
    )
    assert most(KIND.STRUCTURAL_TAG, tagged(text)) > MOST


SPLIT = 'root ::= "a"{400} r{1,50}\nr ::= s{1,50} | "z"\ns ::= [a-z]{1,50}'


def test_rules_multiply_as_well() -> None:
    assert most(KIND.GRAMMAR, SPLIT) > MOST
    assert most(KIND.STRUCTURAL_TAG, in_tag(type="grammar", grammar=SPLIT)) > MOST


HONEST = [
    "(([a-z]+,){1,50};){1,50}",
    "(([0-9]{1,3}\\.){3}[0-9]{1,3}(, )?){1,200}",
    "((\"[^\"]{1,200}\",){1,99}\\n){1,99}",
    "(([a-z]{1,30}, ){0,30}[a-z]{1,30}\\n){1,30}",
    "(([A-Z][a-z]{1,20} ){1,20}[0-9]{1,9};){1,100}",
    "(\\w+\\s*){1,200}",
    "([a-z]+ ?){1,20}",
    "((mon|monday|tue|tuesday), ){1,70}",
]  # fmt: skip


@pytest.mark.parametrize("text", HONEST)
def test_what_says_where_it_goes_round_again_is_one_way(text: str) -> None:
    assert most(KIND.REGEX, text) <= MOST


def test_grammars_that_people_write_are_read_in_few_ways() -> None:
    assert most(KIND.GRAMMAR, 'root ::= e\ne ::= t (("+" | "-") t)*\nt ::= [0-9]+ | "(" e ")"') == 1
    lists = '"[" (one (", " one){0,99})? "]"'
    one = f'"{{\\"a\\": " [0-9]{{1,9}} "}}" | "{{\\"b\\": " {lists} "}}"'
    assert most(KIND.GRAMMAR, f"root ::= {lists}\none ::= {one}") == 1
    assert (
        most(
            KIND.GRAMMAR,
            "\n".join(f'r{n} ::= "a" r{n + 1} "b"?' for n in range(2000)) + '\nr2000 ::= "c"',
        )
        == 1
    )


def test_cases_of_the_benchmark_are_read_in_one_way() -> None:
    assert {most(KIND.REGEX, text) for _, text in expressions()} == {1}
    assert {most(KIND.JSON_SCHEMA, json.dumps(schema)) for _, schema in schemas()} == {1}


def test_one_slow_token_behind_a_long_beginning_is_found_before_anybody_waits_for_it() -> None:
    letters, draw = "abcdefghijklmnopqrstuvwxyz", random.Random(0)
    words = sorted({"".join(draw.choices(letters, k=draw.randint(2, 9))) for _ in range(40_000)})
    known = [*letters, *"0123456789", " ", ",", *words, *(f" {word}" for word in words), ""]
    tried = compiler(known)
    slow, rules = "[0-9]{400}([a-z]+ ?){1,60}", 'root ::= [0-9]{400} r{1,60}\nr ::= [a-z]+ " "?'
    for constraint in (Constraint(KIND.REGEX, slow), Constraint(KIND.GRAMMAR, rules)):
        with pytest.raises(ValueError, match="too many ways"):
            try_parts(tried, constraint)
    for text in ("[0-9]{400}([a-z]+ ){1,60}", "([0-9]+,?){1,60}"):
        try_parts(tried, Constraint(KIND.REGEX, text))


def test_what_explodes_behind_a_long_beginning_is_refused_by_name() -> None:
    grammars = Grammars(TARGET, 512, [0])
    for kind, text in ((KIND.REGEX, HOSTILE[1]), (KIND.GRAMMAR, SPLIT)):
        assert "too many ways" in refused(grammars.compile(Constraint(kind, text), ""))
    notes = {"type": "string", "examples": [{"pattern": "(?="}]}  # no pattern of the schema's own
    of(grammars.compile(Constraint(KIND.JSON_SCHEMA, json.dumps(notes)), ""))
