"""Round jobs to a grid of time slots."""

from __future__ import annotations

from collections import Counter
from math import floor

from msgspec.structs import replace

from oracle.limits import MAX_SLOTS
from replay.logs.trace import Trace
from sia.console.errors import UserError
from sia.core.playout import Arrival
from sia.wording import as_typed


def on_grid(seconds: float, slot: float) -> float:
    """Round a time up to whole slots."""
    return -(-seconds // slot) * slot  # exact; ceil(seconds / slot) can be one slot off


def slotted(trace: Trace, slot: float) -> Trace:
    """Return the jobs with submissions and durations rounded up to whole slots, at least one.

    `slot` must be a whole number of seconds, so that times are exact. Raises UserError if it is
    not, or if there would be more than MAX_SLOTS slots.
    """
    if slot < 1 or slot != floor(slot):
        raise UserError(f"--slot {slot:g}: use a whole number of seconds, like 5m")
    arrivals = [
        Arrival(
            replace(job, submit=on_grid(job.submit, slot)),
            max(slot, on_grid(duration, slot)),
        )
        for job, duration in trace.arrivals
    ]
    if arrivals:
        span = arrivals[-1].job.submit - arrivals[0].job.submit
        longest = max(arrival.duration for arrival in arrivals)
        if (span + longest) / slot > MAX_SLOTS:
            raise UserError(
                f"--slot {as_typed(slot)}: more than {MAX_SLOTS:,} slots; use a longer slot"
            )
    return Trace(arrivals, trace.columns, trace.extras, trace.dropped, [*trace.notes])


def shortened(trace: Trace, window: float) -> Trace:
    """Return the jobs submitted within `window` seconds of the first; drop and count the others."""
    end = trace.arrivals[0].job.submit + window
    selected = [arrival for arrival in trace.arrivals if arrival.job.submit < end]
    dropped = trace.dropped + Counter({"after --window": len(trace.arrivals) - len(selected)})
    return Trace(selected, trace.columns, trace.extras, dropped, [*trace.notes])
