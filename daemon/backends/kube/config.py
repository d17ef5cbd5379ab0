"""Section `[backend]` of sia.toml for Kubernetes."""

from __future__ import annotations

from collections.abc import Collection, Iterator
from importlib.util import find_spec
from pathlib import Path
from typing import Annotated, Self

from msgspec import Meta, field
from msgspec.structs import replace

from daemon.config.config import BackendConfig, Config
from sia.wording import install_extra

MAX_TEXT = 4096
"""Maximum characters of a path: the longest path of Linux."""

ConfigText = Annotated[str, Meta(max_length=MAX_TEXT)]
LabelText = Annotated[str, Meta(max_length=63, pattern=r"^[a-z0-9]([a-z0-9-]*[a-z0-9])?(?!\n)$")]
"""Name of a namespace: an RFC 1123 label."""

ObjectName = Annotated[str, Meta(max_length=253, pattern=r"^[a-z0-9]([a-z0-9.-]*[a-z0-9])?(?!\n)$")]
"""Name of most other objects in Kubernetes: an RFC 1123 subdomain."""

LabelName = Annotated[
    str,
    Meta(
        max_length=317,
        pattern=r"^([a-z0-9]([a-z0-9.-]*[a-z0-9])?/)?[A-Za-z0-9]([A-Za-z0-9._-]*[A-Za-z0-9])?(?!\n)$",
    ),
]
"""Name of a label, a taint or a resource."""

LabelValue = Annotated[str, Meta(max_length=63)]
"""Value of a label."""


class KubeConfig(BackendConfig, frozen=True):
    """Jobs of a Kubernetes cluster; the jobs of a pool are in one namespace, or have one label."""

    can = frozenset({
        "adopted_widths", "commands", "logs", "preempt", "requeue", "resize", "save_by_command",
        "trials",
    })  # fmt: skip
    finds_nodes = True

    kubeconfig: ConfigText = ""
    """A kubeconfig file, relative to the configuration's folder; "": the pod's service account."""
    context: ConfigText = ""
    """Context of the kubeconfig; "": its current context."""
    home: LabelText = "sia"
    """Namespace of the daemon's Lease."""
    lease: ObjectName = "sia-daemon"
    """Name of the daemon's Lease. It is not used if PostgreSQL decides who leads."""
    namespace: Annotated[str, Meta(max_length=63)] = ""
    """One namespace for all pools; the label `sia.internal/pool` then names the pool of each
    Job."""
    namespaces: dict[str, LabelText] = field(default_factory=dict)
    """Namespace of each pool; by default the namespace with the name of the pool."""
    nodes: dict[str, dict[LabelName, LabelValue]] = field(default_factory=dict)
    """Labels of each pool's nodes; by default a pool has all nodes with GPUs."""
    gpu: LabelName = "nvidia.com/gpu"
    """Resource that pods request."""
    tolerations: tuple[LabelName, ...] = ("nvidia.com/gpu",)
    """Taints that started jobs tolerate. Nodes with other taints get no jobs."""
    image: ConfigText = ""
    """Container image of jobs that are submitted with a command."""
    keep: Annotated[float, Meta(ge=0, le=366 * 86400)] = 86400.0
    """Seconds for which Kubernetes keeps such jobs after their end."""
    adopt: bool = True
    """Whether to adopt suspended Jobs that users create with the pool's label."""
    poll: Annotated[float, Meta(ge=0.05, le=60)] = 2.0
    """Seconds between two checks of what watches do not report: whether pods are gone."""
    kueue: bool = False
    """Whether to work with Kueue: release Jobs to it, and set the lending limits of its queues."""
    local_queues: dict[str, ObjectName] = field(default_factory=dict)
    """LocalQueue of each pool; by default the queue with the name of the pool."""
    cluster_queues: dict[str, ObjectName] = field(default_factory=dict)
    """ClusterQueue of each pool; by default the queue with the name of the pool."""

    def namespace_of(self, pool: str) -> str:
        """Return the namespace of a pool."""
        return self.namespace or self.namespaces.get(pool, pool)

    def cluster_queue_of(self, pool: str) -> str:
        """Return the ClusterQueue of a pool."""
        return self.cluster_queues.get(pool, pool)

    def local_queue_of(self, pool: str) -> str:
        """Return the LocalQueue of a pool."""
        return self.local_queues.get(pool, pool)

    def placed(self, base: Path, state: Path) -> Self:
        """Resolve a relative path of the kubeconfig against the configuration's folder."""
        if not self.kubeconfig:
            return self
        return replace(self, kubeconfig=str(base / self.kubeconfig))

    def problems(self, config: Config) -> Iterator[str]:
        """Check the client library, files, namespaces and queues."""
        return kube_problems(self, [pool.name for pool in config.pools])


def kube_problems(config: KubeConfig, pools: Collection[str]) -> Iterator[str]:
    """Yield a line for each problem of the section."""
    if find_spec("kubernetes_asyncio") is None:
        yield f"backend.kind: kubernetes needs kubernetes-asyncio; {install_extra('kubernetes')}"
    if config.kubeconfig and not Path(config.kubeconfig).is_file():
        yield f"backend.kubeconfig: there is no file {config.kubeconfig}; name an existing one"
    if config.context and not config.kubeconfig:
        yield "backend.context: names an entry of a kubeconfig; set kubeconfig, or remove context"
    if config.namespace and config.namespaces:
        yield "backend.namespace: is the namespace of all pools; remove namespaces, or namespace"
    for key in ("namespaces", "nodes", "local_queues", "cluster_queues"):
        for pool in getattr(config, key):
            if pool not in pools:
                yield f"backend.{key}: there is no pool {pool!r}; name a pool, or remove the line"
    yield from _names(config, pools)
    if config.nodes and config.kueue:
        yield "backend.nodes: Kueue chooses nodes by its flavors; leave nodes or kueue out"


def _names(config: KubeConfig, pools: Collection[str]) -> Iterator[str]:
    """Yield a line for each pool whose namespace is invalid or is that of another pool."""
    taken: dict[str, str] = {}
    for pool in pools:
        name = config.namespace_of(pool)
        if not _is_label(name):
            yield (
                f"backend.namespaces: pool {pool!r} would have the namespace {name!r}, which is "
                "not a valid name; add a namespace for the pool"
            )
        other = taken.setdefault(name, pool)
        if other != pool and not config.namespace:
            yield (
                f"backend.namespaces: pools {other} and {pool} have the same namespace; give each "
                "its own, or set backend.namespace to put all pools into one"
            )
        if config.namespace and not _is_value(pool):
            yield (
                f"backend.namespace: {pool!r} cannot be the value of a label; rename the pool, or "
                "give it its own namespace with backend.namespaces"
            )


def _is_label(name: str) -> bool:
    words = name.replace("-", "")
    plain = words.isascii() and words.isalnum() and words == words.lower()
    return plain and len(name) <= 63 and name.strip("-") == name


def _is_value(name: str) -> bool:
    words = name.translate({ord(each): "" for each in "-_."})
    return words.isascii() and words.isalnum() and len(name) <= 63 and name.strip("-_.") == name
