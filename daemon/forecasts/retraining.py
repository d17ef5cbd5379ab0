"""Retrain models of loads on the daemon's history, and use a new model if it is better.

A site that names no forecast gets the one that would have gained most: each candidate replays the
newest week of the daemon's history, knowing the four weeks before. Child processes run `sia
forecast train` and `sia replay`, so that no step waits for them. Their inputs and outputs are
files.
"""

from __future__ import annotations

import asyncio
import json
import os
import sys
from collections.abc import Callable, Mapping, Sequence
from importlib.util import find_spec
from math import log as logarithm
from pathlib import Path
from shutil import rmtree
from tempfile import mkdtemp
from typing import TYPE_CHECKING, Any, NamedTuple

from daemon.engine.engine import Engine
from daemon.engine.jobs import core_job
from daemon.forecasts.forecaster import HEAR_AGAIN, ForecastService, ReadHistory, ended_between
from daemon.model.book import JobRecord
from daemon.model.errors import JournalError
from daemon.model.setup import Setup
from daemon.runtime.clock import Clock
from daemon.runtime.logs import log
from predictors.catalog import LEARNED
from replay.forecast.model_folder import read_model
from replay.logs.trace import PoolTable, Trace
from replay.run.output import write_pools, write_trace
from sia.console.errors import UserError
from sia.core.playout import Arrival
from sia.wording import WEEK, as_typed, counted, install_extra

if TYPE_CHECKING:
    from predictors.learning.model import Model

SPAN = 90 * 86400.0
"""Seconds of history for training: a model is fitted on the newest 60 days, and compared on
days that it has not seen."""

KINDNESS = 19
"""Niceness added to the child process: training is not urgent."""

PATIENCE = 3600.0
"""Time limit of the child in seconds: four months of Philly take a minute."""


USUAL_EVERY = WEEK
"""Seconds between two trainings if the configuration does not say: a model hardly ages sooner."""

LEAST_HISTORY = 3 * WEEK
"""Seconds of history before a forecast is chosen: two weeks to learn from, one to be tested on."""

TESTED = WEEK
"""The newest seconds of the history, on which candidates are compared."""

KNOWN = 4 * WEEK
"""Seconds before those that the candidates know at most, as a daemon does after a restart."""

MOST_JOBS = 300_000
"""Jobs of the history by which a forecast is chosen, the newest. 300 MB while they are read."""

CANDIDATES = ("peaks+boosted", "learned:0.95+survival", "learned:0.95+boosted")
"""Forecasts that may replace the usual one. All of them need xgboost."""

MARGIN = 1.05
"""Least ratio of the gain of a candidate to that of the usual forecast: less may be chance."""


class RetrainingResult(NamedTuple):
    """The result of a training: a model if it is to be used, and the reason.

    `label` is the forecast to use from now on, "" for the usual one, or None for no change. `mend`
    is set if something is missing: what to do about it.
    """

    model: Model | None
    why: str
    label: str | None = None
    mend: str = ""


def best(gains: Mapping[str, tuple[float, int]], usual: str) -> str:
    """Return the label that gained most without more delayed jobs than the usual one, or that.

    `gains` has the logarithm of the geometric mean speed-up and the delayed jobs of each label. To
    be better by less than `MARGIN` does not count.
    """
    gain, delayed = gains[usual]
    able = {label: each[0] for label, each in gains.items() if each[1] <= delayed}
    first = max(able, key=lambda label: able[label])
    return first if able[first] > max(gain * MARGIN, 0.0) else usual


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

    async def choose(
        self, ended: Sequence[JobRecord], setup: Setup, usual: str
    ) -> RetrainingResult:
        """Return the forecast that would have gained most in the newest week, with its model.

        The result contains the reason if the history is too short, or a package is missing.
        """
        trace = await asyncio.to_thread(trace_of, ended)
        span = _submit(trace, -1) - _submit(trace, 0) if trace.arrivals else 0.0
        if span < LEAST_HISTORY:
            return RetrainingResult(
                None, f"{usual}: a history of {as_typed(LEAST_HISTORY)} is needed to choose by"
            )
        if find_spec("xgboost") is None:
            why = "forecasts that learn from the history need xgboost, which is not installed"
            mend = f'{install_extra("learn")}, or write forecast = "{usual}" in [daemon]'
            return RetrainingResult(None, f"{why}; {usual} is used", mend=mend)
        self.folder.mkdir(parents=True, exist_ok=True)
        work = Path(mkdtemp(prefix="learning-", dir=self.folder))
        try:
            return await self._choose(work, trace, setup, usual)
        finally:
            rmtree(work, ignore_errors=True)

    async def _choose(self, work: Path, trace: Trace, setup: Setup, usual: str) -> RetrainingResult:
        windows, held = setup.options.windows, _submit(trace, -1) - TESTED
        begin = _submit(trace, 0) // WEEK * WEEK  # hours and weekdays stay what they are
        await asyncio.to_thread(_write, work, trace, setup, begin)
        shown, until = ",".join(map(as_typed, windows)), f"{held - begin!r}s"
        asked = ["--trace", "trace.csv", "--pools", "pools.csv", "--windows", shown]
        code, _ = await _run(
            work, ["forecast", "train", *asked, "--until", until, "--out", "model", "--json"]
        )
        able = [each for each in CANDIDATES if not code or not each.startswith(LEARNED)]
        labels = {f"sia@{each}": each for each in (usual, *able)}
        code, output = await _run(
            work,
            [
                "replay", *asked, "--policy", ",".join(labels), "--warmup", until,
                *([] if code else ["--forecast", "model"]), "--no-report", "--json", "--out", "out",
            ],
        )  # fmt: skip
        if code:
            return RetrainingResult(None, output, mend="see the daemon's log and report it")
        found = json.loads((work / "out" / "summary.json").read_bytes())["policies"]
        gains = {labels[label]: _gain(found[label]) for label in labels}
        label, jobs = best(gains, usual), counted(found[f"sia@{usual}"]["measured"], "job")
        if label == usual:
            return RetrainingResult(None, f"{usual}: no other gains more on the newest {jobs}", "")
        ratio = gains[label][0] / max(gains[usual][0], 1e-9)
        why = f"{label} gains {min(ratio, 99.0):.2f} times what {usual} gains on the newest {jobs}"
        model = None
        if label.startswith(LEARNED):
            model = self._keep(read_model(work / "model", windows), work / "model")
        return RetrainingResult(model, why, label)

    def _keep(self, model: Model, made: Path) -> Model:
        """Move a model that is to be used to its own folder."""
        target = self.folder / model.checksum
        if not target.exists():
            made.rename(target)
        return model

    async def _learn(
        self, work: Path, ended: Sequence[JobRecord], setup: Setup, old: str
    ) -> RetrainingResult:
        trace = await asyncio.to_thread(trace_of, ended)
        if not trace.arrivals:
            return RetrainingResult(None, "no job has ended yet")
        await asyncio.to_thread(_write, work, trace, setup)
        windows = setup.options.windows
        asked = ["--trace", "trace.csv", "--pools", "pools.csv", "--out", "model", "--json"]
        if old:
            asked += ["--compare", str(self.folder.absolute() / old)]
        else:
            asked += ["--windows", ",".join(map(as_typed, windows)), "--until", _last(trace)]
        code, output = await _run(work, ["forecast", "train", *asked])
        if code:
            return RetrainingResult(None, output)
        if not (work / "model").exists():
            return RetrainingResult(None, "not better than the current model on the newest days")
        model = self._keep(read_model(work / "model", windows), work / "model")
        return RetrainingResult(
            model, "better than the previous model on the newest days" if old else "first model"
        )


def trace_of(ended: Sequence[JobRecord]) -> Trace:
    """Return a job log of the jobs that ran, in order of submission."""
    arrivals = []
    for record in ended:
        if record.decided is not None and record.ended is not None:
            job = core_job(record, record.submitted)
            plain = type(job)(
                record.spec.id, job.pool, job.submit, job.width, job.user, job.name,
                estimate=job.estimate,
            )  # fmt: skip
            arrivals.append(Arrival(plain, record.ended - record.decided))
    return Trace(sorted(arrivals, key=lambda arrival: arrival.job.submit))


def _write(work: Path, trace: Trace, setup: Setup, begin: float = 0.0) -> None:
    """Write the log, in seconds since `begin`, and the pools. Takes seconds: not on the loop."""
    jobs = [
        each._replace(job=each.job.submitted_at(each.job.submit - begin)) for each in trace.arrivals
    ]
    write_trace(work / "trace.csv", Trace(jobs))
    write_pools(work / "pools.csv", PoolTable(list(setup.pools)))


def _gain(of: Mapping[str, Any]) -> tuple[float, int]:
    return logarithm(of["speedup_geomean"] or 1.0), of["slowed"]


def _submit(trace: Trace, place: int) -> float:
    return trace.arrivals[place].job.submit


def _last(trace: Trace) -> str:
    return f"{_submit(trace, -1)!r}s"


async def _run(folder: Path, asked: Sequence[str]) -> tuple[int, str]:
    """Run a command in a child; return its exit code and, if not 0, its last line of errors."""
    child = await asyncio.create_subprocess_exec(
        sys.executable, "-m", "sia", *asked,
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
    """Retrain at intervals, and use a new model or forecast if it is better.

    Attributes:
        last: Result of the last training.
        unwell: Called with what is missing and the fix, or with empty texts.
    """

    def __init__(
        self, models: Models, foresight: ForecastService, clock: Clock, setup: Setup, every: float
    ) -> None:
        """Retrain every `every` seconds of the daemon's clock."""
        self._models, self._foresight, self._clock = models, foresight, clock
        self._setup, self._every = setup, every
        self.last = RetrainingResult(None, "")
        self.unwell: Callable[[str, str], object] = lambda *_: None

    async def run(self, engine: Callable[[], Engine], read: ReadHistory) -> None:
        """Run until cancelled; `engine` returns the current engine.

        The first training is at once, so that a history that was imported is used.
        """
        await self._foresight.heard()
        unwell = False
        while True:
            due = self._clock.now() + self._every
            try:
                self.last = await self.once(engine, read)
            except JournalError as error:  # said by another component
                log().info("retraining", better=False, why=f"cannot read the history: {error}")
                await asyncio.sleep(HEAR_AGAIN)
                continue
            log().info("retraining", better=self.last.model is not None, why=self.last.why)
            if self.last.mend:
                self.unwell(self.last.why, self.last.mend)
            elif unwell:
                self.unwell("", "")
            unwell = bool(self.last.mend)
            while self._clock.now() < due:
                await self._clock.sleep_until(due)

    async def once(self, engine: Callable[[], Engine], read: ReadHistory) -> RetrainingResult:
        """Train now, and use the model if it is better. Does not raise transient errors."""
        now = self._clock.now()
        chooses = self._foresight.predictors.chosen_by_backtest
        try:
            if chooses:
                usual = self._foresight.predictors.label
                ended = await ended_between(read, now - KNOWN - TESTED, now, MOST_JOBS)
                learned = await self._models.choose(ended, self._setup, usual)
            else:
                ended = await ended_between(read, now - SPAN, now)
                learned = await self._learn(engine().book.model, ended)
        except (OSError, TimeoutError, UserError, ValueError) as error:
            mend = "see the daemon's log" if chooses else ""
            return RetrainingResult(None, str(error) or type(error).__name__, mend=mend)
        book = engine().book
        changed = learned.label is not None and learned.label != book.adopted
        if learned.model is not None or changed:
            self._foresight.want(learned.model, learned.why, learned.label)
        return learned

    async def _learn(self, old: str, ended: Sequence[JobRecord]) -> RetrainingResult:
        """Train a model of loads, because the configuration asks for one."""
        known = await asyncio.to_thread(self._models.read, old, self._setup.options.windows)
        learned = await self._models.learn(ended, self._setup, old if known else "")
        if known or learned.model is not None:
            return learned
        why = f"no model of loads is trained yet ({learned.why}); peaks are forecast meanwhile"
        return RetrainingResult(None, why, mend="wait, or import a history (sia journal import)")
