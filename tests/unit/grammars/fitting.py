"""Whether a text fits a form at the tiny target."""

from __future__ import annotations

from concurrent.futures import Future
from pathlib import Path
from typing import Any

from dspark.types import Constraint, Refusal, RefusalReason
from verify_service.batch_runner import Grammar
from verify_service.grammars.grammars import Grammars

TARGET = Path(__file__).parents[2] / "data" / "pair" / "target"
VOCAB, END = 512, 0
AT_ONCE = 4


def of(future: Future[Grammar | Refusal]) -> Grammar:
    made = future.result(timeout=60)
    assert not isinstance(made, Refusal), made
    return made


def refused(future: Future[Grammar | Refusal], why: RefusalReason = RefusalReason.INVALID) -> str:
    """The sentence."""
    made = future.result(timeout=60)
    assert isinstance(made, Refusal)
    assert made.reason is why, made
    return made.message


def fits(grammars: Grammars, tokenizer: Any, constraint: Constraint, text: str) -> bool:
    matcher = of(grammars.compile(constraint, ""))()
    try:
        matcher.accept(tokenizer.encode(text).ids)
    except ValueError:
        return False
    return bool(matcher.masks(())[0, 0] >> END & 1)
