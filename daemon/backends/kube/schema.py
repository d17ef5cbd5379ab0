"""What the Kubernetes API says of Jobs, pods and nodes: as much of it as is needed here.

What is not read is left alone. Names of fields are the API's, in Python's spelling.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from fractions import Fraction
from typing import Annotated, Any

import msgspec
from msgspec import Struct

PREFIX = "sia.internal"
"""Whose labels and annotations are the daemon's: no such domain can be anybody's."""

POOL = f"{PREFIX}/pool"
"""A label, which people write too: of which pool a Job is."""

DAEMON, JOB, ATTEMPT = f"{PREFIX}/daemon", f"{PREFIX}/job", f"{PREFIX}/attempt"
"""Annotations: which daemon's job this is, which, and which attempt was released last."""

ORDER = f"{PREFIX}/order"
"""An annotation: for which attempt the daemon has made this Job; adopted ones have none."""

RELEASED = f"{PREFIX}/released"
"""An annotation: to which nodes that attempt was released, and the daemon's seal of it."""

OVER = f"{PREFIX}/over"
"""An annotation: why an adopted Job was ended here; it is not taken over again."""

PRIORITY = f"{PREFIX}/priority"
"""An annotation that people write: the job's priority."""

GATE = "kueue.x-k8s.io/admission-gated-by"
"""An annotation: by whom a Job is kept from Kueue, with commas between."""

GATE_OWN = f"{PREFIX}/sia"
"""What stands there where that is the daemon."""

QUEUE = "kueue.x-k8s.io/queue-name"
"""The label that says in which LocalQueue a Job waits."""

HOSTNAME = "kubernetes.io/hostname"
"""The label by which a Job is sent to a node."""

INDEX = "batch.kubernetes.io/job-completion-index"
"""An annotation of pods: which of its Job's it is."""

MAIN = "kubectl.kubernetes.io/default-container"
"""An annotation of pods: which of their containers people mean."""

MAX_PODS = 100_000
"""Of one Job: more make no sense on 2^31 GPUs, and products stay small."""

MAX_DEVICES = 10**9 - 1
"""In one quantity: no cluster has more, and products stay small."""

QUANTITY = re.compile(
    r"\+?(\d{1,20}(?:\.\d{0,20})?|\.\d{1,20})(?:[eE]([+-]?\d{1,2})|([numkMGTPE]|[KMGTPE]i))?",
    re.ASCII,
)
"""What Kubernetes takes for one that is not negative, of lengths that cost nothing to read."""

SUFFIXES = {"": Fraction(1), "k": Fraction(1000)}
SUFFIXES |= {each: Fraction(1000) ** n for n, each in enumerate("MGTPE", 2)}
SUFFIXES |= {f"{each}i": Fraction(1024) ** n for n, each in enumerate("KMGTPE", 1)}
SUFFIXES |= {each: 1 / Fraction(1000) ** n for n, each in enumerate("mun", 1)}
"""What they stand for."""

KubeName = Annotated[
    str, msgspec.Meta(max_length=253, pattern=r"^([a-z0-9]([a-z0-9.-]*[a-z0-9])?)?(?!\n)$")
]
"""As RFC 1123 has it, or nothing: no other name is to come into a path."""

Uid = Annotated[str, msgspec.Meta(max_length=128, pattern=r"^[A-Za-z0-9-]*(?!\n)$")]
"""Nothing that a label's selector could take for more."""


class Owner(Struct, frozen=True):
    """Whose an object says that it is."""

    uid: str = ""


class Meta(Struct, frozen=True, rename="camel"):
    """What each object has. Times are text, as the API writes them."""

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
        """Which object it is, and stays for good."""
        return f"{self.namespace}/{self.name}@{self.uid}"

    def label(self, key: str) -> str:
        """What that label says; nothing where there is none."""
        return (self.labels or {}).get(key, "")

    def note(self, key: str) -> str:
        """What that annotation says; nothing where there is none."""
        return (self.annotations or {}).get(key, "")

    def owned_by(self, uid: str) -> bool | None:
        """Whether it says that it is that object's; None where it says that it is nobody's."""
        owners = self.owner_references
        return any(owner.uid == uid for owner in owners) if owners else None


class Condition(Struct, frozen=True):
    """One of an object's conditions."""

    type: str
    status: str = ""
    reason: str = ""
    message: str = ""

    @property
    def true(self) -> bool:
        """Whether it is so."""
        return self.status == "True"


class Resources(Struct, frozen=True):
    """What a container asks for: quantities are text or numbers."""

    limits: dict[str, Any] | None = None
    requests: dict[str, Any] | None = None


class Container(Struct, frozen=True, rename="camel"):
    """A container of a pod's template."""

    name: str = ""
    resources: Resources | None = None
    restart_policy: str | None = None


class PodSpec(Struct, frozen=True, rename="camel"):
    """A pod's template, or what a pod is to be."""

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
    """What a Job makes pods of."""

    spec: PodSpec = PodSpec()


class KubeJobSpec(Struct, frozen=True, rename="camel"):
    """What a Job is to be."""

    template: Template = Template()
    suspend: bool | None = None
    parallelism: int | None = None
    completions: int | None = None
    active_deadline_seconds: int | None = None
    managed_by: str | None = None


class KubeJobStatus(Struct, frozen=True, rename="camel"):
    """What a Job is."""

    conditions: list[Condition] | None = None
    start_time: str | None = None
    active: int | None = None
    ready: int | None = None
    succeeded: int | None = None
    failed: int | None = None
    terminating: int | None = None


class KubeJob(Struct, frozen=True):
    """A Job of batch/v1."""

    metadata: Meta
    spec: KubeJobSpec = KubeJobSpec()
    status: KubeJobStatus = KubeJobStatus()

    @property
    def suspended(self) -> bool:
        """Whether it waits to be released."""
        return bool(self.spec.suspend)

    @property
    def verdict(self) -> Condition | None:
        """That it is over, and how; None while it is not."""
        for each in self.status.conditions or ():
            if each.type in ("Complete", "Failed") and each.true:
                return each
        return None

    @property
    def pods(self) -> int:
        """How many are to run at a time."""
        many = 1 if self.spec.parallelism is None else self.spec.parallelism
        whole = self.spec.completions
        return min(many, MAX_PODS) if whole is None else min(many, whole, MAX_PODS)

    @property
    def gates(self) -> list[str]:
        """By whom it is kept from Kueue."""
        return [each.strip() for each in self.metadata.note(GATE).split(",") if each.strip()]

    @property
    def begun(self) -> bool:
        """Whether one of its pods has come to run."""
        status = self.status
        return any((status.ready, status.succeeded, status.failed))


class Terminated(Struct, frozen=True, rename="camel"):
    """How a container ended."""

    exit_code: int = 0
    signal: int | None = None
    reason: str = ""


class ContainerState(Struct, frozen=True):
    """What a container is."""

    terminated: Terminated | None = None


class ContainerStatus(Struct, frozen=True):
    """What is known of a container."""

    state: ContainerState = ContainerState()


class PodStatus(Struct, frozen=True, rename="camel"):
    """What a pod is."""

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
        """Whether nothing of it is on its node any more."""
        return self.status.phase in ("Succeeded", "Failed")

    @property
    def holds(self) -> bool:
        """Whether it may have GPUs of a node."""
        return bool(self.spec.node_name) and not self.over

    @property
    def disrupted(self) -> str:
        """Why it was ended through no fault of its own; nothing where it was not."""
        for each in self.status.conditions or ():
            if each.type == "DisruptionTarget" and each.true:
                return each.message or each.reason or "disrupted"
        if self.status.reason in ("Evicted", "NodeLost", "Shutdown", "NodeShutdown", "Terminated"):
            return self.status.message or self.status.reason
        return ""

    @property
    def ends(self) -> Iterator[Terminated]:
        """How its containers ended."""
        for each in self.status.container_statuses or ():
            if each.state.terminated is not None:
                yield each.state.terminated


class Taint(Struct, frozen=True):
    """A taint of a node."""

    key: str
    effect: str = ""


class KubeNodeSpec(Struct, frozen=True):
    """What a node is to be."""

    unschedulable: bool | None = None
    taints: list[Taint] | None = None


class NodeStatus(Struct, frozen=True):
    """What a node is and has."""

    allocatable: dict[str, Any] | None = None
    conditions: list[Condition] | None = None


class KubeNode(Struct, frozen=True):
    """A node."""

    metadata: Meta
    spec: KubeNodeSpec = KubeNodeSpec()
    status: NodeStatus = NodeStatus()

    @property
    def hostname(self) -> str:
        """What its label says, by which jobs are sent there."""
        return self.metadata.label(HOSTNAME) or self.metadata.name

    def gpus(self, resource: str) -> int:
        """How many it has that are well."""
        return quantity((self.status.allocatable or {}).get(resource, 0)) or 0

    @property
    def ready(self) -> bool:
        """Whether its kubelet says that it is."""
        return any(each.type == "Ready" and each.true for each in self.status.conditions or ())

    def against(self, tolerated: tuple[str, ...]) -> str:
        """Why no job starts there, in words; nothing where jobs do."""
        ready = next((c for c in self.status.conditions or () if c.type == "Ready"), None)
        why = []
        if ready is None or not ready.true:
            said = "" if ready is None else ready.message or ready.reason
            why.append(f"not ready: {said}" if said else "not ready")
        if self.spec.unschedulable:
            why.append("cordoned")
        for taint in self.spec.taints or ():
            own = taint.key.startswith("node.kubernetes.io/") and why  # says the same once more
            if taint.effect in ("NoSchedule", "NoExecute") and taint.key not in tolerated:
                why += [] if own else [f"tainted {taint.key}"]
        return ", ".join(why)


def quantity(value: Any) -> int | None:
    """A whole number of devices, as Kubernetes writes them (`8`, `1k`, `4Ki`, `8e0`, `8000m`).

    None where it is no such number, or one that no cluster has.
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
    """GPUs that one pod of a template holds: init containers run before, sidecars beside."""
    before = spec.init_containers or []
    beside = sum(_asked(each, resource) for each in before if each.restart_policy == "Always")
    first = max((_asked(each, resource) for each in before), default=0)
    return max(first, beside + sum(_asked(each, resource) for each in spec.containers))


def gpus_of(job: KubeJob, resource: str) -> int:
    """GPUs that a Job holds when all its pods run."""
    return job.pods * gpus_of_pod(job.spec.template.spec, resource)
