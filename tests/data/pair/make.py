"""Makes the tiny pair that tests serve: `python -m tests.data.pair.make --work DIR`, a few minutes
on one core.

A target of the Qwen3 shape learns a little of the interpreter's own library by heart, and a DSpark
drafter learns from what the target then writes, with the tools that users train with; so does an
assistant, a language model that drafts. About half of the drafts are accepted: enough for every
path of a round to be taken, by real models that can be wrong.
"""

from __future__ import annotations

import argparse
import dataclasses
import json
import random
import shutil
import sysconfig
from collections.abc import Iterator
from pathlib import Path

import torch
import torch.nn.functional as F
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers
from torch import Tensor
from transformers import PreTrainedTokenizerFast, Qwen3Config, Qwen3ForCausalLM

from dspark.training.calibrate import calibrate
from dspark.training.samples import Sample, write_samples
from dspark.training.settings import Settings
from dspark.training.trainer import train_drafter

HERE = Path(__file__).parent
MODULES = (
    "argparse",
    "bisect",
    "calendar",
    "csv",
    "dataclasses",
    "functools",
    "heapq",
    "statistics",
    "textwrap",
)
VOCABULARY, LENGTH, ROWS = 512, 128, 8
TARGET_STEPS, DRAFTER_STEPS = 800, 400
GIVEN, TEMPERATURES = 24, (0.0, 0.7, 1.0)  # of the rows that the target writes for the drafter
END, PAD, MASK = "<|endoftext|>", "<|pad|>", "<|mask|>"
TEMPLATE = """{#- The target goes on with a text and knows no turns: what was said stands as paragraphs, and an answer
    follows what it answers without a gap. -#}
{%- for message in messages -%}
    {%- if message.role not in ("system", "user", "assistant") -%}
        {{- raise_exception("the role " ~ message.role ~ " is none of system, user, assistant") -}}
    {%- endif -%}
    {%- if not loop.first and message.role != "assistant" -%}
        {{- "\\n\\n" -}}
    {%- endif -%}
    {{- message.content -}}
{%- endfor -%}
"""  # noqa: E501


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--work", type=Path, required=True, help="where states and logs live")
    work: Path = parser.parse_args().work
    torch.set_num_threads(1)
    torch.manual_seed(0)
    library = Path(sysconfig.get_path("stdlib"))
    work.mkdir(parents=True, exist_ok=True)
    text = "\n\n".join((library / f"{name}.py").read_text(encoding="utf-8") for name in MODULES)
    tokenizer = make_tokenizer(text)
    ids = torch.tensor(tokenizer.encode(text))
    target, drafter = HERE / "target", HERE / "drafter"
    model = make_target(ids)
    shutil.rmtree(target, ignore_errors=True)
    model.to(torch.bfloat16).save_pretrained(target)
    tokenizer.save_pretrained(target)
    (target / "chat_template.jinja").write_text(TEMPLATE, encoding="utf-8")
    write_samples(
        work / "samples.safetensors", written_by(Qwen3ForCausalLM.from_pretrained(target), ids)
    )
    told = settings(target, work)
    shutil.copytree(train_drafter(told), drafter, dirs_exist_ok=True)
    alone = dataclasses.replace(told, family="lm", width=48, layers=1, out=str(work / "assistant"))
    shutil.copytree(train_drafter(alone), HERE / "assistant", dirs_exist_ok=True)
    prompts = HERE / "prompts.jsonl"
    prompts.write_text("".join(rows_of_prompts(tokenizer, ids)), encoding="utf-8")
    report = calibrate(target, drafter, [prompts], new_tokens=64)
    (work / "calibration.json").write_text(json.dumps(report), encoding="utf-8")


def make_tokenizer(text: str) -> PreTrainedTokenizerFast:
    """Byte-level BPE."""
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    tokenizer.train_from_iterator(
        [text],
        trainers.BpeTrainer(
            vocab_size=VOCABULARY,
            special_tokens=[END, PAD, MASK],
            initial_alphabet=alphabet,
            show_progress=False,
        ),
    )
    return PreTrainedTokenizerFast(
        tokenizer_object=tokenizer,
        bos_token=END,
        eos_token=END,
        pad_token=PAD,
        mask_token=MASK,
        model_max_length=4096,
    )


def make_target(ids: Tensor) -> Qwen3ForCausalLM:
    """Trained on rows of ids [all]: 380,000 parameters."""
    model = Qwen3ForCausalLM(
        Qwen3Config(
            vocab_size=VOCABULARY,
            hidden_size=96,
            num_hidden_layers=3,
            num_attention_heads=4,
            num_key_value_heads=2,
            head_dim=32,
            intermediate_size=256,
            max_position_embeddings=4096,
            rope_parameters={"rope_type": "default", "rope_theta": 10000.0},
            tie_word_embeddings=True,
            bos_token_id=0,
            eos_token_id=0,
            pad_token_id=1,
        )
    )
    optimizer = torch.optim.AdamW(model.parameters(), lr=6e-3, betas=(0.9, 0.95), weight_decay=0.01)
    schedule = torch.optim.lr_scheduler.OneCycleLR(
        optimizer, 6e-3, total_steps=TARGET_STEPS, pct_start=0.05
    )
    draw = torch.Generator().manual_seed(1)
    for step in range(TARGET_STEPS):
        rows = rows_at(ids, torch.randint(0, len(ids) - LENGTH, (ROWS,), generator=draw), LENGTH)
        logits = model(rows, use_cache=False).logits
        loss = F.cross_entropy(logits[:, :-1].flatten(0, 1), rows[:, 1:].flatten())
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        schedule.step()
        optimizer.zero_grad()
        if step % 50 == 0:
            print(f"target: step {step}, loss {loss.item():.3f}", flush=True)
    return model.eval().requires_grad_(False)


def written_by(model: Qwen3ForCausalLM, ids: Tensor) -> Iterator[Sample]:
    """What the target writes after bits of the text, at several temperatures."""
    for number in range(6):
        torch.manual_seed(number)
        starts = torch.randint(0, len(ids) - GIVEN, (64,))
        temperature = TEMPERATURES[number % len(TEMPERATURES)]
        sampling = (
            {"do_sample": True, "temperature": temperature, "top_k": 0}
            if temperature
            else {"do_sample": False}
        )
        prompts = rows_at(ids, starts, GIVEN)
        rows = model.generate(
            prompts,
            attention_mask=torch.ones_like(prompts),
            min_new_tokens=LENGTH,
            max_new_tokens=LENGTH,
            **sampling,
        )
        for row in rows:
            yield Sample(row, torch.arange(len(row)) >= GIVEN)


def settings(target: Path, work: Path) -> Settings:
    return Settings(
        target=str(target),
        samples=str(work / "samples.safetensors"),
        out=str(work / "drafter"),
        layers=1,
        block_size=7,
        markov_rank=32,
        steps=DRAFTER_STEPS,
        batch=8,
        anchors=16,
        rate=3e-3,
        precision="fp32",
        evaluate_every=50,
    )


def rows_of_prompts(tokenizer: PreTrainedTokenizerFast, ids: Tensor) -> Iterator[str]:
    draw = random.Random(2)
    for number in range(32):
        place = draw.randrange(len(ids) - 32)
        text = tokenizer.decode(ids[place : place + 32])
        yield json.dumps({"id": f"text-{number}", "domain": "text", "turns": [text]}) + "\n"


def rows_at(ids: Tensor, starts: Tensor, length: int) -> Tensor:
    """[rows, length]."""
    return torch.stack([ids[start : start + length] for start in starts.tolist()])


if __name__ == "__main__":
    main()
