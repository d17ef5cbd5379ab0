"""How the daemon and its solver process talk: JSON in frames, each with its length before it.

The daemon sends `SolveProgram`, the child answers each with a `ChildAnswer`.
"""

from __future__ import annotations

from msgspec import Struct

from sia.events import ProgramSolved

HEADER = 8
"""Bytes of the length of a frame, big-endian."""


class ChildAnswer(Struct, frozen=True):
    """The answer to a request, and in one line what went wrong if its status is `failed`."""

    event: ProgramSolved
    why: str = ""


def frame(body: bytes) -> bytes:
    """Return a frame with this body."""
    return len(body).to_bytes(HEADER, "big") + body
