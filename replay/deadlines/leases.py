"""Whether leases can work at all on a log, said before a replay begins."""

from __future__ import annotations

from collections.abc import Iterable

from replay.logs.trace import Trace
from sia.console.errors import UserError
from sia.policies import make
from sia.policies.chronus.claims import lease_cost
from sia.policies.chronus.params import ChronusParams
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
