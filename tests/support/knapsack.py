"""A policy that plans with a solver: of the jobs that wait it starts the set that fills its pools.

Tests install it as a plugin, or put it in the place of one.
"""

from itertools import groupby

from sia.contract.policy import Needs, Policy
from sia.contract.proposals import Solve, Start
from sia.model import Stream
from sia.program import ProgramBuilder, SolveLimit


class Knapsack(Policy):
    """Starts nothing before its plan is there; without a plan it starts in order of arrival."""

    needs = Needs(solver=True)
    limit = SolveLimit(seconds=30.0, nodes=1_000, iterations=100_000)

    def __init__(self, params=None):
        super().__init__(params)
        self.asked, self.chosen, self.is_open = [], [], False

    def solved(self, answer):
        taken = answer.values or [1.0] * len(self.asked)
        self.chosen = [job for job, value in zip(self.asked, taken, strict=True) if value > 0.5]
        self.is_open = False

    def propose(self, now, changes):
        for job_id in self.chosen:
            job = self.state.jobs.get(job_id)
            if job is not None and job.stream is None and fits(job):
                yield Start(job, Stream.DEDICATED, "planned")
        self.chosen = []
        waiting = sorted(
            (job for job in self.state.jobs.values() if job.stream is None and fits(job)),
            key=lambda job: (job.pool.name, job.sequence),
        )
        if waiting and not self.is_open:
            self.asked, self.is_open = [job.job.id for job in waiting], True
            yield Solve(program(waiting), self.limit)

    def memory(self):
        return {"asked": self.asked, "chosen": self.chosen, "open": self.is_open}

    def resume(self, state, memory):
        self.attach(state)
        if memory:
            self.asked, self.chosen = memory["asked"], memory["chosen"]
            self.is_open = memory["open"]


def fits(job):
    return job.pool.dedicated + job.width <= job.pool.quota


def program(waiting):
    """One column for each job, one row for each pool; of equal sets the one that came first."""
    builder = ProgramBuilder()
    for pool, jobs in groupby(waiting, key=lambda job: job.pool):
        widths = [job.width for job in jobs]
        first = builder.binaries([i * 1e-3 - width for i, width in enumerate(widths)])
        terms = {first + i: float(width) for i, width in enumerate(widths)}
        builder.at_most(terms, float(pool.quota - pool.dedicated))
    return builder.build()
