"""Estimate start and end times for `eta` and `whatif`, from the same distributions. Pure."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Literal, NamedTuple

from msgspec import Struct

from daemon.answers.estimates.at_submission import new_job
from daemon.answers.estimates.calibration import Given, StatedMoment
from daemon.answers.estimates.observations import EstimateInputs
from daemon.answers.estimates.worlds import Outlook, Playouts, Times, plain_job, queue_of, ran
from daemon.answers.simulate.futures import RunTimeOf, estimated, limited, of_attempt, reported
from daemon.answers.simulate.solving import PlayoutSolvers
from daemon.engine.engine import Engine
from daemon.model.book import JobRecord
from daemon.model.job import ON_GPUS, JobPhase
from predictors.run_times.survival import LEAST
from sia.wording import counted

By = Literal["playout", "queue"]


class RawEstimate(Struct, frozen=True, array_like=True):
    """The simulated start and end of a job, uncorrected, and the source of the estimate."""

    times: Times
    by: By
    waited: float = 0.0
    """Seconds that the job has waited so far."""
    similar: int = 0
    in_pool: int = 0
    """Number of ended jobs from which the run time was estimated, as in `Given`."""
    stated: bool = False
    """Whether the job states its run time."""


class EstimateContext(NamedTuple):
    """Data for the estimates in the answer to a what-if question."""

    heard: EstimateInputs
    outlook: Outlook | None = None
    """The newest simulation result."""
    worlds: int = 0
    """Worlds to simulate for the answer; 0 if even the fewest would take too long."""
    solvers: PlayoutSolvers | None = None
    """Solvers of the policy's programs in these worlds."""


def why_not(record: JobRecord) -> str:
    """Return why a job cannot have an estimate in its current phase; "" if it can have one."""
    if record.phase is JobPhase.HELD:
        return "the job is held until it is released"
    if record.phase is JobPhase.PENDING and not record.core:
        return f"pool {record.spec.pool} is on hold until it is opened"
    if record.phase is JobPhase.STOPPING:
        return "the job is being stopped, and will start again later"
    if record.phase in ON_GPUS and not record.placed:
        return "the job has been started and waits for its GPUs to become free"
    return ""


def suffices(heard: EstimateInputs, record: JobRecord, *, shares: bool) -> bool:
    """Return whether enough is known to estimate a job.

    That is so if enough jobs have run. Otherwise this job and all jobs that it competes with must
    state their run times. It competes with the jobs of its pool, or of all pools if the policy
    `shares` GPUs between pools. O(1).
    """
    if heard.lasting.knows():
        return True
    return record.spec.run_time is not None and not heard.lasting.unstated(
        None if shares else record.spec.pool
    )


def little_known(pool: str, ended: int, *, stated: bool) -> str:
    """Return a note that fewer than `LEAST` jobs of a pool have ended; "" if that is not so.

    `stated` is whether the job states its run time.
    """
    if ended >= LEAST:
        return ""
    if not ended:
        source = "the estimate rests on the run time that the job states" if stated else (
            "its run times are taken from other pools"
        )  # fmt: skip
        return f"no job of pool {pool} has ended: {source}"
    few = f"only {counted(ended, 'job')} of pool {pool} {'has' if ended == 1 else 'have'} ended"
    return (
        f"{few}: the estimate rests mostly on the run time that the job states" if stated else few
    )


def median_of(heard: EstimateInputs | None, now: float) -> RunTimeOf:
    """Return a function that gives a job's median run time, for jobs simulated only once.

    If too few jobs have ended, the run time is the one that the scheduler assumes, or else the
    submitter's estimate.
    """
    known = estimated(now)
    if heard is None or not heard.lasting.knows():
        return known
    lasting = heard.lasting
    works: dict[str, float] = {}  # the whole work of each job in seconds, determined once

    def think(record: JobRecord) -> float:
        seconds = reported(record, now)
        if seconds is None:
            total = works.get(record.spec.id)
            if total is None:
                total = lasting.curve(plain_job(record)).quantile(0.5, record.work(now))
                works[record.spec.id] = total
            seconds = of_attempt(record, now, total)
        return max(ran(record, now), limited(record, seconds))

    return think


def foretell(
    engine: Engine, known: EstimateContext, now: float, names: Iterable[str]
) -> dict[str, RawEstimate]:
    """Return the uncorrected estimates of these jobs, without those that cannot be estimated.

    The run-time distributions in `known` are updated with new jobs, so pass a copy. O(worlds ·
    events until all jobs have started).
    """
    heard, found = known.heard, dict[str, RawEstimate]()
    policy = engine.core.policy
    records = [engine.book.jobs[name] for name in names if name in engine.book.jobs]
    records = [record for record in records if not why_not(record)]
    for record in records:
        heard.lasting.expect(plain_job(record))
    records = [each for each in records if suffices(heard, each, shares=policy.shares)]
    resizes = policy.needs.resizing
    simulated = [record for record in records if _in_worlds(record, now, resizes=resizes)]
    if simulated and known.worlds:
        cores = {record.core for record in simulated}
        worlds = Playouts(
            engine, heard.lasting, heard.lately, now, known.worlds, cores, known.solvers
        )
        for record in simulated:
            waited = max(0.0, now - record.queued)
            evidence = heard.lasting.evidence(plain_job(record))
            times = worlds.times(record.core)
            if times is not None:
                states = record.spec.run_time is not None
                found[record.spec.id] = RawEstimate(times, "playout", waited, *evidence, states)
    for record in records:
        if record.spec.id not in found:
            queue = queue_of(engine.core, record.core)
            new = new_job(known.outlook or Outlook(now), heard.lasting, record, now, queue)
            if new is not None:
                by: By = "playout" if record.phase in ON_GPUS else "queue"
                evidence = heard.lasting.evidence(plain_job(record))
                waited = max(0.0, now - record.queued)
                states = record.spec.run_time is not None
                found[record.spec.id] = RawEstimate(new, by, waited, *evidence, states)
    return found


def stated(
    heard: EstimateInputs, pool: str, made: float, timed: RawEstimate
) -> tuple[StatedMoment, StatedMoment | None]:
    """Return the stated end and start, corrected by the outcomes of earlier estimates."""
    waits = heard.waits.beyond(pool, timed.waited)
    return heard.calibration.corrected(pool, made, timed.times, waits)


def _in_worlds(record: JobRecord, now: float, *, resizes: bool) -> bool:
    """Return True if a job's end follows from the worlds: it is pending or may be resized.

    The end of a running job that reports its progress is computed from the reports instead.
    """
    if record.phase is JobPhase.PENDING:
        return True
    return resizes and record.phase in ON_GPUS and reported(record, now) is None


def estimate(
    heard: EstimateInputs,
    outlook: Outlook | None,
    record: JobRecord,
    now: float,
    queue: int = 0,
    *,
    resizes: bool = False,
    shares: bool = True,
) -> Given | None:
    """Return the current estimate of a job without recording it; None where there is none.

    `queue` is the job's queue, where the policy has several in a pool. `resizes` is whether the
    policy changes the widths of running jobs, and `shares` whether it shares GPUs between pools.
    O(worlds²) for a job that was not pending in the newest simulation.
    """
    if not suffices(heard, record, shares=shares) or why_not(record):
        return None
    spec, times = record.spec, None
    by: By = "playout"
    if outlook is not None and _in_worlds(record, now, resizes=resizes):
        times = outlook.times(spec.id, now, runs=record.phase in ON_GPUS)
    if times is None:
        by = "playout" if record.phase in ON_GPUS else "queue"
        times = new_job(outlook or Outlook(now), heard.lasting, record, now, queue)
    if times is None:
        return None
    end, start = stated(
        heard, spec.pool, now, RawEstimate(times, by, max(0.0, now - record.queued))
    )
    evidence = heard.lasting.evidence(plain_job(record))
    return Given(
        spec.id, spec.pool, record.submitted, now, end, start, by, *evidence, heard.tuned,
        spec.run_time is not None,
    )  # fmt: skip
