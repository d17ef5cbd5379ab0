"""Decide whether an attempt has ended: when none of its pods is on a node any more."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping

import msgspec
from msgspec.structs import replace

from daemon.backends.kube.attempts import DELETED, FORGOTTEN, KubeAttempt, Ref, end_of
from daemon.backends.kube.client import Kube, KubeError, KubeExpiredError, KubeGoneError
from daemon.backends.kube.config import KubeConfig
from daemon.backends.kube.nodes import KubeNodeWatch
from daemon.backends.kube.schema import KubeJob, Pod, gpus_of_pod
from daemon.model.inputs import Ended, Lost, Observation, Requeued, Resized, Stopped
from daemon.model.outputs import ResizeEffect
from sia.model import Nodes


class CompletionCheck:
    """Checks attempts that may have ended, and determines how they ended."""

    def __init__(
        self,
        config: KubeConfig,
        kube: Kube,
        nodes: KubeNodeWatch,
        seen: Callable[[KubeJob], None],
        done: Callable[[KubeAttempt, Observation], None],
        report: Callable[[Observation], None],
    ) -> None:
        """`seen` receives new states of Jobs, `done` ends of attempts, `report` new widths."""
        self._config, self._kube, self._nodes = config, kube, nodes
        self._seen, self._done, self._report = seen, done, report

    async def look(self, run: KubeAttempt, now: float) -> None:
        """Check an attempt, and again later while it has pods. Raises KubeError."""
        assert run.ref is not None, "the attempt has a Job"
        run.due = now + self._config.poll
        job = await self._asked(run.ref)
        if job is not None:
            self._seen(job)
        over = job is None or job.verdict is not None
        if not over and not run.ending:
            if run.resizing is not None and job is not None:
                await self._resized(run, run.resizing, job)
                return
            run.due = None
            await self._strand(run, now)
            return
        off = over or (run.ended and job is not None and job.suspended)
        pods = await pods_of(self._kube, run.ref.namespace, run.ref.uid) if off else []
        if not off or any(pod.holds for pod in pods):
            return
        if isinstance(run.leaving, Stopped) and not over:
            job = await self._asked(run.ref)  # it may have finished while it saved its work
            if job is not None and not job.settled:
                return
        self._done(run, _last(run, job, pods))

    async def _strand(self, run: KubeAttempt, now: float) -> None:
        """Requeue an attempt whose node is lost together with all its pods."""
        lost = self._nodes.lost(run.order.nodes, begun=run.reported)
        if not lost or not run.released or run.ref is None:
            return
        pods = await pods_of(self._kube, run.ref.namespace, run.ref.uid)
        if any(pod.holds for pod in pods):
            run.due = now + self._config.poll
            return
        # for adopted Jobs the owner decides whether to run again
        ran = (run.reported or any(pod.over for pod in pods)) and not run.adopted
        run.end(Lost(*run.key, lost) if ran else Requeued(*run.key, lost))

    async def _resized(self, run: KubeAttempt, order: ResizeEffect, job: KubeJob) -> None:
        """Report the new width once no surplus pod holds a GPU any more."""
        each = gpus_of_pod(job.spec.template.spec, self._config.gpu)
        if job.pods * each != order.width:
            run.due = None  # someone else has changed the width: change it again
            return
        meta = job.metadata
        pods = [pod for pod in await pods_of(self._kube, meta.namespace, meta.uid) if pod.holds]
        if len(pods) > job.pods:
            return
        nodes = order.nodes
        if order.width < run.held:
            held = Counter(pod.spec.node_name for pod in pods)
            nodes = _retained(
                run.order.nodes, {node: each * n for node, n in held.items()}, order.width
            )
        run.order = replace(run.order, width=order.width, nodes=nodes)
        run.resizing, run.due = None, None
        self._report(Resized(*run.key, order.width, nodes))

    async def _asked(self, ref: Ref) -> KubeJob | None:
        """Return the current Job, or None if it no longer exists."""
        try:
            job = await self._kube.get(ref.path, KubeJob)
        except KubeGoneError:
            return None
        return job if job.metadata.uid == ref.uid else None


def _retained(before: Nodes, held: Mapping[str, int], width: int) -> Nodes:
    """Return the GPUs that an attempt keeps: on each node as many as its pods hold there.

    GPUs for pods that are on no node yet may be on any node.
    """
    counts = {node: min(held.get(node, 0), len(gpus)) for node, gpus in before}
    rest = width - sum(counts.values())
    for node, gpus in before:
        more = min(rest, len(gpus) - counts[node])
        counts[node], rest = counts[node] + more, rest - more
    return tuple((node, gpus[: counts[node]]) for node, gpus in before if counts[node])


def _last(run: KubeAttempt, job: KubeJob | None, pods: list[Pod]) -> Observation:
    """Return the observation for an attempt without pods."""
    if job is not None and job.verdict is not None:
        last = end_of(run.key, job.verdict, pods)
        requested = run.ended or job.metadata.deletion_timestamp is not None
        return last if requested or not isinstance(last, Ended) else replace(last, by_itself=True)
    if run.leaving is not None:
        return run.leaving
    return Ended(*run.key, why=DELETED if run.seen else FORGOTTEN, cancelled=run.seen)


async def pods_of(kube: Kube, namespace: str, uid: str) -> list[Pod]:
    """Return the pods of a Job by its uid, even after it was deleted. Raises KubeError.

    The label selector can match pods of others, so pods with another owner are left out. Pods
    without an owner count: a Job deleted without its pods leaves them on GPUs.
    """
    path, found = f"/api/v1/namespaces/{namespace}/pods", list[Pod]()
    try:
        async for page in kube.pages(path, {"labelSelector": f"controller-uid={uid}"}):
            found += [msgspec.json.decode(raw, type=Pod) for raw in page.items]
    except KubeExpiredError as error:
        raise KubeError(str(error)) from None
    except msgspec.MsgspecError as error:
        why = f"cannot parse the API server's pods: {error}"
        raise KubeError(why[:300], "report this with the version of Kubernetes") from None
    return [pod for pod in found if pod.metadata.owned_by(uid) is not False]
