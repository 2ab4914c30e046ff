"""Checks of a target and its drafter: both can be read, and they fit each other."""

from __future__ import annotations

from collections.abc import Iterator

from dspark import shipped
from dspark.cli.checks import Finding, doubtful, fine, wrong
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
        yield wrong("pair", str(error), "name both")
        return
    target, drafter = chosen["target"], chosen["drafter"] or "none"
    if not target:
        yield wrong("target", "a drafter alone is no pair", "say --target too")
        return
    try:
        if is_imported(target) and not folder_of(target).is_dir():
            yield fine("target", f"{target}: becomes a folder on first use, {folder_of(target)}")
            return
        theirs = locate(target, revision=revision, weights=False)
        sizes = sizes_of(theirs)
    except DsparkError as error:
        mend = "name a folder with config.json and *.safetensors, or a hub id"
        yield wrong("target", str(error), mend)
        return
    said = f"{target}: {sizes['layers']} layers, vocabulary {sizes['vocab_size']}"
    if (theirs / TOKENIZER_NAME).is_file():
        yield fine("target", said)
    else:
        mend = f"put {TOKENIZER_NAME} beside the weights; until then clients send and get token "
        yield doubtful("target", f"{said}, no tokenizer", mend + "ids only")
    if drafter == "none":
        yield fine("drafter", "none: plain decoding")
        return
    try:
        mine = locate(drafter, revision=revision, weights=False)
        config = read_drafter_config(mine)
        problem = mismatch(config, mine, target=theirs, **sizes)
    except DsparkError as error:
        yield wrong("drafter", str(error), "`dspark checkpoint check DRAFTER` says more")
        return
    if problem is not None:
        mend = "serve the drafter that was made for this target; "
        yield wrong("pair", problem, mend + "docs/checkpoints.md lists the released pairs")
        return
    said = f"{drafter}: {config.family}, blocks of {config.block_size}, made for this target"
    yield fine("pair", said)
    if try_it:
        yield _acceptance(target, drafter, revision)


def _acceptance(target: str, drafter: str, revision: str | None) -> Finding:
    """Measures whether the target accepts the drafter's tokens, which no config value shows."""
    from dspark.model.checkpoint import load_drafter, load_target
    from dspark.training.fitting import PROMPTS, fit, held_prompts

    loaded = load_target(target, revision=revision)
    made = load_drafter(drafter, revision=revision, target=target)
    found = fit(loaded, made, held_prompts(loaded, PROMPTS))
    said = f"{found}, at {found.places} places"
    if found.fits:
        return fine("acceptance", said)
    mend = "taps are layer ids whose outputs are read, from 0; `dspark checkpoint check` says what "
    mend += "the file names"
    told = wrong if found.off_by is None else doubtful
    return told("acceptance", said, mend)
