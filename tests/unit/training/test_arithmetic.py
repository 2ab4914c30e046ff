"""Worked arithmetic must be right: a target that learns wrong sums is harder to trust, and to draft for."""

import random
import re

import pytest

from training.arithmetic import KINDS, worksheet

# Left side of digits and operators, right side a plain number; "/" only where the division is exact.
STATED = re.compile(r"((?:\d+ [-+*/] )+\d+) = ((?:\d+ [-+*/] )*\d+)(?! [-+*/])")


def value(expression: str) -> int:
    """Products and quotients first, left to right, as written."""
    terms, sign = 0, 1
    for part in re.split(r" ([-+]) ", expression):
        if part in "+-":
            sign = 1 if part == "+" else -1
            continue
        first, *rest = re.split(r" ([*/]) ", part)
        product = int(first)
        for operator, number in zip(rest[::2], rest[1::2], strict=True):
            if operator == "/":
                assert product % int(number) == 0
                product //= int(number)
            else:
                product *= int(number)
        terms += sign * product
    return terms


@pytest.mark.parametrize("title", KINDS)
@pytest.mark.parametrize("style", [0, 1])
def test_every_stated_result_is_right(title: str, style: int) -> None:
    rng = random.Random(f"{title}/{style}")
    for _ in range(100):
        text = KINDS[title](rng, style)
        found = STATED.findall(text)
        assert found
        for left, right in found:
            assert value(left) == value(right), f"{left} = {right}"


@pytest.mark.parametrize("title", KINDS)
def test_the_answer_is_the_last_result_or_named_in_the_solution(title: str) -> None:
    rng = random.Random(title)
    for _ in range(100):
        solution, answer = KINDS[title](rng, 0).split("\nAnswer: ")
        for number in re.findall(r"\d+", answer):
            assert re.search(rf"\b{number}\b", solution.split("Solution:")[1])


def test_a_worksheet_numbers_its_problems_and_is_reproducible() -> None:
    text = worksheet(random.Random(3), 6)
    assert re.findall(r"^Problem (\d):", text, flags=re.MULTILINE) == list("123456")
    assert text == worksheet(random.Random(3), 6)
