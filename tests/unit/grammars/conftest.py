"""The grammars of the tiny target, for which there is time."""

from typing import Any

import pytest
from tokenizers import Tokenizer

from tests.unit.grammars.fitting import AT_ONCE, END, TARGET, VOCAB
from verify_service.grammars import grammars as module
from verify_service.grammars.grammars import Grammars


@pytest.fixture(scope="module")
def grammars() -> Grammars:
    return Grammars(TARGET, VOCAB, [END])


@pytest.fixture(scope="module")
def tokenizer() -> Any:
    return Tokenizer.from_file(str(TARGET / "tokenizer.json"))


@pytest.fixture(autouse=True)
def patient(monkeypatch: pytest.MonkeyPatch) -> None:
    """On any machine, and on a busy one too."""
    monkeypatch.setattr(module, "WALL_S", 50.0)
    monkeypatch.setattr(module, "AT_ONCE", AT_ONCE)
