"""Accuracy of estimated starts and ends: a week of Philly in the daemon's engine.

`python -m benchmarks.answers.eta [--learned] [JOBS [SEED …]]` plays eight of Philly's pools, scaled
to loads of 0.6 to 1.1, in virtual time under `sia@peaks+survival`, which has heard of four weeks
before it, or under `sia@learned+survival`, with a model that has learned from these weeks.
About JOBS (default: 1500) jobs are estimated as they are submitted, by playing the present forward,
and by the newest playout before them, at most half an hour old. The first day is for learning and
not counted.
"""

from __future__ import annotations

import argparse
import time
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from heapq import heappop, heappush
from math import inf
from pathlib import Path
from statistics import fmean, median
from typing import Any, NamedTuple

import numpy as np
from matplotlib.figure import Figure

from benchmarks.common import keep, philly
from daemon.answers.estimates.at_submission import new_job
from daemon.answers.estimates.calibration import Calibration, Given, StatedMoment
from daemon.answers.estimates.observations import EstimateInputs
from daemon.answers.estimates.recent_waits import UNKNOWN
from daemon.answers.estimates.worlds import (
    WORLDS,
    MomentQuantiles,
    Outlook,
    Playouts,
    Times,
    plain_job,
    spread,
)
from daemon.engine.engine import Engine, Step
from daemon.forecasts.forecaster import Predictors
from daemon.forecasts.history import JournalHistory
from daemon.forecasts.retraining import trace_of
from daemon.model.book import JobRecord
from daemon.model.inputs import Ended, Input, Started, Submit, Tick
from daemon.model.job import JobPhase, JobSpec
from daemon.model.outputs import StartEffect
from daemon.model.setup import Setup
from predictors.learning.model import Model
from predictors.random_forecast import draw
from replay.experiment.design import PieceDesign, plan_pieces
from replay.forecast.train import train_on
from replay.logs.trace import PoolTable
from replay.run.starts import starts_of

DAY = 86400.0
LENGTH, LEARN, SINCE = 7 * DAY, DAY, 62 * DAY
FRESH = 1800.0
RECENT = 2000
PICTURES = Path(__file__).resolve().parent.parent / "docs" / "figures"
HORIZONS = ("5 m", "1 h", "12 h", "beyond")
NAIVE = ("position · service", "position · service / jobs at once", "mean")


class Asked(NamedTuple):
    """The estimates that each method gave of a job at its submission; times are seconds."""

    record: JobRecord
    made: float
    times: Mapping[str, Times]
    worlds: Sequence[float]
    """Its end in each world."""
    naive: Mapping[str, tuple[float, float]]
    """Start and end."""
    own: tuple[tuple[float, float], tuple[float, float]]
    """p50 and p90 of how long its pool's last jobs were there, and waited."""
    waited: tuple[float, float] | None
    """p50 and p90 of how long those waited that did."""
    said: dict[str, tuple[StatedMoment, StatedMoment | None]]
    """What is stated, once the calibration has heard of it."""


class World:
    """The engine in virtual time, its forecasts, and the estimators."""

    def __init__(
        self,
        setup: Setup,
        durations: Mapping[str, float],
        past: JournalHistory,
        model: Model | None,
    ) -> None:
        """Begin where the past ends; loads are those of the model, or their peaks."""
        self.engine, self.durations = Engine.new(setup), durations
        label = "peaks+survival" if model is None else "learned+survival"
        self.forecaster = Predictors(setup, label).make(past, None, model)
        self.heard = EstimateInputs()
        self.now = past.end
        self.waiting: list[tuple[float, int, int, Input]] = []
        self._count = 0
        self.over: dict[str, list[JobRecord]] = defaultdict(list)
        self.waited: dict[str, list[float]] = defaultdict(list)

    def coming(self, when: float, order: int, what: Input) -> None:
        """Something will happen."""
        self._count += 1
        heappush(self.waiting, (when, order, self._count, what))

    @property
    def next(self) -> float:
        """When something happens next."""
        due = self.waiting[0][0] if self.waiting else inf
        return min(due, max(self.now, min(self.engine.due, self.forecaster.due)))

    def turn(self) -> Step | None:
        """Make the next step and record its outcome; None once nothing is left."""
        if not self.waiting and not self.engine.book.jobs:
            return None
        self.now = now = self.next
        inputs: list[Input] = []
        while self.waiting and self.waiting[0][0] <= now:
            inputs.append(heappop(self.waiting)[3])
        if not inputs and self.engine.due <= now:
            inputs = [Tick()]
        inputs = self.forecaster.before(now, inputs, self.engine.book)
        step = self.engine.step(now, inputs)
        self.forecaster.after(now, step)
        for notice in step.notices:
            self.heard.hear(notice, self.engine.book.job(notice.job))
        for effect in step.effects:
            if isinstance(effect, StartEffect):
                self.coming(now, 0, Started(effect.job, effect.attempt))
                self.began(self.engine.book.job(effect.job))
                end = now + self.durations[effect.job]
                self.coming(end, 1, Ended(effect.job, effect.attempt, 0))
        for record in step.over:
            self.over[record.spec.pool].append(record)
        return step

    def began(self, record: JobRecord) -> None:
        """A job starts."""
        if record.decided > record.submitted:
            self.waited[record.spec.pool].append(record.decided - record.submitted)


def story(past: Any, begin: float) -> tuple[JournalHistory, list[JobRecord]]:
    """What was before the piece, as the journal would tell it."""
    records = []
    for (job, duration), start in past.jobs:
        if start + duration <= begin:
            spec = JobSpec(f"before {job.id}", job.pool, job.width, user=job.user, name=job.name)
            records.append(JobRecord(spec, job.submit, 0.0, JobPhase.FINISHED, decided=start,
                                     started=start, ended=start + duration))  # fmt: skip
    history = JournalHistory(past.begin, begin)
    history.add_ended(records)
    return history, records


def teach(heard: EstimateInputs, records: Sequence[JobRecord]) -> None:
    """Have those hear of the past that estimate."""
    events = []
    for record in records:
        job = plain_job(record)
        events.append((record.submitted, 0, job.id, job, record))
        events.append((record.decided, 1, job.id, job, record))
        events.append((record.ended, 2, job.id, job, record))
    for when, kind, _, job, record in sorted(events, key=lambda event: event[:3]):
        seconds = record.ended - record.decided
        if kind == 0:
            heard.lasting.submitted(job)
            heard.lately.submitted(job, 1e12)
        elif kind == 1:
            heard.lasting.started(when, job)
        else:
            heard.lasting.finished(when, job, seconds)
            heard.lately.ended(job.id, seconds)


def naive(world: World, record: JobRecord) -> tuple[dict[str, tuple[float, float]], Any, Any]:
    """Return estimates without a playout, and the spread of the pool's own quantiles."""
    pool, now = record.spec.pool, world.now
    past = world.over[pool][-RECENT:]
    if len(past) < 10:
        return {}, None, None
    service = fmean(r.ended - r.decided for r in past)
    waits = [r.decided - r.submitted for r in past]
    theirs = [r.ended - r.submitted for r in past]
    state = world.engine.core.state.pools[pool]
    position = [job.job.id for job in state.waiting()].index(record.core) + 1 if (
        record.phase is JobPhase.PENDING) else 0  # fmt: skip
    quota = max(1, state.quota)
    width = fmean(r.spec.gpus for r in past)
    wait, at_once = fmean(waits), position * service * width / quota
    estimates = {
        "position · service": (now + position * service, now + (position + 1) * service),
        "position · service / jobs at once": (now + at_once, now + at_once + service),
        "mean": (now + wait, now + wait + service),
    }
    waited = world.waited[pool][-RECENT:]
    return estimates, (apart(theirs), apart(waits)), apart(waited) if len(waited) >= 10 else None


def apart(seconds: Sequence[float]) -> tuple[float, float]:
    """p50 and p90."""
    return float(np.quantile(seconds, 0.5)), float(np.quantile(seconds, 0.9))


def started(world: World, record: JobRecord) -> tuple[Times, list[float]]:
    """The end of a job that started at once."""
    job = plain_job(record)
    curve = world.heard.lasting.curve(job)
    ends = [world.now + curve.quantile(c) for c in world.heard.lasting.chances(job, WORLDS)]
    return Times(spread(ends)), ends


def ask(
    world: World, records: Sequence[JobRecord], before: dict[str, Outlook]
) -> tuple[list[Asked], float]:
    """Estimate jobs that have just been submitted; also return the seconds that the playout took.

    `before` has the newest outlook by pool, for the pools that were queried.
    """
    heard, found = world.heard, list[Asked]()
    waiting = [record for record in records if record.phase is JobPhase.PENDING]
    worlds, began = None, time.perf_counter()
    if waiting:
        pools = [world.engine.core.state.pools[p] for p in {r.spec.pool for r in waiting}]
        last = [{job.job.width: job.job.id for job in pool.waiting()} for pool in pools]
        only = {r.core for r in waiting} | {core for each in last for core in each.values()}
        worlds = Playouts(world.engine, heard.lasting, heard.lately, world.now, only=only)
    took = time.perf_counter() - began
    for record in records:
        if worlds is not None and record.phase is JobPhase.PENDING:
            ends = worlds.ends[record.core]
            times = Times(spread(ends), spread(worlds.starts[record.core]))
        else:
            times, ends = started(world, record)
        estimates = {"playout": times}
        known = before.get(record.spec.pool)
        if known is not None and world.now - known.now < FRESH:
            quick = new_job(known, heard.lasting, record, world.now)
            if quick is not None:
                estimates["queue"] = quick
        answers, own, waited = naive(world, record)
        if answers:
            found.append(Asked(record, world.now, estimates, ends, answers, own, waited, {}))
    if worlds is not None:
        outlook = worlds.said()
        before.update(dict.fromkeys({r.spec.pool for r in waiting}, outlook))
    return found, took


def state_all(asked: Sequence[Asked]) -> None:
    """Correct all estimates as calibration does, from the outcomes known at the time of each."""
    calibration = Calibration()
    events: list[tuple[float, int, Asked]] = []
    for each in asked:
        started, ended = came(each, 1), came(each, 0)
        events += [(started, 0, each), (ended, 1, each), (each.made, 2, each)]
    for now, kind, each in sorted(events, key=lambda event: event[:2]):
        spec = each.record.spec
        calibration.advance(now)
        if kind == 0:
            calibration.started(spec.id, now)
        elif kind == 1:
            calibration.ended(spec.id, now)
        else:
            waits = each.waited or UNKNOWN
            for by, times in each.times.items():
                each.said[by] = calibration.corrected(spec.pool, now, times, waits)
            times = each.times["playout"]
            each.said["uncorrected"] = raw_of(times.end), times.start and raw_of(times.start)
            end, start = each.said["playout"]
            calibration.give(Given(spec.id, spec.pool, each.record.submitted, now, end, start))


def raw_of(moments: MomentQuantiles) -> StatedMoment:
    """As the worlds have it."""
    return StatedMoment(moments.p50, moments.p90, None, (None, None))


def learned(records: Sequence[JobRecord], table: PoolTable) -> Model:
    """What is to be learned from jobs that are over, as the daemon does."""
    return train_on(trace_of(records), table, name="the weeks before")


def play(jobs: int, seed: int, *, learns: bool) -> tuple[list[Asked], dict[str, Any]]:
    """Play the piece, and ask."""
    trace, table = philly()
    (piece,) = plan_pieces(trace, table, PieceDesign([8], 1, LENGTH, (0.6, 1.1), seed, SINCE))
    quotas = {pool.name: pool.quota for pool in piece.table.pools}
    arrivals = [a for a in piece.cut(trace).arrivals if a.job.width <= quotas[a.job.pool]]
    pairs = zip(trace.arrivals, starts_of(trace, table), strict=True)
    starts = {a.job.id: start for a, start in pairs if start is not None}
    history, records = story(piece.past(trace, starts), 0.0)
    durations = {a.job.id: a.duration for a in arrivals}
    model = learned(records, piece.table) if learns else None
    world = World(Setup(tuple(piece.table.pools)), durations, history, model)
    teach(world.heard, records)
    for record in records:
        world.over[record.spec.pool].append(record)
        world.began(record)
    for job, _ in arrivals:
        spec = JobSpec(job.id, job.pool, job.width, user=job.user, name=job.name)
        world.coming(job.submit, 2, Submit(spec))
    share = jobs / max(1, len(arrivals))
    asked: list[Asked] = []
    seconds: list[float] = []
    before: dict[str, Outlook] = {}
    most = 0
    while (step := world.turn()) is not None and world.now < LENGTH:
        new = [n.job for n in step.notices if n.kind == "submitted"]
        some = [j for j in new if draw("asked", j) / 2.0**64 < share]
        if some:
            found, took = ask(world, [world.engine.book.job(j) for j in some], before)
            asked += found
            seconds += [took] if took > 0.001 else []
        most = max(most, world.engine.core.state.waiting)
    while world.turn() is not None:
        pass
    about = {
        "day": round(piece.begin / DAY, 1),
        "pools": quotas,
        "jobs": len(arrivals),
        "most waiting at a time": most,
        "playout seconds": {
            "median": round(median(seconds), 3), "max": round(max(seconds), 3),
        },
    }  # fmt: skip
    return asked, about


def came(each: Asked, what: int) -> float:
    """When it did: 0 is the end, 1 the start."""
    record = each.record
    moment = record.decided if what else record.ended
    assert moment is not None, "all have ended"
    return moment


def errors(asked: Sequence[Asked], what: int, by: str) -> list[float]:
    """Return the seconds between the median, or the naive answer, and the outcome."""
    found = []
    for each in asked:
        if by in each.naive:
            found.append(abs(each.naive[by][1 - what] - came(each, what)))
        elif by in each.said:
            stated = each.said[by][what]
            if stated is not None and stated.p50 is not None and stated.p50 < inf:
                found.append(abs(stated.p50 - came(each, what)))
    return found


def table_of(asked: Sequence[Asked], what: int, by: str) -> dict[str, Any]:
    """How well one of them estimated."""
    those = [(each, stated) for each in asked if by in each.said
             and (stated := each.said[by][what]) is not None]  # fmt: skip
    if not those:
        return {}
    finite = [(e, s) for e, s in those if s.p50 is not None and s.p90 is not None and s.p90 < inf]
    off = [abs(s.p50 - came(e, what)) for e, s in finite]
    jct = [abs(s.p50 - came(e, 0)) / max(1.0, s.p50 - e.record.submitted) for e, s in finite]
    found = {
        "jobs": len(those),
        "p50 covers": share(s.p50 is None or came(e, what) <= s.p50 for e, s in those),
        "p90 covers": share(s.p90 is None or came(e, what) <= s.p90 for e, s in those),
        "beyond the horizon": len(those) - len(finite),
        "median p90 - p50": round(median(s.p90 - s.p50 for _, s in finite)),
        "median absolute error": round(median(off)),
        "mean absolute error": round(fmean(off)),
    }
    if not what:
        found["pred_err"] = {
            f"p{share}": round(float(np.quantile(jct, share / 100)), 3) for share in (50, 90, 99)
        }
    return found


def table_of_pools(took: Sequence[tuple[float, tuple[float, float]]]) -> dict[str, Any]:
    """Score the quantiles of each pool's own past: `took` has times, p50 and p90."""
    off = [abs(seconds - p50) for seconds, (p50, _) in took]
    return {
        "jobs": len(took),
        "p50 covers": share(seconds <= p50 for seconds, (p50, _) in took),
        "p90 covers": share(seconds <= p90 for seconds, (_, p90) in took),
        "median p90 - p50": round(median(p90 - p50 for _, (p50, p90) in took)),
        "median absolute error": round(median(off)),
        "mean absolute error": round(fmean(off)),
    }


def share(held: Iterable[bool]) -> float:
    """Of how many it holds."""
    return round(fmean(map(float, held)), 4)


def reached(asked: Sequence[Asked]) -> list[float]:
    """What share of ends came before each place among the worlds' ends: the calibration curve."""
    found = []
    for place in range(WORLDS):
        held = [came(e, 0) <= sorted(e.worlds)[place] for e in asked]
        found.append(round(sum(held) / len(held), 4))
    return found


def by_horizon(asked: Sequence[Asked]) -> dict[str, Any]:
    """Return the results for ends, by how far away they were estimated to be."""
    parts: dict[int, list[Asked]] = defaultdict(list)
    for each in asked:
        p50 = each.said["playout"][0].p50
        away = inf if p50 is None else p50 - each.record.submitted
        parts[sum(away > edge for edge in (300.0, 3600.0, 43200.0))].append(each)
    return {HORIZONS[i]: table_of(parts[i], 0, "playout") for i in sorted(parts)}


def draw_all(asked: Sequence[Asked], result: Mapping[str, Any], figure: Figure) -> None:
    """Calibration, errors against naive answers, and PCS's Fig. 4."""
    axes = figure.subplots(1, 3)
    stated = [(i + 1) / (WORLDS + 1) for i in range(WORLDS)]
    axes[0].plot([0, 1], [0, 1], color="0.7", lw=0.8)
    axes[0].plot(stated, result["calibration, uncorrected"], marker=".", label="worlds alone")
    ends = result["ends"]["playout"]
    axes[0].plot([0.5, 0.9], [ends["p50 covers"], ends["p90 covers"]], "s", label="corrected")
    axes[0].set(xlabel="stated", ylabel="ended by then", title="Ends")
    waited = [each for each in asked if each.times["playout"].start is not None]
    for by in ("playout", "queue", *NAIVE):
        values = np.sort(errors(waited, 1, by))
        axes[1].plot(np.maximum(values, 1.0), np.arange(1, len(values) + 1) / len(values), label=by)
    axes[1].set(
        xscale="log", xlabel="seconds off", ylabel="share", title="Starts of those that waited"
    )
    for by in ("playout", "queue", *NAIVE):
        off = []
        for each in asked:
            said = each.naive[by][1] if by in each.naive else (
                each.said[by][0].p50 if by in each.said else None)  # fmt: skip
            if said is not None and said < inf:
                took = max(1.0, said - each.record.submitted)
                off.append(100 * abs(came(each, 0) - said) / took)
        values = np.sort(off)
        axes[2].plot(np.maximum(values, 0.1), np.arange(1, len(values) + 1) / len(values), label=by)
    axes[2].set(xscale="log", xlabel="Pred_err, %", title="Pred_err (PCS, Fig. 4)")
    for one in axes:
        one.legend(fontsize=6, frameon=False)
        one.spines[["top", "right"]].set_visible(False)
    figure.tight_layout()


def result_of(asked: Sequence[Asked]) -> dict[str, Any]:
    """Return all results."""
    waited = [each for each in asked if each.times["playout"].start is not None]
    result: dict[str, Any] = {"asked": len(asked), "waited": len(waited)}
    for name, what, those in (("starts", 1, waited), ("ends", 0, asked)):
        result[name] = {by: table_of(those, what, by) for by in ("playout", "uncorrected", "queue")}
        took = [(came(e, what) - e.record.submitted, e.own[what]) for e in those]
        result[name]["own of the pool"] = table_of_pools(took)
        for by in NAIVE:
            off = errors(those, what, by)
            result[name][by] = {"median absolute error": round(median(off)),
                                "mean absolute error": round(fmean(off))}  # fmt: skip
    took = [(came(e, 1) - e.record.submitted, e.waited) for e in waited if e.waited is not None]
    result["starts"]["own of those of the pool that waited"] = table_of_pools(took)
    result["ends by horizon"] = by_horizon(asked)
    return result


def main() -> None:
    """Play, and say how it went: by seeds, and all together."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--learned", action="store_true")
    parser.add_argument("jobs", type=int, nargs="?", default=1500)
    parser.add_argument("seeds", type=int, nargs="*", default=[0])
    given = parser.parse_args()
    every: list[Asked] = []
    results: dict[str, Any] = {}
    for seed in given.seeds:
        asked, about = play(given.jobs, seed, learns=given.learned)
        state_all(asked)
        counted = [each for each in asked if each.made >= LEARN]
        results[f"seed {seed}"] = {**about, **result_of(counted)}
        every += counted
    results["together"] = result_of(every)
    results["together"]["calibration, uncorrected"] = reached(every)
    name = "eta_learned" if given.learned else "eta"
    figure = Figure(figsize=(10, 3.2))
    draw_all(every, results["together"], figure)
    figure.savefig(PICTURES / f"{name}.svg", metadata={"Date": None})
    keep(f"answers/{name}", results)


if __name__ == "__main__":
    main()
