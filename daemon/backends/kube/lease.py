"""Who acts in a cluster, where no PostgreSQL decides that: whoever holds a Lease there."""

from __future__ import annotations

import asyncio
import secrets
from collections.abc import Callable
from datetime import UTC, datetime
from time import monotonic
from typing import Any

from msgspec import Struct

from daemon.backends.kube.attempts import plain
from daemon.backends.kube.client import (
    Kube,
    KubeConflictError,
    KubeError,
    KubeGoneError,
    KubeRefusedError,
)
from daemon.backends.kube.config import KubeConfig
from daemon.backends.kube.schema import Meta
from daemon.runtime.fence import Fence

LASTS = 15
"""Seconds for which a holder that says nothing is still believed, as Kubernetes' own parts do."""

RENEW = 4.0
"""Seconds from one renewal to the next: one that hangs may be followed by another in time."""

TIMEOUT = 2.0
"""Seconds for each of the two requests of a renewal: the next one still comes before the margin."""

RETRY = 1.0
"""Seconds until it is tried again where the API server did not do it."""

MARGIN = 5.0
"""Seconds before its end at which the holder sends no more writes: each is given up before."""

OTHER = (
    "let one daemon alone act in a cluster; if that one is gone, this one follows by itself in "
    f"{LASTS} s"
)


class LeaseSpec(Struct, frozen=True, rename="camel"):
    """What a Lease says."""

    holder_identity: str | None = None
    lease_duration_seconds: int | None = None
    renew_time: str | None = None
    acquire_time: str | None = None
    lease_transitions: int | None = None


class KubeLease(Struct, frozen=True):
    """A Lease of coordination.k8s.io."""

    metadata: Meta
    spec: LeaseSpec = LeaseSpec()


class KubeFence:
    """A fence that holds while the Lease is this daemon's, and the journal's own fence does.

    Clocks of other machines do not count: a Lease is over when it was let go, or when nobody was
    seen to renew it for as long as it lasts. That its holder has this daemon's name tells nothing:
    a journal that was put back has the name of the one that it is a copy of, which may live.

    Attributes:
        epoch: The journal's.
        trouble: Why this daemon may not act, and the mend; empty where it may.
    """

    def __init__(self, config: KubeConfig, kube: Kube, under: Fence, name: str) -> None:
        """Nobody's yet; `name` is what daemons on this journal are called.

        `kube` is its own alone: it does not rest where others are asked to, and is closed with it.
        """
        self._kube, self._under = kube, under
        self._leases = f"/apis/coordination.k8s.io/v1/namespaces/{config.home}/leases"
        self._lease = config.lease
        self._home = config.home
        self.epoch = under.epoch
        self._me = f"{name}/{self.epoch}/{secrets.token_hex(4)}"
        self._until = float("-inf")
        self._seen: tuple[str, float] = ("", float("-inf"))
        self.trouble = "", ""

    def holds(self) -> bool:
        """Whether no other daemon can act in the cluster. Any thread, no waiting."""
        return monotonic() < self._until - MARGIN and self._under.holds()

    async def run(self, changed: Callable[[], None]) -> None:
        """Have it, and keep it, for good; `changed` hears when this daemon may act, or no more."""
        while True:
            before, wait = (self.trouble, self.holds()), RETRY
            try:
                await self._take()
                wait = RENEW
            except KubeError as error:
                self.trouble = error.why, error.mend
            except KubeRefusedError as error:
                mend = f"make the namespace {self._home}, or name another one in backend.home"
                self.trouble = f"its Lease is refused: {error}", mend
            if (self.trouble, self.holds()) != before:
                changed()
            await asyncio.sleep(wait)

    async def close(self) -> None:
        """Let another daemon have it at once. Failing that, it waits."""
        await self._let_go()
        await self._kube.close()

    async def _let_go(self) -> None:
        if self._until == float("-inf"):
            return
        self._until = float("-inf")
        try:
            lease = await self._kube.get(f"{self._leases}/{self._lease}", KubeLease)
            if lease.spec.holder_identity == self._me:
                await self._write(lease, {"holderIdentity": "", "leaseDurationSeconds": 1})
        except (KubeError, KubeRefusedError):
            return

    async def _take(self) -> None:
        began = monotonic()
        try:
            lease = await self._kube.get(f"{self._leases}/{self._lease}", KubeLease)
        except KubeGoneError:
            body = self._body({"name": self._lease, "namespace": self._home}, 0)
            try:
                await self._kube.create(self._leases, body, KubeLease)
            except KubeConflictError:
                return
        else:
            if not self._may_take(lease, began):
                return
            turns = lease.spec.lease_transitions or 0
            mine = lease.spec.holder_identity == self._me
            try:
                await self._write(lease, self._spec(turns if mine else turns + 1))
            except KubeConflictError:
                return
        self._until = began + LASTS
        self.trouble = "", ""

    def _may_take(self, lease: KubeLease, now: float) -> bool:
        """Whether it is nobody's, or this daemon's own; says whose it is if not."""
        holder = lease.spec.holder_identity or ""
        if holder in ("", self._me):
            return True
        version = lease.metadata.resource_version
        if version != self._seen[0]:
            self._seen = version, now
        lasts = min(lease.spec.lease_duration_seconds or LASTS, 3600)
        if now - self._seen[1] > lasts:
            return True
        self._until = float("-inf")
        self.trouble = (
            f"another daemon acts here: {plain(holder, 100)}, by Lease {self._home}/{self._lease}",
            OTHER,
        )
        return False

    async def _write(self, lease: KubeLease, spec: dict[str, Any]) -> None:
        body = {"metadata": {"resourceVersion": lease.metadata.resource_version}, "spec": spec}
        await self._kube.patch(f"{self._leases}/{self._lease}", body, KubeLease)

    def _body(self, meta: dict[str, Any], turns: int) -> dict[str, Any]:
        kind = {"apiVersion": "coordination.k8s.io/v1", "kind": "KubeLease"}
        return {**kind, "metadata": meta, "spec": self._spec(turns)}

    def _spec(self, turns: int) -> dict[str, Any]:
        now = datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%S.%fZ")
        return {
            "holderIdentity": self._me,
            "leaseDurationSeconds": LASTS,
            "renewTime": now,
            "leaseTransitions": turns,
        }
