"""Bugs of what is loaded and trusted: weights, indices, links, settings, fingerprints, and q as it
was sent."""

from __future__ import annotations

from tests.mutation.mutant import caught_by, in_file

M = "tests/unit/model/"
BAD = f"{M}test_bad_checkpoints.py"
CHECKPOINT = (f"{M}test_checkpoint.py", BAD)
HOSTILE = (f"{M}test_hostile_checkpoints.py",)
ACCEPTANCE = ("tests/unit/decoding/test_acceptance.py",)

LOADING = [
    *in_file(
        "dspark/model/weights_file.py",
        *caught_by(
            CHECKPOINT,
            (
                "weights that are missing are let pass",
                '"missing": sorted(expected.keys() - entries.keys()),',
                '"missing": [],',
            ),
            (
                "weights that nobody asked for are let pass",
                '"unexpected": sorted(entries.keys() - expected.keys()),',
                '"unexpected": [],',
            ),
            (
                "weights of another shape are let pass",
                '"wrong shape": misshapen(',
                '"wrong shape": [] and (',
            ),
            (
                "integers are taken for weights",
                "if entries[name].dtype not in FLOATS\n",
                "if not name\n",
            ),
            (
                "weights that are not numbers are loaded",
                "    if not (torch.isfinite(low) and torch.isfinite(high)):",
                "    if False:",
            ),
            (
                "an infinite weight below is loaded",
                "    if not (torch.isfinite(low) and torch.isfinite(high)):",
                "    if not torch.isfinite(high):",
            ),
            (
                "of two shards with the same name the last counts",
                "            if name in entries:\n",
                "            if name in entries and not name:\n",
            ),
            (
                "a shard's name may leave the folder",
                "if name != Path(name).name or name in",
                "if name in",
            ),
        ),
        (
            "an index may say what it likes",
            "if said.get(name) != placed.get(name)\n",
            "if name not in placed\n",
            HOSTILE,
        ),
        (
            "a link may leave the folder",
            "if not any(real.is_relative_to(store) for store in stores):",
            "if not stores:",
            HOSTILE,
        ),
    ),
    *in_file(
        "dspark/model/checkpoint.py",
        (
            "what the library filled in at random is served",
            "for what, names in info.items()},\n",
            "for what, names in info.items() if not info},\n",
            (BAD, *HOSTILE),
        ),
        (
            "code beside a target is run",
            "trust_remote_code=False,",
            "trust_remote_code=True,",
            HOSTILE,
        ),
        *caught_by(
            CHECKPOINT,
            (
                "a fingerprint does not look at weights",
                "files = [folder / CONFIG_NAME, *weight_files(folder)]",
                "files = [folder / CONFIG_NAME]",
            ),
            (
                "a fingerprint does not look at settings",
                "files = [folder / CONFIG_NAME, *weight_files(folder)]",
                "files = weight_files(folder)",
            ),
            (
                "a projection of other taps is the same",
                'str(Fingerprint(config.family, ",".join(map(str, taps)),',
                "str(Fingerprint(config.family, str(len(taps)),",
            ),
            (
                "a projection of other numbers is the same",
                "hashlib.sha256(raw.data).digest() + str",
                "str(tensor.shape).encode() + str",
            ),
        ),
        (
            "stop tokens are those of the model, not of its generation",
            '(getattr(model, "generation_config", None), model.config.get_text_config())',
            '(model.config.get_text_config(), getattr(model, "generation_config", None))',
            HOSTILE,
        ),
        (
            "of several stop tokens the first counts",
            "ids = list(stop) if isinstance(stop, list | tuple)",
            "ids = [stop[0]] if isinstance(stop, list | tuple)",
            HOSTILE,
        ),
    ),
    *in_file(
        "dspark/decoding/sparse_q.py",
        *caught_by(
            ACCEPTANCE,
            (
                "q that does not sum to 1 is weighed",
                "    if worst > SUM_TOLERANCE:\n",
                "    if worst > 1 / SUM_TOLERANCE:\n",
            ),
            (
                "a negative q is weighed",
                "    if not probs.min() >= 0:  # false for NaN too\n",
                "    if probs.min() < -1:\n",
            ),
            (
                "an id may stand twice in q",
                "    if (ranked[:, 1:] == ranked[:, :-1]).any():\n",
                "    if not len(ranked):\n",
            ),
            (
                "a drafted token need not be in its q",
                "    if np.count_nonzero((ids == drafted) & (probs > 0)) < slots:",
                "    if not len(drafted):",
            ),
            (
                "a drafted token may have no mass in its q",
                "& (probs > 0)) < slots",
                "& (probs >= 0)) < slots",
            ),
        ),
    ),
]
