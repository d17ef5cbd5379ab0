"""What the daemon does in Slurm: it submits jobs, held; releases them; ends them."""

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
from daemon.runtime.concurrency import parts, together

AT_ONCE = 8
"""Requests that are on their way at a time: more only wait in slurmctld."""

MAX_FILE = 150
"""Characters of a job's id in the names of its files, of which most file systems allow 255."""

GRACE = 1
"""Minutes that Slurm's own limit is longer: the daemon ends jobs at the second, and says why."""

ENDS = "backend ends"
"""The part that is not well where Slurm does not let jobs be ended."""

VAIN = 3
"""Times that a job is submitted of which Slurm then has none, or another's: a slurmctld that comes
back with what it had saved before does that once."""

LOST = "see why slurmctld began anew; what is missing is submitted again"

NOT_OURS = (
    "of job {ref}, as which Slurm took it, Slurm has {what}: let no plugin of job_submit change "
    "comments, and where the daemon is another user in Slurm than before, write user in "
    "[backend]; then release it here"
)

CHANGED = (
    "its owner has changed in Slurm which GPUs it asks for since it was taken over: have it ask "
    "for the same again and release it here, or submit it anew"
)


class SlurmActions:
    """Does what the attempts need next; whatever fails for Slurm's sake is done in a later turn.

    Attributes:
        found: Attempts that a daemon before has submitted, and what they are called.
        unwanted: What is to be removed there.
    """

    def __init__(
        self,
        config: SlurmConfig,
        slurm: Slurm,
        house: BackendContext,
        own: JobOwnership,
        marks: AttemptNotes,
    ) -> None:
        """`marks` say what jobs are called."""
        self._config, self._slurm, self._house, self._own = config, slurm, house, own
        self._marks = marks
        self._kept: set[str] = set()
        self.found: dict[AttemptKey, str] = {}
        self.unwanted: set[str] = set()

    async def do(self, runs: dict[AttemptKey, SlurmAttempt]) -> None:
        """All that is to be done now. Raises SlurmError, JournalError; the rest is then undone."""
        fresh = [run for run in runs.values() if run.ref is None and run.sought]
        for some in parts(fresh, AT_ONCE):
            if not self._house.fence.holds():
                return
            await self._name_all(runs, some)
        waiting = [run for run in runs.values() if run.ref and run.released is None]
        for some in parts(
            [run for run in waiting if not run.stop and self._to_release(run)], AT_ONCE
        ):
            if not self._house.fence.holds():
                return
            ready = await self._same(runs, some)
            await together(self._release(runs, run) for run in ready)
        await self._end(runs)

    def _to_release(self, run: SlurmAttempt) -> bool:
        """What a daemon before this one named may run already: that is looked at first."""
        return run.sought

    async def _name_all(
        self, runs: dict[AttemptKey, SlurmAttempt], some: Sequence[SlurmAttempt]
    ) -> None:
        """Have these be there, held, and durable what they are called."""
        for run in some:
            if run.stop and run.key not in self.found:
                del runs[run.key]
                self._house.sink(Ended(*run.key, why="it was never started"))
        some = [run for run in some if run.key in runs]
        names = await together(self._submit(runs, run) for run in some)
        taken = {run: ref for run, ref in zip(some, names, strict=True) if ref}
        if not taken:
            return
        jobs = await self._seen(taken.values())
        known = {run: ref for run, ref in taken.items() if self._is_there(runs, run, jobs.get(ref))}
        assert len({*known.values()}) == len(known), "two attempts would be one job of Slurm"
        await self._own.learn(jobs[ref].user for ref in known.values())
        marks = {run.key: f"{ref}@{int(jobs[ref].submitted)}" for run, ref in known.items()}
        await self._marks.note(marks)
        lost = any(run.key not in self.found for run in taken)
        for run in known:
            run.named(marks[run.key])
            run.seen = True
            self.found.pop(run.key, None)
        if lost:
            raise SlurmError("Slurm has lost jobs that it took", LOST)

    def _is_there(
        self, runs: dict[AttemptKey, SlurmAttempt], run: SlurmAttempt, job: SlurmJob | None
    ) -> bool:
        """Whether Slurm still has what was submitted for it, and no other under its number.

        A slurmctld that was killed since has lost that, and gives its number again.
        """
        if job is not None and (job.unread or self._own.key_of(job) == run.key):
            return not job.unread  # which of both, a later turn tells
        ref, run.sought = self.found.pop(run.key), False
        run.vain += 1
        if run.vain >= VAIN:
            what = "nothing" if job is None else f"one of user {job.user!r}, {job.comment!r}"
            del runs[run.key]
            self._house.sink(Requeued(*run.key, NOT_OURS.format(ref=ref, what=what), hold=True))
        return False

    async def _seen(self, refs: Iterable[str]) -> dict[str, SlurmJob]:
        """These as they are now, by what they are called. Raises SlurmError."""
        refs = set(refs)
        if self._slurm.single:
            numbers = {ref.partition("_")[0] for ref in refs}  # a task that waits has none yet
            rows = [job for some in await together(map(self._slurm.job, numbers)) for job in some]
        else:
            rows = await self._slurm.jobs() or []
        return {ref: job for job in rows for ref in job.refs if ref in refs}

    async def _same(
        self, runs: dict[AttemptKey, SlurmAttempt], some: Sequence[SlurmAttempt]
    ) -> Sequence[SlurmAttempt]:
        """Those that may be released; of others' jobs that is asked for right before.

        Slurm may count its jobs from 1 again since they were looked at, and owners may change what
        their jobs ask for.
        """
        others = [run for run in some if run.adopted]
        if not others:
            return some
        jobs = await self._seen(run.ref for run in others if run.ref)
        for run in others:
            job = jobs.get(run.ref or "")
            run.sought = run.seen = job is not None and self._own.is_of(run, job)
            run.before = None if job is None else job.where
            spec = run.order.spec
            if run.sought and job is not None and (job.gpus, job.on) != (spec.gpus, spec.nodes):
                del runs[run.key]
                self._house.sink(Requeued(*run.key, CHANGED, hold=True))
        return [run for run in some if run.sought and run.key in runs]  # of others a look tells

    async def _submit(self, runs: dict[AttemptKey, SlurmAttempt], run: SlurmAttempt) -> str:
        """What it is called from now on; nothing where it cannot be."""
        if run.key in self.found:
            return self.found[run.key]
        try:
            ref = await self._slurm.submit(self._wanted(run.order))
        except SlurmError:
            run.sought = False  # it may be there all the same: look first
            raise
        except SlurmRefusedError as error:
            del runs[run.key]
            self._house.sink(StartFailed(*run.key, f"Slurm does not take it: {error}"))
            return ""
        self.found[run.key] = ref
        return ref

    async def _release(self, runs: dict[AttemptKey, SlurmAttempt], run: SlurmAttempt) -> None:
        assert run.ref is not None, "what has no name cannot be released"
        loop = asyncio.get_running_loop()
        try:
            await self._slurm.release(run.ref, self.place(run.order))
        except SlurmRefusedError as error:
            if await self._has_begun(run):
                run.released = loop.time()  # a daemon before did that, or Slurm's answer was lost
                return
            del runs[run.key]
            why = f"Slurm does not let it run: {error}"
            if run.adopted:
                self._house.sink(Requeued(*run.key, why, hold=True))
            else:
                self.unwanted.add(run.ref)
                self._house.sink(StartFailed(*run.key, why))
        else:
            run.released = loop.time()

    async def _has_begun(self, run: SlurmAttempt) -> bool:
        """Whether it runs, or is over: what has become of it, a look tells."""
        assert run.ref is not None, "what has no name was not released"
        job = (await self._seen([run.ref])).get(run.ref)
        return job is not None and job.state != "PENDING" and self._own.is_of(run, job)

    async def _end(self, runs: Mapping[AttemptKey, SlurmAttempt]) -> None:
        """End what is to end, and remove what should not be there."""
        ending = [run for run in runs.values() if run.stop and run.seen and not run.stopped]
        all_of: list[SlurmAttempt | str] = [*ending, *self.unwanted]
        kept, self._kept = self._kept, set()
        for some in parts(all_of, AT_ONCE):
            if not self._house.fence.holds():
                return
            await together(self._cancel(each) for each in some)
        if kept and not self._kept:
            self._house.parts.say(ENDS)

    async def _cancel(self, what: SlurmAttempt | str) -> None:
        ref = what if isinstance(what, str) else what.ref
        assert ref is not None, "what has no name cannot be ended"
        try:
            await self._slurm.cancel(ref)
        except SlurmRefusedError as error:  # it is tried again; what else there is goes on
            why = f"Slurm does not let job {ref} be ended: {error}"
            self._house.parts.say(ENDS, why, "let the daemon's user in Slurm be an operator")
            self._kept.add(ref)
            return
        if isinstance(what, SlurmAttempt):
            what.stopped = True
        else:
            self.unwanted.discard(what)

    def place(self, order: StartEffect) -> SlurmTarget:
        """Where a start is to be, in Slurm's words."""
        partition = self._config.partition_of(order.area or order.spec.pool)
        return SlurmTarget(partition, [(node, len(gpus)) for node, gpus in order.nodes])

    def output(self, job: str, attempt: int, stream: str) -> Path:
        """Where a job writes."""
        return Path(self._config.folder) / f"{_file_of(job)}.{attempt}.{stream}"

    def _wanted(self, order: StartEffect) -> SlurmSubmission:
        spec, key = order.spec, (order.job, order.attempt)
        env = {**spec.env, "SIA_JOB_ID": spec.id, "SIA_ATTEMPT": str(order.attempt)}
        env["SIA_POOL"] = spec.pool
        if spec.array is not None:
            env |= {"SIA_ARRAY_INDEX": str(spec.array[0]), "SIA_ARRAY_SIZE": str(spec.array[1])}
        minutes = None if spec.time_limit is None else ceil(spec.time_limit / 60) + GRACE
        out = err = "/dev/null"
        if self._config.folder:
            out, err = (str(self.output(*key, each)) for each in ("stdout", "stderr"))
        return SlurmSubmission(
            _plain(spec.name or spec.id), comment_of(self._own.name, key), self.place(order),
            script_of(spec.command, env), spec.cwd or self._config.work_dir, minutes,
            out.replace("%", "%%"), err.replace("%", "%%"),
        )  # fmt: skip


def _file_of(job: str) -> str:
    """A name for files that no other job has: a `+` is in none that is not cut."""
    name = quote(job, safe="")
    if len(name) <= MAX_FILE:
        return name
    return f"{name[:MAX_FILE]}+{sha256(job.encode()).hexdigest()[:32]}"


def _plain(name: str) -> str:
    """A name without what a line of Slurm's tables could not hold."""
    return "".join(each if each.isprintable() else "?" for each in name)[:200]
