"""Kueue integration: hand jobs to Kueue, and set its queues' limits from forecasts."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from msgspec import Raw, Struct, field, json

from daemon.backends.interface import BackendContext
from daemon.backends.kube.attempts import Ref, plain
from daemon.backends.kube.client import STEPS, Kube, KubeError, KubeExpiredError, KubeRefusedError
from daemon.backends.kube.config import KubeConfig
from daemon.backends.kube.schema import Meta, quantity
from sia.limits import UNLIMITED
from sia.state.state import PoolState

GROUP = "/apis/kueue.x-k8s.io"

EVERY = 15.0
"""Seconds between updates; forecasts change every five minutes."""

AGAIN = 300.0
"""Seconds after which a queue is checked even without changes, because others may edit it."""

QUEUES = "create it, or set the pool's queue in backend.cluster_queues"
WHOLE = "set its nominalQuota to a whole number of GPUs"
COHORT = "only queues of a cohort lend: set spec.cohortName (spec.cohort before v1beta2)"


class _Version(Struct, frozen=True):
    version: str = ""


class _Group(Struct, frozen=True, rename="camel"):
    preferred_version: _Version = _Version()


class Workload(Struct, frozen=True):
    """Kueue's object for a Job."""

    metadata: Meta


class Resource(Struct, frozen=True, rename="camel"):
    """Quotas of a resource in a flavor; quantities are text or numbers."""

    name: str
    nominal_quota: Any = 0
    borrowing_limit: Any = None
    lending_limit: Any = None


class Flavor(Struct, frozen=True):
    """A resource flavor of a queue."""

    name: str
    resources: list[Resource] = []


class ResourceGroup(Struct, frozen=True):
    """Alternative flavors."""

    flavors: list[Flavor] = []


class QueueSpec(Struct, frozen=True, rename="camel"):
    """Spec of a ClusterQueue."""

    resource_groups: list[ResourceGroup] = []
    cohort: str = ""
    cohort_name: str = field(default="", name="cohortName")


class ClusterQueue(Struct, frozen=True):
    """A ClusterQueue of v1beta1 or v1beta2."""

    metadata: Meta
    spec: QueueSpec = QueueSpec()


async def version_of(kube: Kube) -> str:
    """Return Kueue's preferred API version. Raises KubeError or KubeRefusedError."""
    found = (await kube.get(GROUP, _Group)).preferred_version.version
    if not found.isalnum():
        raise KubeError("Kueue reports no API version", "report this with Kueue's version")
    return found


async def deactivate(kube: Kube, ref: Ref) -> bool:
    """Deactivate a Job's workload, so that Kueue evicts it; False if there is none yet."""
    path = f"{GROUP}/{await version_of(kube)}/namespaces/{ref.namespace}/workloads"
    known: list[Raw] = []
    try:
        async for page in kube.pages(path, {"labelSelector": f"kueue.x-k8s.io/job-uid={ref.uid}"}):
            known += page.items
    except KubeExpiredError as error:
        raise KubeError(str(error)) from None
    for raw in known:
        name = json.decode(raw, type=Workload).metadata.name
        await kube.patch(f"{path}/{name}", {"spec": {"active": False}}, Workload)
    return bool(known)


def limits_of(pool: PoolState) -> tuple[int, int | None]:
    """Return a pool's lending and borrowing limits in GPUs; None: no limit.

    The lending limit is the number of GPUs that the pool lends now, plus its idle GPUs, minus the
    reservation of SIA §5.2: the largest demand of pending and forecast jobs over all windows.
    """
    if not pool.group.lending:
        return 0, 0
    unused = max(0, pool.unused)
    reserved = min(unused, pool.pending_width + max(pool.load, default=0))
    lend = min(pool.quota, pool.lends + unused - reserved, max(0, pool.lend_limit))
    return lend, None if pool.borrow_limit >= UNLIMITED else max(0, pool.borrow_limit)


def steps_of(
    queue: ClusterQueue, gpu: str, lend: int, borrow: int | None
) -> list[Mapping[str, Any]]:
    """Return the JSON Patch that sets a queue's limits; empty if they are set already.

    With several flavors, GPUs that are not lent are kept in the first ones, which Kueue uses first.
    """
    found: list[Mapping[str, Any]] = []
    places = list(_places(queue, gpu))
    keep = max(0, sum(_nominal(own) for _, own in places) - lend)
    for path, own in places:
        retained = min(keep, _nominal(own))
        keep -= retained
        wanted = _nominal(own) - retained
        if own.lending_limit is None or quantity(own.lending_limit) != wanted:
            found.append({"op": "add", "path": f"{path}/lendingLimit", "value": str(wanted)})
        if borrow is None and own.borrowing_limit is not None:
            found.append({"op": "remove", "path": f"{path}/borrowingLimit"})
        if borrow is None:
            continue
        if own.borrowing_limit is None or quantity(own.borrowing_limit) != borrow:
            found.append({"op": "add", "path": f"{path}/borrowingLimit", "value": str(borrow)})
        borrow = 0  # borrow only in the first flavor
    if not found:
        return []
    same = {"op": "test", "path": "/metadata/resourceVersion"}
    return [{**same, "value": queue.metadata.resource_version}, *found]


def _nominal(own: Resource) -> int:
    return quantity(own.nominal_quota) or 0


def _places(queue: ClusterQueue, gpu: str) -> Iterator[tuple[str, Resource]]:
    for i, group in enumerate(queue.spec.resource_groups):
        for j, flavor in enumerate(group.flavors):
            for k, own in enumerate(flavor.resources):
                if own.name == gpu:
                    path = f"/spec/resourceGroups/{i}/flavors/{j}/resources/{k}"
                    yield path, own


class QueueLimits:
    """Sets the lending and borrowing limits of the pools' ClusterQueues.

    Attributes:
        trouble: Reason and fix if a queue cannot be updated; else empty.
    """

    def __init__(self, config: KubeConfig, kube: Kube, context: BackendContext) -> None:
        """Create the updater; `run` starts it."""
        self._config, self._kube, self._context = config, kube, context
        self._sent: dict[str, tuple[int, int | None, float]] = {}
        self.trouble = "", ""

    async def run(self, changed: asyncio.Event) -> None:
        """Update the limits periodically until cancelled."""
        while True:
            before = self.trouble
            try:
                self.trouble = "", ""
                await self._steer()
            except KubeError as error:
                self.trouble = error.why, error.mend
            except (KubeRefusedError, KubeExpiredError) as error:
                self.trouble = f"Kueue: {error}", "install Kueue, or remove backend.kueue"
            if self.trouble != before:
                changed.set()
            await asyncio.sleep(min(EVERY, 20 * self._config.poll))

    async def _steer(self) -> None:
        now = asyncio.get_running_loop().time()
        wanted = {name: limits_of(pool) for name, pool in self._context.counts().items()}
        due = {}
        for pool, limits in wanted.items():
            *sent, when = self._sent.get(pool, (None, None, float("-inf")))
            if tuple(sent) != limits or now - when > AGAIN:
                due[pool] = limits
        if not due:
            return
        path = f"{GROUP}/{await version_of(self._kube)}/clusterqueues"
        for pool, limits in due.items():
            if not self._context.fence.holds():
                return
            if await self._say(path, pool, *limits):
                self._sent[pool] = (*limits, now)

    async def _say(self, path: str, pool: str, lend: int, borrow: int | None) -> bool:
        """Set a queue's limits; return whether they are set."""
        name = self._config.cluster_queue_of(pool)
        try:
            queue = await self._kube.get(f"{path}/{name}", ClusterQueue)
            why = self._ignored(queue, pool)
            if why[0]:
                self.trouble = why
                return False
            steps: Sequence[Any] = steps_of(queue, self._config.gpu, lend, borrow)
            if steps:
                await self._kube.patch(f"{path}/{name}", steps, ClusterQueue, STEPS)
        except KubeRefusedError as error:  # changed by someone else, or missing
            self.trouble = f"ClusterQueue {name} of pool {pool}: {error}", QUEUES
            return False
        return True

    def _ignored(self, queue: ClusterQueue, pool: str) -> tuple[str, str]:
        name = queue.metadata.name
        if not (queue.spec.cohort or queue.spec.cohort_name):
            return f"ClusterQueue {name} is in no cohort", COHORT
        own = [each.nominal_quota for _, each in _places(queue, self._config.gpu)]
        odd = [str(each) for each in own if quantity(each) is None]
        if odd:
            return f"ClusterQueue {name} has the nominalQuota {plain(odd[0], 40)!r}", WHOLE
        nominal = sum(quantity(each) or 0 for each in own)
        known = self._context.book().pools.get(pool)
        if known is not None and known.quota != nominal:
            mend = (
                f"set its nominalQuota of {self._config.gpu} and the pool's quota to the same value"
            )
            return f"ClusterQueue {name} has {nominal} GPUs, pool {pool} {known.quota}", mend
        return "", ""
