"""Jobs on a grid of time slots: what every figure of the oracle refers to."""

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
    """Rounded up to whole slots."""
    return -(-seconds // slot) * slot  # exact: a quotient that is rounded may be one slot less


def slotted(trace: Trace, slot: float) -> Trace:
    """The jobs with submissions rounded up to slots, and durations to whole slots, at least one.

    `slot` is in whole seconds, so that no time is rounded twice. Raises UserError where it is not,
    or where there would be more slots than the models can number.
    """
    if slot < 1 or slot != floor(slot):
        raise UserError(f"--slot {slot:g}: a slot is a whole number of seconds; give one, like 5m")
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
                f"--slot {as_typed(slot)}: more than {MAX_SLOTS:,} slots; give a longer one"
            )
    return Trace(arrivals, trace.columns, trace.extras, trace.dropped, [*trace.notes])


def shortened(trace: Trace, window: float) -> Trace:
    """The jobs submitted within so many seconds of the first; the others are counted as dropped."""
    end = trace.arrivals[0].job.submit + window
    kept = [arrival for arrival in trace.arrivals if arrival.job.submit < end]
    dropped = trace.dropped + Counter({"after --window": len(trace.arrivals) - len(kept)})
    return Trace(kept, trace.columns, trace.extras, dropped, [*trace.notes])
