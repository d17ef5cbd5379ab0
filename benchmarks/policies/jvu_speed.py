"""Time that a cycle of `jvu` takes: the plan, its program, the solve, and the starts.

python -m benchmarks.policies.jvu_speed [ROUNDS]

256 nodes of one GPU in 8 racks, a quarter of them with attribute gpu; 24 slots of 5 s. In each
round 50 jobs wait. Half have deadlines; a third of these needs gpu nodes, a third prefers one rack,
and a third prefers gpu nodes. Between rounds jobs end, some outlast their estimates, and new ones
come. The second case is 1,024 GPUs that are all alike and 400 pending jobs. Each cycle is asked,
solved within the policy's limits on work, and answered. CPU seconds depend less on what else the
machine does.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from random import Random
from time import perf_counter, process_time
from typing import Any, NamedTuple

from benchmarks.common import keep, spread
from sia import Core, Job, Pool
from sia.contract.solvers import answer
from sia.decisions import Decision, PreemptJob, SolveProgram, StartJob
from sia.events import Event, JobFinished, JobSubmitted, ProgramSolved
from sia.model import GpuNode, Options
from sia.policies import make

CYCLE = 5.0
ROUNDS = 40
LABELS = ("jvu:puo:ahead=120", "jvu:puo:ahead=120:greedy")


class Case(NamedTuple):
    """A cluster and how many jobs wait on it."""

    name: str
    nodes: int
    racks: int
    pending: int


CASES = (Case("256 nodes in 8 racks, 50 pending with preferences", 256, 8, 50),
         Case("1,024 GPUs alike, 400 pending", 1024, 0, 400))  # fmt: skip


class Cycle(NamedTuple):
    """Seconds of one cycle by the clock, and of CPU."""

    total: float
    cpu: float
    solve: float
    columns: int
    solved: bool


class Cluster:
    """Jobs come and go; the core decides once in each round."""

    def __init__(self, case: Case, label: str, seed: int) -> None:
        """Start empty."""
        self.random, self.case = Random(seed), case
        racks = case.racks
        self.nodes = [
            GpuNode(f"n{i}", 1, (f"rack:r{i * racks // case.nodes}", *(("gpu",) * (i % 4 == 0))))
            for i in range(case.nodes if racks else 0)
        ]  # fmt: skip
        self.estimates: dict[str, float] = {}
        self.core = Core(
            [Pool("a", case.nodes)], make(label), Options(tick=CYCLE), nodes=self.nodes
        )
        self.ends: dict[str, float] = {}
        self.real: dict[str, float] = {}
        self.waiting: set[str] = set()
        self.made = 0

    def job(self, now: float) -> Job:
        """Draw a job."""
        random = self.random
        self.made += 1
        name = f"j{self.made}"
        width = min(32, max(1, round(random.lognormvariate(1.8, 0.8))))
        run_time = min(1800.0, random.lognormvariate(4.6, 0.9))
        self.estimates[name] = max(1.0, run_time * random.choice((0.5, 0.9, 1.0, 1.1, 2.0)))
        self.real[name] = run_time
        prefers, slowdown, deadline = "", None, None
        if random.random() < 0.5:
            deadline = now + run_time * (1.0 + random.choice((0.2, 0.4, 0.6, 0.8)))
            if self.nodes:
                prefers, slowdown = random.choice((("gpu", None), ("same:rack", 1.5), ("gpu", 1.5)))
        return Job(name, "a", now, width, deadline=deadline, prefers=prefers, slowdown=slowdown)

    def round(self, now: float) -> Cycle:
        """Let the ends of a cycle happen, fill the queue, and decide."""
        over = [name for name, end in self.ends.items() if end <= now]
        events: list[Event] = [JobFinished(now, name) for name in over]
        for name in over:
            del self.ends[name]
        while len(self.waiting) < self.case.pending:
            job = self.job(now)
            self.waiting.add(job.id)
            events.append(JobSubmitted(now, job, run_time=self.estimates[job.id]))
        began, busy = perf_counter(), process_time()
        decisions = self.core.step(now, events)
        solving, columns, solved = 0.0, 0, False
        while asked := next((d for d in decisions if isinstance(d, SolveProgram)), None):
            self.apply(decisions, now)
            before = perf_counter()
            event = self.ask(now, asked)
            solving, solved = solving + perf_counter() - before, True
            columns = len(asked.program.costs)
            decisions = self.core.step(now, [event])
        took, busy = perf_counter() - began, process_time() - busy
        self.apply(decisions, now)
        return Cycle(took, busy, solving, columns, solved)

    def ask(self, now: float, asked: SolveProgram) -> ProgramSolved:
        """Return the solver's answer."""
        return answer(now, asked, timed=False).event

    def apply(self, decisions: Sequence[Decision], now: float) -> None:
        """Record which jobs start and which stop."""
        for each in decisions:
            if isinstance(each, StartJob):
                self.waiting.discard(each.job_id)
                self.ends[each.job_id] = now + self.real[each.job_id]
            elif isinstance(each, PreemptJob):
                self.waiting.add(each.job_id)
                self.ends.pop(each.job_id, None)


def measured(case: Case, label: str, rounds: int) -> dict[str, Any]:
    cluster = Cluster(case, label, seed=1)
    cycles = [cluster.round(CYCLE * number) for number in range(rounds + 10)][10:]
    totals, cpu = [each.total for each in cycles], [each.cpu for each in cycles]
    return {
        "cycle_s": spread(totals) | {"mean": round(sum(totals) / len(totals), 4)},
        "cycle_cpu_s": spread(cpu) | {"mean": round(sum(cpu) / len(cpu), 4)},
        "solve_s": spread([each.solve for each in cycles]),
        "columns": spread([each.columns for each in cycles]),
        "solved": sum(each.solved for each in cycles),
    }


def main() -> None:
    rounds = int(sys.argv[1]) if len(sys.argv) > 1 else ROUNDS
    results = {
        f"{case.name}, {label}": measured(case, label, rounds) for case in CASES for label in LABELS
    }
    keep("policies/jvu_speed", results)


if __name__ == "__main__":
    main()
