"""Desired attempts at an external manager, and the meaning of its reports. Pure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from daemon.backends.interface import StopKind
from daemon.config.mqtt_limits import SYNC_JOBS
from daemon.doors.mqtt import schemas
from daemon.doors.mqtt.schemas import AttemptRef, Order, Report, StartOrder, StopOrder, Sync
from daemon.model.inputs import Ended, Lost, Observation, Started, StartFailed, Stray
from daemon.model.outputs import StartEffect

AttemptKey = tuple[str, int]
"""Job id and attempt number."""

EPOCH_BITS = 24
"""Bits for the sync numbers of one daemon epoch: enough for years."""

NEVER = "the job was never started"
FORGOTTEN = "the cluster manager no longer knows the job"


class DesiredAttempt:
    """An attempt that should run or be stopped."""

    def __init__(self, order: StartEffect, since: float, seen: int | None) -> None:
        """Store an order with its monotonic time, and the number of syncs when it was seen."""
        self.order, self.since, self.seen = order, since, seen
        self.stop: StopKind | None = None


class DesiredAttempts:
    """All desired attempts. Reports about other attempts change nothing."""

    def __init__(self, epoch: int) -> None:
        """Start empty. Sync numbers are unique over daemon epochs."""
        self._wanted: dict[AttemptKey, DesiredAttempt] = {}
        self._asked = epoch << EPOCH_BITS

    def __len__(self) -> int:
        return len(self._wanted)

    def want(self, order: StartEffect, now: float, *, seen: bool = False) -> bool:
        """Add an attempt; return whether it is new."""
        key = order.job, order.attempt
        new = key not in self._wanted
        if new:
            self._wanted[key] = DesiredAttempt(order, now, self._asked if seen else None)
        return new

    def start(self, key: AttemptKey, epoch: int, reports: Mapping[str, str]) -> Order | None:
        """Return the start order of an attempt, or None if it is no longer desired.

        `reports` are the variables with which the job can report its progress.
        """
        wanted = self._wanted.get(key)
        return None if wanted is None else start_order(wanted.order, epoch, reports)

    def stop(self, key: AttemptKey, kind: StopKind, now: float) -> None:
        """Mark an attempt to be warned or ended; nothing overrides an end."""
        wanted = self._wanted.get(key)
        if wanted is not None and wanted.stop != "end":
            wanted.stop, wanted.since = kind, now

    def drop(self, key: AttemptKey) -> bool:
        """Remove an attempt that cannot be ordered; return whether it existed."""
        return self._wanted.pop(key, None) is not None

    def overdue(self, now: float, patience: float) -> list[AttemptKey]:
        """Return the attempts ordered more than `patience` seconds ago without a report. O(n)."""
        return [
            key
            for key, each in self._wanted.items()
            if (each.seen is None or each.stop == "end") and now - each.since > patience
        ]

    def ask(self, epoch: int, now: float, only: Sequence[AttemptKey] | None = None) -> list[Order]:
        """Return the sync orders for all or some attempts, and repeat their stop orders."""
        self._asked += 1
        keys = [*self._wanted] if only is None else [*only]
        orders: list[Order] = []
        for begin in range(0, max(1, len(keys)), SYNC_JOBS):
            part = [AttemptRef(*key) for key in keys[begin : begin + SYNC_JOBS]]
            more = begin + SYNC_JOBS < len(keys)
            some = only is not None
            orders.append(Sync(epoch=epoch, number=self._asked, jobs=part, more=more, some=some))
        for job, attempt in keys:
            wanted = self._wanted[job, attempt]
            wanted.since = now
            if wanted.stop is not None:
                orders.append(StopOrder(epoch=epoch, job=job, attempt=attempt, kind=wanted.stop))
        return orders

    def hear(self, report: Report) -> tuple[list[Observation], AttemptKey | None]:
        """Return the observations of a report, and an attempt to start (again), if any."""
        if isinstance(report, schemas.Synced):
            return [], None
        key = report.job, report.attempt
        wanted = self._wanted.get(key)
        if wanted is None:
            stray = isinstance(report, schemas.UnexpectedReport)
            return ([Stray(*key)] if stray else []), None
        if isinstance(report, schemas.Unknown):
            return self._unknown(key, wanted, report.number)
        if isinstance(report, schemas.StartedReport | schemas.UnexpectedReport):
            new, wanted.seen = wanted.seen is None, self._asked
            return ([Started(*key)] if new else []), None
        del self._wanted[key]
        return [_over(key, report)], None

    def _unknown(
        self, key: AttemptKey, wanted: DesiredAttempt, asked: int
    ) -> tuple[list[Observation], AttemptKey | None]:
        """Decide whether an unknown attempt was lost or never started; ignore outdated answers."""
        if wanted.seen is not None:
            if asked <= wanted.seen:
                return [], None
            del self._wanted[key]
            return [Lost(*key, FORGOTTEN)], None
        if wanted.stop == "end":
            del self._wanted[key]
            return [Ended(*key, why=NEVER)], None
        return [], key


def _over(
    key: AttemptKey, report: schemas.EndedReport | schemas.LostReport | schemas.Failed
) -> Observation:
    """Return the observation for the end of an attempt."""
    if isinstance(report, schemas.EndedReport):
        return Ended(*key, report.code, report.signal, report.why)
    if isinstance(report, schemas.LostReport):
        return Lost(*key, report.why)
    return StartFailed(*key, report.why)


def start_order(order: StartEffect, epoch: int, reports: Mapping[str, str]) -> StartOrder:
    """Build the start order."""
    spec = order.spec
    env = {**spec.env, **reports}
    return StartOrder(
        epoch=epoch, job=order.job, attempt=order.attempt, pool=spec.pool, gpus=spec.gpus,
        nodes={node: list(gpus) for node, gpus in order.nodes}, command=spec.command, env=env,
        cwd=spec.cwd, user=spec.user, name=spec.name, time_limit=spec.time_limit,
        array=spec.array, duration=spec.duration,
    )  # fmt: skip
