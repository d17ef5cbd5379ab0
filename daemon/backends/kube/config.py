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
"""Characters of a path: Linux knows no longer one."""

ConfigText = Annotated[str, Meta(max_length=MAX_TEXT)]
LabelText = Annotated[str, Meta(max_length=63, pattern=r"^[a-z0-9]([a-z0-9-]*[a-z0-9])?(?!\n)$")]
"""A name as RFC 1123 has it: of namespaces."""

ObjectName = Annotated[str, Meta(max_length=253, pattern=r"^[a-z0-9]([a-z0-9.-]*[a-z0-9])?(?!\n)$")]
"""A name of most other things in Kubernetes."""

LabelName = Annotated[
    str,
    Meta(
        max_length=317,
        pattern=r"^([a-z0-9]([a-z0-9.-]*[a-z0-9])?/)?[A-Za-z0-9]([A-Za-z0-9._-]*[A-Za-z0-9])?(?!\n)$",
    ),
]
"""What labels, taints and resources are called."""

LabelValue = Annotated[str, Meta(max_length=63)]
"""What a label says."""


class KubeConfig(BackendConfig, frozen=True):
    """Jobs of a Kubernetes cluster: a pool's are in a namespace, or bear a label."""

    can = frozenset({
        "adopted_widths", "commands", "logs", "preempt", "requeue", "resize", "save_by_command"
    })  # fmt: skip
    finds_nodes = True

    kubeconfig: ConfigText = ""
    """A file, relative to the configuration's folder; empty means the pod's service account."""
    context: ConfigText = ""
    """Which one of that file, if not its current one."""
    home: LabelText = "sia"
    """The daemon's own namespace: its Lease is there."""
    lease: ObjectName = "sia-daemon"
    """The name of that Lease. The daemon needs it unless PostgreSQL decides who leads."""
    namespace: Annotated[str, Meta(max_length=63)] = ""
    """One namespace for all pools; the label `sia.internal/pool` then names each Job's pool."""
    namespaces: dict[str, LabelText] = field(default_factory=dict)
    """By pool; a pool that is not here has the namespace of its own name."""
    nodes: dict[str, dict[LabelName, LabelValue]] = field(default_factory=dict)
    """By pool, labels that its nodes bear; a pool that is not here has all nodes with GPUs."""
    gpu: LabelName = "nvidia.com/gpu"
    """The resource that pods ask for."""
    tolerations: tuple[LabelName, ...] = ("nvidia.com/gpu",)
    """Taints that jobs tolerate once they are started; nodes with others take none."""
    image: ConfigText = ""
    """What jobs run in that are submitted with a command."""
    keep: Annotated[float, Meta(ge=0, le=366 * 86400)] = 86400.0
    """Seconds for which Kubernetes keeps such jobs when they have ended."""
    adopt: bool = True
    """Whether suspended Jobs are taken over that others create with the pool's label."""
    poll: Annotated[float, Meta(ge=0.05, le=60)] = 2.0
    """Seconds from one look to the next at what no watch tells: whether the pods are gone."""
    kueue: bool = False
    """Whether to stand in front of Kueue: release Jobs to it, and say what its queues lend."""
    local_queues: dict[str, ObjectName] = field(default_factory=dict)
    """LocalQueues by pool, of its own name if it is not here."""
    cluster_queues: dict[str, ObjectName] = field(default_factory=dict)
    """ClusterQueues by pool, of its own name if it is not here."""

    def namespace_of(self, pool: str) -> str:
        """The namespace of a pool."""
        return self.namespace or self.namespaces.get(pool, pool)

    def cluster_queue_of(self, pool: str) -> str:
        """The ClusterQueue of a pool."""
        return self.cluster_queues.get(pool, pool)

    def local_queue_of(self, pool: str) -> str:
        """The LocalQueue of a pool."""
        return self.local_queues.get(pool, pool)

    def placed(self, base: Path, state: Path) -> Self:
        """Take the kubeconfig as next to the configuration if it is relative."""
        if not self.kubeconfig:
            return self
        return replace(self, kubeconfig=str(base / self.kubeconfig))

    def problems(self, config: Config) -> Iterator[str]:
        """Check the client library, files, namespaces and queues."""
        return kube_problems(self, [pool.name for pool in config.pools])


def kube_problems(config: KubeConfig, pools: Collection[str]) -> Iterator[str]:
    """A line for each thing that is wrong with it."""
    if find_spec("kubernetes_asyncio") is None:
        yield f"backend.kind: kubernetes needs kubernetes-asyncio; {install_extra('kubernetes')}"
    if config.kubeconfig and not Path(config.kubeconfig).is_file():
        yield f"backend.kubeconfig: there is no file {config.kubeconfig}; name one"
    if config.context and not config.kubeconfig:
        yield "backend.context: names an entry of a kubeconfig; set kubeconfig, or remove context"
    if config.namespace and config.namespaces:
        yield "backend.namespace: is that of all pools; leave namespaces out, or namespace"
    for key in ("namespaces", "nodes", "local_queues", "cluster_queues"):
        for pool in getattr(config, key):
            if pool not in pools:
                yield f"backend.{key}: there is no pool {pool!r}; name one, or leave it out"
    yield from _names(config, pools)
    if config.nodes and config.kueue:
        yield "backend.nodes: Kueue chooses nodes by its flavors; leave nodes or kueue out"


def _names(config: KubeConfig, pools: Collection[str]) -> Iterator[str]:
    """Pools whose namespaces cannot be told apart, or cannot be."""
    taken: dict[str, str] = {}
    for pool in pools:
        name = config.namespace_of(pool)
        if not _is_label(name):
            yield (
                f"backend.namespaces: pool {pool!r} would have the namespace {name!r}, which can "
                "be none; write one for it"
            )
        other = taken.setdefault(name, pool)
        if other != pool and not config.namespace:
            yield (
                f"backend.namespaces: pools {other} and {pool} have the same namespace; give each "
                "its own, or all one by namespace"
            )
        if config.namespace and not _is_value(pool):
            yield (
                f"backend.namespace: {pool!r} cannot be the value of a label; rename the pool, or "
                "give it a namespace by namespaces"
            )


def _is_label(name: str) -> bool:
    words = name.replace("-", "")
    plain = words.isascii() and words.isalnum() and words == words.lower()
    return plain and len(name) <= 63 and name.strip("-") == name


def _is_value(name: str) -> bool:
    words = name.translate({ord(each): "" for each in "-_."})
    return words.isascii() and words.isalnum() and len(name) <= 63 and name.strip("-_.") == name
