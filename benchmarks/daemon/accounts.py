"""Cost of accounts in a step of the daemon: CPU time with and without them, alternately.

`python -m benchmarks.daemon.accounts [FOLDER]`: FOLDER as of `benchmarks/daemon/core.py`. One job
ends and one comes in each step, with 1,000 pools, 10,000 jobs on GPUs and 10,000 that wait.
"""

from __future__ import annotations

import gc
import sys
from collections.abc import Sequence
from math import inf
from pathlib import Path
from random import Random
from statistics import mean, median
from tempfile import TemporaryDirectory
from time import process_time
from typing import Any

from msgspec.structs import replace

from benchmarks.common import keep
from benchmarks.daemon.core import crowded, spec
from daemon.engine.engine import Engine
from daemon.journal.journal import Journal, JournalEntry
from daemon.lending.accounts import BOOK_EVERY, NOTHING, Accounts
from daemon.model.inputs import Ended, Submit
from daemon.model.outputs import StartEffect
from daemon.runtime.clock import Anchor
from sia.decisions import Decision
from sia.events import Event

POOLS, QUOTA, PENDING = 1000, 10, 10_000
TURNS, STEPS = 9, 400


class Silent(Accounts):
    """No accounts."""

    due = inf  # type: ignore[assignment]

    def record(self, events: Sequence[Event], decisions: Sequence[Decision]) -> None:
        """Nothing."""

    def begin_step(self, now: float) -> None:
        """Nothing."""
        self.booked = NOTHING

    def settle(self) -> None:
        """Nothing."""

    def catch_up(self) -> None:
        """Nothing."""

    def end_step(self, over: int) -> None:
        """Nothing."""


class Side:
    """The engine and journal of a daemon, and the CPU time of its steps in µs."""

    def __init__(self, folder: Path, *, silent: bool) -> None:
        """Fill it."""
        engine, inputs = crowded(POOLS, QUOTA, POOLS * QUOTA, PENDING)
        self.engine = Engine.new(replace(engine.book.setup, book_every=BOOK_EVERY))
        if silent:
            none = Silent(self.engine.book, self.engine.core)
            self.engine._observers[-1].accounts = none  # noqa: SLF001  there is no switch
            self.engine._accounts = none  # noqa: SLF001
        self.journal, self.rng = Journal(folder / f"db{silent}"), Random(1)
        self.now, self.number, self.running = 1e9, 0, []
        self.parts: dict[str, list[float]] = {"pass": [], "beside": [], "step": []}
        for first in range(0, len(inputs), 1000):
            self.now += 1.0
            step = self.engine.step(self.now, inputs[first : first + 1000])
            self.engine.settle_accounts()
            self.running += [e.job for e in step.effects if isinstance(e, StartEffect)]

    def turn(self) -> None:
        """So many steps as the service makes them."""
        taken: dict[str, list[float]] = {name: [] for name in self.parts}
        for _ in range(STEPS):
            self.now, self.number = self.now + 1.0, self.number + 1
            ending = self.running.pop(self.rng.randrange(len(self.running)))
            pool = f"p{self.number % POOLS:04}"
            inputs = [Ended(ending, 1, 0), Submit(spec(f"n{self.number}", pool, 2), 500.0)]
            began = process_time()
            step = self.engine.step(self.now, inputs)
            passed = process_time()
            anchor = Anchor("", self.now, self.now)
            self.journal.commit(JournalEntry.of(self.number, anchor, inputs, step, ()))
            committed = process_time()
            self.engine.do_idle_work()
            due(self.engine)
            over = process_time()
            for name, took in (
                ("pass", passed - began), ("beside", over - committed), ("step", over - began)
            ):  # fmt: skip
                taken[name].append(took * 1e6)
            self.running += [e.job for e in step.effects if isinstance(e, StartEffect)]
        for name, values in taken.items():
            self.parts[name].append(mean(values))


def due(engine: Engine) -> float:
    """As the service asks after each step."""
    return engine.due


def main() -> None:
    home = sys.argv[1] if len(sys.argv) > 1 else None
    with TemporaryDirectory(dir=home) as folder:
        sides = {name: Side(Path(folder), silent=name == "without") for name in ("without", "with")}
        gc.collect()
        gc.freeze()
        for _ in range(TURNS):
            for side in sides.values():
                side.turn()
    found: dict[str, Any] = {"turns": TURNS, "steps_of_a_turn": STEPS}
    for name, side in sides.items():
        found[name] = {f"{k}_microseconds": round(median(v), 1) for k, v in side.parts.items()}
    for part in ("pass", "step"):
        pairs = zip(sides["with"].parts[part], sides["without"].parts[part], strict=True)
        found[f"{part}_ratio"] = round(median(a / b for a, b in pairs), 3)
    print(found)
    keep("daemon/accounts", found)


if __name__ == "__main__":
    main()
