"""Nodes of Kubernetes: not ready, cordoned, tainted, or with fewer GPUs than at the start."""

from __future__ import annotations

from collections.abc import Iterable

from daemon.backends.interface import BackendContext
from daemon.backends.kube.attempts import KubeAttempt
from daemon.backends.kube.config import KubeConfig
from daemon.backends.kube.discovery import KubeInventory
from daemon.backends.kube.manifests import is_bound
from daemon.backends.kube.schema import KubeNode, PodSpec
from daemon.backends.kube.watch import WatchCache
from daemon.engine.nodes import BACKEND
from daemon.model.inputs import NodeDown, NodeUp
from sia.model import Nodes as Gpus
from sia.wording import counted

RESTART = "restart the daemon, for seconds: jobs go on, and those that wait may start there"

NO_NODE = "Kubernetes has no such node any more"


class KubeNodeWatch:
    """Says of each node whether jobs start there.

    Attributes:
        mirror: The nodes as they are; None where Kueue places jobs.
        news: Whether one has changed since the last look.
        unused: Which came since the start, and the mend; empty where none did.
    """

    def __init__(self, config: KubeConfig, house: BackendContext, found: KubeInventory) -> None:
        """Of those that were found at the start."""
        self._config, self._house = config, house
        self._gpus = {name: len(gpus) for name, gpus in found.gpus}
        self._areas = found.areas
        self.mirror: WatchCache[KubeNode] | None = None
        self.news = False
        self.unused = "", ""

    def host(self, node: str) -> str:
        """What a node's label says by which jobs are sent there."""
        known = None if self.mirror is None else self.mirror.objects.get(node)
        return node if known is None else known.hostname

    def sent(self, places: Gpus, spec: PodSpec) -> bool:
        """Whether pods of that kind go nowhere else, as far as these nodes are known."""
        known = {} if self.mirror is None else self.mirror.objects
        if not places or any(name not in known for name, _ in places):
            return True
        return is_bound(spec, [self.host(name) for name, _ in places])

    @property
    def most(self) -> int:
        """GPUs of the largest node; 0 where Kueue places jobs."""
        return max(self._gpus.values(), default=0)

    def fits(self, pool: str, selector: dict[str, str]) -> bool:
        """Whether each node that the pool's jobs may be on bears these labels."""
        if self.mirror is None:
            return True
        pools = self._house.book().pools
        own = pools[pool]
        with_it = [p.name for p in pools.values() if p.share and own.share and p.group == own.group]
        names = {node for p in {pool, *with_it} for node in self._areas.get(p, self._gpus)}
        nodes = (self.mirror.objects.get(name) for name in names)
        return all(
            selector.items() <= (node.metadata.labels or {}).items()
            for node in nodes
            if node is not None
        )

    def lost(self, places: Gpus, *, begun: bool) -> str:
        """Why what ran there may run no more, or what is to begin there cannot; nothing if not."""
        if self.mirror is None or not self.mirror.synced:
            return ""
        for name, _ in places:
            node = self.mirror.objects.get(name)
            if node is None:
                return f"node {name} is not in Kubernetes any more"
            if not node.ready:
                return f"node {name} is not ready, and nothing of the job is left there"
            if not begun and (why := self._against(name)):
                return f"node {name} is {why}, and nothing of the job has begun there"
        return ""

    def look(self, runs: Iterable[KubeAttempt]) -> None:
        """Say what has changed; what is on a node that is lost is looked at again."""
        if self.mirror is None or not self.mirror.synced or not self.news:
            return
        self.news = False
        records = self._house.book().nodes
        for name in self._gpus:
            why, known = self._against(name), records.get(name)
            before = "" if known is None else known.reasons.get(BACKEND, "")
            if known is not None and why != before:
                self._house.sink(NodeDown(name, why) if why else NodeUp(name))
        for run in runs:
            if run.ref is None or run.due is not None:
                continue
            if self.lost(run.order.nodes, begun=run.told):
                run.due = 0.0
        self._tell_of_others()

    def _against(self, name: str) -> str:
        """Why no job starts on a node; nothing where jobs do."""
        assert self.mirror is not None, "it was looked at"
        node, gpus = self.mirror.objects.get(name), self._gpus.get(name, 0)
        if node is None:
            return NO_NODE
        there = node.gpus(self._config.gpu)
        if there < gpus:
            return f"Kubernetes counts {there} GPUs on it, and it had {gpus}"
        return node.against(self._config.tolerations)

    def _tell_of_others(self) -> None:
        """Say which nodes, or GPUs of one, came since the start: they are not used yet."""
        assert self.mirror is not None, "it was looked at"
        more = sorted(
            name
            for name, node in self.mirror.objects.items()
            if node.gpus(self._config.gpu) > self._gpus.get(name, 0) and self._is_pools(node)
        )
        some = ", ".join(more[:8])
        why = f"Kubernetes has GPUs on {counted(len(more), 'node')} that came after the start"
        self.unused = (f"{why}: {some}", RESTART) if more else ("", "")

    def _is_pools(self, node: KubeNode) -> bool:
        """Whether it is one of any pool's, as `kube_found` has it."""
        labels = (node.metadata.labels or {}).items()
        wanted = (self._config.nodes.get(pool, {}) for pool in self._house.book().pools)
        return any(each.items() <= labels for each in wanted)
