"""Protocol between the daemon and its solver process: JSON in frames, each preceded by its length.

The daemon sends `SolveProgram`, and the child answers each with a `ChildAnswer`.
"""

from __future__ import annotations

from msgspec import Struct

from sia.events import ProgramSolved

HEADER = 8
"""Bytes of the length of a frame, big-endian."""


class ChildAnswer(Struct, frozen=True):
    """The answer to a request; if its status is `failed`, with one line that says why."""

    event: ProgramSolved
    why: str = ""


def frame(body: bytes) -> bytes:
    """Return a frame with this body."""
    return len(body).to_bytes(HEADER, "big") + body
