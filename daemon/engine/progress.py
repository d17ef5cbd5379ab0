"""Progress reports: what a running job reports replaces what elapsed time says about its work."""

from __future__ import annotations

from collections.abc import Sequence
from math import fsum

from msgspec.structs import replace

from daemon.engine.jobs import core_job
from daemon.engine.step import StepContext, unknown_job
from daemon.model.book import JobRecord, Progress
from daemon.model.inputs import Reported
from daemon.model.job import ON_GPUS, OVER, JobPhase
from daemon.model.limits import REPORT_EVERY
from daemon.model.outputs import Accepted, Answer, Refused
from sia.events import JobProgressed
from sia.limits import (
    MAX_QUOTA,
    MAX_REGIME,
    MAX_SPEED,
    MAX_TRIALS,
    MIN_SPEED,
    UNKNOWN_RUN_TIME,
)
from sia.model import NEVER_STOPPED, RESTART
from sia.policies.chronus.iterations import iteration_seconds
from sia.policies.shockwave.foresight import foreseen, work_of


class ProgressReports:
    """Check progress reports, and convert them to seconds of work for the core."""

    def __init__(self, context: StepContext) -> None:
        """Work on this context."""
        self._context = context

    def report(self, asked: Reported) -> Answer:
        """Accept a report, or refuse it and change nothing. O(1) plus the policy's work."""
        record = self._context.book.jobs.get(asked.job)
        if record is None:
            known = self._context.book.job(asked.job)
            return unknown_job(asked.job) if known is None else _does_not_run(known)
        refused = self._refusal(record, asked)
        if refused is not None:
            return refused
        if asked.iterations is not None:
            asked = replace(asked, done=_share(record, asked))
        progress = record.progress = self._progress(record, asked)
        record.done, record.since, record.overhead = progress.work, progress.at, 0.0
        record.speed = progress.speed
        self._tell(record, progress, asked.attempt)
        return Accepted()

    def _refusal(self, record: JobRecord, asked: Reported) -> Refused | None:
        if asked.attempt != record.attempt:
            return Refused(
                409,
                "not this attempt",
                f"job {asked.job} is in attempt {record.attempt}, not in {asked.attempt}",
                "give the attempt that the running job has in its variable SIA_ATTEMPT",
            )
        if record.phase not in ON_GPUS or not record.placed:
            return _does_not_run(record)
        return (
            _wrong_values(asked)
            or _wrong_iterations(record, asked)
            or self._wrong_trials(record, asked)
            or self._out_of_order(record, asked)
        )

    def _wrong_trials(self, record: JobRecord, asked: Reported) -> Refused | None:
        """Return why a job cannot report trials; None for an elastic job."""
        trials, spec = asked.trials, record.spec
        if not trials:
            return None
        policy, name = self._context.core.policy, self._context.book.setup.policy
        if not policy.narrows:
            return Refused(
                409,
                "trials",
                f"policy {name} does not use the trials of a job",
                "report done, or run the daemon with wfq or another elastic policy",
            )
        if spec.origin and spec.min_width == spec.max_width:  # its script is for its own width
            return Refused(
                409,
                "trials",
                f"job {spec.id} was submitted to the cluster itself, for {spec.gpus} GPUs",
                "report done, or submit it with sia submit",
            )
        job = core_job(record, self._context.now, self._context.book.setup)
        if spec.regimes or job.preemptible in (NEVER_STOPPED, RESTART):
            why = "has regimes" if spec.regimes else "cannot change its width"
            return Refused(
                409, "trials", f"job {spec.id} {why}, so it cannot report trials", "report done"
            )
        quota = self._context.book.pools[spec.pool].quota
        least, _ = _widths(record, trials)
        if least > quota:
            return Refused(
                409,
                "trials",
                f"the smallest trial needs {least} GPUs, but pool {spec.pool} has {quota}",
                "stop this trial, or submit it as a job of another pool",
            )
        return None

    def _out_of_order(self, record: JobRecord, asked: Reported) -> Refused | None:
        """Return why a report contradicts the last one of the same attempt; None if it does not.

        For a job with trials the share of done work may fall, because new trials add work.
        """
        last = record.progress
        if last is None:
            return None
        wait = last.at + REPORT_EVERY - self._context.now
        if wait > 0:
            return Refused(
                429,
                "too many reports",
                f"job {asked.job} has reported less than {REPORT_EVERY:g} s ago",
                f"report at most every {REPORT_EVERY:g} s",
                wait,
            )
        done = asked.done if asked.iterations is None else _share(record, asked)
        if record.widths is None and done is not None and done < last.done:
            return Refused(
                409,
                "progress goes back",
                f"job {asked.job} has reported {last.done:g} done, and now {done:g}",
                "report the share of the whole work, which only grows within an attempt",
            )
        if asked.regime is not None and last.regime is not None and asked.regime < last.regime:
            return Refused(
                409,
                "regime goes back",
                f"job {asked.job} has reported regime {last.regime}, and now {asked.regime}",
                "count the changes of configuration, which only grow within an attempt",
            )
        return None

    def _progress(self, record: JobRecord, asked: Reported) -> Progress:
        """Convert the reported share to seconds of work at the job's own width.

        If a job has done `worked` seconds of work by the clock and reports the share `done`, its
        whole work is `worked / done`. For a later attempt the clock does not know how much earlier
        work was kept. So the first report of a later attempt is a share of the whole work that was
        known before.
        """
        if asked.trials:
            return self._by_trials(record, asked)
        last, done = record.progress, asked.done or 0.0
        if record.spec.regimes:
            return self._by_epochs(record, asked)
        if record.trial is not None:
            return self._in_trial(record, record.trial, asked)
        worked = record.work(self._context.now)
        whole = 0.0  # unknown
        if last is None and record.attempt > 1 and (record.whole or not record.done):
            if record.expected < UNKNOWN_RUN_TIME:
                whole = record.expected
                worked = done * whole
        elif worked and done:
            whole = min(worked / done, UNKNOWN_RUN_TIME)
        if not done:
            worked = 0.0
        record.whole = whole or record.whole
        speed = asked.speed or record.speed
        regime = last.regime if asked.regime is None and last is not None else asked.regime
        known = record.expected < UNKNOWN_RUN_TIME
        left = max(0.0, record.expected - worked) if known else None
        return Progress(self._context.now, done, worked, speed, left, regime)

    def _in_trial(self, record: JobRecord, trial: tuple[int, int], asked: Reported) -> Progress:
        """Estimate the whole work of a job by its speed on the GPUs of its trial (Chronus, §3.2.2).

        That is the speed between the attempt's first report and this one; the clock counts as the
        first report of the first attempt. What a trial on one node and one on two say about more
        nodes is `iteration_seconds`; until the second has begun, the first counts.
        """
        now, last, done = self._context.now, record.progress, asked.done or 0.0
        if record.first is None:
            begun = record.started if record.attempt == 1 else None
            record.first = (now, done) if begun is None else (begun, 0.0)
        since, before = record.first
        if now > since and done > before:
            whole = min((now - since) / (done - before), UNKNOWN_RUN_TIME)
            nodes, wants = trial
            if nodes == 1:
                record.single = whole
            else:
                whole = iteration_seconds(record.single or whole, whole, wants)
            record.whole = min(whole, UNKNOWN_RUN_TIME)
        known = record.expected < UNKNOWN_RUN_TIME
        worked = done * record.expected if known else record.work(now)
        left = record.expected - worked if known else None
        speed = asked.speed or record.speed
        regime = last.regime if asked.regime is None and last is not None else asked.regime
        return Progress(now, done, worked, speed, left, regime)

    def _by_trials(self, record: JobRecord, asked: Reported) -> Progress:
        """Convert the GPU-seconds of the remaining trials to seconds of work.

        The trials also determine on how many GPUs the job can run. The minimum is never above the
        job's own width and the maximum never below it, because the own width is that of one trial.
        """
        now, last = self._context.now, record.progress
        record.widths = least, _ = _widths(record, asked.trials)
        job = core_job(record, now, self._context.book.setup)
        gpu_seconds = fsum(gpus * seconds for gpus, seconds in asked.trials)
        worked = record.work(now)
        left = min(gpu_seconds * job.speed(least) / least, UNKNOWN_RUN_TIME)
        whole = record.whole = min(worked + left, UNKNOWN_RUN_TIME)
        regime = last.regime if asked.regime is None and last is not None else asked.regime
        done = worked / whole if whole else 1.0
        return Progress(now, min(1.0, done), worked, asked.speed or record.speed, left, regime)

    def _by_epochs(self, record: JobRecord, asked: Reported) -> Progress:
        """Convert the reported share of all epochs to seconds of work in the job's regimes.

        The remaining work is predicted by `sia.policies.shockwave.foresight`. Until the job reports
        a regime, it is assumed to follow its stated regimes.
        """
        spec, core = record.spec, self._context.core.state.jobs.get(record.core)
        regime = asked.regime
        begun: tuple[float, ...] | None = None
        if core is not None:
            regime = core.regime if regime is None else regime
            begun = core.begun
        reached = None if regime is None else (begun or ())[:regime]
        done = asked.done or 0.0
        epochs = done * fsum(each.epochs for each in spec.regimes)
        work = min(work_of(spec.mode, spec.regimes, epochs, reached), UNKNOWN_RUN_TIME)
        if reached is not None and regime is not None:
            reached = (*reached, *[work] * (regime - len(reached)))
        total = foreseen("restate", spec.mode, spec.regimes, work, reached).total
        record.whole = min(max(work, total), UNKNOWN_RUN_TIME)
        speed = asked.speed or record.speed
        left = record.whole - work if record.whole < UNKNOWN_RUN_TIME else None
        return Progress(self._context.now, done, work, speed, left, regime)

    def _tell(self, record: JobRecord, progress: Progress, attempt: int) -> None:
        """Tell the core about progress, and add a notice.

        The core treats a job that is being stopped as pending, and gets the amount of work that is
        done when the job has stopped.
        """
        context, run_time = self._context, None
        if progress.left is not None:
            left = progress.left
            if record.time_limit is not None and record.started is not None:
                end = record.started - record.ran + record.time_limit
                left = min(
                    left, max(0.0, end - progress.at) * progress.speed
                )  # the daemon ends it at its time limit
            run_time = progress.work + left
        if record.core and record.phase is not JobPhase.STOPPING:
            context.correct(
                JobProgressed(
                    progress.at,
                    record.core,
                    progress.work,
                    progress.speed,
                    run_time,
                    progress.regime,
                    widths=record.widths,
                )
            )
        context.notify(
            "progress", job=record.spec.id, pool=record.spec.pool, attempt=attempt,
            done=progress.done, speed=progress.speed, regime=progress.regime, end=progress.end,
        )  # fmt: skip


def _share(record: JobRecord, asked: Reported) -> float:
    """Return the share of its whole work that a job has done, if it has reported iterations."""
    return (asked.iterations or 0) / (record.spec.iterations or 1)


def _wrong_iterations(record: JobRecord, asked: Reported) -> Refused | None:
    """Return why a job cannot have done so many iterations."""
    whole, done = record.spec.iterations, asked.iterations
    if done is None or (whole is not None and 0 <= done <= whole):
        return None
    if whole is None:
        return Refused(
            409,
            "iterations",
            f"job {asked.job} has not said how many iterations it has",
            "report the share that is done, or submit it with its iterations",
        )
    mend = "report how many iterations of the whole work are done"
    return _unfit(f"iterations must be 0 to {whole} (got {done})", mend)


def _wrong_values(asked: Reported) -> Refused | None:
    """Check the bounds of a report. NaN violates all of them."""
    if (asked.done is not None) + (asked.iterations is not None) + bool(asked.trials) != 1:
        return _unfit(
            "a report has either done, iterations or trials",
            "report the share of the whole work, how many iterations are done, or each trial that "
            "is left as [GPUs, seconds]",
        )
    if asked.done is not None and not 0 <= asked.done <= 1:
        return _unfit(
            f"done must be 0 to 1 (got {asked.done:g})", "report the share of the whole work"
        )
    if asked.speed is not None and not MIN_SPEED <= asked.speed <= MAX_SPEED:
        return _unfit(
            f"speed must be {MIN_SPEED:g} to {MAX_SPEED:g} (got {asked.speed:g})",
            "report it relative to the speed on the job's own GPUs, such as 1.7",
        )
    if asked.regime is not None and not 0 <= asked.regime <= MAX_REGIME:
        return _unfit(
            f"regime must be 0 to {MAX_REGIME} (got {asked.regime})", "number the regimes from 0"
        )
    return _trials_out_of_bounds(asked.trials)


def _trials_out_of_bounds(trials: Sequence[tuple[int, float]]) -> Refused | None:
    for gpus, seconds in trials:
        if not (1 <= gpus <= MAX_QUOTA and 0 <= seconds <= UNKNOWN_RUN_TIME):
            return _unfit(
                f"a trial needs 1 to {MAX_QUOTA} GPUs and 0 to {UNKNOWN_RUN_TIME:g} seconds (got "
                f"[{gpus}, {seconds:g}])",
                "report its GPUs and the seconds that it still needs on them",
            )
    if len(trials) > MAX_TRIALS or sum(gpus for gpus, _ in trials) > MAX_QUOTA:
        return _unfit(
            f"more than {MAX_TRIALS} trials, or {MAX_QUOTA} GPUs for all of them",
            "report fewer at a time",
        )
    return None


def _widths(record: JobRecord, trials: Sequence[tuple[int, float]]) -> tuple[int, int]:
    """Return the minimum and the maximum number of GPUs of a job with these trials."""
    own = record.spec.gpus
    return min(own, *(gpus for gpus, _ in trials)), max(own, sum(gpus for gpus, _ in trials))


def _unfit(detail: str, fix: str) -> Refused:
    return Refused(422, "invalid", detail, fix)


def _does_not_run(record: JobRecord) -> Refused:
    mend = "end the report with the job" if record.phase in OVER else "report while the job runs"
    return Refused(409, "job does not run", f"job {record.spec.id} is {record.phase.value}", mend)
