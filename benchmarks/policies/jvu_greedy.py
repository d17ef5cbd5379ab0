"""The greedy mode of `jvu` beside the program: what plans are worth, misses, time.

python -m benchmarks.policies.jvu_greedy [ROUNDS] [SEEDS]

The clusters are those of `benchmarks.policies.jvu_speed`, but smaller: 32 nodes of one GPU in 4
racks and 12 pending jobs, so that the solver proves most plans best within its usual limits. In
each cycle whose program is solved, the plan of the greedy mode, from which the solver starts, is
compared with the answer. Misses are of jobs with deadlines that ended, when each mode runs by
itself.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from math import fsum
from statistics import fmean
from typing import Any

from benchmarks.common import keep, spread
from benchmarks.policies.jvu_speed import CYCLE, Case, Cluster
from sia.decisions import Decision, PreemptJob, SolveProgram, StartJob
from sia.events import ProgramSolved
from sia.program import Program

CASE = Case("32 nodes in 4 racks, 12 pending with preferences", 32, 4, 12)
LABELS = ("jvu:puo:ahead=120", "jvu:puo:ahead=120:greedy")


class Audited(Cluster):
    """Counts deadlines, kills, and what plans are worth."""

    def __init__(self, label: str, seed: int) -> None:
        """Start empty."""
        super().__init__(CASE, label, seed)
        self.due: dict[str, float] = {}
        self.met = self.missed = self.kills = 0
        self.pairs: list[tuple[float, float, bool]] = []
        """Worth of the greedy plan and of the answer, and whether that is proved best."""

    def apply(self, decisions: Sequence[Decision], now: float) -> None:
        """Count what starts and stops."""
        for each in decisions:
            if isinstance(each, StartJob):
                job = self.core.state.jobs[each.job_id]
                slow = self.real[each.job_id] * job.slowdown
                self.waiting.discard(each.job_id)
                self.ends[each.job_id] = now + slow
                if job.job.deadline is not None:
                    self.due[each.job_id] = job.job.deadline
            elif isinstance(each, PreemptJob):
                self.kills += 1
                self.waiting.add(each.job_id)
                self.ends.pop(each.job_id, None)

    def ask(self, now: float, asked: SolveProgram) -> ProgramSolved:
        """Compare the plan from which the solver starts with its answer."""
        found = super().ask(now, asked)
        if asked.start and found.values:
            greedy, best = (
                worth_of(asked.program, asked.start),
                worth_of(asked.program, found.values),
            )
            self.pairs.append((greedy, best, found.status == "optimal"))
        return found

    def play(self, rounds: int) -> float:
        """Play; return the mean CPU seconds of a cycle."""
        cpu = []
        for number in range(rounds):
            now = CYCLE * number
            for name, end in self.ends.items():
                if end <= now and name in self.due:
                    late = end > self.due.pop(name)
                    self.missed, self.met = self.missed + late, self.met + (not late)
            cpu.append(self.round(now).cpu)
        return fmean(cpu)


def worth_of(program: Program, values: Sequence[float]) -> float:
    """Return what a solution is worth: the negative of its costs."""
    return -fsum(cost * value for cost, value in zip(program.costs, values, strict=True))


def main() -> None:
    """Measure both modes."""
    rounds = int(sys.argv[1]) if len(sys.argv) > 1 else 100
    seeds = int(sys.argv[2]) if len(sys.argv) > 2 else 5
    found: dict[str, Any] = {"case": CASE.name, "rounds": rounds, "seeds": seeds}
    for label in LABELS:
        played = []
        for seed in range(seeds):
            cluster = Audited(label, seed)
            played.append((cluster, cluster.play(rounds)))
        judged = [(each.missed, each.missed + each.met) for each, _ in played]
        found[label] = {
            "missed_pct": spread([100.0 * a / max(1, b) for a, b in judged]),
            "deadlines": sum(b for _, b in judged),
            "kills": sum(each.kills for each, _ in played),
            "cycle_cpu_s": spread([cpu for _, cpu in played]),
        }
        pairs = [pair for each, _ in played for pair in each.pairs]
        if pairs:
            shares = [greedy / best for greedy, best, _ in pairs if best]
            found["plans"] = {
                "compared": len(pairs),
                "proved_best": sum(proved for *_, proved in pairs),
                "greedy_as_good_pct": round(
                    100.0 * fmean(a >= b * (1 - 1e-9) for a, b, _ in pairs), 1
                ),
                "greedy_worth_pct_of_program": spread([100.0 * share for share in shares]),
                "mean": round(100.0 * fmean(shares), 3),
            }
    keep("policies/jvu_greedy", found)


if __name__ == "__main__":
    main()
