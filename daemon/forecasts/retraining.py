"""Retrain models of loads on the daemon's history, and use a new model if it is better.

If the configuration names no forecast, the forecast with the largest gain is chosen: each candidate
replays the newest week of the daemon's history, and knows the four weeks before. Child processes
run `sia forecast train` and `sia replay`, so that no step waits for them. Their inputs and outputs
are files.
"""

from __future__ import annotations

import asyncio
import json
import os
import sys
from collections.abc import Callable, Mapping, Sequence
from importlib.util import find_spec
from math import exp, inf
from math import log as logarithm
from pathlib import Path
from shutil import rmtree
from sys import intern
from tempfile import mkdtemp
from typing import TYPE_CHECKING, Any, NamedTuple

from msgspec.structs import replace

from daemon.engine.engine import Engine
from daemon.engine.jobs import USUAL
from daemon.forecasts.forecaster import HEAR_AGAIN, PAGE, ForecastService, ReadHistory
from daemon.model.book import Book, JobRecord
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
from sia.model import Job
from sia.wording import DAY, WEEK, as_typed, counted, install_extra

if TYPE_CHECKING:
    from predictors.learning.model import Model

SPAN = 90 * 86400.0
"""Seconds of history for training. A model is fitted on the newest 60 days, and compared on days
that it has not seen."""

KINDNESS = 19
"""Niceness added to the child process: training is not urgent."""

PATIENCE = 3600.0
"""Time limit of the child in seconds: four months of Philly take a minute."""


USUAL_EVERY = WEEK
"""Default seconds between two trainings: a model is hardly outdated earlier."""

LEAST_HISTORY = 3 * WEEK
"""Seconds of history needed to choose a forecast: two weeks to learn from, one to test on."""

TESTED = WEEK
"""Seconds at the end of the history on which candidates are compared."""

KNOWN = 4 * WEEK
"""Maximum seconds before these that the candidates know, as a daemon does after a restart."""

MOST_JOBS = 300_000
"""Maximum number of jobs, the newest, by which a forecast is chosen. They take 130 MB while they
are read and 210 MB while they are written, together some ten seconds, and no memory while children
run."""

CANDIDATES = ("joint+survival", "peaks+boosted", "learned:0.95+survival", "learned:0.95+boosted")
"""Forecasts that may replace the usual one. All but the first need xgboost."""

SHORT = ("is too short", "needs a log that continues", "has no jobs to learn from")
"""Output of `sia forecast train` for a history that is too short, which is not a failure."""

WORK = "learning-"
"""Prefix of the name of a training's folder."""

LOOK = "see the daemon's log"
"""Fix for a child that failed."""

MARGIN = 1.05
"""Minimum ratio of the gain of a candidate to the gain of the usual forecast: less may be
chance."""


class RetrainingResult(NamedTuple):
    """The result of a training: a model if it should be used, and the reason.

    `label` is the forecast to use from now on, "" for the usual one, or None for no change. `mend`
    is set if something is missing, and says what to do.
    """

    model: Model | None
    why: str
    label: str | None = None
    mend: str = ""


def best(gains: Mapping[str, tuple[float, int]], usual: str) -> str:
    """Return the label with the largest gain and no more delayed jobs than the usual one.

    `gains` has, for each label, the logarithm of the geometric mean speed-up and the number of
    delayed jobs. Return `usual` if no label is better by at least the factor `MARGIN`.
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

    async def learn(self, trace: Trace, setup: Setup, old: str) -> RetrainingResult:
        """Train on a log; return a model only if better than `old`, or if `old` is empty.

        A history that is too short raises no error; the result contains the reason.
        """
        if not trace.arrivals:
            return RetrainingResult(None, "no job has ended yet")
        last = f"{_submit(trace, -1)!r}s"
        work = self._workplace()
        try:
            await asyncio.to_thread(_write, work, trace, setup)
            del trace  # a training takes minutes
            return await self._learn(work, setup, old, last)
        finally:
            rmtree(work, ignore_errors=True)

    async def choose(self, trace: Trace, setup: Setup, usual: str) -> RetrainingResult:
        """Return the forecast with the largest gain in the newest week, with its model.

        The result contains the reason if the history is too short, or a package is missing.
        """
        jobs, name_it = len(trace.arrivals), f'write forecast = "{usual}" in [daemon]'
        first, last = (_submit(trace, 0), _submit(trace, -1)) if jobs else (0.0, 0.0)
        if last - first < LEAST_HISTORY:
            needed = f"a history of {as_typed(LEAST_HISTORY)} is needed to choose by"
            if jobs < MOST_JOBS:
                return RetrainingResult(None, f"{usual}: {needed}")
            why = f"{usual}: {needed}, and the newest {counted(jobs, 'job')}, the most that are"
            why += f" read, span {(last - first) / DAY:.1f} days"
            return RetrainingResult(None, why, mend=name_it)
        if find_spec("xgboost") is None:
            why = "forecasts that learn from the history need xgboost, which is not installed"
            mend = f"{install_extra('learn')}, or {name_it}"
            return RetrainingResult(None, f"{why}; {usual} is used", mend=mend)
        begin = first // WEEK * WEEK  # keep hours and weekdays
        work = self._workplace()
        try:
            await asyncio.to_thread(_write, work, trace, setup, begin)
            del trace
            return await self._choose(work, setup, usual, f"{last - TESTED - begin!r}s")
        finally:
            rmtree(work, ignore_errors=True)

    def _workplace(self) -> Path:
        """Return a new folder for one training, and remove folders that a killed daemon left."""
        self.folder.mkdir(parents=True, exist_ok=True)
        for left in self.folder.glob(f"{WORK}*"):
            rmtree(left, ignore_errors=True)
        return Path(mkdtemp(prefix=WORK, dir=self.folder))

    async def _choose(self, work: Path, setup: Setup, usual: str, until: str) -> RetrainingResult:
        options = setup.options
        shown = ",".join(map(as_typed, options.windows))
        asked = ["--trace", "trace.csv", "--pools", "pools.csv", "--windows", shown]
        code, trained = await _run(
            work, ["forecast", "train", *asked, "--until", until, "--out", "model", "--json"]
        )
        able = [each for each in CANDIDATES if not code or not each.startswith(LEARNED)]
        labels = {f"{setup.policy}@{each}": each for each in (usual, *able)}
        failed, output = await _run(
            work,
            [
                "replay", *asked, "--policy", ",".join(labels), "--warmup", until,
                "--slack", repr(options.slack), "--resume-cost", f"{options.resume_cost!r}s",
                *([] if code else ["--forecast", "model"]), "--no-report", "--json", "--out", "out",
            ],
        )  # fmt: skip
        if failed:
            return RetrainingResult(None, f"{usual}: a backtest failed: {output}", mend=LOOK)
        found = json.loads((work / "out" / "summary.json").read_bytes())["policies"]
        gains = {each: _gain(found[label]) for label, each in labels.items()}
        label = best(gains, usual)
        jobs = counted(found[f"{setup.policy}@{usual}"]["measured"], "job")
        why, mend = f"{usual}: no other gains more on the newest {jobs}", ""
        if label != usual:
            ours, theirs = (exp(gains[each][0]) for each in (label, usual))
            why = f"{label}: mean speed-up {ours:.3f}, with {usual} {theirs:.3f}"
            why += f", on the newest {jobs}"
        if code and not _is_short(trained):
            why, mend = f"{why}; a training failed: {trained}", LOOK
        if label == usual:
            return RetrainingResult(None, why, "", mend)
        model = await self._read(work, setup) if label.startswith(LEARNED) else None
        return RetrainingResult(model, why, label, mend)

    async def _read(self, work: Path, setup: Setup) -> Model:
        """Read a model that is to be used, and move it to its own folder. Imports xgboost."""
        made = work / "model"
        model = await asyncio.to_thread(read_model, made, setup.options.windows)
        target = self.folder / model.checksum
        if not target.exists():
            made.rename(target)
        return model

    async def _learn(self, work: Path, setup: Setup, old: str, last: str) -> RetrainingResult:
        asked = ["--trace", "trace.csv", "--pools", "pools.csv", "--out", "model", "--json"]
        if old:
            asked += ["--compare", str(self.folder.absolute() / old)]
        else:
            shown = ",".join(map(as_typed, setup.options.windows))
            asked += ["--windows", shown, "--until", last]
        code, output = await _run(work, ["forecast", "train", *asked])
        if code:
            if _is_short(output):
                return RetrainingResult(None, output)
            return RetrainingResult(None, f"a training failed: {output}", mend=LOOK)
        if not (work / "model").exists():
            return RetrainingResult(None, "not better than the current model on the newest days")
        why = "better than the previous model on the newest days" if old else "first model"
        return RetrainingResult(await self._read(work, setup), why)


async def log_between(
    read: ReadHistory, begin: float, end: float, setup: Setup, most: float = inf
) -> Trace:
    """Return a log of the jobs that ended in this span (seconds): the newest `most`, or a few more.

    Each page is converted to rows as it is read. Whole records would take three times the memory,
    and garbage collections would take twice as long.
    """
    found: list[Arrival] = []
    before = 0
    while True:
        page = await read(before, PAGE)
        past = (page[-1][1].ended or begin) < begin if page else True
        before = page[-1][0] if page else 0
        last = past or len(page) < PAGE
        ended = [job for _, job in page if job.ended is not None and begin <= job.ended <= end]
        del page
        found += await asyncio.to_thread(_ran, ended, setup)
        if last or len(found) >= most:
            return await asyncio.to_thread(_in_order, found)


def trace_of(ended: Sequence[JobRecord]) -> Trace:
    """Return a log of the jobs that ran, in order of submission."""
    return _in_order(_ran(ended, USUAL))


def _in_order(found: list[Arrival]) -> Trace:
    return Trace(sorted(found, key=lambda arrival: arrival.job.submit))


def _ran(ended: Sequence[JobRecord], setup: Setup) -> list[Arrival]:
    """Return the jobs that ran, as a replay sees them."""
    return [
        Arrival(
            Job(
                spec.id, intern(spec.pool), record.submitted, spec.gpus, intern(spec.user),
                intern(spec.kind), preemptible=setup.stop_cost(spec), estimate=spec.run_time,
            ),
            record.ended - record.decided,
        )
        for record in ended
        if (spec := record.spec) and record.decided is not None and record.ended is not None
    ]  # fmt: skip


def in_force(setup: Setup, book: Book) -> Setup:
    """Return the configuration with the quotas and the policy that commands have set since."""
    pools = tuple(
        replace(pool, quota=book.pools[pool.name].quota) if pool.name in book.pools else pool
        for pool in setup.pools
    )
    return replace(setup, pools=pools, policy=book.setup.policy)


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


def _is_short(output: str) -> bool:
    return any(each in output for each in SHORT)


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

        The first training is immediate, so that an imported history is used.
        """
        await self._foresight.heard()
        unwell = False
        while True:
            due = self._clock.now() + self._every
            try:
                self.last = await self.once(engine, read)
            except JournalError as error:  # another component reports it
                log().info("retraining", better=False, why=f"cannot read the history: {error}")
                await asyncio.sleep(HEAR_AGAIN)
                continue
            changes = self.last.model is not None or bool(self.last.label)
            log().info("retraining", better=changes, why=self.last.why)
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
        predictors = self._foresight.predictors
        setup = in_force(self._setup, engine().book)
        try:
            if predictors.chosen_by_backtest:
                learned = await self._models.choose(
                    await log_between(read, now - KNOWN - TESTED, now, setup, MOST_JOBS),
                    setup,
                    predictors.label,
                )
            else:
                learned = await self._learn(
                    engine().book.model, setup, await log_between(read, now - SPAN, now, setup)
                )
        except (OSError, TimeoutError, UserError, ValueError) as error:
            why = f"a training failed: {str(error) or type(error).__name__}"
            return RetrainingResult(None, why, mend=LOOK)
        book = engine().book
        changed = learned.label is not None and learned.label != book.adopted
        if learned.model is not None or changed:
            self._foresight.want(learned.model, learned.why, learned.label)
        return learned

    async def _learn(self, old: str, setup: Setup, trace: Trace) -> RetrainingResult:
        """Train a model of loads, because the configuration asks for one."""
        known = await asyncio.to_thread(self._models.read, old, setup.options.windows)
        learning = self._models.learn(trace, setup, old if known else "")
        del trace  # as in `Models.learn`
        learned = await learning
        if known or learned.model is not None:
            return learned
        why = f"no model of loads is trained yet ({learned.why}); peaks are forecast meanwhile"
        mend = learned.mend or "wait, or import a history (sia journal import)"
        return RetrainingResult(None, why, mend=mend)
