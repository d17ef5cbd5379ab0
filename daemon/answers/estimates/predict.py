"""When jobs start and end, as `eta` and `whatif` say it: one distribution for both. Pure."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Literal, NamedTuple

from msgspec import Struct

from daemon.answers.estimates.at_submission import new_job
from daemon.answers.estimates.calibration import Given, StatedMoment
from daemon.answers.estimates.observations import EstimateInputs
from daemon.answers.estimates.worlds import Outlook, Playouts, Times, limited, plain_job, ran
from daemon.answers.simulate.futures import RunTimeOf, thought
from daemon.engine.engine import Engine
from daemon.model.book import JobRecord
from daemon.model.job import ON_GPUS, JobPhase

By = Literal["playout", "queue"]


class RawEstimate(Struct, frozen=True, array_like=True):
    """When a job starts and ends, as the worlds have it, uncorrected, and what it follows from."""

    times: Times
    by: By
    waited: float = 0.0
    """Seconds that it has waited so far."""


class EstimateContext(NamedTuple):
    """What a question is answered by."""

    heard: EstimateInputs
    outlook: Outlook | None = None
    """The newest playout."""
    worlds: int = 0
    """Worlds that may be played for the answer; 0 for none, as that would take too long."""


def why_not(record: JobRecord) -> str:
    """Why nobody can say when a job starts or ends, whatever happened before; empty if one can."""
    if record.phase is JobPhase.HELD:
        return "it is held until somebody releases it"
    if record.phase is JobPhase.PENDING and not record.core:
        return f"pool {record.spec.pool} is on hold until somebody opens it"
    if record.phase in ON_GPUS and not record.placed:
        return "it has its turn, and waits for its GPUs to be free"
    return ""


def median_of(heard: EstimateInputs | None, now: float) -> RunTimeOf:
    """How long jobs last that are played once: half of those like them last no longer.

    Where too few jobs were seen it is what the scheduler was told, or what their owners say.
    """
    told = thought(now)
    if heard is None or not heard.lasting.knows():
        return told
    lasting = heard.lasting

    def think(record: JobRecord) -> float:
        age = ran(record, now)
        return max(age, limited(record, lasting.curve(plain_job(record)).quantile(0.5, age)))

    return think


def foretell(
    engine: Engine, known: EstimateContext, now: float, names: Iterable[str]
) -> dict[str, RawEstimate]:
    """When these jobs start and end; those are left out of which nothing can be said.

    What is learned of run times hears of those that it has not heard of yet: it is for a copy.
    O(worlds · what happens until they have started).
    """
    heard, found = known.heard, dict[str, RawEstimate]()
    if not heard.lasting.knows():
        return found
    records = [engine.book.jobs[name] for name in names if name in engine.book.jobs]
    records = [record for record in records if not why_not(record)]
    for record in records:
        heard.lasting.expect(plain_job(record))
    waiting = [record for record in records if record.phase is JobPhase.PENDING]
    if waiting and known.worlds:
        cores = {record.core for record in waiting}
        worlds = Playouts(engine, heard.lasting, heard.lately, now, known.worlds, only=cores)
        for record in waiting:
            waited = max(0.0, now - record.queued)
            found[record.spec.id] = RawEstimate(worlds.times(record.core), "playout", waited)
    for record in records:
        if record.spec.id not in found:
            times = new_job(known.outlook or Outlook(now), heard.lasting, record, now)
            if times is not None:
                by: By = "playout" if record.phase in ON_GPUS else "queue"
                found[record.spec.id] = RawEstimate(times, by, max(0.0, now - record.queued))
    return found


def stated(
    heard: EstimateInputs, pool: str, made: float, timed: RawEstimate
) -> tuple[StatedMoment, StatedMoment | None]:
    """End and start as they are to be stated, corrected by what came of others."""
    waits = heard.waits.beyond(pool, timed.waited)
    return heard.calibration.corrected(pool, made, timed.times, waits)


def estimate(
    heard: EstimateInputs, outlook: Outlook | None, record: JobRecord, now: float
) -> Given | None:
    """What is to be said of a job now; None where nothing can be. It is not given by that.

    O(worlds²) for one that the newest playout has not seen waiting.
    """
    if not heard.lasting.knows() or why_not(record):
        return None
    spec, times = record.spec, None
    by: By = "playout"
    if outlook is not None and record.phase is JobPhase.PENDING:
        times = outlook.times(spec.id, now)
    if times is None:
        by = "playout" if record.phase in ON_GPUS else "queue"
        times = new_job(outlook or Outlook(now), heard.lasting, record, now)
    if times is None:
        return None
    end, start = stated(
        heard, spec.pool, now, RawEstimate(times, by, max(0.0, now - record.queued))
    )
    return Given(spec.id, spec.pool, record.submitted, now, end, start, by)
