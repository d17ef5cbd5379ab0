"""Whether leases can work at all on a log, said before a replay begins."""

from __future__ import annotations

from collections.abc import Iterable

from replay.logs.trace import PoolTable, Trace
from sia.console.errors import UserError
from sia.policies import make
from sia.policies.chronus.claims import lease_cost
from sia.policies.chronus.params import ChronusParams
from sia.policies.chronus.sizes import NODE_GPUS
from sia.wording import as_typed


def lease_policies(labels: Iterable[str]) -> dict[str, ChronusParams]:
    """Return the options of each policy that gives leases."""
    params = {label: make(label).params for label in labels}
    return {label: found for label, found in params.items() if isinstance(found, ChronusParams)}


def refuse_costs(labels: Iterable[str], trace: Trace, resume_cost: float) -> None:
    """Raise UserError if going on costs a job with a deadline a whole lease. O(jobs)."""
    for label, params in lease_policies(labels).items():
        for job, _ in trace.arrivals:
            cost = lease_cost(job, resume_cost)
            if job.deadline is not None and params.lease <= cost < float("inf"):
                raise UserError(
                    f"--policy {label}: going on costs job {job.id} {cost:g} s and a lease has "
                    f"{params.lease:g} s; give lease a number above {cost:g}, or a --resume-cost "
                    f"below {as_typed(params.lease)}"
                )


def refuse_profilers(labels: Iterable[str], trace: Trace, table: PoolTable) -> None:
    """Raise UserError for a profiler that leaves no GPUs or is too small for a trial. O(jobs)."""
    groups: dict[str, int] = {}
    of_pool: dict[str, str] = {}
    for pool in table.pools:
        name = of_pool[pool.name] = pool.group if pool.share else f"{pool.name} alone"
        groups[name] = groups.get(name, 0) + pool.quota
    widest = dict.fromkeys(groups, 0)
    for job, _ in trace.arrivals:
        trial = job.width if job.width <= NODE_GPUS else 2 * NODE_GPUS
        name = of_pool[job.pool]
        widest[name] = max(widest[name], trial)
    for label, params in lease_policies(labels).items():
        if not params.profile:
            continue
        option = "floor" if params.capacity is None else "capacity"
        gpus = params.floor if params.capacity is None else params.capacity
        for name, owned in groups.items():
            if not widest[name]:
                continue
            if gpus >= owned:
                raise UserError(
                    f"--policy {label}: a profiler of {gpus} GPUs leaves nothing of the {owned} of "
                    f"a sharing group; write a smaller {option}=N, or profile=0 for no trials"
                )
            if gpus < widest[name]:
                raise UserError(
                    f"--policy {label}: the widest trial takes {widest[name]} GPUs and the "
                    f"profiler has {gpus}; write {option}={widest[name]} or more, or profile=0"
                )
