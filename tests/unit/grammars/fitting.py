"""Whether a text fits a form at the tiny target, and compilers for smaller ones."""

import json
from concurrent.futures import Future
from pathlib import Path
from typing import Any

import xgrammar

from dspark.types import Constraint, Refusal, RefusalReason
from verify_service.batch_runner import Grammar
from verify_service.grammars.grammars import Grammars

TARGET = Path(__file__).parents[2] / "data" / "pair" / "target"
VOCAB, END = 512, 0
AT_ONCE = 4


def compiler(words: list[bytes] | list[str], size: int = 0) -> xgrammar.GrammarCompiler:
    """Of a vocabulary of these words, or of more tokens; the last one ends an answer."""
    size = size or len(words)
    info = xgrammar.TokenizerInfo(words, vocab_size=size, stop_token_ids=[size - 1])
    return xgrammar.GrammarCompiler(info, max_threads=1, cache_enabled=False)


def in_tag(**form: Any) -> str:
    """A structural tag of this form alone."""
    return json.dumps({"type": "structural_tag", "format": form})


def tagged(expression: str) -> str:
    return in_tag(type="sequence", elements=[{"type": "regex", "pattern": expression}])


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
