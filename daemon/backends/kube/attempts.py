"""Attempts in Kubernetes, and how they ended."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from hashlib import sha256
from typing import NamedTuple

import msgspec
from msgspec.structs import replace

from daemon.backends.attempt_names import AttemptKey
from daemon.backends.kube.client import Kube, KubeError, KubeExpiredError, KubeGoneError
from daemon.backends.kube.config import KubeConfig
from daemon.backends.kube.nodes import KubeNodeWatch
from daemon.backends.kube.schema import Condition, KubeJob, Pod
from daemon.model.inputs import Ended, Lost, Observation, Requeued
from daemon.model.outputs import StartEffect

TERM, KILL = 15, 9

SIGNALLED = 128
"""Exit codes above this are 128 + signal number."""

RUNS = "kube/run/"
"""Prefix of the notes with the Job of an attempt."""

FORGOTTEN = (
    "the Job no longer exists, so how it ended is unknown (it was deleted, or ended more than "
    "ttlSecondsAfterFinished before the daemon looked)"
)

DELETED = "the Job was deleted in Kubernetes"


class Ref(NamedTuple):
    """Reference to a Job. A name can be reused, a uid cannot."""

    namespace: str
    name: str
    uid: str

    @classmethod
    def of(cls, text: str) -> Ref:
        """Parse the output of `str`."""
        place, _, uid = text.partition("@")
        namespace, _, name = place.partition("/")
        return cls(namespace, name, uid)

    def __str__(self) -> str:
        return f"{self.namespace}/{self.name}@{self.uid}"

    @property
    def path(self) -> str:
        """API path of the Job."""
        return f"{jobs_path(self.namespace)}/{self.name}"


class KubeAttempt:
    """An attempt to start, to end or to follow.

    Attributes:
        ref: Its Job; None until the reference is durable.
        fresh: Whether no earlier daemon can have created the Job.
        released: Whether the Job was released.
        reported: Whether `Started` was reported.
        seen: Whether the Job was seen by this daemon.
        ending: Whether the Job is to be ended.
        ended: Whether the end was requested from Kubernetes.
        leaving: Observation to report once no pod is left, unless it ends by itself first.
        due: Loop time of the next check of its pods; None if no check is due.
        grown: Whether it requests more GPUs than allocated.
        unsure: Whether the cached state is known to be outdated.
    """

    def __init__(self, order: StartEffect, *, fresh: bool, started: bool = False) -> None:
        """Create an attempt to start, unless it was started."""
        self.order, self.fresh, self.reported = order, fresh, started
        self.ref = Ref.of(order.spec.origin) if order.spec.origin else None
        self.released = started
        self.seen = self.ending = self.ended = self.grown = self.unsure = False
        self.leaving: Observation | None = None
        self.due: float | None = None

    def end(self, leaving: Observation) -> None:
        """Mark the attempt to be ended; the first reason counts."""
        self.ending = True
        self.leaving = self.leaving or leaving

    @property
    def key(self) -> AttemptKey:
        """Job id and attempt number."""
        return self.order.job, self.order.attempt

    @property
    def path(self) -> str:
        """API path of its Job."""
        assert self.ref is not None, "the attempt has a Job"
        return self.ref.path

    @property
    def adopted(self) -> bool:
        """Whether a user created the Job."""
        return bool(self.order.spec.origin)


def jobs_path(namespace: str) -> str:
    """Return the API path of a namespace's Jobs."""
    return f"/apis/batch/v1/namespaces/{namespace}/jobs"


def name_of(daemon: str, job: str, attempt: int) -> str:
    """Return the name of an attempt's Job: deterministic and unique.

    The digest makes it unique; the words before it are for readers.
    """
    digest = sha256(f"{daemon}\n{attempt}\n{job}".encode()).hexdigest()[:16]
    words = [c if c.isascii() and c.isalnum() else "-" for c in job.lower()[:30]]
    plain = "-".join(filter(None, "".join(words).split("-")))
    return f"sia-{plain}-{digest}" if plain else f"sia-{digest}"


def end_of(key: AttemptKey, verdict: Condition, pods: Sequence[Pod]) -> Observation:
    """Return the observation for a Job that has ended."""
    if verdict.type == "Complete":
        return Ended(*key, code=0)
    if verdict.reason == "DeadlineExceeded":
        return Ended(*key, signal=TERM, why="time limit in Kubernetes")
    disrupted = _first(pod.disrupted for pod in pods)
    ends = [end for pod in pods for end in pod.ends]
    killed = next((end for end in ends if end.reason == "OOMKilled"), None)
    failed = killed or next((end for end in ends if end.exit_code or end.signal), None)
    if killed is not None:
        return Ended(*key, signal=KILL, why="out of memory")
    if disrupted:
        return Lost(*key, plain(disrupted))
    if failed is None:
        return Ended(*key, why=plain(verdict.message or verdict.reason or "failed"))
    code, signal = failed.exit_code, failed.signal
    if not signal and SIGNALLED < code < SIGNALLED + 65:
        signal = code - SIGNALLED
    reason = "" if failed.reason == "Error" else failed.reason
    return Ended(*key, code=None if signal else code, signal=signal, why=plain(reason))


def _first(words: Iterable[str]) -> str:
    return next((each for each in words if each), "")


def plain(text: str, most: int = 300) -> str:
    """Truncate text from the API, and replace control characters."""
    return "".join(c if c.isprintable() else "?" for c in text[:most])


class CompletionCheck:
    """Checks attempts that may have ended, and determines how they ended."""

    def __init__(
        self,
        config: KubeConfig,
        kube: Kube,
        nodes: KubeNodeWatch,
        seen: Callable[[KubeJob], None],
        done: Callable[[KubeAttempt, Observation], None],
    ) -> None:
        """`seen` receives new states of Jobs, `done` ends of attempts."""
        self._config, self._kube, self._nodes = config, kube, nodes
        self._seen, self._done = seen, done

    async def look(self, run: KubeAttempt, now: float) -> None:
        """Check an attempt, and again later while it has pods. Raises KubeError."""
        assert run.ref is not None, "the attempt has a Job"
        run.due = now + self._config.poll
        job = await self._asked(run.ref)
        if job is not None:
            self._seen(job)
        over = job is None or job.verdict is not None
        if not over and not run.ending:
            run.due = None
            await self._strand(run, now)
            return
        off = over or (run.ended and job is not None and job.suspended)
        pods = await pods_of(self._kube, run.ref.namespace, run.ref.uid) if off else []
        if off and not any(pod.holds for pod in pods):
            self._done(run, _last(run, job, pods))

    async def _strand(self, run: KubeAttempt, now: float) -> None:
        """Requeue an attempt whose node is lost together with all its pods."""
        lost = self._nodes.lost(run.order.nodes, begun=run.reported)
        if not lost or not run.released or run.ref is None:
            return
        if any(pod.holds for pod in await pods_of(self._kube, run.ref.namespace, run.ref.uid)):
            run.due = now + self._config.poll
            return
        ran = run.reported and not run.adopted  # for adopted Jobs the owner decides about a rerun
        run.end(Lost(*run.key, lost) if ran else Requeued(*run.key, lost))

    async def _asked(self, ref: Ref) -> KubeJob | None:
        """Return the current Job, or None if it no longer exists."""
        try:
            job = await self._kube.get(ref.path, KubeJob)
        except KubeGoneError:
            return None
        return job if job.metadata.uid == ref.uid else None


def _last(run: KubeAttempt, job: KubeJob | None, pods: list[Pod]) -> Observation:
    """Return the observation for an attempt without pods."""
    if job is not None and job.verdict is not None:
        last = end_of(run.key, job.verdict, pods)
        told = run.ended or job.metadata.deletion_timestamp is not None
        return last if told or not isinstance(last, Ended) else replace(last, by_itself=True)
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
