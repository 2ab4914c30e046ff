"""What a target is asked with, and which tokens of a conversation it wrote."""

from pathlib import Path

import pytest
from tokenizers import Tokenizer, models, pre_tokenizers
from transformers import PreTrainedTokenizerFast

from dspark.errors import ConfigError
from dspark.training.chat import Chat, answer_spans
from dspark.training.disk import write_rows
from dspark.training.samples import Samples, encode_rows

QWEN = (
    "{% for m in messages %}{{ '<|im_start|>' + m['role'] + '\n' + m['content'] + '<|im_end|>\n' "
    "}}{% endfor %}"
    "{% if add_generation_prompt %}{{ '<|im_start|>assistant\n' }}{% endif %}"
)
USER = {"role": "user", "content": "hi there"}
ANSWER = {"role": "assistant", "content": "well", "token_ids": [5, 6]}


def _target(folder: Path, template: str | None) -> Path:
    """A folder with a tokenizer of single characters."""
    vocabulary = {character: n for n, character in enumerate("\n abcdefghijklmnopqrstuvwxyz<|_>")}
    backend = Tokenizer(models.WordLevel({"?": len(vocabulary), **vocabulary}, unk_token="?"))
    backend.pre_tokenizer = pre_tokenizers.Split("", "isolated")
    tokenizer = PreTrainedTokenizerFast(tokenizer_object=backend, unk_token="?")
    if template:
        tokenizer.chat_template = template
    tokenizer.save_pretrained(folder)
    return folder


def test_finished_answers_are_found_and_the_open_one_is_not() -> None:
    text = (
        "<|im_start|>user\nq<|im_end|>\n<|im_start|>assistant\na "
        "b<|im_end|>\n<|im_start|>assistant\n"
    )
    assert [text[a:b] for a, b in answer_spans(text)] == ["a b<|im_end|>\n"]
    gemma = (
        "<|turn>user\nq<turn|>\n<|turn>model\n<|channel>thought\n"
        "<channel|>yes<turn|>\n<|turn>model\n"
    )
    assert [gemma[a:b] for a, b in answer_spans(gemma)] == ["yes<turn|>\n"]
    assert answer_spans("nothing of the kind") == []


def test_without_a_template_the_answer_follows_the_text(tmp_path: Path) -> None:
    chat = Chat(_target(tmp_path, None))
    ids, marks = chat.learned([USER, ANSWER])
    assert ids == [*chat.prompt_ids([USER]), 5, 6]
    assert marks == [False] * 8 + [True] * 2
    with pytest.raises(ConfigError, match="no chat template"):
        chat.prompt_ids([USER, ANSWER, USER])


def test_with_a_template_every_answer_is_learned_and_nothing_else(tmp_path: Path) -> None:
    chat = Chat(_target(tmp_path, QWEN))
    ids, marks = chat.learned(
        [USER, ANSWER, USER, {"role": "assistant", "content": "end", "token_ids": [7]}]
    )
    text = chat.tokenizer.decode([i for i, mark in zip(ids, marks, strict=True) if mark])
    assert text.replace(" ", "") == "well<|im_end|>\n" + chat.tokenizer.decode([7])
    assert ids[-1] == 7
    assert marks[-1]


@pytest.mark.parametrize(
    ("turns", "said"),
    [
        ([{"from": "human", "value": "hi"}, {"from": "gpt", "value": "well"}], "turns have a role"),
        ([USER, {"role": "assistant", "token_ids": [5]}], "turns have a role"),
        ([USER, ANSWER | {"token_ids": [5, -1]}], "turns have .* ids for token_ids"),
        ([USER, ANSWER | {"token_ids": "5"}], "turns have .* ids for token_ids"),
        (["hi", "well"], "turns have a role"),
        ([USER, ANSWER | {"token_ids": 0}], "turns have .* ids for token_ids"),
        ([USER, ANSWER | {"token_ids": [1 << 70]}], "turns have .* ids for token_ids"),
        ([USER], "the last turn is not an answer"),
        ([ANSWER], "the last turn is not an answer"),
    ],
)
def test_a_row_that_cannot_be_learned_is_named(
    tmp_path: Path, turns: list[object], said: str
) -> None:
    rows, chat = tmp_path / "rows.jsonl", Chat(_target(tmp_path, None))
    good = {"id": "good", "conversations": [USER, ANSWER]}
    write_rows(rows, [good, {"id": "b", "conversations": turns}])
    with pytest.raises(ConfigError, match=f"rows.jsonl: row 'b'.*{said}"):
        encode_rows(rows, tmp_path / "samples.safetensors", chat)


def test_rows_are_cut_left_out_and_counted(tmp_path: Path) -> None:
    asked = {"role": "user", "content": "", "token_ids": [3, 4]}

    def row(said: list[int], **more: str) -> dict[str, object]:
        return {"conversations": [asked, {**ANSWER, "token_ids": said}], **more}

    rows, path = tmp_path / "rows.jsonl", tmp_path / "samples.safetensors"
    write_rows(rows, [row([5, 6, 7, 8]), row([9, 9, 9]), row([5]), row([5, 6, 7], status="error")])
    counts = encode_rows(rows, path, Chat(tmp_path), max_length=5, min_supervised=3)
    assert counts == {
        "rows": 4, "samples": 2, "tokens": 10, "supervised": 6, "cut": 1, "short": 1, "failed": 1,
    }  # fmt: skip
    samples = Samples(path)
    assert [sample.ids.tolist() for sample in samples] == [[3, 4, 5, 6, 7], [3, 4, 9, 9, 9]]
    assert samples[0].supervised.tolist() == [False, False, True, True, True]
    samples.check_vocabulary(10)
    with pytest.raises(ConfigError, match="holds token 9, the target knows 9"):
        samples.check_vocabulary(9)


def test_a_target_without_a_tokenizer_takes_ids(tmp_path: Path) -> None:
    chat = Chat(tmp_path)
    asked = [{"role": "user", "content": "", "token_ids": [3, 4]}]
    assert chat.prompt_ids(asked) == [3, 4]
    assert chat.learned([*asked, ANSWER]) == ([3, 4, 5, 6], [False, False, True, True])
    for without in (USER, USER | {"token_ids": None}):
        with pytest.raises(ConfigError, match="no tokenizer"):
            chat.prompt_ids([without])
