"""Models of loads learned anew from the daemon's own history, and taken where they are better.

A child process learns, with `sia forecast train`, so that no step waits for it: what it is given
and what it leaves are files.
"""

from __future__ import annotations

import asyncio
import os
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from shutil import rmtree
from tempfile import mkdtemp
from typing import TYPE_CHECKING, NamedTuple

from daemon.engine.engine import Engine
from daemon.engine.jobs import core_job
from daemon.forecasts.forecaster import ForecastService, ReadHistory, ended_between
from daemon.model.book import JobRecord
from daemon.model.setup import Setup
from daemon.runtime.clock import Clock
from daemon.runtime.logs import log
from replay.forecast.model_folder import read_model
from replay.logs.trace import PoolTable, Trace
from replay.run.output import write_pools, write_trace
from sia.console.errors import UserError
from sia.core.playout import Arrival
from sia.wording import as_typed

if TYPE_CHECKING:
    from predictors.learning.model import Model

SPAN = 90 * 86400.0
"""Seconds of history that a model learns from: a retrained one takes the newest 60 days, and is
judged by days that it has not seen."""

KINDNESS = 19
"""How far the child steps back for others: learning is in no hurry."""

PATIENCE = 3600.0
"""Seconds that a child may take: Philly's four months take a minute."""


class RetrainingResult(NamedTuple):
    """What came of it: a model where it is to be used, and why it is, or why not."""

    model: Model | None
    why: str


class Models:
    """The folder of models, one of each checksum; what is in none of them was never promoted."""

    def __init__(self, folder: Path) -> None:
        """It need not be there yet."""
        self.folder = folder

    def read(self, checksum: str, windows: Sequence[float]) -> Model | None:
        """A model by its checksum; None where there is none, or no good one."""
        if not checksum:
            return None
        try:
            return read_model(self.folder / checksum, windows)
        except UserError:
            return None

    async def learn(self, ended: Sequence[JobRecord], setup: Setup, old: str) -> RetrainingResult:
        """Learn from jobs that have ended; better than the model `old`, if there is one.

        Nothing is raised for a history that is too short: the reason is said.
        """
        self.folder.mkdir(parents=True, exist_ok=True)
        work = Path(mkdtemp(prefix="learning-", dir=self.folder))
        try:
            return await self._learn(work, ended, setup, old)
        finally:
            rmtree(work, ignore_errors=True)

    async def _learn(
        self, work: Path, ended: Sequence[JobRecord], setup: Setup, old: str
    ) -> RetrainingResult:
        trace = trace_of(ended)
        if not trace.arrivals:
            return RetrainingResult(None, "no job has ended yet")
        write_trace(work / "trace.csv", trace)
        write_pools(work / "pools.csv", PoolTable(list(setup.pools)))
        windows = setup.options.windows
        asked = ["--trace", "trace.csv", "--pools", "pools.csv", "--out", "model", "--json"]
        if old:
            asked += ["--compare", str(self.folder.absolute() / old)]
        else:
            asked += ["--windows", ",".join(map(as_typed, windows)), "--until", _last(trace)]
        code, said = await _run(work, asked)
        if code:
            return RetrainingResult(None, said)
        if not (work / "model").exists():
            return RetrainingResult(None, "it foretells the newest days no better")
        model = read_model(work / "model", windows)
        kept = self.folder / model.checksum
        if not kept.exists():
            (work / "model").rename(kept)
        return RetrainingResult(model, "better on the newest days" if old else "the first")


def trace_of(ended: Sequence[JobRecord]) -> Trace:
    """A job log of those that ran, in order of submission."""
    arrivals = []
    for record in ended:
        if record.decided is not None and record.ended is not None:
            job = core_job(record, record.submitted)
            plain = type(job)(record.spec.id, job.pool, job.submit, job.width, job.user, job.name)
            arrivals.append(Arrival(plain, record.ended - record.decided))
    return Trace(sorted(arrivals, key=lambda arrival: arrival.job.submit))


def _last(trace: Trace) -> str:
    return f"{trace.arrivals[-1].job.submit!r}s"


async def _run(folder: Path, asked: Sequence[str]) -> tuple[int, str]:
    """Have a child learn; its exit code and, if that is not 0, the last line that it said."""
    child = await asyncio.create_subprocess_exec(
        sys.executable, "-m", "sia", "forecast", "train", *asked,
        cwd=folder, stdin=asyncio.subprocess.DEVNULL, stdout=asyncio.subprocess.DEVNULL,
        stderr=asyncio.subprocess.PIPE,
    )  # fmt: skip
    try:
        os.setpriority(os.PRIO_PROCESS, child.pid, KINDNESS)
        async with asyncio.timeout(PATIENCE):
            _, said = await child.communicate()
    except (TimeoutError, asyncio.CancelledError):
        child.kill()
        await child.wait()
        raise
    lines = said.decode(errors="replace").strip().splitlines()
    return child.returncode or 0, lines[-1] if lines else ""


class Retraining:
    """Learns every so often, and has what is better foresee from then on."""

    def __init__(
        self, models: Models, foresight: ForecastService, clock: Clock, setup: Setup, every: float
    ) -> None:
        """Every so many seconds of the daemon's clock."""
        self._models, self._foresight, self._clock = models, foresight, clock
        self._setup, self._every = setup, every
        self.last = RetrainingResult(None, "")
        """What came of the last time."""

    async def run(self, engine: Callable[[], Engine], read: ReadHistory) -> None:
        """Go on until cancelled; `engine` says which one it is at the moment."""
        due = self._clock.now() + self._every
        while True:
            while self._clock.now() < due:
                await self._clock.sleep_until(due)
            due = self._clock.now() + self._every
            self.last = await self.once(engine, read)
            log().info("retraining", better=self.last.model is not None, why=self.last.why)

    async def once(self, engine: Callable[[], Engine], read: ReadHistory) -> RetrainingResult:
        """Learn now, and have it foresee if it is better. Raises nothing that time would mend."""
        now = self._clock.now()
        try:
            ended = await ended_between(read, now - SPAN, now)
            old = engine().book.model
            known = await asyncio.to_thread(self._models.read, old, self._setup.options.windows)
            learned = await self._models.learn(ended, self._setup, old if known else "")
        except (OSError, TimeoutError, UserError) as error:
            return RetrainingResult(None, str(error) or type(error).__name__)
        if learned.model is not None:
            self._foresight.want(learned.model, learned.why)
        return learned
