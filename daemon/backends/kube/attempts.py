"""Attempts that Kubernetes runs, or is to run, and what it says of their ends."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from hashlib import sha256
from typing import NamedTuple

from daemon.backends.attempt_names import AttemptKey
from daemon.backends.kube.schema import Condition, Pod
from daemon.model.inputs import Ended, Lost, Observation
from daemon.model.outputs import StartEffect

TERM, KILL = 15, 9

SIGNALLED = 128
"""Exit codes above it say by which signal a container was ended."""

RUNS = "kube/run/"
"""How marks begin that say what an attempt is called in Kubernetes."""

FORGOTTEN = (
    "its Job is not in Kubernetes any more: how it ended is not known (it was deleted, or was over "
    "for longer than ttlSecondsAfterFinished, while the daemon did not look)"
)

DELETED = "its Job was deleted in Kubernetes"


class Ref(NamedTuple):
    """A Job of Kubernetes: the same name may be another's later, its uid never."""

    namespace: str
    name: str
    uid: str

    @classmethod
    def of(cls, text: str) -> Ref:
        """What `str` has written."""
        place, _, uid = text.partition("@")
        namespace, _, name = place.partition("/")
        return cls(namespace, name, uid)

    def __str__(self) -> str:
        return f"{self.namespace}/{self.name}@{self.uid}"

    @property
    def path(self) -> str:
        """Where the API has it."""
        return f"{jobs_path(self.namespace)}/{self.name}"


class KubeAttempt:
    """An attempt that is to begin, to end, or to be followed.

    Attributes:
        ref: What it is called in Kubernetes; None until that is durable.
        fresh: Whether no daemon before this one can have made it.
        released: Whether it was told to run.
        told: Whether it was said to run.
        seen: Whether it was there in this daemon's life.
        ending: Whether Kubernetes is to end it, and `ended` whether it was told so.
        leaving: What to say of it once nothing of it is left, unless it ends by itself before.
        due: When its pods are to be looked at again, by the loop's clock; None where not.
        grown: Whether it asks for more than it was given.
        unsure: Whether it is surely another by now than it is known to be.
    """

    def __init__(self, order: StartEffect, *, fresh: bool, started: bool = False) -> None:
        """It is to begin, unless it did."""
        self.order, self.fresh, self.told = order, fresh, started
        self.ref = Ref.of(order.spec.origin) if order.spec.origin else None
        self.released = started
        self.seen = self.ending = self.ended = self.grown = self.unsure = False
        self.leaving: Observation | None = None
        self.due: float | None = None

    def end(self, leaving: Observation) -> None:
        """Have it ended; the first one who wants that says why."""
        self.ending = True
        self.leaving = self.leaving or leaving

    @property
    def key(self) -> AttemptKey:
        """Of which job it is which attempt."""
        return self.order.job, self.order.attempt

    @property
    def path(self) -> str:
        """Where the API has it."""
        assert self.ref is not None, "what has no name is nowhere"
        return self.ref.path

    @property
    def adopted(self) -> bool:
        """Whether it was in Kubernetes before it was here."""
        return bool(self.order.spec.origin)


def jobs_path(namespace: str) -> str:
    """Where the API has the Jobs of a namespace."""
    return f"/apis/batch/v1/namespaces/{namespace}/jobs"


def name_of(daemon: str, job: str, attempt: int) -> str:
    """What the Job of an attempt is called: always the same, and no other one so.

    The digest tells; the words before it are for people.
    """
    digest = sha256(f"{daemon}\n{attempt}\n{job}".encode()).hexdigest()[:16]
    words = [c if c.isascii() and c.isalnum() else "-" for c in job.lower()[:30]]
    plain = "-".join(filter(None, "".join(words).split("-")))
    return f"sia-{plain}-{digest}" if plain else f"sia-{digest}"


def end_of(key: AttemptKey, verdict: Condition, pods: Sequence[Pod]) -> Observation:
    """What to say of a Job that is over."""
    if verdict.type == "Complete":
        return Ended(*key, code=0)
    if verdict.reason == "DeadlineExceeded":
        return Ended(*key, signal=TERM, why="time limit, in Kubernetes")
    disrupted = _first(pod.disrupted for pod in pods)
    ends = [end for pod in pods for end in pod.ends]
    killed = next((end for end in ends if end.reason == "OOMKilled"), None)
    failed = killed or next((end for end in ends if end.exit_code or end.signal), None)
    if killed is not None:
        return Ended(*key, signal=KILL, why="out of memory")
    if disrupted:
        return Lost(*key, plain(disrupted))
    if failed is None:
        return Ended(*key, why=plain(verdict.message or verdict.reason or "it failed"))
    code, signal = failed.exit_code, failed.signal
    if not signal and SIGNALLED < code < SIGNALLED + 65:
        signal = code - SIGNALLED
    reason = "" if failed.reason == "Error" else failed.reason
    return Ended(*key, code=None if signal else code, signal=signal, why=plain(reason))


def _first(words: Iterable[str]) -> str:
    return next((each for each in words if each), "")


def plain(text: str, most: int = 300) -> str:
    """Others' words, without what a terminal or a page could take for more than words."""
    return "".join(c if c.isprintable() else "?" for c in text[:most])
