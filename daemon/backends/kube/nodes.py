"""Find the nodes with GPUs, and watch them: not ready, cordoned, tainted, or with fewer GPUs."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor

from msgspec import DecodeError, Struct, json
from msgspec.structs import replace

from daemon.backends.interface import BackendContext
from daemon.backends.kube.attempts import KubeAttempt
from daemon.backends.kube.client import Kube, KubeError, KubeExpiredError, KubeRefusedError
from daemon.backends.kube.config import KubeConfig
from daemon.backends.kube.manifests import is_bound
from daemon.backends.kube.schema import KubeNode, PodSpec
from daemon.backends.kube.watch import WatchCache
from daemon.engine.nodes import BACKEND
from daemon.journal.journal import Journal
from daemon.model.inputs import NodeDown, NodeUp
from sia.console.errors import UserError
from sia.model import Nodes
from sia.model import Nodes as Gpus
from sia.wording import counted

MARK = "kube/found"
"""Key of the note with the last inventory, used for a start while Kubernetes is unreachable."""

NODES = "/api/v1/nodes"


class KubeInventory(Struct, frozen=True, omit_defaults=True):
    """Nodes with GPUs, and the nodes of each pool if pools are limited to nodes."""

    gpus: Nodes
    areas: dict[str, tuple[str, ...]] = {}
    out: dict[str, str] = {}
    """Reason by node, for nodes on which no job starts."""
    away: tuple[str, str] = ("", "")
    """Reason and fix if Kubernetes was unreachable and this is the stored inventory."""


def find(config: KubeConfig, pools: Iterable[str], journal: Journal) -> KubeInventory:
    """Query Kubernetes, or use the stored inventory if it is unreachable. Blocks.

    With Kueue the inventory is empty, because Kueue places jobs. A pool whose last node is gone
    keeps the nodes of the stored inventory, as out. Raises UserError if there is no inventory or a
    pool never had a node.
    """
    if config.kueue:
        return KubeInventory(())
    before = _stored(journal)
    with ThreadPoolExecutor(1) as aside:  # the calling thread may already run an event loop
        try:
            nodes = aside.submit(asyncio.run, _ask(config)).result()
        except KubeError as error:
            if before is None:
                raise UserError(f"backend: {error.why}; {error.mend}") from None
            return replace(before, away=(error.why, error.mend))
    found = found_in(nodes, config, list(pools), before)
    journal.mark({MARK: json.encode(found).decode()})
    return found


def _stored(journal: Journal) -> KubeInventory | None:
    """Return the last inventory, if there is one that this version can read."""
    known = journal.marks(MARK).get(MARK)
    try:
        return None if known is None else json.decode(known, type=KubeInventory)
    except DecodeError:
        return None


async def _ask(config: KubeConfig) -> list[KubeNode]:
    kube, found = Kube(config), list[KubeNode]()
    try:
        async for page in kube.pages(NODES, {}):
            found += [json.decode(raw, type=KubeNode) for raw in page.items]
    except (KubeExpiredError, KubeRefusedError) as error:
        raise KubeError(str(error)) from None
    except DecodeError as error:
        why = f"cannot parse the API server's nodes: {error}"
        raise KubeError(why, "report this with the version of Kubernetes") from None
    finally:
        await kube.close()
    return found


def found_in(
    nodes: Sequence[KubeNode],
    config: KubeConfig,
    pools: Sequence[str],
    before: KubeInventory | None = None,
) -> KubeInventory:
    """Return the nodes with GPUs by pool; `before` has the nodes of pools that have none now.

    Raises UserError if a pool has none.
    """
    gpus = {node.metadata.name: node.gpus(config.gpu) for node in nodes}
    there = [node for node in nodes if gpus[node.metadata.name]]
    had = {} if before is None else dict(before.gpus)
    if not there and not had:
        raise UserError(
            f"backend.gpu: no node in Kubernetes has {config.gpu}; run kubectl describe nodes"
        )
    areas, gone = {}, dict[str, tuple[int, ...]]()
    for pool in pools:
        wanted = config.nodes.get(pool, {}).items()
        labels = {node.metadata.name: (node.metadata.labels or {}).items() for node in there}
        areas[pool] = tuple(name for name in labels if wanted <= labels[name])
        if not areas[pool] and before is not None:
            own = before.areas.get(pool, ()) if before.areas else had
            lost = (name for name in own if not gpus.get(name))
            areas[pool] = tuple(name for name in lost if name in had)
            gone |= {name: had[name] for name in areas[pool]}
        if not areas[pool]:
            asked = ", ".join(f"{key}={value}" for key, value in wanted)
            raise UserError(
                f"backend.nodes: no node with GPUs has the labels {asked} of pool {pool}; "
                f"run kubectl get nodes -l {asked.replace(', ', ',')}"
            )
    used = {node for area in areas.values() for node in area}
    against = {node.metadata.name: node.against(config.tolerations) for node in there}
    found = {name: tuple(range(many)) for name, many in gpus.items() if many}
    return KubeInventory(
        tuple((name, gpus) for name, gpus in (gone | found).items() if name in used),
        areas if config.nodes else {},
        {name: _fewer(0, len(had[name])) if name in gpus else NO_NODE for name in gone}
        | {name: why for name, why in against.items() if why and name in used},
    )


def _fewer(there: int, known: int) -> str:
    return f"Kubernetes reports {there} GPUs instead of {known}"


RESTART = "restart the daemon to use them; running jobs continue"

NO_NODE = "no longer in Kubernetes"


class KubeNodeWatch:
    """Reports for each node whether jobs can start there.

    Attributes:
        mirror: Cache of the nodes; None if Kueue places jobs.
        news: Whether a node has changed since the last check.
        unused: Nodes added since the start, and the fix; else empty.
    """

    def __init__(self, config: KubeConfig, context: BackendContext, found: KubeInventory) -> None:
        """Watch the nodes of the inventory."""
        self._config, self._context = config, context
        self._gpus = {name: len(gpus) for name, gpus in found.gpus}
        self._areas = found.areas
        self.mirror: WatchCache[KubeNode] | None = None
        self.news = False
        self.unused = "", ""

    def host(self, node: str) -> str:
        """Return the value of a node's hostname label."""
        known = None if self.mirror is None else self.mirror.objects.get(node)
        return node if known is None else known.hostname

    def sent(self, places: Gpus, spec: PodSpec) -> bool:
        """Return whether pods of this template can only run on these nodes, as far as is known."""
        known = {} if self.mirror is None else self.mirror.objects
        if not places or any(name not in known for name, _ in places):
            return True
        return is_bound(spec, [self.host(name) for name, _ in places])

    @property
    def most(self) -> int:
        """Number of GPUs of the largest node; 0 if Kueue places jobs."""
        return max(self._gpus.values(), default=0)

    def fits(self, pool: str, selector: dict[str, str]) -> bool:
        """Return whether a node selector matches all nodes that the pool's jobs may use."""
        if self.mirror is None:
            return True
        pools = self._context.book().pools
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
        """Return why the attempt on these nodes is lost or cannot begin, or ""."""
        if self.mirror is None or not self.mirror.synced:
            return ""
        for name, _ in places:
            node = self.mirror.objects.get(name)
            if node is None:
                return f"node {name} is no longer in Kubernetes"
            if not node.ready:
                return f"node {name} is not ready, and the job has no pods left there"
            if not begun and (why := self._against(name)):
                return f"node {name} is {why}, and the job has no running pods there"
        return ""

    def look(self, runs: Iterable[KubeAttempt]) -> None:
        """Report changed nodes, and schedule a check of attempts on lost nodes."""
        if self.mirror is None or not self.mirror.synced or not self.news:
            return
        self.news = False
        records = self._context.book().nodes
        for name in self._gpus:
            why, known = self._against(name), records.get(name)
            before = "" if known is None else known.reasons.get(BACKEND, "")
            if known is not None and why != before:
                self._context.sink(NodeDown(name, why) if why else NodeUp(name))
        for run in runs:
            if run.ref is None or run.due is not None:
                continue
            if self.lost(run.order.nodes, begun=run.reported):
                run.due = 0.0
        self._tell_of_others()

    def _against(self, name: str) -> str:
        """Return why no job starts on a node, or ""."""
        assert self.mirror is not None, "checked by the caller"
        node, known = self.mirror.objects.get(name), self._context.book().nodes.get(name)
        gpus = self._gpus.get(name, 0) if known is None else len(known.gpus)
        if node is None:
            return NO_NODE
        there = node.gpus(self._config.gpu)
        if there < gpus:
            return _fewer(there, gpus)
        return node.against(self._config.tolerations)

    def _tell_of_others(self) -> None:
        """Record nodes and GPUs that were added after the start and are not used yet."""
        assert self.mirror is not None, "checked by the caller"
        more = sorted(
            name
            for name, node in self.mirror.objects.items()
            if node.gpus(self._config.gpu) > self._gpus.get(name, 0) and self._is_pools(node)
        )
        some = ", ".join(more[:8])
        why = f"not in use: {counted(len(more), 'node')} added after the daemon's start"
        self.unused = (f"{why}: {some}", RESTART) if more else ("", "")

    def _is_pools(self, node: KubeNode) -> bool:
        """Return whether a node belongs to a pool, as in the inventory."""
        labels = (node.metadata.labels or {}).items()
        wanted = (self._config.nodes.get(pool, {}) for pool in self._context.book().pools)
        return any(each.items() <= labels for each in wanted)
