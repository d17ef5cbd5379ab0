"""Calendar months (UTC) of times in seconds since the epoch. Pure: it reads no clock."""

from __future__ import annotations

from functools import lru_cache

DAY = 86400.0


@lru_cache(maxsize=4)  # in one step every pool needs the same month
def month_of(now: float) -> tuple[int, float]:
    """Return the number of the calendar month (UTC) that a time is in, and when it ends."""
    year, month = _civil(int(now // DAY))
    following = (year, month + 1) if month < 12 else (year + 1, 1)
    return year * 12 + month - 1, _days(*following) * DAY


def began(month: int) -> float:
    """Return when the month of this number began."""
    return _days(month // 12, month % 12 + 1) * DAY


def moment(time: float) -> str:
    """Format a time to the minute: `2026-07-01 00:00 UTC`."""
    days, seconds = divmod(int(time), int(DAY))
    year, month = _civil(days)
    day, minutes = days - _days(year, month) + 1, seconds // 60
    return f"{year}-{month:02}-{day:02} {minutes // 60:02}:{minutes % 60:02} UTC"


def _civil(days: int) -> tuple[int, int]:
    """Return the year and month of a day since 1970, in the Gregorian calendar."""
    shifted = days + 719468  # since 0000-03-01, so that leap days end years
    era, of_era = divmod(shifted, 146097)
    year = (of_era - of_era // 1460 + of_era // 36524 - of_era // 146096) // 365
    of_year = of_era - (365 * year + year // 4 - year // 100)
    month = (5 * of_year + 2) // 153 + 3
    return era * 400 + year + (month > 12), month - 12 * (month > 12)


def _days(year: int, month: int) -> int:
    """Return the days from 1970 to the first day of a month."""
    year -= month <= 2
    era, of_era = divmod(year, 400)
    of_year = (153 * (month - 3 if month > 2 else month + 9) + 2) // 5
    return era * 146097 + of_era * 365 + of_era // 4 - of_era // 100 + of_year - 719468
