"""Checks of a target and its drafter: both can be read, and they fit each other."""

from __future__ import annotations

from collections.abc import Iterator

from dspark import shipped
from dspark.cli.checks.finding import Finding, Level
from dspark.errors import DsparkError


def models(
    target: str | None, drafter: str | None, revision: str | None, *, try_it: bool = False
) -> Iterator[Finding]:
    """Checks whether target and drafter (by default the shipped pair) exist, can be read and fit
    each other: sizes, taps, vocabulary, tokenizer.

    `try_it` measures acceptance on a few held-out prompts, too, which loads the weights of both.
    """
    from dspark.model.config_file import read_drafter_config
    from dspark.model.location import locate
    from dspark.model.pairing import TOKENIZER_NAME, mismatch, sizes_of
    from dspark.targets import folder_of, is_imported

    try:
        chosen = shipped.pair(target, drafter)
    except DsparkError as error:
        yield Finding("pair", Level.FAIL, str(error), "name both")
        return
    target, drafter = chosen["target"], chosen["drafter"] or "none"
    if not target:
        yield Finding("target", Level.FAIL, "a drafter alone is no pair", "say --target too")
        return
    try:
        if is_imported(target) and not folder_of(target).is_dir():
            yield Finding(
                "target", Level.OK, f"{target}: becomes a folder on first use, {folder_of(target)}"
            )
            return
        theirs = locate(target, revision=revision, weights=False)
        sizes = sizes_of(theirs)
    except DsparkError as error:
        yield Finding(
            "target",
            Level.FAIL,
            str(error),
            "name a folder with config.json and *.safetensors, or a hub id",
        )
        return
    text = (theirs / TOKENIZER_NAME).is_file()
    mend = (
        ""
        if text
        else f"put {TOKENIZER_NAME} beside the weights; until then clients send and get token ids "
        "only"
    )
    said = f"{target}: {sizes['layers']} layers, vocabulary {sizes['vocab_size']}"
    yield Finding(
        "target", Level.OK if text else Level.WARN, said + ("" if text else ", no tokenizer"), mend
    )
    if drafter == "none":
        yield Finding("drafter", Level.OK, "none: plain decoding")
        return
    try:
        mine = locate(drafter, revision=revision, weights=False)
        config = read_drafter_config(mine)
        problem = mismatch(config, mine, target=theirs, **sizes)
    except DsparkError as error:
        yield Finding(
            "drafter", Level.FAIL, str(error), "`dspark checkpoint check DRAFTER` says more"
        )
        return
    if problem is not None:
        mend = (
            "serve the drafter that was made for this target; docs/checkpoints.md lists the "
            "released pairs"
        )
        yield Finding("pair", Level.FAIL, problem, mend)
    else:
        said = f"{drafter}: {config.family}, blocks of {config.block_size}, made for this target"
        yield Finding("pair", Level.OK, said)
        if try_it:
            yield from _acceptance(target, drafter, revision)


def _acceptance(target: str, drafter: str, revision: str | None) -> Iterator[Finding]:
    """Measures whether the target accepts the drafter's tokens, which no config value shows."""
    from dspark.model.checkpoint import load_drafter, load_target
    from dspark.training.fitting import PROMPTS, fit, held_prompts

    loaded = load_target(target, revision=revision)
    found = fit(
        loaded,
        load_drafter(drafter, revision=revision, target=target),
        held_prompts(loaded, PROMPTS),
    )
    mend = ""
    if not found.fits:
        mend = (
            "taps are layer ids whose outputs are read, from 0; `dspark checkpoint check` says "
            "what the file names"
        )
    level = Level.OK if found.fits else Level.WARN if found.off_by is not None else Level.FAIL
    yield Finding("acceptance", level, f"{found}, at {found.places} places", mend)
