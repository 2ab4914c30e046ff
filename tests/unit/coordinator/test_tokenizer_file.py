"""A tokenizer's file says more than its vocabulary: text becomes the ids that the library makes of
it."""

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from transformers import AutoTokenizer

from coordinator.reception.tokenizer import Tokenizer

TARGET = Path(__file__).parents[2] / "data" / "pair" / "target"
TEXT = "Tell me a story about 12 green frogs and the fox in the old house by the river, please. "
END = "<|endoftext|>"
Change = Callable[[dict[str, Any], dict[str, Any]], object]

TRUNCATION = {"direction": "Right", "max_length": 8, "strategy": "LongestFirst", "stride": 0}
PADDING = {
    "strategy": {"Fixed": 64},
    "direction": "Right",
    "pad_to_multiple_of": None,
    "pad_id": 1,
    "pad_type_id": 0,
    "pad_token": "<|pad|>",
}
BEGINS = {
    "type": "TemplateProcessing",
    "single": [
        {"SpecialToken": {"id": END, "type_id": 0}},
        {"Sequence": {"id": "A", "type_id": 0}},
    ],
    "pair": [{"Sequence": {"id": "A", "type_id": 0}}, {"Sequence": {"id": "B", "type_id": 1}}],
    "special_tokens": {END: {"id": END, "ids": [0], "tokens": [END]}},
}


def _plain(raw: dict[str, Any]) -> None:
    for entry in raw["added_tokens"]:
        entry["special"] = False


def made(folder: Path, change: Change) -> Path:
    """A copy of the tiny target's tokenizer with a change of its file and its configuration."""
    shutil.copytree(TARGET, folder, ignore=shutil.ignore_patterns("*.safetensors", "*.jinja"))
    raw, config = (
        json.loads((folder / name).read_bytes())
        for name in ("tokenizer.json", "tokenizer_config.json")
    )
    change(raw, config)
    (folder / "tokenizer.json").write_text(json.dumps(raw))
    (folder / "tokenizer_config.json").write_text(json.dumps(config))
    return folder


CHANGES: dict[str, Change] = {
    "truncation": lambda raw, _: raw.update(truncation=TRUNCATION),
    "padding": lambda raw, _: raw.update(padding=PADDING),
    "both": lambda raw, _: raw.update(truncation=TRUNCATION, padding=PADDING),
    "a post-processor": lambda raw, _: raw.update(post_processor=BEGINS),
    "added tokens that the configuration alone calls special": lambda raw, _: _plain(raw),
    "a configuration that names no tokens": lambda _, config: [
        config.pop(f"{name}_token") for name in ("bos", "eos", "pad", "mask")
    ],
}


@pytest.mark.parametrize("change", CHANGES)
def test_text_and_ids_are_the_library_s(change: str, tmp_path: Path) -> None:
    folder = made(tmp_path / "made", CHANGES[change])
    tokenizer, library = Tokenizer.load(folder), AutoTokenizer.from_pretrained(folder)
    ids = [*library.encode("one"), 0, *library.encode("two")]
    for flag in (False, True):
        for text in (TEXT, 8 * TEXT, "a", f"one{END}two"):
            told = library.encode(text, add_special_tokens=flag)
            assert list(tokenizer.encode(text, add_special=flag)) == told
        told = library.decode(ids, skip_special_tokens=flag)
        assert tokenizer.decode(ids, skip_special=flag) == told


def test_a_dropout_of_merges_ends_with_training(tmp_path: Path) -> None:
    """The library would make other ids of the same text every time."""
    dropped = Tokenizer.load(
        made(tmp_path / "made", lambda raw, _: raw["model"].update(dropout=0.5))
    )
    whole = Tokenizer.load(TARGET)
    assert [dropped.encode(TEXT) for _ in range(3)] == 3 * [whole.encode(TEXT)]


def test_flags_of_an_added_token_stay_when_it_becomes_special(tmp_path: Path) -> None:
    def change(raw: dict[str, Any], config: dict[str, Any]) -> None:
        raw["added_tokens"][0] |= {"special": False, "lstrip": True}

    tokenizer = Tokenizer.load(made(tmp_path / "made", change))
    assert tokenizer.encode(f"one   {END}") == (*tokenizer.encode("one"), 0)
    assert tokenizer.decode([0], skip_special=True) == ""
