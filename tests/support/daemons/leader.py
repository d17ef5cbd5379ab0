"""`sia serve` with jobs that outlive it: a folder records each start."""

from __future__ import annotations

import asyncio
import os
import sys
import time
from pathlib import Path

from daemon.backends.simulated.config import SimulatedConfig
from daemon.model.inputs import Ended, Started
from sia.console.main import main

LASTS = 1.0
"""Run time of each job in seconds."""


class World:
    """A file with a line for each requested start of an attempt, appended in one write."""

    def __init__(self, folder):
        self.starts = folder / "starts"

    def note(self, path, *words):
        with os.fdopen(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600), "w") as file:
            file.write(" ".join(map(str, words)) + "\n")

    def lines(self, path):
        return (
            [tuple(line.split()) for line in path.read_text().splitlines()] if path.exists() else []
        )

    def begun(self):
        """Return the time of the first start of each (job, attempt)."""
        found = {}
        for job, attempt, _, at in self.lines(self.starts):
            found.setdefault((job, int(attempt)), float(at))
        return found


class WorldBackend:
    """A backend whose jobs end a fixed time after their start, with or without a daemon."""

    can = frozenset()
    gpus = None

    def __init__(self, folder):
        self._world = World(folder)

    async def open(self, house):
        self._house = house

    async def reconcile(self, expected):
        begun = self._world.begun()
        unseen = []
        for each in expected:
            key = (each.order.job, each.order.attempt)
            if key in begun:
                self._go_on(key, begun[key])
            else:
                unseen.append(each.order)
        return unseen

    async def start(self, order):
        key = (order.job, order.attempt)
        if not self._house.fence.holds():
            raise RuntimeError("the caller has checked the fence")
        self._world.note(self._world.starts, *key, self._house.fence.epoch, time.time())
        self._go_on(key, self._world.begun()[key])

    def _go_on(self, key, begun):
        self._house.sink(Started(*key))
        wait = max(0.0, begun + LASTS - time.time())
        asyncio.get_running_loop().call_later(wait, lambda: self._house.sink(Ended(*key, 0)))

    async def stop(self, job_id, attempt, kind):
        """Do nothing: jobs end by themselves."""

    async def close(self):
        """Do nothing: jobs keep running."""

    def log(self, job_id, attempt, stream):
        return None


if __name__ == "__main__":
    world = Path(sys.argv.pop(1))
    SimulatedConfig.build = lambda *_: WorldBackend(world)
    main()
