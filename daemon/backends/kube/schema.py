"""Parts of the Kubernetes API's Jobs, pods and nodes that the daemon reads.

Unknown fields are ignored. Field names are the API's, in snake case.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from datetime import datetime
from fractions import Fraction
from typing import Annotated, Any

import msgspec
from msgspec import Struct

PREFIX = "sia.internal"
"""Prefix of the daemon's labels and annotations; `.internal` is reserved for private use."""

POOL = f"{PREFIX}/pool"
"""Label with the pool of a Job; users set it too."""

DAEMON, JOB, ATTEMPT = f"{PREFIX}/daemon", f"{PREFIX}/job", f"{PREFIX}/attempt"
"""Annotations: daemon, job id, and the attempt that was released last."""

ORDER = f"{PREFIX}/order"
"""Annotation: attempt for which the daemon created the Job; adopted Jobs have none."""

RELEASED = f"{PREFIX}/released"
"""Annotation: hosts of the release, and the daemon's HMAC over them."""

OVER = f"{PREFIX}/over"
"""Annotation: why an adopted Job was ended; it is not adopted again."""

PRIORITY = f"{PREFIX}/priority"
"""Annotation set by users: priority of the job."""

GATE = "kueue.x-k8s.io/admission-gated-by"
"""Annotation: comma-separated gates that keep a Job from Kueue."""

GATE_OWN = f"{PREFIX}/sia"
"""The daemon's gate."""

QUEUE = "kueue.x-k8s.io/queue-name"
"""Label with the LocalQueue of a Job."""

HOSTNAME = "kubernetes.io/hostname"
"""Label that identifies a node."""

INDEX = "batch.kubernetes.io/job-completion-index"
"""Annotation of pods: completion index."""

MAIN = "kubectl.kubernetes.io/default-container"
"""Annotation of pods: default container."""

MAX_PODS = 100_000
"""Maximum pods of a Job; keeps products of untrusted numbers small."""

MAX_DEVICES = 10**9 - 1
"""Maximum of a quantity: more than any cluster has; keeps products small."""

QUANTITY = re.compile(
    r"\+?(\d{1,20}(?:\.\d{0,20})?|\.\d{1,20})(?:[eE]([+-]?\d{1,2})|([numkMGTPE]|[KMGTPE]i))?",
    re.ASCII,
)
"""Non-negative Kubernetes quantities of limited length."""

SUFFIXES = {"": Fraction(1), "k": Fraction(1000)}
SUFFIXES |= {each: Fraction(1000) ** n for n, each in enumerate("MGTPE", 2)}
SUFFIXES |= {f"{each}i": Fraction(1024) ** n for n, each in enumerate("KMGTPE", 1)}
SUFFIXES |= {each: 1 / Fraction(1000) ** n for n, each in enumerate("mun", 1)}
"""Factors of the suffixes."""

KubeName = Annotated[
    str, msgspec.Meta(max_length=253, pattern=r"^([a-z0-9]([a-z0-9.-]*[a-z0-9])?)?(?!\n)$")
]
"""RFC 1123 name or empty: other names must not get into a path."""

Uid = Annotated[str, msgspec.Meta(max_length=128, pattern=r"^[A-Za-z0-9-]*(?!\n)$")]
"""Characters that are safe in a label selector."""


class Owner(Struct, frozen=True):
    """Owner of an object."""

    uid: str = ""


class Meta(Struct, frozen=True, rename="camel"):
    """Metadata of an object. Times are text, as in the API."""

    name: KubeName
    namespace: KubeName = ""
    uid: Uid = ""
    resource_version: str = ""
    deletion_timestamp: str | None = None
    creation_timestamp: str = ""
    labels: dict[str, str] | None = None
    annotations: dict[str, str] | None = None
    owner_references: list[Owner] | None = None

    @property
    def ref(self) -> str:
        """Permanent reference to the object."""
        return f"{self.namespace}/{self.name}@{self.uid}"

    def label(self, key: str) -> str:
        """Return a label, or ""."""
        return (self.labels or {}).get(key, "")

    def note(self, key: str) -> str:
        """Return an annotation, or ""."""
        return (self.annotations or {}).get(key, "")

    @property
    def created(self) -> float:
        """When the object was created, in seconds since the epoch; 0 if that is unknown."""
        try:
            return datetime.fromisoformat(self.creation_timestamp).timestamp()
        except ValueError:
            return 0.0

    def owned_by(self, uid: str) -> bool | None:
        """Return whether the object has this owner; None if it has no owner."""
        owners = self.owner_references
        return any(owner.uid == uid for owner in owners) if owners else None


class Condition(Struct, frozen=True):
    """A condition of an object."""

    type: str
    status: str = ""
    reason: str = ""
    message: str = ""

    @property
    def true(self) -> bool:
        """Whether the status is True."""
        return self.status == "True"


class Resources(Struct, frozen=True):
    """Resources of a container; quantities are text or numbers."""

    limits: dict[str, Any] | None = None
    requests: dict[str, Any] | None = None


class Container(Struct, frozen=True, rename="camel"):
    """A container of a pod template."""

    name: str = ""
    resources: Resources | None = None
    restart_policy: str | None = None


class PodSpec(Struct, frozen=True, rename="camel"):
    """Spec of a pod or pod template."""

    containers: list[Container] = []
    init_containers: list[Container] | None = None
    node_name: str = ""
    node_selector: dict[str, str] | None = None
    affinity: dict[str, Any] | None = None
    tolerations: list[dict[str, Any]] | None = None
    scheduling_gates: list[dict[str, Any]] | None = None
    scheduler_name: str = ""
    resource_claims: list[dict[str, Any]] | None = None


class Template(Struct, frozen=True):
    """Pod template of a Job."""

    spec: PodSpec = PodSpec()


class KubeJobSpec(Struct, frozen=True, rename="camel"):
    """Spec of a Job."""

    template: Template = Template()
    suspend: bool | None = None
    parallelism: int | None = None
    completions: int | None = None
    completion_mode: str = ""
    active_deadline_seconds: int | None = None
    managed_by: str | None = None


class KubeJobStatus(Struct, frozen=True, rename="camel"):
    """Status of a Job."""

    conditions: list[Condition] | None = None
    start_time: str | None = None
    active: int | None = None
    ready: int | None = None
    succeeded: int | None = None
    failed: int | None = None
    terminating: int | None = None
    uncounted_terminated_pods: dict[str, list[str] | None] | None = None


class KubeJob(Struct, frozen=True):
    """A Job of batch/v1."""

    metadata: Meta
    spec: KubeJobSpec = KubeJobSpec()
    status: KubeJobStatus = KubeJobStatus()

    @property
    def suspended(self) -> bool:
        """Whether the Job is suspended."""
        return bool(self.spec.suspend)

    @property
    def verdict(self) -> Condition | None:
        """The final condition, or None while the Job has not ended."""
        for each in self.status.conditions or ():
            if each.type in ("Complete", "Failed") and each.true:
                return each
        return None

    @property
    def settled(self) -> bool:
        """Whether the Job has a verdict, or none is about to come.

        A verdict is about to come while Kubernetes has not counted an ended pod, or enough pods
        have succeeded.
        """
        status, whole = self.status, self.spec.completions
        uncounted = any((status.uncounted_terminated_pods or {}).values())
        done = (status.succeeded or 0) >= (1 if whole is None else whole)
        return self.verdict is not None or not (uncounted or done)

    @property
    def pods(self) -> int:
        """Number of pods that run at the same time."""
        many = 1 if self.spec.parallelism is None else self.spec.parallelism
        whole = self.spec.completions
        return min(many, MAX_PODS) if whole is None else min(many, whole, MAX_PODS)

    @property
    def gang(self) -> bool:
        """Whether all of its pods run at the same time, each with an index of its own."""
        spec = self.spec
        return spec.completion_mode == "Indexed" and spec.completions == spec.parallelism

    @property
    def gates(self) -> list[str]:
        """Gates that keep the Job from Kueue."""
        return [each.strip() for each in self.metadata.note(GATE).split(",") if each.strip()]

    @property
    def begun(self) -> bool:
        """Whether a pod of the Job has started."""
        status = self.status
        return any((status.ready, status.succeeded, status.failed))


class Terminated(Struct, frozen=True, rename="camel"):
    """How a container terminated."""

    exit_code: int = 0
    signal: int | None = None
    reason: str = ""


class ContainerState(Struct, frozen=True):
    """State of a container."""

    terminated: Terminated | None = None


class ContainerStatus(Struct, frozen=True):
    """Status of a container."""

    state: ContainerState = ContainerState()


class PodStatus(Struct, frozen=True, rename="camel"):
    """Status of a pod."""

    phase: str = ""
    reason: str = ""
    message: str = ""
    conditions: list[Condition] | None = None
    container_statuses: list[ContainerStatus] | None = None


class Pod(Struct, frozen=True):
    """A pod."""

    metadata: Meta
    spec: PodSpec = PodSpec()
    status: PodStatus = PodStatus()

    @property
    def over(self) -> bool:
        """Whether the pod has left its node."""
        return self.status.phase in ("Succeeded", "Failed")

    @property
    def holds(self) -> bool:
        """Whether the pod may hold GPUs of a node."""
        return bool(self.spec.node_name) and not self.over

    @property
    def disrupted(self) -> str:
        """Why the pod was disrupted through no fault of its own, or ""."""
        for each in self.status.conditions or ():
            if each.type == "DisruptionTarget" and each.true:
                return each.message or each.reason or "disrupted"
        if self.status.reason in ("Evicted", "NodeLost", "Shutdown", "NodeShutdown", "Terminated"):
            return self.status.message or self.status.reason
        return ""

    @property
    def ends(self) -> Iterator[Terminated]:
        """How its containers terminated."""
        for each in self.status.container_statuses or ():
            if each.state.terminated is not None:
                yield each.state.terminated


class Taint(Struct, frozen=True):
    """A taint of a node."""

    key: str
    effect: str = ""


class KubeNodeSpec(Struct, frozen=True):
    """Spec of a node."""

    unschedulable: bool | None = None
    taints: list[Taint] | None = None


class NodeStatus(Struct, frozen=True):
    """Status of a node."""

    allocatable: dict[str, Any] | None = None
    conditions: list[Condition] | None = None


class KubeNode(Struct, frozen=True):
    """A node."""

    metadata: Meta
    spec: KubeNodeSpec = KubeNodeSpec()
    status: NodeStatus = NodeStatus()

    @property
    def hostname(self) -> str:
        """Value of the hostname label."""
        return self.metadata.label(HOSTNAME) or self.metadata.name

    def gpus(self, resource: str) -> int:
        """Return the number of healthy GPUs."""
        return quantity((self.status.allocatable or {}).get(resource, 0)) or 0

    @property
    def ready(self) -> bool:
        """Whether the Ready condition is true."""
        return any(each.type == "Ready" and each.true for each in self.status.conditions or ())

    def against(self, tolerated: tuple[str, ...]) -> str:
        """Return why no job starts on the node, or ""."""
        ready = next((c for c in self.status.conditions or () if c.type == "Ready"), None)
        why = []
        if ready is None or not ready.true:
            message = "" if ready is None else ready.message or ready.reason
            why.append(f"not ready: {message}" if message else "not ready")
        if self.spec.unschedulable:
            why.append("cordoned")
        for taint in self.spec.taints or ():
            own = taint.key.startswith("node.kubernetes.io/") and why  # repeats a condition
            if taint.effect in ("NoSchedule", "NoExecute") and taint.key not in tolerated:
                why += [] if own else [f"tainted {taint.key}"]
        return ", ".join(why)


def quantity(value: Any) -> int | None:
    """Parse a whole number of devices (`8`, `1k`, `4Ki`, `8e0`, `8000m`).

    None if it is malformed or exceeds `MAX_DEVICES`.
    """
    match = QUANTITY.fullmatch(str(value))
    if match is None:
        return None
    number, exponent, suffix = match.groups()
    amount = Fraction(number) * Fraction(10) ** int(exponent or 0) * SUFFIXES[suffix or ""]
    return int(amount) if amount.denominator == 1 and amount <= MAX_DEVICES else None


def _asked(container: Container, resource: str) -> int:
    resources = container.resources or Resources()
    both: Mapping[str, Any] = {**(resources.requests or {}), **(resources.limits or {})}
    return quantity(both.get(resource, 0)) or 0


def gpus_of_pod(spec: PodSpec, resource: str) -> int:
    """Return the GPUs of a pod. Init containers run before its containers, sidecars meanwhile."""
    before = spec.init_containers or []
    sidecars = sum(_asked(each, resource) for each in before if each.restart_policy == "Always")
    first = max((_asked(each, resource) for each in before), default=0)
    return max(first, sidecars + sum(_asked(each, resource) for each in spec.containers))


def gpus_of(job: KubeJob, resource: str) -> int:
    """Return the GPUs of a Job with all its pods."""
    return job.pods * gpus_of_pod(job.spec.template.spec, resource)
