"""Chat templates are found where checkpoints keep them, and nothing in them reaches outside the
sandbox. `test_template_families` holds what they render."""

import contextlib
import json
import shutil
from pathlib import Path
from typing import Any

import pytest
from tokenizers import Tokenizer as Backend
from tokenizers.processors import TemplateProcessing
from transformers import AutoTokenizer

from coordinator.http.template import ChatTemplate, find_template, question_renderer
from coordinator.reception.tokenizer import find_file, find_tokenizer
from dspark.errors import ConfigError, InvalidRequest
from dspark.token_bytes import CONFIG, special_tokens

TARGET = Path(__file__).parents[2] / "data" / "pair" / "target"
USER = {"role": "user", "content": "Grüße <b> & 'quotes'\n"}


def test_it_knows_its_arguments_and_refuses_others() -> None:
    template = ChatTemplate("{{ bos_token }}{{ messages }}{{ enable_thinking }}")
    assert "enable_thinking" in template.arguments
    with pytest.raises(
        InvalidRequest, match=r"chat_template_kwargs\.thinking: .* it has .*enable_thinking"
    ):
        template.render([USER], {"thinking": False}, add_generation_prompt=True)
    for ours in ("messages", "bos_token", "add_generation_prompt"):
        with pytest.raises(InvalidRequest, match=ours):
            template.render([USER], {ours: "x"}, add_generation_prompt=True)


@pytest.mark.parametrize(
    "source",
    [
        "{{ messages.__class__.__mro__ }}",
        "{{ ''.__class__ }}",
        "{{ raise_exception.__globals__ }}",
        "{% for i in range(10 ** 9) %}x{% endfor %}",
        "{{ messages.append(1) }}",
        "{{ cycler.__init__.__globals__ }}",
        "{% include '/etc/passwd' %}",
        "{{ '{0.__class__}'.format(messages) }}",
        "{{ 1 / 0 }}",
        "{{ messages | dictsort }}",
        "{{ messages[7].content }}",
    ],
)
def test_nothing_outside_is_reached_and_no_failure_escapes(source: str) -> None:
    said = []
    with contextlib.suppress(InvalidRequest):
        said.append(ChatTemplate(source).render([USER], {}, add_generation_prompt=True))
    assert said in ([], [""])


@pytest.mark.parametrize(
    ("name", "content", "named"),
    [
        ("chat_template.jinja", b"{% for %}", "chat template is not valid"),
        ("chat_template.jinja", b"{{ " + b"(" * 5000 + b"1" + b")" * 5000 + b" }}", "is not valid"),
        ("chat_template.jinja", b"\xff", r"chat_template\.jinja cannot be read"),
        ("tokenizer_config.json", b"[" * 100_000, r"tokenizer_config\.json cannot be read"),
    ],
    ids=["a loop over nothing", "too deep", "another encoding", "settings too deep"],
)
def test_what_is_no_template_is_refused_at_the_start(
    tmp_path: Path, name: str, content: bytes, named: str
) -> None:
    (tmp_path / name).write_bytes(content)
    with pytest.raises(ConfigError, match=named):
        find_template(str(tmp_path), None)
    if name == CONFIG:
        with pytest.raises(ConfigError, match=named):
            special_tokens(tmp_path)


def test_a_name_too_long_for_a_file_is_one_of_no_target() -> None:
    with pytest.raises(ConfigError, match="target: aaa"):
        find_file("a" * 300, "tokenizer.json", None)


SOURCE = "{{ bos_token }}{{ messages[0].content }}"
NAMED = [{"name": "tool_use", "template": "x"}, {"name": "default", "template": SOURCE}]


@pytest.mark.parametrize(
    ("file", "setting"),
    [(SOURCE, "another, which the file overrides"), ("", SOURCE), ("", NAMED)],
    ids=["file", "text", "list"],
)
def test_it_is_found_wherever_checkpoints_keep_it(
    tmp_path: Path, file: str, setting: object
) -> None:
    config = {"bos_token": {"content": "<s>", "lstrip": False}, "chat_template": setting}
    if file:
        (tmp_path / "chat_template.jinja").write_text(file, encoding="utf-8")
    (tmp_path / "tokenizer_config.json").write_text(json.dumps(config), encoding="utf-8")
    found = find_template(str(tmp_path), None)
    turns = [{"role": "user", "content": "hi"}]
    assert found.render(turns, {}, add_generation_prompt=True) == "<s>hi"


@pytest.mark.parametrize("apart", [False, True])
def test_conversations_with_tools_have_a_template_of_their_own_where_the_target_has_one(
    tmp_path: Path, apart: bool
) -> None:
    """As transformers takes it: by its name in the list, or from a file."""
    plain, tools = "{{ messages[0].content }}", "{{ tools[0].function.name }}"
    given = [{"name": "default", "template": plain}, {"name": "tool_use", "template": tools}]
    (tmp_path / "tokenizer_config.json").write_text(
        json.dumps({"chat_template": plain if apart else given}), encoding="utf-8"
    )
    if apart:
        (tmp_path / "additional_chat_templates").mkdir()
        (tmp_path / "additional_chat_templates" / "tool_use.jinja").write_text(tools)
    found = find_template(str(tmp_path), None)
    assert not found.shows_tools
    assert found.for_tools.shows_tools
    assert not found.for_tools.for_tools._shows_calls


@pytest.mark.parametrize(
    ("settings", "named"),
    [({"tokenizer_class": "TokenizersBackend"}, ["de"]), ({"added_tokens_decoder": {}}, [])],
)
def test_special_tokens_may_be_named_in_a_file_of_their_own(
    tmp_path: Path, settings: dict[str, Any], named: list[str]
) -> None:
    shutil.copy(TARGET / "tokenizer.json", tmp_path)
    (tmp_path / CONFIG).write_text(json.dumps(settings))
    (tmp_path / "special_tokens_map.json").write_text(json.dumps({"bos_token": {"content": "de"}}))
    (tmp_path / "chat_template.jinja").write_text("{{ bos_token }}{{ messages[0].content }}")
    template, tokenizer = find_template(str(tmp_path), None), find_tokenizer(str(tmp_path), None)
    library, turns = AutoTokenizer.from_pretrained(tmp_path), [{"role": "user", "content": "hi"}]
    said = library.apply_chat_template(turns, tokenize=False)
    assert template.render(turns, {}, add_generation_prompt=False) == said == "".join(named) + "hi"
    assert special_tokens(tmp_path) == named
    ids = tokenizer.encode("def", add_special=False)
    assert ids == tuple(library.encode("def", add_special_tokens=False))
    assert tokenizer.decode(ids, skip_special=True) == library.decode(ids, skip_special_tokens=True)


@pytest.mark.parametrize("adds", [True, False])
def test_a_rendered_question_begins_once_whoever_puts_the_first_token(
    tmp_path: Path, adds: bool
) -> None:
    """It travels as plain text, before which a server may put that token itself."""
    backend = Backend.from_file(str(TARGET / "tokenizer.json"))
    if adds:
        backend.post_processor = TemplateProcessing(
            single="de $A", special_tokens=[("de", backend.token_to_id("de"))]
        )
    backend.save(str(tmp_path / "tokenizer.json"))
    (tmp_path / CONFIG).write_text(json.dumps({"bos_token": "de"}))
    (tmp_path / "chat_template.jinja").write_text("{{ bos_token }}{{ messages[0].content }}")
    render, tokenizer = question_renderer(str(tmp_path)), find_tokenizer(str(tmp_path), None)
    assert tokenizer.encode(render("hi")) == tokenizer.encode("dehi", add_special=False)


def test_without_one_there_is_none(tmp_path: Path) -> None:
    (tmp_path / "tokenizer_config.json").write_text("{}", encoding="utf-8")
    assert find_template(str(tmp_path), None) is None
    assert find_template(None, None) is None
