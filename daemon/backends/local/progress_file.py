"""The file in which a job without access to the daemon reports its progress.

A job appends lines to the file, or replaces it. The last line counts. The file is untrusted, so it
is read only if it is a regular file, and only its end is read.
"""

from __future__ import annotations

import os
from pathlib import Path
from stat import S_ISREG
from typing import Annotated

import msgspec
from msgspec import Meta, Struct

from sia.limits import MAX_ITERATIONS, MAX_REGIME, MAX_SPEED, MIN_SPEED

TAIL = 4096
"""Number of bytes read from the end of the file: a line has about 50, with 200 trials 3,000."""

LINE = '{"done": 0.4, "speed": 1.7, "regime": 3}'
"""Example of a valid line."""


class ProgressLine(Struct, frozen=True, forbid_unknown_fields=True):
    """One line of the file: the share of work or the iterations done, or the remaining trials."""

    done: Annotated[float, Meta(ge=0, le=1)] | None = None
    speed: Annotated[float, Meta(ge=MIN_SPEED, le=MAX_SPEED)] | None = None
    regime: Annotated[int, Meta(ge=0, le=MAX_REGIME)] | None = None
    trials: tuple[tuple[int, float], ...] = ()
    iterations: Annotated[int, Meta(ge=0, le=MAX_ITERATIONS)] | None = None

    def __post_init__(self) -> None:
        """Raise ValueError for a line that has none of them."""
        if self.done is None and self.iterations is None and not self.trials:
            raise ValueError("neither done nor iterations nor trials")


_decode = msgspec.json.Decoder(ProgressLine).decode


class ProgressFileError(Exception):
    """The file cannot be used, or its last line is not a report: the reason and the fix."""


class ProgressFile:
    """The progress file of one attempt, and its last content."""

    def __init__(self, path: Path) -> None:
        """Watch a file, which need not exist."""
        self._path = path
        self._seen: tuple[int, int, int] | None = None

    def skip(self) -> None:
        """Ignore the present content."""
        try:
            self._seen = _signature(self._path.lstat())
        except OSError:
            self._seen = None

    def again(self) -> None:
        """Read the file once more, even if it does not change."""
        self._seen = None

    def look(self) -> ProgressLine | None:
        """Return the last line if the file has changed. Raises ProgressFileError. O(`TAIL`)."""
        try:
            seen = _signature(self._path.lstat())
            if seen == self._seen:
                return None
            self._seen = seen
            return _last_line(_tail(self._path))
        except FileNotFoundError:
            return None
        except OSError as error:
            why = (
                f"{self._path.name}: {error.strerror}; replace it by a file with lines like {LINE}"
            )
            raise ProgressFileError(why) from None


def _signature(found: os.stat_result) -> tuple[int, int, int]:
    return found.st_ino, found.st_mtime_ns, found.st_size


def _tail(path: Path) -> bytes:
    """Return the end of a regular file. Raises OSError."""
    file = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_NOFOLLOW | os.O_CLOEXEC)
    try:
        found = os.fstat(file)
        if not S_ISREG(found.st_mode):
            raise OSError(0, "not a regular file")
        return os.pread(file, TAIL, max(0, found.st_size - TAIL))
    finally:
        os.close(file)


def _last_line(text: bytes) -> ProgressLine | None:
    """Return the last line, whole or still being written; None in an empty file."""
    if len(text) >= TAIL and b"\n" not in text.rstrip():
        raise ProgressFileError(_TOO_LONG)
    whole, _, begun = text.rpartition(b"\n")
    lines = [line for line in whole.split(b"\n") if line.strip()]
    if begun.strip():
        try:
            return _decode(begun)
        except (msgspec.DecodeError, UnicodeDecodeError):
            if not lines:
                raise ProgressFileError(_why(begun)) from None
    if not lines:
        return None
    try:
        return _decode(lines[-1])
    except (msgspec.DecodeError, UnicodeDecodeError):
        raise ProgressFileError(_why(lines[-1])) from None


_TOO_LONG = (
    f"progress file: the last line has {TAIL} bytes or more; report fewer trials in one line"
)


def _why(line: bytes) -> str:
    shown = ascii(line[:60].decode(errors="replace"))
    return f"progress file: {shown} is not a report; write a line like {LINE}"
