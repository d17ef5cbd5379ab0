"""Actions in Kubernetes: create suspended Jobs, release them, and end them."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterable, Sequence
from typing import Any, TypeVar

from msgspec import json

from daemon.backends.attempt_names import AttemptNotes
from daemon.backends.interface import BackendContext
from daemon.backends.kube.attempts import (
    DELETED,
    KubeAttempt,
    Leaving,
    Ref,
    jobs_path,
    name_of,
)
from daemon.backends.kube.client import (
    Kube,
    KubeConflictError,
    KubeError,
    KubeForbiddenError,
    KubeGoneError,
    KubeRefusedError,
)
from daemon.backends.kube.config import KubeConfig
from daemon.backends.kube.kueue import deactivate
from daemon.backends.kube.manifests import (
    is_marked,
    new_job,
    release,
    resized,
    split,
    suspend,
    to_kueue,
    unstarted,
)
from daemon.backends.kube.nodes import KubeNodeWatch
from daemon.backends.kube.releases import ReleasedJobs
from daemon.backends.kube.schema import DAEMON, JOB, ORDER, KubeJob, gpus_of, gpus_of_pod
from daemon.model.inputs import Ended, Observation, Requeued, Resized, StartFailed, Stopped
from daemon.model.outputs import ResizeEffect
from daemon.runtime.background import parts, together
from daemon.runtime.logs import log

T = TypeVar("T")

AT_ONCE = 8
"""Maximum number of concurrent requests: a fraction of what an API server grants one account."""

SUSPENDED = "the Job was suspended in Kubernetes by someone else"

STARTED = "the Job was started in Kubernetes by someone else, before the daemon released it"

NEVER = "the job was never started"

LEFT = "the Job has been running since before the journal's backup; it is ignored until it ends"

TAKEN = "a Job {name} exists that this daemon did not create; delete it, then release the job here"

CHANGED = (
    "the Job's GPU request changed after adoption ({now} instead of {was}): restore it and "
    "release the job here, or create another Job"
)


class KubeActions:
    """Executes the next action of each attempt; failed actions are retried in a later turn.

    Attributes:
        unwanted: Jobs to remove, and whether the daemon created them (and so deletes them).
        forbidden: Reason and fix if the daemon lacks a permission.
        error: Reason and fix if Kubernetes is unreachable.
    """

    def __init__(
        self,
        config: KubeConfig,
        kube: Kube,
        context: BackendContext,
        name: str,
        marks: AttemptNotes,
        leaving: AttemptNotes,
        *,
        nodes: KubeNodeWatch,
        left: ReleasedJobs,
        known: Callable[[Ref], KubeJob | None],
        seen: Callable[[KubeJob], None],
        done: Callable[[KubeAttempt, Observation], None],
        grace: float,
    ) -> None:
        """`known` looks up Jobs; `seen` receives new states of Jobs, `done` ends of attempts.

        Pods of new Jobs have `grace` seconds to save their work when they are ended.
        """
        self._config, self._kube, self._context, self._name = config, kube, context, name
        self._grace = grace
        self._marks, self._leaving = marks, leaving
        self._nodes, self._left, self._known = nodes, left, known
        self._seen, self._done = seen, done
        self.unwanted: dict[Ref, bool] = {}
        self.forbidden = self.error = "", ""

    async def do(self, runs: Iterable[KubeAttempt]) -> None:
        """Execute all due actions; failed ones stay due. Raises JournalError."""
        there = list(runs)
        self.forbidden = self.error = "", ""
        for run in there:
            if run.ref is None and run.ending:
                self._done(run, Ended(*run.key, why=NEVER))
        fresh = [run for run in there if run.ref is None and not run.ending]
        for some in parts(fresh, AT_ONCE):
            if not self._context.fence.holds() or self.error[0]:
                return
            await self._make_all(some)
        ready = [run for run in there if run.ref and not run.released and not run.ending]
        await self._each(ready, self._release)
        await self._each([run for run in there if run.ref and _to_end(run)], self._end)
        await self._each([run for run in there if run.grown and not run.ending], self._cut)
        resizing = [run for run in there if run.resizing and run.released and not run.ending]
        await self._each([run for run in resizing if run.due is None], self._resize)
        await self._each(list(self.unwanted), self._remove)

    async def _each(self, all_of: Sequence[T], act: Callable[[T], Awaitable[None]]) -> None:
        """Run an action for each item, for as long as this daemon is the leader."""
        for some in parts(all_of, AT_ONCE):
            if not self._context.fence.holds() or self.error[0]:
                return
            await together(self.tried(act(each)) for each in some)

    async def tried(self, act: Awaitable[T]) -> T | None:
        """Await an action; return None and record the error if it failed."""
        try:
            return await act
        except KubeForbiddenError as error:
            self.forbidden = error.why, error.mend
        except KubeError as error:
            self.error = error.why, error.mend
        return None

    async def _make_all(self, some: Sequence[KubeAttempt]) -> None:
        """Create suspended Jobs for attempts, and store their references durably."""
        made = await together(self.tried(self._make(run)) for run in some)
        known = {run: ref for run, ref in zip(some, made, strict=True) if ref is not None}
        if not known:
            return
        await self._marks.note({run.key: str(ref) for run, ref in known.items()})
        for run, ref in known.items():
            run.ref = ref

    async def _make(self, run: KubeAttempt) -> Ref | None:
        """Create the Job of an attempt, or find it if an earlier daemon created it (same name)."""
        order = run.order
        space = self._config.namespace_of(order.spec.pool)
        name = name_of(self._name, order.job, order.attempt)
        if not order.spec.command or not self._config.image:
            why = "the job has no command" if self._config.image else "set image under [backend]"
            self._done(run, StartFailed(*run.key, why))
            return None
        try:
            reports = self._context.reports.of(*run.key)
            made = new_job(self._config, self._name, order, self._grace, reports)
            job = await self._kube.create(jobs_path(space), made, KubeJob)
        except KubeConflictError:
            job = await self._kube.get(f"{jobs_path(space)}/{name}", KubeJob)
            if not self._is_own(job, run):
                self._done(run, Requeued(*run.key, TAKEN.format(name=name), hold=True))
                return None
        except KubeRefusedError as error:
            self._done(run, StartFailed(*run.key, f"Kubernetes refuses the Job: {error}"))
            return None
        self._seen(job)
        return Ref(space, job.metadata.name, job.metadata.uid)

    def _is_own(self, job: KubeJob, run: KubeAttempt) -> bool:
        meta, (pods, gpus) = job.metadata, split(run.order)
        owner = meta.note(DAEMON), meta.note(JOB), meta.note(ORDER)
        same = owner == (self._name, run.order.job, str(run.order.attempt))
        return same and job.suspended and gpus_of(job, self._config.gpu) == pods * gpus

    def look(self, run: KubeAttempt, job: KubeJob) -> None:
        """Detect whether a Job was released, or was suspended or started by someone else."""
        marked = is_marked(self._config, self._name, run.order, job)
        bound = self._nodes.sent(run.order.nodes, job.spec.template.spec)
        if self._config.kueue:
            run.released = run.released or marked
        elif job.suspended and marked:
            run.end(Requeued(*run.key, SUSPENDED, hold=True))
            run.ended, run.due = run.adopted, 0.0
        elif not job.suspended and marked and bound:
            run.released = True
        elif not job.suspended and not run.released and not self._is_left(run, job):
            run.end(Requeued(*run.key, STARTED, hold=True))

    def _is_left(self, run: KubeAttempt, job: KubeJob) -> bool:
        return run.adopted and self._left.runs(job, *run.key)

    async def _release(self, run: KubeAttempt) -> None:
        """Release a Job by one request that fails if the Job has changed."""
        assert run.ref is not None, "the attempt has a Job"
        try:
            job = await self._job_of(run)
            self.look(run, job)  # it may be released: earlier daemon, or lost response
            if not run.released and self._is_left(run, job):
                await self._left.leave(run.ref, job, run.order.job)
                self._done(run, Requeued(*run.key, LEFT, hold=True))
                return
            if run.released or run.ending or not self._may_run(run, job):
                return
            if job.status.start_time and job.suspended and not self._config.kueue:
                job = await self._kube.patch(f"{run.path}/status", unstarted(job), KubeJob)
            job = await self._kube.patch(run.path, self._release_of(run, job), KubeJob)
        except KubeConflictError:
            run.unsure = True
        except KubeGoneError:
            run.end(Ended(*run.key, why=DELETED, cancelled=True))
            run.ended, run.due = True, 0.0
        except KubeRefusedError as error:
            why = f"Kubernetes refuses to release the Job: {error}"
            self._done(run, Requeued(*run.key, why, hold=True))
        else:
            run.released = True
            self._seen(job)

    async def _job_of(self, run: KubeAttempt) -> KubeJob:
        """Return the Job from the cache, or from the API if the cache is known to be outdated."""
        assert run.ref is not None, "the attempt has a Job"
        job = None if run.unsure else self._known(run.ref)
        if job is None:
            job = await self._kube.get(run.path, KubeJob)
            run.unsure = False
            if job.metadata.uid == run.ref.uid:
                self._seen(job)
        if job.metadata.uid != run.ref.uid or job.metadata.deletion_timestamp:
            raise KubeGoneError(DELETED)
        return job

    def _may_run(self, run: KubeAttempt, job: KubeJob) -> bool:
        """Check that the Job still requests the GPUs that were allocated."""
        was, now = run.order.gpus, gpus_of(job, self._config.gpu)
        if run.adopted and run.order.spec.elastic:
            return True  # the release sets the number of pods
        if now != was and run.adopted:
            self._done(run, Requeued(*run.key, CHANGED.format(now=now, was=was), hold=True))
            return False
        run.grown = now > was  # reduce it first
        return not run.grown

    def _release_of(self, run: KubeAttempt, job: KubeJob) -> dict[str, Any]:
        if self._config.kueue:
            return to_kueue(self._name, run.order, job)
        hosts = [self._nodes.host(node) for node, _ in run.order.nodes]
        seal = self._left.seal(job.metadata.uid, run.order.attempt, hosts)
        return release(self._config, self._name, run.order, job, hosts, seal)

    async def _end(self, run: KubeAttempt) -> None:
        """End a Job: delete it, or suspend it if it stays."""
        assert run.ref is not None, "the attempt has a Job"
        leaving = run.leaving
        known = self._known(run.ref)
        if known is not None and known.verdict is not None:
            run.due = 0.0  # it has ended by itself: the check determines how
            return
        if isinstance(run.leaving, Leaving) and self._leaving.get(run.key) is None:
            await self._leaving.note({run.key: json.encode(run.leaving).decode()})
        try:
            if not run.stays or (self._config.kueue and not run.adopted):
                await self._kube.delete(run.path, run.ref.uid)
            elif self._config.kueue and run.released:
                if not await deactivate(self._kube, run.ref):
                    run.unsure = True
                    return
            else:
                over = "" if isinstance(run.leaving, Requeued | Stopped) else "ended by sia"
                job = await self._job_of(run)
                self._seen(await self._kube.patch(run.path, suspend(job, over), KubeJob))
        except KubeGoneError:
            pass  # the check determines how it ended
        except KubeConflictError:
            run.unsure = True
            if run.stays:
                return
        except KubeRefusedError as error:
            raise KubeError(str(error), "run kubectl describe job to see why") from None
        # A job may be cancelled while the request that suspends it is answered; then end it anew.
        run.ended, run.due = run.leaving is leaving, 0.0

    async def _cut(self, run: KubeAttempt) -> None:
        """Reduce a Job that requests more GPUs than it may have to that number."""
        try:
            job = await self._job_of(run)
            pods = run.most // gpus_of_pod(job.spec.template.spec, self._config.gpu)
            if gpus_of(job, self._config.gpu) > run.most:
                log().warning(
                    "a Job requests more GPUs than it may have; reduced",
                    job=run.order.job,
                    pods=pods,
                )
                self._seen(await self._kube.patch(run.path, resized(job, pods), KubeJob))
            run.grown = False
        except KubeRefusedError:
            run.unsure = True

    async def _resize(self, run: KubeAttempt) -> None:
        """Change the number of a running Job's pods; the check reports when surplus pods are gone.

        If the width cannot be changed in place, the attempt keeps its width and reports it.
        """
        order = run.resizing
        assert order is not None, "the caller has looked"
        try:
            job = await self._job_of(run)
            pods, rest = divmod(order.width, gpus_of_pod(job.spec.template.spec, self._config.gpu))
            most = None if job.gang else job.spec.completions
            few = most is not None and pods > most
            if rest or few or not self._may_resize(run, order):
                self._keeps_width(run)
                return
            if job.pods != pods:
                self._seen(await self._kube.patch(run.path, resized(job, pods), KubeJob))
            run.due = 0.0
        except KubeConflictError:
            run.unsure = True
        except KubeGoneError:
            run.due = 0.0  # the check determines how it ended
        except KubeRefusedError as error:
            log().info("a Job keeps its width", job=order.job, why=str(error))
            self._keeps_width(run)

    def _may_resize(self, run: KubeAttempt, order: ResizeEffect) -> bool:
        """Return whether the new pods would run on the ordered nodes, and the width may be changed.

        The nodes of a running Job cannot be changed, and Kubernetes may spread pods over several
        nodes. Kueue has admitted a fixed number of pods.
        """
        if self._config.kueue:
            return False
        if order.width < run.held:
            return True
        return len(run.order.nodes) == 1 and [n for n, _ in order.nodes] == [run.order.nodes[0][0]]

    def _keeps_width(self, run: KubeAttempt) -> None:
        run.resizing = None
        self._context.sink(Resized(*run.key, run.held, run.order.nodes))

    async def _remove(self, ref: Ref) -> None:
        try:
            if self.unwanted[ref]:
                await self._kube.delete(ref.path, ref.uid)
            else:
                job = await self._kube.get(ref.path, KubeJob)
                if job.metadata.uid == ref.uid:
                    await self._kube.patch(ref.path, suspend(job, "ended by sia"), KubeJob)
        except KubeConflictError:
            if not self.unwanted[ref]:
                return  # it has changed: retry in the next turn
        except KubeGoneError:
            pass
        except KubeRefusedError as error:
            raise KubeError(str(error), "run kubectl describe job to see why") from None
        del self.unwanted[ref]


def _to_end(run: KubeAttempt) -> bool:
    return run.ending and not run.ended
