"""Reads counters in the text format of Prometheus, which both kinds of server publish."""

from __future__ import annotations

import asyncio
import re
import urllib.request

from dspark.errors import Unavailable

TIMEOUT_S = 5.0
_SAMPLE = re.compile(r"^([A-Za-z_:][\w:]*)(\{[^}]*\})?\s+(\S+)")


async def scrape(url: str) -> dict[str, float]:
    """Every sample of a /metrics page by its full name, labels included."""
    return await asyncio.to_thread(fetch, url)


def fetch(url: str) -> dict[str, float]:
    """`scrape` as a blocking call. Raises Unavailable if the page cannot be read."""
    if not url.startswith(("http://", "https://")):
        raise Unavailable(f"{url} is no address of metrics")
    try:
        with urllib.request.urlopen(url, timeout=TIMEOUT_S) as reply:
            text = reply.read().decode("utf-8", "replace")
    except (OSError, ValueError) as error:
        raise Unavailable(f"{url} cannot be read: {error}") from None
    return read(text)


def read(text: str) -> dict[str, float]:
    """The samples of a page by their full names; other lines are left out."""
    samples = {}
    for line in text.splitlines():
        match = _SAMPLE.match(line)
        if match:
            try:
                samples[match[1] + (match[2] or "")] = float(match[3])
            except ValueError:
                continue
    return samples


def total(samples: dict[str, float], name: str, *labels: str) -> float:
    """Sum over the samples of `name` whose labels contain all of `labels`, written as in the page:
    'kind="x"'."""
    return sum(
        value
        for sample, value in samples.items()
        if sample.split("{", 1)[0] == name and all(label in sample for label in labels)
    )
