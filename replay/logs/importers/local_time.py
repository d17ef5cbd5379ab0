"""Publishers' local times as seconds."""

from __future__ import annotations

from datetime import UTC, datetime

from sia.wording import DAY

EMPTY = ("", "None", "NULL", "null", "nan", "NaN")
"""How publishers write that a time is not known."""


def seconds(text: str | None) -> float | None:
    """`YYYY-MM-DD[ HH:MM:SS]` as seconds of the Unix epoch, as if the local clock were UTC.

    None where it is not known. Raises ValueError for other texts.
    """
    if text is None or text.strip() in EMPTY:
        return None
    local = datetime.fromisoformat(text.strip())
    if local.tzinfo is not None:
        raise ValueError(f"{text} has an offset")
    return local.replace(tzinfo=UTC).timestamp()


def midnight(time: float) -> float:
    """The start of that day, which importers take as second 0."""
    return time // DAY * DAY


def day(time: float) -> str:
    """The date of an epoch second, for notes."""
    return datetime.fromtimestamp(time, UTC).strftime("%Y-%m-%d")
