"""Retrain models of loads on the daemon's history, and use a new model if it is better.

A child process runs `sia forecast train`, so that no step waits for the training. Its input and
output are files.
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
"""Seconds of history for training: a model is fitted on the newest 60 days, and compared on
days that it has not seen."""

KINDNESS = 19
"""Niceness added to the child process: training is not urgent."""

PATIENCE = 3600.0
"""Time limit of the child in seconds: four months of Philly take a minute."""


class RetrainingResult(NamedTuple):
    """The result of a training: a model if it is to be used, and the reason."""

    model: Model | None
    why: str


class Models:
    """A folder of models, one subfolder per checksum; it contains only models that were in use."""

    def __init__(self, folder: Path) -> None:
        """Use this folder, which need not exist yet."""
        self.folder = folder

    def read(self, checksum: str, windows: Sequence[float]) -> Model | None:
        """Return the model with this checksum; None if it is missing or invalid."""
        if not checksum:
            return None
        try:
            return read_model(self.folder / checksum, windows)
        except UserError:
            return None

    async def learn(self, ended: Sequence[JobRecord], setup: Setup, old: str) -> RetrainingResult:
        """Train on ended jobs; return a model only if better than `old`, or if `old` is empty.

        A history that is too short raises no error; the result contains the reason.
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
        code, output = await _run(work, asked)
        if code:
            return RetrainingResult(None, output)
        if not (work / "model").exists():
            return RetrainingResult(None, "not better than the current model on the newest days")
        model = read_model(work / "model", windows)
        target = self.folder / model.checksum
        if not target.exists():
            (work / "model").rename(target)
        return RetrainingResult(
            model, "better than the previous model on the newest days" if old else "first model"
        )


def trace_of(ended: Sequence[JobRecord]) -> Trace:
    """Return a job log of the jobs that ran, in order of submission."""
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
    """Train in a child; return its exit code and, if not 0, the last line of its output."""
    child = await asyncio.create_subprocess_exec(
        sys.executable, "-m", "sia", "forecast", "train", *asked,
        cwd=folder, stdin=asyncio.subprocess.DEVNULL, stdout=asyncio.subprocess.DEVNULL,
        stderr=asyncio.subprocess.PIPE,
    )  # fmt: skip
    try:
        os.setpriority(os.PRIO_PROCESS, child.pid, KINDNESS)
        async with asyncio.timeout(PATIENCE):
            _, output = await child.communicate()
    except (TimeoutError, asyncio.CancelledError):
        child.kill()
        await child.wait()
        raise
    lines = output.decode(errors="replace").strip().splitlines()
    return child.returncode or 0, lines[-1] if lines else ""


class Retraining:
    """Retrain at intervals, and use a new model if it is better."""

    def __init__(
        self, models: Models, foresight: ForecastService, clock: Clock, setup: Setup, every: float
    ) -> None:
        """Retrain every `every` seconds of the daemon's clock."""
        self._models, self._foresight, self._clock = models, foresight, clock
        self._setup, self._every = setup, every
        self.last = RetrainingResult(None, "")
        """Result of the last training."""

    async def run(self, engine: Callable[[], Engine], read: ReadHistory) -> None:
        """Run until cancelled; `engine` returns the current engine."""
        due = self._clock.now() + self._every
        while True:
            while self._clock.now() < due:
                await self._clock.sleep_until(due)
            due = self._clock.now() + self._every
            self.last = await self.once(engine, read)
            log().info("retraining", better=self.last.model is not None, why=self.last.why)

    async def once(self, engine: Callable[[], Engine], read: ReadHistory) -> RetrainingResult:
        """Train now, and use the model if it is better. Does not raise transient errors."""
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
