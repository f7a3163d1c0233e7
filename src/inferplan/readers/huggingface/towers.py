"""Vision and audio encoders beside a text decoder."""

from __future__ import annotations

from inferplan.readers.huggingface.fields import Fields
from inferplan.specs.model import Tower


def towers_of(outer: Fields, text: Fields) -> dict[str, Tower]:
    """The towers a file describes."""
    return {}
