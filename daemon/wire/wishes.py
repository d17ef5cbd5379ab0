"""Parse fields of a job from the texts in options of `sia submit`, comments and annotations."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping
from datetime import UTC, datetime
from math import isfinite
from typing import Any

from daemon.model.job import JobSpec
from replay.logs.regimes import parse_mode, parse_regimes
from sia.limits import MAX_ITERATIONS, MAX_JOB_BUDGET, MAX_TIME
from sia.model import NEVER_STOPPED, STOP_WORDS, Regime, StopCost, seconds_on
from sia.state.bounds import JobFieldError, check_steps
from sia.state.steps import parse_steps
from sia.state.strl import asks_of, quickest
from sia.wording import SHOWN, parse_seconds

MAX_WORD = 1000
"""Maximum characters of a command that saves the job's work, or of a name; each is shown on one
line."""

IN = re.compile(r"in\s+(.*)", re.DOTALL)
"""Prefix of a time relative to now, as in `in 2h`."""


def parse_wish(name: str, text: str, now: float) -> Any:
    """Parse a field of a job by its name in `PARSERS`. `now` is in seconds since the epoch.

    Raises ValueError with what is wrong and the fix.
    """
    try:
        return PARSERS[name](text.strip(), now)
    except ValueError as error:
        raise ValueError(f"{name} {error}") from None


def wishes_of(given: Mapping[str, str], now: float, gpus: int) -> dict[str, Any]:
    """Parse fields of a job with `gpus` GPUs by name and return them as fields of `JobSpec`.

    Raises ValueError with what is wrong and the fix, also for a name that is not a field.
    """
    found = {}
    for name, text in given.items():
        if name not in PARSERS:
            known = ", ".join(PARSERS)
            raise ValueError(f"{name[:SHOWN]!r} is not a field of a job; use one of {known}")
        field = "run_time" if name == "estimate" else name
        found[field] = parse_wish(name, text, now)
    demand, strl = found.get("demand", ()), found.get("strl", "")
    if "run_time" not in found and all(0 < seconds <= MAX_TIME for _, seconds in demand):
        run_time = said_by(gpus, demand, strl, has_regimes=bool(found.get("regimes")))
        if run_time is not None:
            found["run_time"] = run_time
    return found


def said_by(
    gpus: int, demand: tuple[tuple[int, float], ...], strl: str, *, has_regimes: bool
) -> float | None:
    """Return the run time in seconds that a job without an estimate states otherwise, or None.

    STRL states it, or else `demand`; regimes state it themselves.
    """
    if demand and not (strl or has_regimes):
        return seconds_on(demand, gpus)
    return quickest(strl)


def _whole(text: str, _: float) -> int:
    if not (text.isascii() and text.isdecimal() and len(text) < 10):
        raise ValueError(f"{text[:SHOWN]!r} is not a number of GPUs; write a whole number like 4")
    return int(text)


def _iterations(text: str, _: float) -> int:
    fits = text.isascii() and text.isdecimal() and len(text) <= len(str(MAX_ITERATIONS))
    if not (fits and 0 < int(text) <= MAX_ITERATIONS):
        raise ValueError(
            f"{text[:SHOWN]!r} is not a number of iterations; write one from 1 to {MAX_ITERATIONS}"
        )
    return int(text)


def _number(text: str, _: float) -> float:
    try:
        value = float("x" if "_" in text else text)
    except ValueError:
        value = float("nan")
    if not isfinite(value):
        raise ValueError(f"{text[:SHOWN]!r} is not a number; write one like 1.5")
    return value


def _budget(text: str, now: float) -> float:
    value = _number(text, now)
    if not 1 / MAX_JOB_BUDGET <= value <= MAX_JOB_BUDGET:
        bounds = f"{1 / MAX_JOB_BUDGET:g} to {MAX_JOB_BUDGET:g}"
        raise ValueError(f"{text[:SHOWN]!r} is out of range; write a number from {bounds}")
    return value


def _span(text: str, _: float) -> float:
    seconds = parse_seconds(text)
    if not seconds:
        raise ValueError(f"{text!r} is not above 0; write a time like 3h")
    return seconds


def _cost(text: str, _: float) -> StopCost:
    word = STOP_WORDS.get(text)
    if word is not None:
        return word
    if text[:1].isalpha():
        raise ValueError(
            f"{text[:SHOWN]!r} is not a cost of stops; write a time like 30s, restart or never"
        )
    return parse_seconds(text)


def _demand(text: str, _: float) -> tuple[tuple[int, float], ...]:
    """Parse `1:100;2:60`: seconds by number of GPUs."""
    return gpus_and_seconds(text)


def gpus_and_seconds(text: str) -> tuple[tuple[int, float], ...]:
    """Parse `1:100;2:60`. Raises ValueError with what is wrong and the fix."""
    points = (part.partition(":") for part in text.split(";"))
    try:
        return tuple((_whole(gpus.strip(), 0.0), _number(s.strip(), 0.0)) for gpus, _, s in points)
    except ValueError:
        raise ValueError(
            f"{text[:SHOWN]!r} is not a list of GPUs:seconds; write one like 1:3600;2:1900"
        ) from None


def _moment(text: str, now: float) -> float:
    """Parse a time: ISO 8601 (local without a zone), `in 2h`, or seconds since the epoch."""
    if relative := IN.fullmatch(text):
        return now + parse_seconds(relative[1])
    try:
        return _number(text, now)
    except ValueError:
        pass
    try:
        return datetime.fromisoformat(text).astimezone(UTC).timestamp()
    except (ValueError, OverflowError, OSError):
        raise ValueError(
            f"{text[:SHOWN]!r} is not a time; write one like 2026-05-01T18:00, in 2h, or seconds "
            "since the epoch"
        ) from None


def _steps(text: str, _: float) -> tuple[tuple[float, float], ...]:
    """Parse later steps of a deadline: `1.1:80+1.2:50`, or `paper`."""
    steps = parse_steps(text)
    try:
        check_steps("", steps)
    except JobFieldError as error:
        raise ValueError(f"{error.problem}; {error.fix}") from error
    return steps


def _word(text: str, _: float) -> str:
    if len(text) > MAX_WORD or not text.isprintable():
        raise ValueError(
            f"{text[:SHOWN]!r} is too long or has characters that cannot be printed; write at most "
            f"{MAX_WORD} printable characters"
        )
    return text


def _strl(text: str, _: float) -> str:
    """Check an STRL expression: `(max (nck gpu 2 0 60 100) (nck all 2 0 90 100))`."""
    asks_of(text)
    return text


def _mode(text: str, _: float) -> str:
    """Parse the name of an installed mode; a log with another one could not be replayed."""
    return parse_mode(text) if text else ""


def _regimes(text: str, _: float) -> tuple[Regime, ...]:
    """Parse `32:9:36.5;64:21:20`: configuration, epochs, seconds per epoch, steps per second."""
    return parse_regimes(text)


PARSERS: dict[str, Callable[[str, float], Any]] = {
    "min_width": _whole, "max_width": _whole, "demand": _demand, "deadline": _moment,
    "soft": _steps, "value": _number, "budget": _budget, "estimate": _span, "prefers": _word,
    "slowdown": _number, "strl": _strl, "preemptible": _cost, "min_run_time": _span,
    "checkpoint": _word, "mode": _mode, "model": _word, "regimes": _regimes,
    "iterations": _iterations,
}  # fmt: skip

FOR_POLICIES = (
    "min_width", "max_width", "demand", "deadline", "soft", "value", "budget", "prefers",
    "slowdown", "strl", "preemptible", "min_run_time", "checkpoint", "mode", "regimes",
)  # fmt: skip
"""Fields that have an effect only if the policy heeds them. `estimate` is not one of them, because
the daemon's own estimates use it."""


_UNSAID = {name: getattr(JobSpec("", "", 1), name) for name in FOR_POLICIES}


def unheeded(spec: JobSpec, heeds: frozenset[str]) -> Iterator[str]:
    """Yield the fields that a job gives, but that are not in `heeds`: those a policy uses."""
    for name, unsaid in _UNSAID.items():
        given = getattr(spec, name)
        # The core itself never stops a job that must not be stopped.
        if given != unsaid and name not in heeds and given != NEVER_STOPPED:
            yield name
