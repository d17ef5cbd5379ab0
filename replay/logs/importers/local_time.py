"""Convert local times of published logs to seconds."""

from __future__ import annotations

from datetime import UTC, datetime

from sia.wording import DAY

EMPTY = ("", "None", "NULL", "null", "nan", "NaN")
"""Cell texts that mean an unknown time."""


def seconds(text: str | None) -> float | None:
    """Parse `YYYY-MM-DD[ HH:MM:SS]` as Unix time, treating the local clock as UTC.

    Return None if the time is unknown. Raises ValueError for other texts.
    """
    if text is None or text.strip() in EMPTY:
        return None
    local = datetime.fromisoformat(text.strip())
    if local.tzinfo is not None:
        raise ValueError(f"{text} has an offset")
    return local.replace(tzinfo=UTC).timestamp()


def midnight(time: float) -> float:
    """Return the start of the day of `time`; importers use it as second 0."""
    return time // DAY * DAY


def day(time: float) -> str:
    """Return the date of a Unix time, for notes."""
    return datetime.fromtimestamp(time, UTC).strftime("%Y-%m-%d")
