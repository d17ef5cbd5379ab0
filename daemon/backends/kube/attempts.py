"""Attempts in Kubernetes, and how they ended."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from hashlib import sha256
from typing import NamedTuple

from daemon.backends.attempt_names import AttemptKey
from daemon.backends.kube.schema import Condition, Pod
from daemon.model.inputs import Ended, Lost, Observation, Requeued, Stopped
from daemon.model.outputs import ResizeEffect, StartEffect

TERM, KILL = 15, 9

SIGNALLED = 128
"""Exit codes above this are 128 + signal number."""

RUNS = "kube/run/"
"""Prefix of the notes with the Job of an attempt."""

LEAVING = "kube/leaving/"
"""Prefix of the notes that say why the daemon takes an attempt off its nodes."""

Leaving = Lost | Requeued
"""Reasons for which the daemon removes a Job itself. Once the Job is gone, only a note has them."""

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
        seen: Whether this daemon has seen the Job.
        ending: Whether the Job must be ended.
        ended: Whether the end was requested from Kubernetes.
        leaving: Observation to report once no pod is left, unless the Job ends by itself first.
        due: Loop time of the next check of its pods; None if no check is due.
        grown: Whether the Job requests more GPUs than allocated.
        unsure: Whether the cached state is known to be outdated.
        resizing: The order to change its width, until it has been carried out.
    """

    def __init__(self, order: StartEffect, *, fresh: bool, started: bool = False) -> None:
        """Create an attempt to start, unless it was started."""
        self.order, self.fresh, self.reported = order, fresh, started
        self.ref = Ref.of(order.spec.origin) if order.spec.origin else None
        self.released = started
        self.seen = self.ending = self.ended = self.grown = self.unsure = False
        self.leaving: Observation | None = None
        self.resizing: ResizeEffect | None = None
        self.due: float | None = None

    def end(self, leaving: Observation) -> None:
        """Mark the attempt to be ended; the first reason counts."""
        self.ending = True
        self.leaving = self.leaving or leaving

    @property
    def stays(self) -> bool:
        """Whether its Job is suspended at the end of the attempt, instead of deleted.

        Jobs of users are never deleted. A Job of the daemon that is told to stop is kept until its
        pods are gone, so that Kubernetes can report whether it has finished meanwhile.
        """
        return self.adopted or isinstance(self.leaving, Stopped)

    @property
    def held(self) -> int:
        """Number of GPUs that the attempt holds.

        A job that becomes narrower holds its earlier GPUs until the surplus pods are gone. After a
        restart of the daemon, its order then has the new width and the earlier nodes.
        """
        return sum(len(gpus) for _, gpus in self.order.nodes) or self.order.gpus

    @property
    def most(self) -> int:
        """Number of GPUs that its Job may request."""
        return max(self.held, self.resizing.width if self.resizing else 0)

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
