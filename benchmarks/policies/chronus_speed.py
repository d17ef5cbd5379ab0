"""CPU time that `chronus` takes with 1,200 guaranteed jobs on 960 GPUs.

python -m benchmarks.policies.chronus_speed [LEASES]

Jobs with deadlines are submitted until 1,200 are guaranteed (measured from 1,100 on), and again
after each cycle of leases. A third of their deadlines are near, so that jobs are refused where no
plan has room. Estimates are true. Programs are solved within the policy's limits on work. A cycle
is its steps, with its programs; an admission is one step, in the middle of a best-effort lease,
with one new job. CPU seconds depend less on what else the machine does.
"""

from __future__ import annotations

import sys
from collections import defaultdict
from math import inf
from random import Random
from time import process_time
from typing import Any

from benchmarks.common import keep, spread
from sia import Core, Job, Pool
from sia.contract.solvers import answer
from sia.decisions import JobPromised, JobRejected, SolveProgram
from sia.events import Event, JobFinished, JobSubmitted
from sia.policies import make
from sia.state.steps import PAPER_STEPS

GPUS, GUARANTEED, LEASES = 960, 1200, 1
HOUR = 3600.0
LEASE, BE = 1200, 300


class Cluster:
    """Jobs come and end; each step's CPU time is kept by its kind."""

    def __init__(self) -> None:
        """Start empty."""
        self.random = Random(1)
        self.core = Core([Pool("a", GPUS)], make(f"chronus:profile=0:lease={LEASE}:be={BE}"))
        self.guaranteed: set[str] = set()
        self.made = self.programs = 0
        self.took = defaultdict[str, list[float]](list)

    def job(self, now: float) -> JobSubmitted:
        """Draw a job."""
        random = self.random
        self.made += 1
        width = min(64, max(1, round(random.lognormvariate(1.2, 1.0))))
        run_time = min(8 * HOUR, max(600.0, random.lognormvariate(9.0, 0.8)))
        near = random.random() < 1 / 3
        slack = run_time * random.uniform(0.2, 1) + (0 if near else random.uniform(0, 30 * HOUR))
        soft = random.choice([(), (), PAPER_STEPS])
        deadline = now + run_time + slack
        job = Job(f"j{self.made}", "a", now, width, deadline=deadline, soft=soft)
        return JobSubmitted(now, job, run_time=run_time)

    def step(self, now: float, events: list[Event], kind: str = "") -> None:
        """Take one instant, to the end of its programs."""
        began, solving, answered = process_time(), 0.0, ""
        decisions = self.core.step(now, events)
        while True:
            for each in decisions:
                if isinstance(each, JobPromised):
                    self.guaranteed.add(each.job_id)
                    answered = "promised"
                elif isinstance(each, JobRejected):
                    self.guaranteed.discard(each.job_id)
                    answered = "refused"
            asked = next((each for each in decisions if isinstance(each, SolveProgram)), None)
            if asked is None:
                break
            before = process_time()
            event, _ = answer(now, asked, timed=False)
            solving += process_time() - before
            self.programs += 1
            decisions = self.core.step(now, [event])
        if kind == "admission" and solving:
            answered += ", solved"
        if kind:
            self.took[f"{kind}: {answered}" if kind == "admission" else kind].append(
                process_time() - began
            )
            if solving:
                self.took[f"{kind}: of this the solver"].append(solving)

    def advance(self, until: float) -> None:
        """Let jobs end at their times before `until`."""
        jobs = self.core.state.jobs
        while True:
            ends = ((j.end(j.run_time), i) for i, j in jobs.items() if j.stream is not None)
            end, job_id = min(ends, default=(inf, ""))
            if end > until:
                return
            self.guaranteed.discard(job_id)
            self.step(end, [JobFinished(end, job_id)])

    def fill(self, now: float) -> None:
        """Submit jobs, one by one, until enough are guaranteed."""
        while len(self.guaranteed) < GUARANTEED:
            self.step(now, [self.job(now)], "admission")

    def run(self, leases: int) -> None:
        """Fill, then take cycles."""
        while len(self.guaranteed) < GUARANTEED - 100:
            self.step(BE / 2, [self.job(BE / 2)])
        self.programs = 0
        self.fill(BE / 2)
        for beat in range(1, leases * LEASE // BE + 1):
            at = beat * BE
            is_lease = at % LEASE == 0
            self.advance(at)
            self.step(at, [], "cycle of leases" if is_lease else "cycle of best effort")
            if is_lease:
                self.advance(at + BE / 2)
                self.fill(at + BE / 2)


def main() -> None:
    """Measure, and store the result."""
    cluster = Cluster()
    cluster.run(int(sys.argv[1]) if len(sys.argv) > 1 else LEASES)
    found: dict[str, Any] = {
        f"{kind}, CPU s": spread(took) | {"mean": round(sum(took) / len(took), 4)}
        for kind, took in sorted(cluster.took.items())
    }
    keep("policies/chronus_speed", found | {"programs": cluster.programs})


if __name__ == "__main__":
    main()
