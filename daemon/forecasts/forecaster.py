"""Create the predictors of a daemon, and feed them the history."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Mapping, Sequence
from functools import partial
from math import inf
from types import MappingProxyType
from typing import TYPE_CHECKING, NamedTuple

from msgspec.structs import replace

from daemon.engine.engine import Engine, Step
from daemon.engine.guardrails import DRIFT
from daemon.forecasts.drift import DESIGNED, Drift, unwatched
from daemon.forecasts.drift import SPAN as DRIFTED
from daemon.forecasts.history import SPAN, JournalHistory, said_to
from daemon.forecasts.predictors import Forecaster
from daemon.model.book import Book, JobRecord
from daemon.model.inputs import ForecastHealth, Foreseen, Input, ModelChanged
from daemon.model.job import JobSpec
from daemon.model.setup import Setup
from predictors.catalog import NONE, Choice, loads_by, loads_class, parse, run_times_by
from predictors.loads.rounded import RoundedLoads
from sia.forecasts import Loads, PredictorContext
from sia.limits import MAX_GROUP
from sia.model import Load, Pool
from sia.policies import load
from sia.state.places import Places

if TYPE_CHECKING:
    from daemon.config.config import DriftMode
    from predictors.learning.model import Model

UNTRAINED = "peaks"
"""Predictor of loads until the first model is trained."""

PAGE = 1000
"""Number of ended jobs read from the journal at a time: a few milliseconds, in which no step
commits."""

SAID = 3
"""Maximum number of pools in a message about drift."""

KEPT = "these pools do not lend until their forecasts improve"
ANEW = "their forecasts use only the last day and other pools"
AS_BEFORE = "the forecast does not change at once, and learns the new loads with time"
LENDS = 'with drift = "keep" in [daemon] these pools would not lend until their forecasts improve'
MEND = "check these pools for a new kind of jobs"

HEAR_AGAIN = 60.0
"""Seconds after a failure until the history is read again: a read takes seconds."""


class WantedForecast(NamedTuple):
    """The forecast to use from now on: a model, and the reason for a change.

    `label` replaces the label in the journal; None keeps that one.
    """

    model: Model | None = None
    why: str = ""
    label: str | None = None


ReadHistory = Callable[[int, int], Awaitable[list[tuple[int, JobRecord]]]]
"""Reads ended jobs, newest first: see `Service.observed_jobs`."""


class Predictors(NamedTuple):
    """The predictors that a label such as `peaks+survival` selects, for a policy and its pools."""

    setup: Setup
    label: str
    chosen_by_backtest: bool = False
    """Whether retraining may replace it by a better one, because the configuration names none."""

    @property
    def any(self) -> bool:
        """True if the policy uses any predictor."""
        needs = load(self.setup.policy).needs
        return self.label != NONE and (needs.loads or needs.run_times)

    @property
    def unseen(self) -> int:
        """Load (GPUs) assumed for a pool before its first forecast: the maximum; 0 without any."""
        if not (self.any and load(self.setup.policy).needs.loads) or self.choice.forecast == NONE:
            return 0
        return MAX_GROUP

    @property
    def unknown(self) -> list[Input]:
        """Inputs that set this load for all pools; empty without forecasts."""
        if not self.unseen:
            return []
        windows = range(len(self.setup.options.windows))
        loads = [Load(pool.name, w, self.unseen) for pool in self.setup.pools for w in windows]
        return [Foreseen(loads)]

    @property
    def choice(self) -> Choice:
        """The parsed label. Raises KeyError for an unknown predictor."""
        return parse(f"{self.setup.policy}@{self.label}", Choice("", "", ""))

    @property
    def learns(self) -> bool:
        """True if the predictor of loads needs a trained model."""
        if not (self.any and load(self.setup.policy).needs.loads):
            return False
        return loads_class(self.choice.forecast).needs_model

    def adopting(self, label: str) -> Predictors:
        """Return the predictors of a label that a backtest has chosen; "" for the usual ones.

        If a package for the label is not installed here, return the usual ones.
        """
        if not (label and self.chosen_by_backtest):
            return self
        found = self._replace(label=label)
        try:
            _ = found.choice
        except KeyError:
            return self
        return found

    def make(
        self,
        story: JournalHistory,
        places: Places | None,
        model: Model | None,
        quotas: Mapping[str, int] = MappingProxyType({}),
        begins: Mapping[str, float] = MappingProxyType({}),
    ) -> Forecaster:
        """Return predictors that know the history. Takes seconds; call it outside the event loop.

        Without a model, a predictor that needs one is replaced by `UNTRAINED`. `quotas` (GPUs) are
        those in force, where they differ from the configuration; `begins` are as in
        `Forecaster.hear`.
        """
        needs, choice = load(self.setup.policy).needs, self.choice
        if model is None and loads_class(choice.forecast).needs_model:
            choice = choice._replace(forecast=UNTRAINED, load_quantile=None)
        owned = [replace(p, quota=quotas.get(p.name, p.quota)) for p in self.setup.pools]
        pools = [pool.name for pool in owned]
        since = {pool: story.seen(pool) for pool in pools}
        quotas = {pool.name: pool.quota for pool in owned}
        groups = {pool.name: pool.sharing_group for pool in owned}
        context = PredictorContext(
            self.setup.options.windows, pools, story.begin, model=model, since=since, quotas=quotas,
            groups=groups,
        )  # fmt: skip
        run_times = run_times_by(choice, context) if needs.run_times else None
        loads = self._loads(choice, context, owned, places) if needs.loads else None
        kind = loads_class(choice.forecast)
        forecaster = Forecaster(
            run_times, loads, updates=needs.updates, forgets=loads is not None and kind.forgets,
            stated_by_pool=loads is not None and kind.stated_by_pool,
            designed=DESIGNED if choice.load_quantile is None else 1.0 - choice.load_quantile,
        )  # fmt: skip
        forecaster.hear(story, begins)
        return forecaster

    def _loads(
        self,
        choice: Choice,
        context: PredictorContext,
        pools: Sequence[Pool],
        places: Places | None,
    ) -> Loads | None:
        windows, loads = context.windows, loads_by(choice, context)
        if loads is not None and choice.guard is not None:
            from predictors.loads.guard import GuardedLoads  # noqa: PLC0415  importing numpy is slow

            loads = GuardedLoads(loads, pools, windows, context.start, choice.guard)
        if loads is None:
            return None
        if places is not None:
            loads = RoundedLoads(loads, places.gpus)
        if loads_class(choice.forecast).minds_new_pools:
            return loads
        from predictors.loads.new_pools import NewPoolLoads  # noqa: PLC0415  imports numpy too

        return NewPoolLoads(loads, context.since, windows)


class ForecastService:
    """Run a forecaster, which becomes ready after it has read the history.

    Until then steps run without forecasts, and the core keeps its last ones.

    Attributes:
        wake: Called when the forecaster is ready, and when it needs a call of `begin_anew`.
        failed: Called with the reason when the history cannot be read; the service retries.
        drift: What happens when forecasts drift: off, say or keep.
    """

    def __init__(
        self, predictors: Predictors, model: Callable[[str], Model | None] = lambda _: None
    ) -> None:
        """Start without forecasts until `begin`; `model` returns a model of loads by checksum."""
        self.predictors = predictors
        self.wake: Callable[[], object] = lambda: None
        self.failed: Callable[[str], object] = lambda _: None
        self.drift: DriftMode = "off"
        self._model = model
        self._news: list[ModelChanged] = []
        self._forecaster: Forecaster | None = None
        self._missed: list[tuple[float, Step]] = []
        self._hearing: asyncio.Task[None] | None = None
        self._wanted: WantedForecast | None = None
        self._latest = WantedForecast()
        """The latest request. It is repeated at each restart, because the journal may not have it
        yet. If the journal has it, repeating it changes nothing."""
        self._later: asyncio.TimerHandle | None = None
        self.unwell: Callable[[str, str], object] = lambda *_: None
        """Called with the reason and the fix if forecasts are unhealthy, else with empty texts."""
        self._drift: Drift | None = None
        self._drifting: set[str] = set()
        self._untold = False

    @property
    def ready(self) -> bool:
        """True if forecasts are available."""
        return self._forecaster is not None

    def begin(
        self,
        engine: Engine,
        now: float,
        read: ReadHistory,
        wanted: WantedForecast = WantedForecast(),  # noqa: B008  immutable
    ) -> None:
        """Read the history up to now, anew; called on the event loop, between two steps.

        The current forecaster continues until the new one is ready. Without a model, the one named
        in the journal is used. The reason for a new one is journaled.
        """
        self.end()
        self._wanted, self._latest = None, wanted
        opened = {name: account.since for name, account in engine.book.accounts.items()}
        story = JournalHistory(now - SPAN, now, opened)
        story.add_alive(engine.book.jobs.values())
        self._missed = []
        self._untold = not any(load.gpus for load in said_to(engine.core.state))
        self._hearing = asyncio.create_task(self._try(engine, story, read, wanted))

    def want(self, model: Model | None, why: str, label: str | None = None) -> None:
        """Request a restart with this model and label; may be called while a step commits."""
        self._wanted = WantedForecast(model, why, label)
        self.wake()

    @property
    def wants(self) -> bool:
        """True if a call of `begin_anew` is requested, for when no step is in progress."""
        return self._wanted is not None

    def begin_anew(self, engine: Engine, now: float, read: ReadHistory) -> None:
        """Call `begin` with the open request, or with the latest one."""
        self.begin(engine, now, read, self._wanted or self._latest)

    def end(self) -> None:
        """Stop reading the history."""
        if self._later is not None:
            self._later.cancel()
            self._later = None
        if self._hearing is not None:
            self._hearing.cancel()
            self._hearing = None

    def forget(self) -> None:
        """Drop the forecaster, as its steps did not commit; no forecasts until the next `begin`."""
        self.end()
        self._forecaster, self._news = None, []  # news from a model that is not in use

    async def heard(self) -> None:
        """Wait until the history has been read, or reading has failed."""
        if self._hearing is not None:
            await self._hearing

    async def _try(
        self,
        engine: Engine,
        story: JournalHistory,
        read: ReadHistory,
        wanted: WantedForecast,
    ) -> None:
        """Read the history; on failure, retry later."""
        try:
            await self._hear(engine, story, read, wanted)
        except Exception as error:  # noqa: BLE001  nothing else would report the error
            self._missed = []
            self._try_later(f"cannot read the history: {error!r}", wanted)

    def _give_up(self, error: Exception) -> None:
        """Drop the predictors after a failure: jobs then start without forecasts.

        The model and label that led to them are not requested again, unless the history is still
        being read for them.
        """
        if self._hearing is None or self._hearing.done():
            self._latest = WantedForecast()
        self.forget()
        self._try_later(f"a predictor failed: {error!r}", self._latest)

    def _try_later(self, failed: str, wanted: WantedForecast) -> None:
        self.failed(failed)
        loop = asyncio.get_running_loop()
        self._later = loop.call_later(HEAR_AGAIN, self.want, *wanted)

    async def _hear(
        self,
        engine: Engine,
        story: JournalHistory,
        read: ReadHistory,
        wanted: WantedForecast,
    ) -> None:
        story.add_ended(await ended_between(read, story.begin, story.end))
        book, model = engine.book, wanted.model
        if model is None:
            model = await asyncio.to_thread(self._model, book.model)
        label = book.adopted if wanted.label is None else wanted.label
        predictors = self.predictors.adopting(label)
        places = engine.core.state.places
        quotas, begins = {p.name: p.quota for p in book.pools.values()}, _begins(book)
        forecaster = await asyncio.to_thread(predictors.make, story, places, model, quotas, begins)
        forecaster.work_aside(partial(asyncio.get_running_loop().run_in_executor, None))
        for now, step in self._missed:
            forecaster.after(now, step)
        for pool, begin in _begins(book).items() - begins.items():  # drift began meanwhile
            forecaster.forget(pool, begin)
        forecaster.correct(said_to(engine.core.state))
        self._missed, self._forecaster = [], forecaster
        watched = forecaster.stated_by_pool and self.drift != "off"
        self._drift = self._watch(engine, story.end, forecaster.designed) if watched else None
        self._drifting = set() if self._drift is None else set(self._drift.why)
        digest = book.model if model is None else model.checksum
        if digest != book.model or label != book.adopted:
            self._news.append(ModelChanged("loads", digest, wanted.why, label))
        self.wake()

    def _watch(self, engine: Engine, now: float, designed: float) -> Drift:
        """Return a drift detector for forecasts from now on."""
        state, book = engine.core.state, engine.book
        why = {name: pool.drift for name, pool in book.pools.items() if pool.drift}
        loads = {name: tuple(pool.load) for name, pool in state.pools.items()}
        width = None if state.places is None else state.places.gpus
        return Drift(max(now, state.now), state.options.windows, loads, width, why, designed)

    def record(self, pool: str) -> list[tuple[int, int]]:
        """Return results of a pool's forecasts (see `Drift.record`); empty if not checked."""
        return [] if self._drift is None else self._drift.record(pool)

    def _drifted(self, now: float, book: Book) -> list[Input]:
        """Return the input for pools whose forecasts drift, if it differs from the book.

        When a pool begins to drift, the forecaster forgets the pool's loads from before the drift.
        The book stores the begin of the drift, so that a forecaster that reads the history again
        forgets the same.
        """
        if self._drift is None:
            return [*unwatched(book)]
        why = {pool: each for pool, each in self._drift.why.items() if pool in book.pools}
        since = {}
        if self._forecaster is not None and self._forecaster.forgets:
            since = {pool: now - DRIFTED for pool in why if pool not in self._drifting}
            for pool, begin in since.items():
                self._forecaster.forget(pool, begin)
        self._drifting, lend = set(why), self.drift != "keep"
        self._say_drift(why)
        drifting = {name for name, pool in book.pools.items() if pool.drift}
        stopped = {name for name, pool in book.pools.items() if DRIFT in pool.kept}
        told = drifting == why.keys() and stopped == (set() if lend else why.keys())
        return (
            []
            if told and not since
            else [ForecastHealth(why, lend=lend and bool(why), since=since)]
        )

    def _say_drift(self, why: Mapping[str, str]) -> None:
        reasons = "; ".join(f"{pool}: {each}" for pool, each in sorted(why.items())[:SAID])
        forgets = self._forecaster is not None and self._forecaster.forgets
        lending = KEPT if self.drift == "keep" else LENDS
        mend = f"{ANEW if forgets else AS_BEFORE}; {lending}; {MEND}"
        self.unwell(f"forecasts are wrong too often: {reasons}" if why else "", mend if why else "")

    @property
    def due(self) -> float:
        """Latest time of the next step with forecasts; infinite until ready."""
        return inf if self._forecaster is None else self._forecaster.due

    @property
    def curious(self) -> bool:
        """True if forecasts may have changed since the last step."""
        return self._forecaster is not None and self._forecaster.curious

    def before(self, now: float, inputs: Sequence[Input], book: Book) -> list[Input]:
        """Return the inputs of a step with the forecasts.

        Without any forecast the core would assume that no pool needs its GPUs, and lend all.
        """
        if self._forecaster is None:
            unknown, self._untold = self.predictors.unknown if self._untold else [], False
            return [*unknown, *inputs]
        try:
            foreseen = self._forecaster.before(now, inputs, book)
            drifted = self._drifted(now, book)
        except Exception as error:  # noqa: BLE001  a defect of a predictor must not end the service
            self._give_up(error)
            return [*inputs]
        news, self._news = self._news, []
        return [*news, *drifted, *foreseen]

    def guess(self, now: float, spec: JobSpec) -> float:
        """Return the estimated run time (seconds) of a job that is not submitted; 0 if unknown."""
        return 0.0 if self._forecaster is None else self._forecaster.guess(now, spec)

    def after(self, now: float, step: Step) -> None:
        """Process a step, once it is durable."""
        if self._hearing is not None and not self._hearing.done():
            self._missed.append((now, step))
        if self._forecaster is not None:
            try:
                self._forecaster.after(now, step)
                if self._drift is not None:
                    self._drift.hear(step.events)
            except Exception as error:  # noqa: BLE001  as in `before`
                self._give_up(error)


def _begins(book: Book) -> dict[str, float]:
    """Return the time from which on loads are used, for pools that have drifted."""
    return {name: pool.forecast_from for name, pool in book.pools.items() if pool.forecast_from}


async def ended_between(
    read: ReadHistory, begin: float, end: float, most: float = inf
) -> list[JobRecord]:
    """Return the jobs that ended in this span (seconds): the newest `most`, or up to a page more.

    They are read in pages, so that steps can commit in between.
    """
    found: list[JobRecord] = []
    before = 0
    while True:
        page = await read(before, PAGE)
        found += [job for _, job in page if job.ended is not None and begin <= job.ended <= end]
        if len(page) < PAGE or len(found) >= most or (page[-1][1].ended or begin) < begin:
            return found[::-1]
        before = page[-1][0]
