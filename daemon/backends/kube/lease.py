"""Leader election by a Lease in Kubernetes, for journals without a lease in PostgreSQL."""

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
"""Lease duration in seconds, as in Kubernetes' own components."""

RENEW = 4.0
"""Seconds between renewals. If one renewal hangs, there is time for a second one."""

TIMEOUT = 2.0
"""Timeout in seconds of each of a renewal's two requests, so that there is time for a retry."""

RETRY = 1.0
"""Seconds until a failed renewal is retried."""

MARGIN = 5.0
"""Seconds before expiry at which the holder stops writing: longer than the timeout of a write."""

OTHER = (
    "run only one daemon in a cluster; if the other one has stopped, this one takes over within "
    f"{LASTS} s"
)


class LeaseSpec(Struct, frozen=True, rename="camel"):
    """Spec of a Lease."""

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
    """A fence that holds while this daemon has the Lease and the journal's fence holds.

    Other machines' clocks are not trusted: a Lease has expired when it was released, or when no
    renewal was observed for its duration. The holder's name is no proof of ownership: a journal
    restored from a backup has the name of the original, which may still run.

    Attributes:
        epoch: Epoch of the journal.
        trouble: Reason and fix if this daemon is not the leader; else empty.
    """

    def __init__(self, config: KubeConfig, kube: Kube, under: Fence, name: str) -> None:
        """Create a fence without the Lease; `name` is the name of daemons on this journal.

        `kube` must not be shared, so that it is never delayed by Retry-After; it is closed with
        the fence.
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
        """Return whether this daemon is the only one that can act. Any thread, does not block."""
        return monotonic() < self._until - MARGIN and self._under.holds()

    async def run(self, changed: Callable[[], None]) -> None:
        """Acquire and renew the Lease until cancelled; call `changed` when leadership changes."""
        while True:
            before, wait = (self.trouble, self.holds()), RETRY
            try:
                await self._take()
                wait = RENEW
            except KubeError as error:
                self.trouble = error.why, error.mend
            except KubeRefusedError as error:
                mend = f"create namespace {self._home}, or set another one in backend.home"
                self.trouble = f"the Lease was refused: {error}", mend
            if (self.trouble, self.holds()) != before:
                changed()
            await asyncio.sleep(wait)

    async def close(self) -> None:
        """Release the Lease, so that a standby takes over at once instead of at its expiry."""
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
        """Return whether the Lease is free or this daemon's; otherwise record the holder."""
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
            f"the leader is another daemon: {plain(holder)} (Lease {self._home}/{self._lease})",
            OTHER,
        )
        return False

    async def _write(self, lease: KubeLease, spec: dict[str, Any]) -> None:
        body = {"metadata": {"resourceVersion": lease.metadata.resource_version}, "spec": spec}
        await self._kube.patch(f"{self._leases}/{self._lease}", body, KubeLease)

    def _body(self, meta: dict[str, Any], turns: int) -> dict[str, Any]:
        kind = {"apiVersion": "coordination.k8s.io/v1", "kind": "Lease"}
        return {**kind, "metadata": meta, "spec": self._spec(turns)}

    def _spec(self, turns: int) -> dict[str, Any]:
        now = datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%S.%fZ")
        return {
            "holderIdentity": self._me,
            "leaseDurationSeconds": LASTS,
            "renewTime": now,
            "leaseTransitions": turns,
        }
