"""Actions in Slurm: submit held jobs, release them, and cancel them."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Mapping, Sequence
from hashlib import sha256
from math import ceil
from pathlib import Path
from urllib.parse import quote

from daemon.backends.attempt_names import AttemptKey, AttemptNotes
from daemon.backends.interface import BackendContext
from daemon.backends.slurm.attempts import SlurmAttempt, comment_of
from daemon.backends.slurm.config import SlurmConfig
from daemon.backends.slurm.interface import (
    CHECKPOINTS,
    Slurm,
    SlurmError,
    SlurmRefusedError,
    SlurmSubmission,
    SlurmTarget,
    script_of,
)
from daemon.backends.slurm.ownership import JobOwnership
from daemon.backends.slurm.schema import SlurmJob
from daemon.model.inputs import Ended, Requeued, StartFailed
from daemon.model.outputs import StartEffect
from daemon.runtime.background import parts, together
from daemon.runtime.logs import log

AT_ONCE = 8
"""Maximum number of concurrent requests: slurmctld would only queue more."""

MAX_FILE = 150
"""Maximum characters of a job id in file names; most file systems allow 255 bytes."""

GRACE = 1
"""Minutes added to Slurm's time limit, because the daemon itself ends jobs to the second, with a
reason."""

SETTLES = 2.0
"""Seconds for which a requeued job is not released. A slurmd refuses a job in the second in which
it has ended it, because the job's credential counts as revoked. Slurm itself waits for two minutes.
One of the seconds allows for clocks that differ."""

ENDS = "backend ends"
"""Health component for cancellations that Slurm refuses."""

VAIN = 3
"""Number of submissions of an attempt that Slurm may lose before the job is held for an operator. A
slurmctld that restarts from an older state loses one."""

LOST = "find out why slurmctld lost its state; missing jobs are submitted again"

NOT_OURS = (
    "Slurm accepted job {ref} but now has {what} there: make sure that no job_submit plugin "
    "changes comments; if the daemon's Slurm user has changed, set user in [backend]; then release "
    "the job here"
)

CHANGED = (
    "the owner changed the job's GPU request in Slurm after adoption: restore the request and "
    "release the job here, or submit it again"
)


class SlurmActions:
    """Executes the next action of each attempt; actions that fail because of Slurm are retried.

    Attributes:
        found: Attempts submitted by an earlier daemon, with their Slurm job ids.
        unwanted: Slurm job ids to cancel.
    """

    def __init__(
        self,
        config: SlurmConfig,
        slurm: Slurm,
        context: BackendContext,
        own: JobOwnership,
        marks: AttemptNotes,
    ) -> None:
        """`marks` stores the Slurm job id of each attempt."""
        self._config, self._slurm, self._context, self._own = config, slurm, context, own
        self._marks = marks
        self._unfinished: set[str] = set()
        self.found: dict[AttemptKey, str] = {}
        self.unwanted: set[str] = set()

    async def do(self, runs: dict[AttemptKey, SlurmAttempt]) -> None:
        """Execute all due actions. Raises SlurmError or JournalError; the others stay due."""
        fresh = [run for run in runs.values() if run.ref is None and run.searched]
        for some in parts(fresh, AT_ONCE):
            if not self._context.fence.holds():
                return
            await self._name_all(runs, some)
        waiting = [run for run in runs.values() if run.ref and run.released is None]
        for some in parts(
            [run for run in waiting if not run.stop and self._to_release(run)], AT_ONCE
        ):
            if not self._context.fence.holds():
                return
            ready = await self._same(runs, some)
            await together(self._release(runs, run) for run in ready)
        await self._end(runs)

    def _to_release(self, run: SlurmAttempt) -> bool:
        """Return whether to release: attempts of an earlier daemon are checked first."""
        return run.searched

    async def _name_all(
        self, runs: dict[AttemptKey, SlurmAttempt], some: Sequence[SlurmAttempt]
    ) -> None:
        """Submit attempts as held jobs, and store their Slurm job ids durably."""
        for run in some:
            if run.stop and run.key not in self.found:
                del runs[run.key]
                self._context.sink(Ended(*run.key, why="the job was never started"))
        some = [run for run in some if run.key in runs]
        names = await together(self._submit(runs, run) for run in some)
        taken = {run: ref for run, ref in zip(some, names, strict=True) if ref}
        if not taken:
            return
        jobs = await self._seen(taken.values())
        known = {run: ref for run, ref in taken.items() if self._is_there(runs, run, jobs.get(ref))}
        assert len({*known.values()}) == len(known), "two attempts have one Slurm job id"
        await self._own.learn(jobs[ref].user for ref in known.values())
        marks = {run.key: f"{ref}@{int(jobs[ref].submitted)}" for run, ref in known.items()}
        await self._marks.note(marks)
        lost = any(run.key not in self.found for run in taken)
        for run in known:
            run.named(marks[run.key])
            run.seen = True
            self.found.pop(run.key, None)
        if lost:
            raise SlurmError("Slurm lost jobs that it had accepted", LOST)

    def _is_there(
        self, runs: dict[AttemptKey, SlurmAttempt], run: SlurmAttempt, job: SlurmJob | None
    ) -> bool:
        """Return whether Slurm still has the submitted job, and not another with its number.

        After a crash slurmctld may lose recent jobs and reuse their numbers.
        """
        if job is not None and (job.unread or self._own.key_of(job) == run.key):
            return not job.unread  # unreadable: decide in a later turn
        ref, run.searched = self.found.pop(run.key), False
        run.lost_submissions += 1
        if run.lost_submissions >= VAIN:
            what = "nothing" if job is None else f"one of user {job.user!r}, {job.comment!r}"
            del runs[run.key]
            self._context.sink(Requeued(*run.key, NOT_OURS.format(ref=ref, what=what), hold=True))
        return False

    async def _seen(self, refs: Iterable[str]) -> dict[str, SlurmJob]:
        """Return the current state of jobs by Slurm job id. Raises SlurmError."""
        refs = set(refs)
        if self._slurm.single:
            numbers = {ref.partition("_")[0] for ref in refs}  # pending tasks have no number yet
            rows = [job for some in await together(map(self._slurm.job, numbers)) for job in some]
        else:
            rows = await self._slurm.jobs() or []
        return {ref: job for job in rows for ref in job.refs if ref in refs}

    async def _same(
        self, runs: dict[AttemptKey, SlurmAttempt], some: Sequence[SlurmAttempt]
    ) -> Sequence[SlurmAttempt]:
        """Return the attempts that may be released; adopted jobs are looked up again first.

        Slurm may have restarted its job numbers since the last poll, and owners may have changed
        their requests.
        """
        others = [run for run in some if run.adopted]
        if not others:
            return some
        jobs = await self._seen(run.ref for run in others if run.ref)
        for run in others:
            job = jobs.get(run.ref or "")
            run.searched = run.seen = job is not None and self._own.is_of(run, job)
            run.before = None if job is None else job.where
            spec = run.order.spec
            if run.searched and job is not None and (job.gpus, job.on) != (spec.gpus, spec.nodes):
                del runs[run.key]
                self._context.sink(Requeued(*run.key, CHANGED, hold=True))
            if job is not None and job.restarts and run.settles is None:
                run.settles = asyncio.get_running_loop().time() + SETTLES
        return [
            run for run in some if run.searched and run.key in runs and self._settled(run)
        ]  # the next poll decides about the others

    def _settled(self, run: SlurmAttempt) -> bool:
        return run.settles is None or asyncio.get_running_loop().time() >= run.settles

    async def _submit(self, runs: dict[AttemptKey, SlurmAttempt], run: SlurmAttempt) -> str:
        """Submit an attempt and return its Slurm job id, or "" if Slurm refuses."""
        if run.key in self.found:
            return self.found[run.key]
        try:
            ref = await self._slurm.submit(self._wanted(run.order))
        except SlurmError:
            run.searched = False  # Slurm may have accepted it: search first
            raise
        except SlurmRefusedError as error:
            del runs[run.key]
            self._context.sink(StartFailed(*run.key, f"Slurm refuses the job: {error}"))
            return ""
        self.found[run.key] = ref
        return ref

    async def _release(self, runs: dict[AttemptKey, SlurmAttempt], run: SlurmAttempt) -> None:
        assert run.ref is not None, "the attempt has a Slurm job id"
        loop = asyncio.get_running_loop()
        try:
            await self._slurm.release(run.ref, self.place(run.order))
        except SlurmRefusedError as error:
            if await self._has_begun(run):
                run.released = (
                    loop.time()
                )  # an earlier daemon released it, or the response was lost
                return
            del runs[run.key]
            why = f"Slurm refuses to release the job: {error}"
            if run.adopted:
                self._context.sink(Requeued(*run.key, why, hold=True))
            else:
                self.unwanted.add(run.ref)
                self._context.sink(StartFailed(*run.key, why))
        else:
            run.released = loop.time()

    async def _has_begun(self, run: SlurmAttempt) -> bool:
        """Return whether a job has started or ended; the next poll has the details."""
        assert run.ref is not None, "the attempt has a Slurm job id"
        job = (await self._seen([run.ref])).get(run.ref)
        return job is not None and job.state != "PENDING" and self._own.is_of(run, job)

    async def _end(self, runs: Mapping[AttemptKey, SlurmAttempt]) -> None:
        """End attempts, stop attempts whose jobs start again later, and cancel unwanted jobs."""
        ending = [
            run for run in runs.values() if run.stop and run.seen and run.stopped is None
            and not (run.stop_sent and run.awaited)
        ]  # fmt: skip
        all_of: list[SlurmAttempt | str] = [*ending, *self.unwanted]
        before, self._unfinished = self._unfinished, set()
        for some in parts(all_of, AT_ONCE):
            if not self._context.fence.holds():
                return
            await together(
                self._stop(each) if isinstance(each, SlurmAttempt) and each.preempt is not None
                else self._cancel(each)
                for each in some
            )  # fmt: skip
        if before and not self._unfinished:
            self._context.parts.say(ENDS)

    async def _stop(self, run: SlurmAttempt) -> None:
        """Tell an attempt to save its work; if it has no time for that, end it.

        An adopted job is requeued in held state, to be released as a further attempt. A job that
        the daemon submitted is cancelled: its further attempt is another Slurm job, whose width and
        nodes may differ.
        """
        assert run.ref is not None, "the attempt has a Slurm job id"
        if run.awaited is not None:
            try:
                await self._slurm.signal(
                    run.ref, run.awaited.name.removeprefix("SIG"), run.signalled
                )
            except SlurmRefusedError as error:  # it has ended, or is about to
                log().warning("Slurm refuses to signal a job", job=run.ref, why=str(error))
            run.stop_sent = True
        elif run.adopted:
            await self._requeue(run, run.ref)
        else:
            await self._cancel(run)

    async def _requeue(self, run: SlurmAttempt, ref: str) -> None:
        try:
            await self._slurm.requeue(ref)
        except SlurmRefusedError as error:  # retried until the job can be requeued or has ended
            why = f"Slurm refuses to requeue job {ref}: {error}"
            self._context.parts.say(ENDS, why, "submit jobs without --no-requeue")
            self._unfinished.add(ref)
            return
        run.stopped = asyncio.get_running_loop().time()

    async def _cancel(self, what: SlurmAttempt | str) -> None:
        ref = what if isinstance(what, str) else what.ref
        assert ref is not None, "the attempt has a Slurm job id"
        try:
            await self._slurm.cancel(ref)
        except SlurmRefusedError as error:  # retried later; go on with other cancellations
            why = f"Slurm refuses to cancel job {ref}: {error}"
            self._context.parts.say(ENDS, why, "make the daemon's Slurm user an operator")
            self._unfinished.add(ref)
            return
        if isinstance(what, SlurmAttempt):
            what.stopped = asyncio.get_running_loop().time()
        else:
            self.unwanted.discard(what)

    def place(self, order: StartEffect) -> SlurmTarget:
        """Return the partition and nodes of a start order."""
        partition = self._config.partition_of(order.area or order.spec.pool)
        return SlurmTarget(partition, [(node, len(gpus)) for node, gpus in order.nodes])

    def output(self, job: str, attempt: int, stream: str) -> Path:
        """Return the file for a job's output."""
        return Path(self._config.folder) / f"{_file_of(job)}.{attempt}.{stream}"

    def saved(self, job: str) -> Path:
        """Return the folder for a job's saved work, the same in all attempts."""
        return Path(self._config.folder) / f"{_file_of(job)}.checkpoint"

    def _wanted(self, order: StartEffect) -> SlurmSubmission:
        spec, key = order.spec, (order.job, order.attempt)
        env = {**spec.env, "SIA_JOB_ID": spec.id, "SIA_ATTEMPT": str(order.attempt)}
        env |= {"SIA_POOL": spec.pool, "SIA_WIDTH": str(order.gpus)}
        env["SIA_RANK"] = "0"  # the batch script runs once; `srun` tells its tasks their own
        saved = str(self.saved(order.job)) if self._config.folder else ""
        if saved:
            env[CHECKPOINTS] = saved
        env |= self._context.reports.of(*key)
        if spec.array is not None:
            env |= {"SIA_ARRAY_INDEX": str(spec.array[0]), "SIA_ARRAY_SIZE": str(spec.array[1])}
        minutes = None if spec.time_limit is None else ceil(spec.time_limit / 60) + GRACE
        out = err = "/dev/null"
        if self._config.folder:
            out, err = (str(self.output(*key, each)) for each in ("stdout", "stderr"))
        return SlurmSubmission(
            _plain(spec.name or spec.id), comment_of(self._own.name, key), self.place(order),
            script_of(spec.command, env, saved), spec.cwd or self._config.work_dir, minutes,
            out.replace("%", "%%"), err.replace("%", "%%"),
        )  # fmt: skip


def _file_of(job: str) -> str:
    """Return a unique file name for a job; only shortened names contain `+`."""
    name = quote(job, safe="")
    if len(name) <= MAX_FILE:
        return name
    return f"{name[:MAX_FILE]}+{sha256(job.encode()).hexdigest()[:32]}"


def _plain(name: str) -> str:
    """Replace characters that would break Slurm's line-based output."""
    return "".join(each if each.isprintable() else "?" for each in name)[:200]
