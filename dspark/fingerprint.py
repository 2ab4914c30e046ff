"""Fingerprints of drafters: what a drafter and the process that feeds it must agree on, and what
differs if they do not.

Spelled `family:taps:digest`, for example `dspark:1,9,17,25,33:0f3a...`: how rows are made and read,
the layers they come from, and a digest of the tensors that make them, of the shapes they fit and of
what token ids mean. No torch.
"""

from __future__ import annotations

from typing import NamedTuple


class Fingerprint(NamedTuple):
    """A fingerprint in its parts."""

    family: str  # dspark, dflash, eagle3, mtp or lm
    taps: str  # layers of the target, separated by commas; empty where only token ids are sent
    digest: str

    def __str__(self) -> str:
        return ":".join(self)

    @staticmethod
    def parse(text: str) -> Fingerprint | None:
        """The parts of a fingerprint; None for a text of another form."""
        parts = text.split(":")
        return Fingerprint(*parts) if len(parts) == 3 else None


def difference(needed: str, given: str) -> str:
    """What differs between two fingerprints that are not equal, worded as the end of a sentence
    about the first."""
    mine, theirs = Fingerprint.parse(needed), Fingerprint.parse(given)
    if mine is None or theirs is None or mine[:2] == theirs[:2]:
        short = [
            known.digest if known is not None else text
            for known, text in ((mine, needed), (theirs, given))
        ]
        return (
            f"needs the context projection {short[0][:16]}, not {short[1][:16]}: both must "
            "load the same drafter"
        )
    if mine.family != theirs.family:
        return (
            f"is of the family {mine.family}, not {theirs.family}: both must load the same drafter"
        )
    return f"reads the target's layers {mine.taps or 'none'}, not {theirs.taps or 'none'}"
