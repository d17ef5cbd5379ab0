"""Tell Hypothesis which characters UTF-8 encodes."""

import sys

from hypothesis.internal import charmap
from hypothesis.internal.intervalsets import IntervalSet

UTF_8 = IntervalSet(((0, 0xD7FF), (0xE000, sys.maxunicode)))


def know_utf_8():
    """Without this Hypothesis tries all characters, which takes a process 2 s.

    It stores what it has found, but a fresh clone or another folder does not have that yet.
    """
    found = charmap.intervals_from_codec

    def encodable(codec):
        """Return the characters that it encodes, and those of them that it decodes to others."""
        return (UTF_8, IntervalSet(())) if codec == "utf-8" else found(codec)

    charmap.intervals_from_codec = encodable
