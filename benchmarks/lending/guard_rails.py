"""What budgets cost a step of the engine: CPU time of one in which a job ends and another comes.

`python -m benchmarks.lending.guard_rails`: 1,000 pools, all with a budget or none, 10,000 jobs on
GPUs and 10,000 that wait. `everywhere` looks at all pools in each step, as it was done before.
"""

from __future__ import annotations

import gc
from random import Random
from statistics import median
from time import process_time

from msgspec.structs import replace

from benchmarks.common import keep
from benchmarks.daemon.core import crowded, spec
from daemon.engine.engine import Engine
from daemon.lending.accounts import BOOK_EVERY
from daemon.model.inputs import Ended, Submit
from daemon.model.outputs import StartEffect
from daemon.model.setup import Budget

POOLS, QUOTA, PENDING, STEPS = 1000, 10, 10_000, 400

BUDGETS = {
    "none": Budget(),
    "hours": Budget(lend_budget_hours=1e5),
    "slowed": Budget(slowed_budget_pct=50.0),
    "both": Budget(1e5, 50.0),
}


class Side:
    """An engine whose pools all have one budget."""

    def __init__(self, budget: Budget, *, everywhere: bool = False) -> None:
        """Fill it."""
        engine, inputs = crowded(POOLS, QUOTA, POOLS * QUOTA, PENDING)
        setup = engine.book.setup
        budgets = {pool.name: budget for pool in setup.pools if budget != Budget()}
        setup = replace(setup, book_every=BOOK_EVERY, budgets=budgets)
        self.engine, self.everywhere = Engine.new(setup), everywhere
        self.now, self.running, self._random = 1e9, list[str](), Random(1)
        for first in range(0, len(inputs), 1000):
            self._step(inputs[first : first + 1000])

    def _step(self, inputs: list[Submit | Ended]) -> float:
        """Seconds that a step took."""
        self.now += 1.0
        if self.everywhere:
            self.engine._context.recheck_pools = True  # noqa: SLF001  there is no switch
        began = process_time()
        step = self.engine.step(self.now, inputs)
        took = process_time() - began
        self.engine.do_idle_work()
        self.running += [e.job for e in step.effects if isinstance(e, StartEffect)]
        return took

    def measure(self) -> float:
        """Microseconds of a step, the median."""
        took = []
        for i in range(STEPS):
            ending = self.running.pop(self._random.randrange(len(self.running)))
            new = Submit(spec(f"n{self.now}", f"p{i % POOLS:04}", 2), 500.0)
            took.append(self._step([Ended(ending, 1, 0), new]))
        return round(median(took) * 1e6, 1)


def main() -> None:
    found = {}
    for name, budget in BUDGETS.items():
        side = Side(budget)
        gc.collect()
        gc.freeze()
        found[name] = side.measure()
    found["both, everywhere"] = Side(BUDGETS["both"], everywhere=True).measure()
    print(found)
    keep("lending/guard_rails", {"microseconds_of_a_step": found})


if __name__ == "__main__":
    main()
