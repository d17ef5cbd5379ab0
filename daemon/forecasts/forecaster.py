"""Which predictors a daemon has, and how they come to know what happened before."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Mapping, Sequence
from math import inf
from typing import TYPE_CHECKING, NamedTuple

from daemon.engine.engine import Engine, Step
from daemon.engine.guardrails import DRIFT
from daemon.forecasts.drift import Drift, unwatched
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
from sia.model import Load
from sia.policies import load
from sia.state.places import Places

if TYPE_CHECKING:
    from daemon.config.config import DriftMode
    from predictors.learning.model import Model

UNTRAINED = "peaks"
"""The forecast until there is the first trained model."""

PAGE = 1000
"""Jobs of the past read from the journal at a time: a few milliseconds in which nothing commits."""

SAID = 3
"""Pools of which a line says how their forecasts drift."""

KEPT = "these pools lend nothing until it is better"
LENDS = 'with drift = "keep" in [daemon] these pools would lend nothing until it is better'
MEND = "look for jobs of another kind than before"

HEAR_AGAIN = 60.0
"""Seconds until predictors are told of the past again where that failed: it takes seconds."""

ReadHistory = Callable[[int, int], Awaitable[list[tuple[int, JobRecord]]]]
"""Jobs that have ended, newest first: as `Service.past_jobs`."""


class Predictors(NamedTuple):
    """What a label like `peaks+survival` means to a policy, in these pools."""

    setup: Setup
    label: str

    @property
    def any(self) -> bool:
        """Whether the policy foresees anything."""
        needs = load(self.setup.policy).needs
        return self.label != NONE and (needs.loads or needs.run_times)

    @property
    def unseen(self) -> int:
        """What is foreseen of a pool (GPUs) before anything is: that all of it will be needed."""
        if not (self.any and load(self.setup.policy).needs.loads) or self.choice.forecast == NONE:
            return 0
        return MAX_GROUP

    @property
    def unknown(self) -> list[Input]:
        """The same of all pools, where anything is foreseen."""
        if not self.unseen:
            return []
        windows = range(len(self.setup.options.windows))
        loads = [Load(pool.name, w, self.unseen) for pool in self.setup.pools for w in windows]
        return [Foreseen(loads)]

    @property
    def choice(self) -> Choice:
        """The label, taken apart. Raises KeyError for what there is not."""
        return parse(f"{self.setup.policy}@{self.label}", Choice("", "", ""))

    @property
    def learns(self) -> bool:
        """Whether it asks for a model of loads."""
        if not (self.any and load(self.setup.policy).needs.loads):
            return False
        return loads_class(self.choice.forecast).needs_model

    def make(self, story: JournalHistory, places: Places | None, model: Model | None) -> Forecaster:
        """Predictors that have heard the story. Seconds of work, and none of it on the loop.

        Who is to learn loads and has not yet goes by their peaks.
        """
        needs, choice = load(self.setup.policy).needs, self.choice
        if model is None and loads_class(choice.forecast).needs_model:
            choice = choice._replace(forecast=UNTRAINED, load_quantile=None)
        pools = [pool.name for pool in self.setup.pools]
        context = PredictorContext(self.setup.options.windows, pools, story.begin, model=model)
        run_times = run_times_by(choice, context) if needs.run_times else None
        loads = self._loads(choice, context, story, places) if needs.loads else None
        forecaster = Forecaster(run_times, loads, updates=needs.updates)
        forecaster.hear(story)
        return forecaster

    def _loads(
        self,
        choice: Choice,
        context: PredictorContext,
        story: JournalHistory,
        places: Places | None,
    ) -> Loads | None:
        pools, windows, loads = self.setup.pools, context.windows, loads_by(choice, context)
        if loads is not None and choice.guard is not None:
            from predictors.loads.guard import GuardedLoads  # noqa: PLC0415  numpy takes its time

            loads = GuardedLoads(loads, list(pools), windows, story.begin, choice.guard)
        if loads is None:
            return None
        if places is not None:
            loads = RoundedLoads(loads, places.gpus)
        from predictors.loads.new_pools import NewPoolLoads  # noqa: PLC0415  the same

        since = {pool.name: story.seen(pool.name) for pool in pools}
        return NewPoolLoads(loads, since, windows)


class ForecastService:
    """A forecaster that is ready once it has heard of the past, which takes a while.

    Until then steps go without: the core believes what it was last told.

    Attributes:
        wake: Called once it is ready, and when it wants to `begin_anew`.
        failed: Called with why it could not hear of the past; it tries again.
        drift: Whether it is watched how forecasts do, and whether pools are kept from lending.
    """

    def __init__(
        self, predictors: Predictors, model: Callable[[str], Model | None] = lambda _: None
    ) -> None:
        """Nothing is foreseen before `begin`; `model` finds a model of loads by its checksum."""
        self.predictors = predictors
        self.wake: Callable[[], object] = lambda: None
        self.failed: Callable[[str], object] = lambda _: None
        self.drift: DriftMode = "off"
        self._model = model
        self._news: list[ModelChanged] = []
        self._forecaster: Forecaster | None = None
        self._missed: list[tuple[float, Step]] = []
        self._hearing: asyncio.Task[None] | None = None
        self._wanted: tuple[Model | None, str] | None = None
        self._later: asyncio.TimerHandle | None = None
        self.unwell: Callable[[str, str], object] = lambda *_: None
        """Told why forecasts are not well, and the mend; that they are, with neither."""
        self._drift: Drift | None = None
        self._untold = False

    @property
    def ready(self) -> bool:
        """Whether anything is foreseen yet."""
        return self._forecaster is not None

    def begin(
        self,
        engine: Engine,
        now: float,
        read: ReadHistory,
        model: Model | None = None,
        why: str = "",
    ) -> None:
        """Hear of the past of an engine up to now, anew; called on the loop, between two steps.

        What was foreseen by until then goes on until the new one is ready. Without a `model` it
        is the one that the journal names; `why` there is another goes into the journal.
        """
        self.end()
        self._wanted = None
        opened = {name: account.since for name, account in engine.book.accounts.items()}
        story = JournalHistory(now - SPAN, now, opened)
        story.add_alive(engine.book.jobs.values())
        self._missed = []
        self._untold = not any(load.gpus for load in said_to(engine.core.state))
        self._hearing = asyncio.create_task(self._try(engine, story, read, model, why))

    def want(self, model: Model | None, why: str) -> None:
        """Have it begin with this model, soon; at any moment, also while a step is written."""
        self._wanted = model, why
        self.wake()

    @property
    def wants(self) -> bool:
        """Whether it is to `begin_anew` once no step is on its way."""
        return self._wanted is not None

    def begin_anew(self, engine: Engine, now: float, read: ReadHistory) -> None:
        """As `begin`, with the model that is wanted, if one is."""
        model, why = self._wanted or (None, "")
        self.begin(engine, now, read, model, why)

    def end(self) -> None:
        """Hear of nothing more."""
        if self._later is not None:
            self._later.cancel()
            self._later = None
        if self._hearing is not None:
            self._hearing.cancel()
            self._hearing = None

    def forget(self) -> None:
        """What was told did not happen: foresee nothing until the next `begin`."""
        self.end()
        self._forecaster, self._news = None, []  # of a model that is not in use

    async def heard(self) -> None:
        """Wait until it is ready, or could not be."""
        if self._hearing is not None:
            await self._hearing

    async def _try(
        self,
        engine: Engine,
        story: JournalHistory,
        read: ReadHistory,
        model: Model | None,
        why: str,
    ) -> None:
        """Hear of it, or try again later: what cannot be read now may be read then."""
        try:
            await self._hear(engine, story, read, model, why)
        except Exception as error:  # noqa: BLE001  nothing else says what came of it
            self._missed = []
            self._try_later(f"the past could not be told: {error!r}", model, why)

    def _give_up(self, error: Exception) -> None:
        """A predictor has failed: jobs start without one too."""
        self.forget()
        self._try_later(f"a predictor failed: {error!r}", None, "")

    def _try_later(self, failed: str, model: Model | None, why: str) -> None:
        self.failed(failed)
        loop = asyncio.get_running_loop()
        self._later = loop.call_later(HEAR_AGAIN, self.want, model, why)

    async def _hear(
        self,
        engine: Engine,
        story: JournalHistory,
        read: ReadHistory,
        model: Model | None,
        why: str,
    ) -> None:
        story.add_ended(await ended_between(read, story.begin, story.end))
        if model is None:
            model = await asyncio.to_thread(self._model, engine.book.model)
        places = engine.core.state.places
        forecaster = await asyncio.to_thread(self.predictors.make, story, places, model)
        for now, step in self._missed:
            forecaster.after(now, step)
        forecaster.correct(said_to(engine.core.state))
        self._missed, self._forecaster = [], forecaster
        watched = forecaster.foresees_loads and self.drift != "off"
        self._drift = self._watch(engine, story.end) if watched else None
        if model is not None and model.checksum != engine.book.model:
            self._news.append(ModelChanged("loads", model.checksum, why))
        self.wake()

    def _watch(self, engine: Engine, now: float) -> Drift:
        """Watch the loads that are foreseen from now on."""
        state, book = engine.core.state, engine.book
        why = {name: pool.kept[DRIFT] for name, pool in book.pools.items() if DRIFT in pool.kept}
        loads = {name: tuple(pool.load) for name, pool in state.pools.items()}
        width = None if state.places is None else state.places.gpus
        return Drift(max(now, state.now), state.options.windows, loads, width, why)

    def record(self, pool: str) -> list[tuple[int, int]]:
        """How forecasts of a pool did of late (see `Drift.record`); empty where nobody watches."""
        return [] if self._drift is None else self._drift.record(pool)

    def _drifted(self, book: Book) -> list[Input]:
        """What is to be said of forecasts that drift, if it is another than the book says."""
        if self._drift is None:
            return [*unwatched(book)]
        kept = {name for name, pool in book.pools.items() if DRIFT in pool.kept}
        why = {pool: each for pool, each in self._drift.why.items() if pool in book.pools}
        keeps = why if self.drift == "keep" else {}
        self._say_drift(why)
        return [] if kept == keeps.keys() else [ForecastHealth(keeps)]

    def _say_drift(self, why: Mapping[str, str]) -> None:
        told = "; ".join(f"{pool}: {each}" for pool, each in sorted(why.items())[:SAID])
        mend = f"{KEPT if self.drift == 'keep' else LENDS}; {MEND}"
        self.unwell(f"forecasts are wrong too often: {told}" if why else "", mend if why else "")

    @property
    def due(self) -> float:
        """When it wants to be asked at the latest; infinite while it knows nothing."""
        return inf if self._forecaster is None else self._forecaster.due

    @property
    def curious(self) -> bool:
        """Whether it may think otherwise than it last said."""
        return self._forecaster is not None and self._forecaster.curious

    def before(self, now: float, inputs: Sequence[Input], book: Book) -> list[Input]:
        """The inputs of a step, with what is foreseen.

        Who was never told anything believes that nobody will need anything, and would lend it all.
        """
        if self._forecaster is None:
            unknown, self._untold = self.predictors.unknown if self._untold else [], False
            return [*unknown, *inputs]
        try:
            foreseen = self._forecaster.before(now, inputs, book)
        except Exception as error:  # noqa: BLE001  a defect of one must not end the service
            self._give_up(error)
            return [*inputs]
        news, self._news = self._news, []
        return [*news, *self._drifted(book), *foreseen]

    def guess(self, now: float, spec: JobSpec) -> float:
        """How long a job of nobody's is thought to run (seconds); 0 where that is not known."""
        return 0.0 if self._forecaster is None else self._forecaster.guess(now, spec)

    def after(self, now: float, step: Step) -> None:
        """Hear what a step came to, once it is durable."""
        if self._hearing is not None and not self._hearing.done():
            self._missed.append((now, step))
        if self._forecaster is not None:
            try:
                self._forecaster.after(now, step)
                if self._drift is not None:
                    self._drift.hear(step.events)
            except Exception as error:  # noqa: BLE001  nor here
                self._give_up(error)


async def ended_between(read: ReadHistory, begin: float, end: float) -> list[JobRecord]:
    """Jobs that ended in a span of time (seconds), read page by page beside the commits."""
    found: list[JobRecord] = []
    before = 0
    while True:
        page = await read(before, PAGE)
        found += [job for _, job in page if job.ended is not None and begin <= job.ended <= end]
        if len(page) < PAGE or (page[-1][1].ended or begin) < begin:
            return found[::-1]
        before = page[-1][0]
