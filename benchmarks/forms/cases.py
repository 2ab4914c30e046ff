"""Schemas and regular expressions in the manner of what applications ask for, written for this
project.

200 schemas: twenty subjects, each as ten shapes (flat, with optional keys, with enums, with
patterns, nested, lists, lists of objects, alternatives, references, all of it). 100 expressions:
twenty-five kinds, each in four sizes.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

Schema = dict[str, Any]

# subject | names of texts | a number's name and bounds | a flag's name | words of an enum
SUBJECTS = """
person | name, city, job | age 0 120 | married | mother, father, child
order | item, shop, note | pieces 1 99 | paid | open, sent, back
book | title, author, publisher | pages 1 2000 | translated | novel, poem, play
weather | place, wind, sky | degrees -40 50 | rain | sun, snow, fog
flight | from, to, airline | minutes 30 900 | direct | economy, business
recipe | dish, spice, cook | servings 1 12 | vegan | starter, main, dessert
mail | subject, sender, receiver | attachments 0 9 | read | inbox, archive, trash
bug | summary, module, reporter | votes 0 500 | fixed | low, high, urgent
film | title, director, country | year 1900 2030 | colour | drama, comedy, thriller
hotel | street, chef, view | stars 1 5 | breakfast | single, double, suite
café | größe, süßung, milch | preis 1 20 | heiß | klein, groß, überraschung
都市 | 名前, 国, 川 | 人口 0 40000000 | 首都 | 東京, 大阪, 京都
город | имя, улица, река | дома 1 9999 | столица | север, юг
song | artist, album, label | seconds 10 900 | live | rock, jazz, folk
server | host, owner, rack | port 1 65535 | up | debian, fedora, alpine
exam | pupil, subject, teacher | points 0 100 | passed | A, B, C, D
plant | species, soil, garden | height 1 300 | evergreen | tree, shrub, herb
train | line, platform, driver | delay 0 240 | full | local, express
invoice | customer, street, iban | total 0 100000 | overdue | EUR, USD, JPY
game | home, guest, referee | spectators 0 90000 | over | league, cup, friendly 🏆
"""
PATTERNS = (
    "^[A-Z]{2}-[0-9]{3}$",
    "^[a-z]+@[a-z]+\\.org$",
    "^[0-9]{4}-[0-9]{2}-[0-9]{2}$",
    "^#[0-9a-f]{6}$",
)
SHAPES = 10

EXPRESSIONS = (
    "[a-z]{%d}", "[A-Z][a-z]{1,%d}", "[0-9]{%d}",
    "-?[0-9]{1,%d}(\\.[0-9]{1,2})?", "(yes|no){%d}", "[01]{%d}",
    "([a-c]-){%d}[a-c]", "\\{[a-z]{1,%d}\\}", "<[a-z]{1,%d}>",
    "[a-z]{1,%d}@[a-z]{1,8}\\.(com|org)",
    "#[0-9a-f]{%d}",
    "\\([0-9]{3}\\) [0-9]{%d}", "(ab|cd|ef){1,%d}", "[a-z]+( [a-z]+){%d}",
    "([0-9]{1,3}\\.){%d}[0-9]{1,3}",
    "(mon|tue|wed)(, (thu|fri)){0,%d}", "v[0-9](\\.[0-9]{1,2}){%d}", "[äöüß]{%d}", "[あ-ん]{%d}",
    "\\$[1-9][0-9]{0,%d}",
    "[A-Z]{2}[0-9]{%d}[A-Z]?", "(a|b(c|d)e){%d}", "\"[^\"]{1,%d}\"", "[a-z_][a-z0-9_]{0,%d}\\(\\)",
    "[0-2][0-9]:[0-5][0-9](;.{1,%d})?",
)  # fmt: skip
SIZES = (1, 3, 6, 12)


def closed(properties: Schema, required: list[str] | None = None) -> Schema:
    """An object with these properties and no others."""
    needed = list(properties) if required is None else required
    return {
        "type": "object",
        "properties": properties,
        "required": needed,
        "additionalProperties": False,
    }


def schemas() -> Iterator[tuple[str, Schema]]:
    """Two hundred pairs (name, schema)."""
    for number, line in enumerate(SUBJECTS.strip().splitlines()):
        subject, names, count_of, flag, said = line.split(" | ")
        texts, (count, low, high), words = names.split(", "), count_of.split(), said.split(", ")
        text: Schema = {"type": "string", "maxLength": 24}
        amount: Schema = {"type": "integer", "minimum": int(low), "maximum": int(high)}
        choice: Schema = {"enum": words}
        pattern: Schema = {"type": "string", "pattern": PATTERNS[number % len(PATTERNS)]}
        flat = {texts[0]: text, count: amount, flag: {"type": "boolean"}}
        inner = closed({texts[1]: text, "kind": choice})
        several: Schema = {
            "type": "array",
            "items": {**text, "maxLength": 12},
            "minItems": 1,
            "maxItems": 3,
        }
        named = {"$ref": "#/$defs/part"}
        shapes = (
            closed(flat),
            closed({**flat, texts[1]: text, texts[2]: text}, [texts[0]]),
            closed({"kind": choice, "level": {"enum": [1, 2, 3]}, "ok": {"const": True}, **flat}),
            closed({"code": pattern, "size": {"type": "number"}}),
            closed({subject: closed({**flat, "inner": inner})}),
            closed({"all": several, count: {"type": "array", "items": amount, "maxItems": 4}}),
            closed(
                {
                    "rows": {
                        "type": "array",
                        "items": closed({texts[0]: text, count: amount}),
                        "maxItems": 2,
                    }
                }
            ),
            closed({"value": {"anyOf": [amount, choice, {"type": "null"}, inner]}}),
            {
                **closed({"first": named, "next": {"anyOf": [named, {"type": "null"}]}}),
                "$defs": {"part": inner},
            },
            {
                **closed(
                    {**flat, "kind": choice, "tags": several, "part": named, "code": pattern},
                    [texts[0], "part"],
                ),
                "$defs": {
                    "part": closed({texts[1]: text, "deep": closed({texts[2]: text, flag: choice})})
                },
            },
        )
        assert len(shapes) == SHAPES
        for shape, schema in enumerate(shapes):
            yield f"{subject} {shape}", schema


def expressions() -> Iterator[tuple[str, str]]:
    """A hundred pairs (name, expression)."""
    for number, expression in enumerate(EXPRESSIONS):
        for size in SIZES:
            yield f"expression {number} {size}", expression % size
