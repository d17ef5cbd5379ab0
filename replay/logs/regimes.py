"""Column `regimes` of a job log: `CONFIG:EPOCHS:SECONDS[:STEPS];…`.

A job that changes its batch size while it trains has a regime for each configuration, in order.
Seconds are those of an epoch, steps those of a second. The duration is the sum of epochs · seconds.
"""

from __future__ import annotations

from collections.abc import Sequence
from math import fsum, isfinite

from sia.core.playout import Arrival
from sia.model import Regime
from sia.policies.shockwave.modes import MODES, mode_names, mode_of
from sia.wording import counted, some

FORM = "write CONFIG:EPOCHS:SECONDS or CONFIG:EPOCHS:SECONDS:STEPS for each regime, like 32:9:36.5"

TOLERANCE = 0.01
"""Seconds by which the sum of the regimes may differ from the duration, for rounding errors."""


def parse_regimes(text: str) -> tuple[Regime, ...]:
    """Parse a cell. Raises ValueError with the problem and, after a semicolon, the fix."""
    return tuple(_regime(part.strip()) for part in text.strip().rstrip(";").split(";"))


def _regime(text: str) -> Regime:
    config, *numbers = text.split(":")
    try:
        if "_" in "".join(numbers) or not config.strip() or not 2 <= len(numbers) <= 3:
            raise ValueError
        epochs, seconds, *steps = map(float, numbers)
    except ValueError:
        raise ValueError(f"{text[:40]!a} is not a regime; {FORM}") from None
    regime = Regime(config.strip(), epochs, seconds, steps[0] if steps else None)
    named = {"epochs": epochs, "seconds": seconds, "steps": steps[0] if steps else 1.0}
    for name, value in named.items():
        if not (isfinite(value) and value > 0):
            raise ValueError(f"{name} of regime {config[:40]} are {value:g}; write numbers above 0")
    return regime


def regimes_text(regimes: Sequence[Regime]) -> str:
    """Return the text of these regimes, which `parse_regimes` reads back exactly."""
    return ";".join(
        ":".join([config, f"{epochs!r}".removesuffix(".0"), repr(seconds)])
        + ("" if steps is None else f":{steps!r}")
        for config, epochs, seconds, steps in regimes
    )


def check_whole(regimes: Sequence[Regime], duration: float) -> None:
    """Raise ValueError, as `parse_regimes` does, if the regimes do not add up to the duration."""
    total = fsum(regime.epochs * regime.seconds for regime in regimes)
    if round(abs(total - duration), 6) > TOLERANCE:  # 100.01 - 100 is a little more than 0.01
        raise ValueError(
            f"the regimes take {_plain(total)} s, but the job {_plain(duration)} s; make "
            "epochs · seconds of all regimes add up to duration"
        )


def _plain(seconds: float) -> str:
    """Return seconds with at most six decimals, without zeros at the end."""
    return f"{seconds:.6f}".rstrip("0").rstrip(".")


def notes_on_regimes(arrivals: Sequence[Arrival]) -> list[str]:
    """Return a note if jobs change their batch size unlike their mode. O(jobs)."""
    odd = [
        job.id
        for job, _ in arrivals
        if job.mode and len(job.regimes) > 1
        and mode_of(job.mode).problem([regime.config for regime in job.regimes])
    ]  # fmt: skip
    if not odd:
        return []
    jobs = counted(len(odd), "job")
    note = f"{jobs} of mode gns with a batch size that shrinks ({some(odd)}), which is not foreseen"
    return [f"{note}; write configurations in ascending order, or another mode"]


def parse_mode(text: str) -> str:
    """Return the mode if it is known. Raises ValueError as `parse_regimes` does."""
    mode = text.strip()
    names = mode_names()
    if mode not in names:
        raise ValueError(
            f"{mode[:40]!a} is not a known mode; use one of {', '.join(names)}, or install a "
            f"package with the mode as entry point {MODES}"
        )
    return mode
