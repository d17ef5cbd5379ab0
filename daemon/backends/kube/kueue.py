"""In front of Kueue: what is released waits there, and its queues lend what is foreseen as idle."""

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
"""Seconds from one look at what is foreseen to the next: forecasts come each five minutes."""

AGAIN = 300.0
"""Seconds after which a queue is looked at although nothing has changed here: others edit it."""

QUEUES = "make it, or name the pool's in backend.cluster_queues"
WHOLE = "let its nominalQuota be a whole number of GPUs"
COHORT = "only queues of a cohort lend: give it spec.cohortName (spec.cohort before v1beta2)"


class _Version(Struct, frozen=True):
    version: str = ""


class _Group(Struct, frozen=True, rename="camel"):
    preferred_version: _Version = _Version()


class Workload(Struct, frozen=True):
    """What Kueue makes of a Job."""

    metadata: Meta


class Resource(Struct, frozen=True, rename="camel"):
    """What a queue has of a resource in a flavor: quantities are text or numbers."""

    name: str
    nominal_quota: Any = 0
    borrowing_limit: Any = None
    lending_limit: Any = None


class Flavor(Struct, frozen=True):
    """A kind of nodes."""

    name: str
    resources: list[Resource] = []


class ResourceGroup(Struct, frozen=True):
    """Flavors that are alternatives."""

    flavors: list[Flavor] = []


class QueueSpec(Struct, frozen=True, rename="camel"):
    """What a ClusterQueue is to be."""

    resource_groups: list[ResourceGroup] = []
    cohort: str = ""
    cohort_name: str = field(default="", name="cohortName")


class ClusterQueue(Struct, frozen=True):
    """A ClusterQueue, in each of the shapes of v1beta1 and v1beta2."""

    metadata: Meta
    spec: QueueSpec = QueueSpec()


async def version_of(kube: Kube) -> str:
    """The version of Kueue's API that its server prefers. Raises KubeError, KubeRefusedError."""
    found = (await kube.get(GROUP, _Group)).preferred_version.version
    if not found.isalnum():
        raise KubeError("Kueue says no version of its API", "report it with Kueue's version")
    return found


async def deactivate(kube: Kube, ref: Ref) -> bool:
    """Have Kueue end a Job, and not admit it again; False where it knows of none yet."""
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
    """What a pool's queue may lend and borrow, in GPUs; None for no bound.

    It lends what it lends already, and of what is unused all but the reservation of SIA §5.2: what
    its waiting and foreseen jobs will ask for, over the window in which that is most.
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
    """What is to change in a queue, as JSON Patch; nothing where it says so already.

    Of several flavors, what is not lent is kept in the first ones, which jobs are given first.
    """
    found: list[Mapping[str, Any]] = []
    places = list(_places(queue, gpu))
    keep = max(0, sum(_nominal(own) for _, own in places) - lend)
    for path, own in places:
        kept = min(keep, _nominal(own))
        keep -= kept
        wanted = _nominal(own) - kept
        if own.lending_limit is None or quantity(own.lending_limit) != wanted:
            found.append({"op": "add", "path": f"{path}/lendingLimit", "value": str(wanted)})
        if borrow is None and own.borrowing_limit is not None:
            found.append({"op": "remove", "path": f"{path}/borrowingLimit"})
        if borrow is None:
            continue
        if own.borrowing_limit is None or quantity(own.borrowing_limit) != borrow:
            found.append({"op": "add", "path": f"{path}/borrowingLimit", "value": str(borrow)})
        borrow = 0  # what is borrowed is borrowed in the first
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
    """Says to the pools' ClusterQueues what they may lend and borrow.

    Attributes:
        trouble: Why that cannot be said, and the mend; empty where it can.
    """

    def __init__(self, config: KubeConfig, kube: Kube, house: BackendContext) -> None:
        """Nothing is said yet."""
        self._config, self._kube, self._house = config, kube, house
        self._said: dict[str, tuple[int, int | None, float]] = {}
        self.trouble = "", ""

    async def run(self, changed: asyncio.Event) -> None:
        """Say it now and then, for good."""
        while True:
            before = self.trouble
            try:
                self.trouble = "", ""
                await self._steer()
            except KubeError as error:
                self.trouble = error.why, error.mend
            except (KubeRefusedError, KubeExpiredError) as error:
                self.trouble = f"Kueue: {error}", "install Kueue, or leave backend.kueue out"
            if self.trouble != before:
                changed.set()
            await asyncio.sleep(min(EVERY, 20 * self._config.poll))

    async def _steer(self) -> None:
        now = asyncio.get_running_loop().time()
        wanted = {name: limits_of(pool) for name, pool in self._house.counts().items()}
        due = {}
        for pool, limits in wanted.items():
            *said, when = self._said.get(pool, (None, None, float("-inf")))
            if tuple(said) != limits or now - when > AGAIN:
                due[pool] = limits
        if not due:
            return
        path = f"{GROUP}/{await version_of(self._kube)}/clusterqueues"
        for pool, limits in due.items():
            if not self._house.fence.holds():
                return
            if await self._say(path, pool, *limits):
                self._said[pool] = (*limits, now)

    async def _say(self, path: str, pool: str, lend: int, borrow: int | None) -> bool:
        """Have a queue lend and borrow so much; whether it does."""
        name = self._config.cluster_queue_of(pool)
        try:
            queue = await self._kube.get(f"{path}/{name}", ClusterQueue)
            why = self._strange(queue, pool)
            if why[0]:
                self.trouble = why
                return False
            steps: Sequence[Any] = steps_of(queue, self._config.gpu, lend, borrow)
            if steps:
                await self._kube.patch(f"{path}/{name}", steps, ClusterQueue, STEPS)
        except KubeRefusedError as error:  # somebody else has changed it, or it is not there
            self.trouble = f"ClusterQueue {name} of pool {pool}: {error}", QUEUES
            return False
        return True

    def _strange(self, queue: ClusterQueue, pool: str) -> tuple[str, str]:
        name = queue.metadata.name
        if not (queue.spec.cohort or queue.spec.cohort_name):
            return f"ClusterQueue {name} is in no cohort", COHORT
        own = [each.nominal_quota for _, each in _places(queue, self._config.gpu)]
        odd = [str(each) for each in own if quantity(each) is None]
        if odd:
            return f"ClusterQueue {name} has a nominalQuota of {plain(odd[0], 40)!r}", WHOLE
        nominal = sum(quantity(each) or 0 for each in own)
        known = self._house.book().pools.get(pool)
        if known is not None and known.quota != nominal:
            mend = f"let its nominalQuota of {self._config.gpu} and the pool's quota be the same"
            return f"ClusterQueue {name} has {nominal} GPUs, pool {pool} {known.quota}", mend
        return "", ""
