"""Conversations as the target reads them: by its chat template, or as plain text where it has none.

Training sees exactly the tokens that the target saw and wrote: the prompt is rendered once, and the
answer keeps the ids that the target emitted. Answers of earlier turns are part of the last prompt;
they are found in the rendered text by the literal header and end of an assistant turn and mapped to
tokens by character offsets.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from dspark.errors import ConfigError
from dspark.model.location import locate

# Header and end of an assistant's turn in known templates; the end belongs to the answer.
_SPANS = (("<|im_start|>assistant\n", "<|im_end|>\n"), ("<|turn>model\n", "<turn|>\n"))
# An empty thought, which opens a turn of gemma4: written by the target, but not supervised.
_UNSUPERVISED = "<|channel>thought\n<channel|>"


class Chat:
    """A target's tokenizer and template; either may be missing."""

    def __init__(self, target: str | Path) -> None:
        folder = locate(target)
        self.tokenizer: Any = None
        if any(
            (folder / name).is_file()
            for name in ("tokenizer.json", "tokenizer.model", "tokenizer_config.json")
        ):
            from transformers import AutoTokenizer

            self.tokenizer = AutoTokenizer.from_pretrained(
                folder, local_files_only=True, trust_remote_code=False
            )
        self.has_template = bool(getattr(self.tokenizer, "chat_template", None))

    def prompt_ids(self, turns: Sequence[Mapping[str, Any]]) -> list[int]:
        """Token ids of the prompt, for a conversation that ends with a user's turn.

        Without a template a single turn is plain text to continue, and a second is a ConfigError.
        """
        last = turns[-1]
        if not self.has_template and len(turns) > 1:
            raise ConfigError(
                "conversations: the target has no chat template; rows of one turn only"
            )
        if last.get("token_ids") is not None and len(turns) == 1:
            return [int(token) for token in last["token_ids"]]
        if self.tokenizer is None:
            raise ConfigError(
                "conversations: the target has no tokenizer; give prompts as token_ids"
            )
        text = self._rendered(turns) if self.has_template else str(last["content"])
        # A template writes its own special tokens.
        ids: list[int] = self.tokenizer.encode(text, add_special_tokens=not self.has_template)
        return ids

    def learned(self, turns: Sequence[Mapping[str, Any]]) -> tuple[list[int], list[bool]]:
        """A regenerated conversation -> (ids, which of them the target wrote), [T] each.

        The answer's ids are `token_ids` of the last turn; without them its text is encoded.
        """
        *history, answer = turns
        if answer["role"] != "assistant" or not history:
            raise ConfigError("conversations: the last turn is not an answer to others")
        ids = self.prompt_ids(history)
        marks = self._earlier_answers(history, ids)
        said = answer.get("token_ids")
        if said is None:
            if self.tokenizer is None:
                raise ConfigError(
                    "conversations: the target has no tokenizer; answers need token_ids"
                )
            end = turn_end(self._rendered(history)) if self.has_template else ""
            said = self.tokenizer.encode(answer["content"] + end, add_special_tokens=False)
        marks += [True] * len(said)
        return [*ids, *said], marks

    def _rendered(self, turns: Sequence[Mapping[str, Any]]) -> str:
        plain = [{"role": turn["role"], "content": turn["content"]} for turn in turns]
        # Thinking is switched off where a template has the switch, as in the published recipe.
        text: str = self.tokenizer.apply_chat_template(
            plain, tokenize=False, add_generation_prompt=True, enable_thinking=False
        )
        return text

    def _earlier_answers(
        self, history: Sequence[Mapping[str, Any]], ids: Sequence[int]
    ) -> list[bool]:
        if len(history) < 2:
            return [False] * len(ids)
        text = self._rendered(history)
        spans = answer_spans(text)
        encoded = self.tokenizer(text, add_special_tokens=False, return_offsets_mapping=True)
        return [
            any(start >= a and end <= b and end > start for a, b in spans)
            for start, end in encoded["offset_mapping"]
        ]


def turn_end(text: str) -> str:
    """The text that ends an assistant's turn in a rendered conversation; empty if unknown."""
    return next((end for header, end in _SPANS if header in text), "")


def answer_spans(text: str) -> list[tuple[int, int]]:
    """Character ranges of all finished assistant turns of a rendered conversation, end marks
    included."""
    for header, end in _SPANS:
        if header in text:
            said = f"{re.escape(header)}(?:{re.escape(_UNSUPERVISED)})?(.*?{re.escape(end)})"
            return [found.span(1) for found in re.finditer(said, text, re.DOTALL)]
    return []
