"""Ranges of time in addresses: the query parameters `from` and `to`."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import UTC, datetime
from typing import Annotated, Any, NamedTuple

from msgspec import Meta

from daemon.doors.http.operations import Parameter
from daemon.wire.jobs import FieldProblem
from daemon.wire.problems import ProblemError

LATEST = 1e11
"""Latest time that is accepted, in epoch seconds: the year 5138. So a time in milliseconds is
refused."""

LIKE = "write one like 2026-11-27T03:00Z, or seconds since the epoch"

Time = Annotated[str, Meta(max_length=40)]
"""ISO 8601, in UTC unless it names an offset; or seconds since the epoch."""

FROM = Parameter("from", Time, f"Begin of the range of time; {LIKE}.")
TO = Parameter("to", Time, f"End of the range of time, which is not part of it; {LIKE}.")


class TimeRange(NamedTuple):
    """A half-open range [first, second) in seconds since the epoch; None for no limit."""

    start: float | None
    end: float | None


def range_of(params: Mapping[str, Any]) -> TimeRange:
    """Return the range of the parameters `from` and `to`; "" is no limit. Raises ProblemError."""
    start, end = (_time(name, params[name]) for name in ("from", "to"))
    if start is not None and end is not None and end <= start:
        raise _problem("to", "is not after from", "give a later time")
    return TimeRange(start, end)


def _time(name: str, text: str | None) -> float | None:
    if not text:
        return None
    try:
        found = _parsed(text)
    except ValueError:
        raise _problem(name, f"{text[:40]!r} is not a time", LIKE) from None
    if not 0 <= found <= LATEST:
        raise _problem(name, f"{text[:40]!r} is out of range", LIKE)
    return found


def _parsed(text: str) -> float:
    try:
        return float(text)
    except ValueError:
        found = datetime.fromisoformat(text)
    return (found if found.tzinfo else found.replace(tzinfo=UTC)).timestamp()


def _problem(name: str, what: str, mend: str) -> ProblemError:
    errors = [FieldProblem(name, what, mend)]
    return ProblemError(422, "invalid query", f"{name}: {what}; {mend}", mend, errors=errors)
