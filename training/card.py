"""Model cards: what each of the two folders holds, where it comes from and what it measured.

Every figure is read from what the stages left behind; none is typed in.
"""

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from training import checkpoint, corpus, record
from training.corpus import DOMAINS

LICENCES = "Weights: Apache-2.0, as the project. The text trained on ships with CPython and is under the PSF licence."


def commands(facts: Mapping[str, Mapping[str, Any]]) -> str:
    target, drafter = facts["target"]["steps"], facts["drafter"]["step"]
    return f"""```
python -m training corpus        --workdir DIR
python -m training tokenizer     --workdir DIR
python -m training target        --workdir DIR --compile --steps {target}
python -m training variety       --workdir DIR
python -m training continuations --workdir DIR --shards {facts["continuations"]["shards"]}
python -m training drafter       --workdir DIR --steps {drafter}
python -m training calibrate     --workdir DIR
python -m training evaluate      --workdir DIR
python -m training card          --workdir DIR
```"""


def target_card(facts: Mapping[str, Mapping[str, Any]], config: Mapping[str, Any]) -> str:
    run, recipe = facts["target"], facts["target"]["recipe"]
    losses = ", ".join(f"{domain} {run['losses'][domain]:.2f}" for domain in DOMAINS)
    after = ", ".join(f"{domain} {facts['variety'][domain]:.2f}" for domain in DOMAINS)
    rows = "\n".join(
        f"| {name} | {row['documents']:,} | {row['characters']:,} |" for name, row in sorted(facts["corpus"].items())
    )
    remarks = "".join(f"\n{remark}\n" for remark in facts.get("remarks", {}).get("target", []))
    tokens = run["steps"] * recipe["rows"] * recipe["length"]
    return f"""# demo-target

A small Qwen3 language model, trained from scratch to be the target of `demo-dspark` in demonstrations and tests.
It writes text that looks like library source, documentation or worked arithmetic; it knows nothing and is no use
for anything else.

{config["num_hidden_layers"]} layers, hidden size {config["hidden_size"]}, {config["num_attention_heads"]} query and
{config["num_key_value_heads"]} key-value heads of 64, vocabulary {config["vocab_size"]:,} (byte-level BPE, digits
single), bf16. `<|endoftext|>` ends a text; `<|im_start|>` and `<|im_end|>` are reserved and untrained.

## Data

Source of the standard library of CPython {facts["python"]["version"]} (code), its docstrings and `pydoc` topics
(prose), and generated worked arithmetic (math). One file in {corpus.HELD_OUT_ONE_IN} is held out with all its
docstrings; held-out worksheets have their own seeds, that is other names and numbers in the same wordings.

| split | documents | characters |
| --- | ---: | ---: |
{rows}

## Training

{run["steps"]:,} steps of {recipe["rows"] * recipe["length"]:,} tokens ({tokens / 1e6:.1f} M in all), sequences of
{recipe["length"]}, the last {recipe["long_share"]:.0%} of the steps with {recipe["long_length"]:,};
Muon for matrices, AdamW for the rest; seed {recipe["seed"]}; {run["seconds"] / 60:.0f} minutes on two
shared CPU cores with bf16 matrix units.
Held-out loss at the end (nats a token): {losses}.

Then {facts["variety"]["step"]:.0f} steps of unlikelihood training on the target's own near-greedy code and
prose, against running in circles, in {facts["variety"]["seconds"] / 60:.0f} minutes. Held-out loss after it: {after}.
{remarks}
Trained at lengths up to {recipe["long_length"]:,}; farther positions are allowed by the configuration
but were never seen.

{commands(facts)}

{LICENCES}
"""


def drafter_card(facts: Mapping[str, Mapping[str, Any]], config: Mapping[str, Any]) -> str:
    run, recipe, report = facts["drafter"], facts["drafter"]["settings"], facts["evaluation"]
    lines = []
    cold, warm = ((part["datasets"] | {"mean": part["mean"]}) for part in (report["T=0"], report["T=1"]))
    for domain in (*DOMAINS, "mean"):
        lines.append(
            f"| {domain} | {cold[domain]['tau']:.2f} | {warm[domain]['tau']:.2f} | "
            f"{cold[domain]['distinct_4']:.2f} | {warm[domain]['distinct_4']:.2f} |"
        )
    errors = calibration_rows(facts["calibration"])
    rows = "\n".join(lines)
    return f"""# demo-dspark

The DSpark drafter of `demo-target`: {config["num_hidden_layers"]} layers, blocks of {config["block_size"]},
target layers {config["target_layer_ids"]} tapped, vanilla sequential head of rank {config["markov_rank"]},
confidence head, bf16.

## Accepted length

Held-out prompts of `training/held-out/evaluate`, 128 new tokens, whole blocks verified by the token rule, drafts cut to
their top 64 at T=1. tau counts the bonus token; most of the mean is math, whose wordings are known from training.
distinct-4 is the share of different runs of four tokens in the generated text.

| domain | tau, T=0 | tau, T=1 | distinct-4, T=0 | distinct-4, T=1 |
| --- | ---: | ---: | ---: | ---: |
{rows}

## Training

{facts["continuations"]["tokens"] / 1e6:.2f} M tokens that the target wrote after training prompts of all
three domains, at temperatures 0, 0.3, 0.7 and 1, and a fifth as much plain training text.
{run["step"]:,} steps of at most {recipe["batch"] * recipe["anchors"]:,} blocks; losses
0.1 cross-entropy, 0.9 L1, 1.0 confidence; seed {recipe["seed"]}; {run["seconds"] / 60:.0f} minutes
on two shared CPU cores, after {facts["continuations"]["minutes"]:.0f} minutes of generation.

{commands(facts)}

## Calibration

`calibration.json` holds a temperature and an offset per slot for every acceptance rule, fitted left to right on every
second prompt of `training/held-out/calibrate` (greedy ones also on `calibrate-greedy`). Calibration error of "all slots
up to here accepted" on the other prompts, the worst slot and the mean over slots; greedy requests are matched alike
under every rule:

| rule | rounds | worst before | worst after | mean before | mean after | mean, temperatures alone |
| --- | ---: | ---: | ---: | ---: | ---: | ---: |
{errors}

{LICENCES}
"""


def calibration_rows(report: Mapping[str, Any]) -> str:
    """One row of the card's table per fit."""
    return "\n".join(
        f"| {'any, greedy' if fit['bucket'] == 'greedy' else fit['rule']} | {fit['rounds_measured']:,} | "
        f"{max(fit['before']['ece']):.1%} | {max(fit['after']['ece']):.1%} | "
        f"{fit['mean_ece_before']:.1%} | {fit['mean_ece_after']:.1%} | {fit['mean_ece_temperatures_alone']:.1%} |"
        for fit in report["fits"]
    )


def gather(workdir: Path) -> dict[str, Any]:
    """What the stages left in the working directory, by stage."""
    facts: dict[str, Any] = json.loads((workdir / "facts.json").read_text(encoding="utf-8"))
    for stage in ("target", "drafter"):
        header = checkpoint.read_header(workdir / stage / "state.safetensors")["facts"]
        facts[stage] = header
    log = record.Log(workdir / "target" / "log.csv").read()
    facts["target"]["losses"] = {domain: log[domain][-1] for domain in DOMAINS}
    tuned = record.Log(workdir / "variety" / "log.csv").read()
    facts["variety"] = {name: values[-1] for name, values in tuned.items()}
    metrics = json.loads((workdir / "evaluation" / "metrics.json").read_text(encoding="utf-8"))
    facts["evaluation"] = metrics["temperatures"]
    return facts


def write(workdir: Path, target: Path, drafter: Path) -> None:
    facts = gather(workdir)
    for folder, text in ((target, target_card), (drafter, drafter_card)):
        config = json.loads((folder / "config.json").read_text(encoding="utf-8"))
        (folder / "README.md").write_text(text(facts, config), encoding="utf-8")
