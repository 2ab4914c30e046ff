"""Worked arithmetic, generated: worksheets of problems whose every stated result is right.

A worksheet keeps one kind of problem and one wording, so that the text is predictable given its
beginning, while names, things and numbers vary. Solutions are several steps long and spell each one out.
Numbers are written with a blank before them, so that a number looks the same wherever it is copied from.
"""

import random
from collections.abc import Callable

NAMES = tuple(
    """
    Ada Alan Amir Anna Ben Carl Clara Dana David Emma Erik Eva Felix Fiona George Grace Hana Hugo Ida Ivan
    Jane John Julia Karl Kate Laura Leo Lina Lucas Maria Mark Maya Nina Noah Nora Olga Omar Oscar Paul Petra
    Quinn Rosa Ruth Sam Sara Simon Sofia Tara Theo Tom Uma Vera Victor Wanda Yara Zoe
    """.split()  # noqa: SIM905
)
THINGS = tuple(
    """
    apples books boxes bricks buttons cards chairs coins cups eggs envelopes flags flowers hats jars keys lamps
    lemons marbles nails oranges pens pencils plates ribbons rings seeds shells shirts spoons stamps stickers
    stones tickets tiles toys trays
    """.split()  # noqa: SIM905
)
SITES = ("city", "coast", "farm", "harbour", "lake", "market", "museum", "school", "station")
PLACES = tuple(f"the {site}" for site in SITES)
COLUMNS = ("ones", "tens", "hundreds", "thousands", "ten thousands")

Problem = Callable[[random.Random], str]


def shopping(rng: random.Random, style: int) -> str:
    name, (first, second) = rng.choice(NAMES), rng.sample(THINGS, 2)
    a, b, p, q = (rng.randint(2, 12) for _ in range(4))
    total = a * p + b * q
    paid = (total // 50 + 1) * 50
    if style == 0:
        return (
            f"{name} buys {a} {first} at {p} dollars each and {b} {second} at {q} dollars each, and pays with "
            f"{paid} dollars. How much change does {name} get?\n"
            f"Solution: The {first} cost {a} * {p} = {a * p} dollars. The {second} cost {b} * {q} = {b * q} dollars. "
            f"Together they cost {a * p} + {b * q} = {total} dollars. "
            f"The change is {paid} - {total} = {paid - total} dollars.\nAnswer: {paid - total}\n"
        )
    return (
        f"{name} sells {first} for {p} dollars and {second} for {q} dollars. On one day {name} sells {a} {first} "
        f"and {b} {second}. How much money does {name} take?\n"
        f"Solution: {name} sells {a} {first}, which brings {a} * {p} = {a * p} dollars. "
        f"{name} sells {b} {second}, which brings {b} * {q} = {b * q} dollars. "
        f"In all, {name} takes {a * p} + {b * q} = {total} dollars.\nAnswer: {total}\n"
    )


def column_addition(rng: random.Random, style: int) -> str:
    width = 3 + style
    a, b = (rng.randint(10 ** (width - 1), 10**width - 1) for _ in range(2))
    lines, carry = [f"Add {a} and {b}.\nSolution: We add {a} + {b} column by column, from the right.\n"], 0
    for place in range(width):
        x, y = a // 10**place % 10, b // 10**place % 10
        total = x + y + carry
        lines.append(
            f"In the {COLUMNS[place]} column: {x} + {y} + {carry} = {total}, "
            f"so we write {total % 10} and carry {total // 10}.\n"
        )
        carry = total // 10
    lines.append(f"The last carry is {carry}. So {a} + {b} = {a + b}.\nAnswer: {a + b}\n")
    return "".join(lines)


def column_subtraction(rng: random.Random, style: int) -> str:
    width = 3 + style
    b, a = sorted(rng.randint(10 ** (width - 1), 10**width - 1) for _ in range(2))
    lines = [f"Subtract {b} from {a}.\nSolution: We subtract {a} - {b} column by column, from the right.\n"]
    borrow = 0
    for place in range(width):
        x, y = a // 10**place % 10, b // 10**place % 10
        lent = 10 if x - borrow < y else 0
        rest = x + lent - borrow - y
        verb = "we borrow" if lent else "no borrow"
        lines.append(f"In the {COLUMNS[place]} column, {verb}: {x} + {lent} - {borrow} - {y} = {rest}.\n")
        borrow = lent // 10
    lines.append(f"Reading the digits, {a} - {b} = {a - b}.\nAnswer: {a - b}\n")
    return "".join(lines)


def multiplication(rng: random.Random, style: int) -> str:
    a, m = rng.randint(12, 99) if style == 0 else rng.randint(102, 999), rng.randint(2, 9)
    parts = [a // 10**p % 10 * 10**p for p in range(len(str(a)) - 1, -1, -1)]
    parts = [part for part in parts if part]
    lines = [
        f"Multiply {a} by {m}.\nSolution: We split {a} into parts: {' + '.join(map(str, parts))} = {a}. "
        f"We multiply each part by {m}.\n"
    ]
    total = 0
    for part in parts:
        lines.append(
            f"{part} times {m} is {part} * {m} = {part * m}, "
            f"and the sum so far is {total} + {part * m} = {total + part * m}.\n"
        )
        total += part * m
    lines.append(f"So {a} * {m} = {total}.\nAnswer: {total}\n")
    return "".join(lines)


def equation(rng: random.Random, style: int) -> str:
    m, x, c = rng.randint(2, 12), rng.randint(2, 12), rng.randint(1, 40)
    letter = "xn"[style]
    return (
        f"Solve the equation {m} {letter} + {c} = {m * x + c}, and check the result.\n"
        f"Solution: Subtract {c} from both sides. Since {m * x + c} - {c} = {m * x}, "
        f"this leaves {m} {letter} = {m * x}. "
        f"Divide both sides by {m}. Since {m * x} / {m} = {x}, we find {letter} = {x}. "
        f"Check: {m} * {x} + {c} = {m * x} + {c} = {m * x + c}, as it should be.\nAnswer: {x}\n"
    )


def journey(rng: random.Random, style: int) -> str:
    name, (here, there) = rng.choice(NAMES), rng.sample(PLACES, 2)
    speed, hours, other, more = rng.randint(2, 12) * 5, rng.randint(2, 9), rng.randint(2, 12) * 5, rng.randint(2, 9)
    verb = ("drives", "rides")[style]
    far = speed * hours + other * more
    return (
        f"{name} {verb} for {hours} hours at {speed} miles per hour to {here}, and then for {more} hours at {other} "
        f"miles per hour to {there}. How far does {name} travel, and for how long?\n"
        f"Solution: The way to {here} is {hours} * {speed} = {hours * speed} miles. "
        f"The way to {there} is {more} * {other} = {more * other} miles. "
        f"In all, {name} {verb} {hours * speed} + {more * other} = {far} miles. "
        f"The time is {hours} + {more} = {hours + more} hours.\nAnswer: {far} miles in {hours + more} hours\n"
    )


def average(rng: random.Random, style: int) -> str:
    n = 4 + style
    values = [rng.randint(1, 60) for _ in range(n - 1)]
    values.append(n - sum(values) % n + n * rng.randint(0, 8))
    listed = ", ".join(map(str, values))
    lines = [f"Find the average of the numbers {listed}.\nSolution: There are {n} numbers. We add them one by one.\n"]
    total = values[0]
    for value in values[1:]:
        lines.append(f"Next comes {value}, and {total} + {value} = {total + value}.\n")
        total += value
    lines.append(f"The sum is {total}, so the average is {total} / {n} = {total // n}.\nAnswer: {total // n}\n")
    return "".join(lines)


def rectangle(rng: random.Random, style: int) -> str:
    name, long, wide = rng.choice(NAMES), rng.randint(5, 30), rng.randint(2, 12)
    field = ("garden", "room")[style]
    around = 2 * (long + wide)
    return (
        f"The {field} of {name} is a rectangle, {long} meters long and {wide} meters wide. "
        f"What are its area and its perimeter?\n"
        f"Solution: The area is the length times the width: {long} * {wide} = {long * wide} square meters. "
        f"The length and the width together are {long} + {wide} = {long + wide} meters. "
        f"The perimeter is twice that: 2 * {long + wide} = {around} meters.\n"
        f"Answer: area {long * wide}, perimeter {around}\n"
    )


def euclid(rng: random.Random, style: int) -> str:
    common = rng.randint(2, 12)
    b, a = sorted(common * n for n in rng.sample(range(3, 30 + 20 * style), 2))
    lines = [
        f"Find the greatest common divisor of {a} and {b}.\n"
        f"Solution: We divide with remainder until the remainder is 0.\n"
    ]
    x, y = a, b
    while y:
        lines.append(f"Divide {x} by {y}: {x // y} * {y} + {x % y} = {x}, so the remainder is {x % y}.\n")
        x, y = y, x % y
    lines.append(f"The last divisor is {x}, so the greatest common divisor of {a} and {b} is {x}.\nAnswer: {x}\n")
    return "".join(lines)


def sharing(rng: random.Random, style: int) -> str:
    name, things = rng.choice(NAMES), rng.choice(THINGS)
    boxes, each, people = rng.randint(2, 12), rng.randint(3, 12), rng.randint(3, 9)
    group = ("friends", "children")[style]
    total = boxes * each
    return (
        f"{name} has {boxes} boxes with {each} {things} in each box, and shares the {things} equally among {people} "
        f"{group}. How many {things} does each of the {people} {group} get, and how many are left?\n"
        f"Solution: There are {boxes} * {each} = {total} {things} in the boxes. "
        f"Each of the {people} {group} gets {total // people} {things}, "
        f"because {total // people} * {people} = {total // people * people}. "
        f"So {total} - {total // people * people} = {total % people} {things} are left for {name}.\n"
        f"Answer: {total // people} each, {total % people} left\n"
    )


def growth(rng: random.Random, style: int) -> str:
    name, things = rng.choice(NAMES), rng.choice(THINGS)
    start, more, days = rng.randint(1, 60), rng.randint(2, 15), 4 + style
    lines = [
        f"{name} has {start} {things} and gets {more} more {things} every day. "
        f"How many {things} does {name} have after {days} days?\nSolution: We count day by day.\n"
    ]
    have = start
    for day in range(1, days + 1):
        lines.append(f"After day {day}, {name} has {have} + {more} = {have + more} {things}.\n")
        have += more
    lines.append(f"Check: {start} + {days} * {more} = {start} + {days * more} = {have}.\nAnswer: {have}\n")
    return "".join(lines)


KINDS: dict[str, Callable[[random.Random, int], str]] = {
    "buying and selling": shopping,
    "addition in columns": column_addition,
    "subtraction in columns": column_subtraction,
    "multiplication by parts": multiplication,
    "linear equations": equation,
    "journeys": journey,
    "averages": average,
    "rectangles": rectangle,
    "greatest common divisors": euclid,
    "sharing with remainder": sharing,
    "growing collections": growth,
}


def worksheet(rng: random.Random, problems: int) -> str:
    """One document: a heading, then `problems` numbered problems of one kind and wording."""
    title = rng.choice(list(KINDS))
    kind, style = KINDS[title], rng.randrange(2)
    body = "\n".join(f"Problem {n}: {kind(rng, style)}" for n in range(1, problems + 1))
    return f"Worksheet on {title}\n\n{body}"
