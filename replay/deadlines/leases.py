"""Checks, before a replay begins, whether policies with leases can work on its log."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import NamedTuple

from replay.logs.trace import PoolTable, Trace
from sia.console.errors import UserError
from sia.model import NEVER_STOPPED, GpuNode, Job
from sia.policies import make
from sia.policies.chronus.leases.claims import lease_cost
from sia.policies.chronus.leases.sizes import NODE_GPUS, NodeSizes
from sia.policies.chronus.params import ChronusParams
from sia.policies.chronus.placing.placement import WIDE
from sia.wording import as_typed, counted, some

STATED = "stated"
"""The value of `--durations` for the users' own estimates."""


def lease_policies(labels: Iterable[str]) -> dict[str, ChronusParams]:
    """Return the options of each policy that grants leases, by label."""
    params = {label: make(label).params for label in labels}
    return {label: found for label, found in params.items() if isinstance(found, ChronusParams)}


def check_leases(
    labels: Iterable[str], trace: Trace, table: PoolTable, resume_cost: float, durations: str,
    nodes: Sequence[GpuNode] = (),
) -> None:  # fmt: skip
    """Raise UserError if leases cannot work, and add notes on jobs that get none. O(jobs)."""
    leased = lease_policies(labels)
    refuse_costs(leased, trace, resume_cost)
    refuse_profilers(leased, trace, table, nodes)
    _note_no_estimates(leased, trace, durations)


def refuse_costs(labels: Iterable[str], trace: Trace, resume_cost: float) -> None:
    """Raise UserError if resuming takes a job with a deadline a whole lease or more. O(jobs)."""
    for label, params in lease_policies(labels).items():
        for job, _ in trace.arrivals:
            cost = lease_cost(job, resume_cost)
            if job.deadline is not None and params.lease <= cost < float("inf"):
                raise UserError(
                    f"--policy {label}: going on costs job {job.id} {cost:g} s and a lease has "
                    f"{params.lease:g} s; give lease a number above {cost:g}, or a --resume-cost "
                    f"below {as_typed(params.lease)}"
                )


class _Group(NamedTuple):
    """A sharing group: its GPUs at the beginning, and its jobs."""

    gpus: int
    jobs: list[Job]

    def trial(self, node: int) -> int:
        """Return the GPUs of the widest trial; jobs that must not be stopped have no trial."""
        tried = (job.width for job in self.jobs if job.preemptible != NEVER_STOPPED)
        widest = max(tried, default=0)
        return widest if widest <= node else 2 * node


def refuse_profilers(
    labels: Iterable[str], trace: Trace, table: PoolTable, nodes: Sequence[GpuNode] = ()
) -> None:
    """Raise UserError for a profiler that leaves no GPUs or is too small for a trial. O(jobs).

    Adds a note on jobs that never run because they are wider than the GPUs that a profiler leaves.
    """
    groups = _groups(trace, table)
    node = max((each.gpus for each in nodes), default=NODE_GPUS)
    for label, params in lease_policies(labels).items():
        gpus, wide = params.first_capacity, list[str]()
        option = "floor" if params.capacity is None else "capacity"
        for group in groups if gpus else ():
            trial = group.trial(node)
            if gpus >= group.gpus:
                raise UserError(
                    f"--policy {label}: a profiler of {gpus} GPUs leaves nothing of the "
                    f"{group.gpus} of a sharing group; write a smaller {option}=N, or profile=0 "
                    "for no trials"
                )
            if gpus < trial:
                raise UserError(
                    f"--policy {label}: the widest trial takes {trial} GPUs and the "
                    f"profiler has {gpus}; write {option}={trial} or more, or profile=0"
                )
            room, sizes = group.gpus - gpus, NodeSizes(group.gpus, node)
            for job in group.jobs:
                together = nodes and job.width >= WIDE
                if (sizes.rounded(job.width) if together else job.width) > room:
                    wide.append(job.id)
        if wide:
            trace.notes.append(
                f"{label}: a profiler of {gpus} GPUs leaves too few for {some(wide)}, which can "
                f"end only in a trial; write a smaller {option}=N, or profile=0"
            )


def _groups(trace: Trace, table: PoolTable) -> list[_Group]:
    """Return the sharing groups that have jobs."""
    found: dict[str, _Group] = {}
    of_pool: dict[str, str] = {}
    for pool in table.pools:
        name = of_pool[pool.name] = pool.group if pool.share else f"{pool.name} alone"
        before = found.get(name, _Group(0, []))
        found[name] = before._replace(gpus=before.gpus + pool.quota)
    for job, _ in trace.arrivals:
        found[of_pool[job.pool]].jobs.append(job)
    return [group for group in found.values() if group.jobs]


def _note_no_estimates(labels: Iterable[str], trace: Trace, durations: str) -> None:
    """Add a note if users' estimates are used but jobs with a deadline have none. O(jobs)."""
    if durations != STATED:
        return
    without = [
        job.id for job, _ in trace.arrivals if job.deadline is not None and job.estimate is None
    ]
    if without:
        for label in lease_policies(labels):
            trace.notes.append(
                f"{label}: {counted(len(without), 'job')} with a deadline, {some(without)}, "
                f"{'has' if len(without) == 1 else 'have'} no estimate and "
                f"{'is' if len(without) == 1 else 'are'} promised nothing; fill column estimate"
            )
