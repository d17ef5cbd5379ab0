"""Estimates of starts and ends, held to what happened: a week of Philly in the daemon's engine.

`python benchmarks/daemon_eta.py [JOBS [SEED]]` plays eight of Philly's pools, scaled to loads of
0.6 to 1.1, in virtual time under `sia@peaks+survival`, which has heard of four weeks before it.
About JOBS (default: 1500) jobs are estimated as they are submitted, by playing the present forward,
and by the newest playout before them, at most half an hour old. The first day is for learning and
not counted.
"""

from __future__ import annotations

import sys
import time
from collections import defaultdict
from collections.abc import Mapping, Sequence
from heapq import heappop, heappush
from math import inf
from pathlib import Path
from statistics import fmean, median
from typing import Any, NamedTuple

import numpy as np
from common import keep, philly
from matplotlib.figure import Figure

from daemon.answers import StartEffect
from daemon.book import JobRecord
from daemon.engine import Engine, Step
from daemon.foresight import Predictors
from daemon.inputs import Ended, Input, Started, Submit, Tick
from daemon.insight.calibration import Given, Said
from daemon.insight.heard import Heard
from daemon.insight.newcomer import newcomer
from daemon.insight.outlook import WORLDS, Outlook, Times, Worlds, plain_job, spread
from daemon.jobs import JobPhase, JobSpec
from daemon.past import Story
from daemon.setup import Setup
from predictors.chance import draw
from replay.experiment import Pieces, plan_pieces
from replay.starts import starts_of

DAY = 86400.0
LENGTH, LEARN, SINCE = 7 * DAY, DAY, 62 * DAY
FRESH = 1800.0
RECENT = 2000
PICTURES = Path(__file__).resolve().parent.parent / "docs" / "figures"
HORIZONS = ("5 m", "1 h", "12 h", "beyond")


class Asked(NamedTuple):
    """What was said of a job at its submission, by each who was asked; times are seconds."""

    record: JobRecord
    said: Mapping[str, tuple[Said, Said | None]]
    worlds: Sequence[float]
    """Its end in each world."""
    naive: Mapping[str, tuple[float, float]]
    """Start and end."""
    own: tuple[tuple[float, float], tuple[float, float]]
    """p50 and p90 of how long its pool's last jobs were there, and waited."""


class World:
    """The engine in virtual time, its forecasts, and those who estimate."""

    def __init__(self, setup: Setup, durations: Mapping[str, float], past: Story) -> None:
        """Begin where the past ends."""
        self.engine, self.durations = Engine.new(setup), durations
        self.forecaster = Predictors(setup, "peaks+survival").make(past, None, None)
        self.heard = Heard()
        self.now = past.end
        self._coming: list[tuple[float, int, int, Input]] = []
        self._count = 0
        self.over: dict[str, list[JobRecord]] = defaultdict(list)

    def coming(self, when: float, order: int, what: Input) -> None:
        """Something will happen."""
        self._count += 1
        heappush(self._coming, (when, order, self._count, what))

    @property
    def next(self) -> float:
        """When something happens next."""
        due = self._coming[0][0] if self._coming else inf
        return min(due, max(self.now, min(self.engine.due, self.forecaster.due)))

    def turn(self) -> Step | None:
        """What happens next, and what is made of it."""
        if not self._coming and not self.engine.book.jobs:
            return None
        self.now = now = self.next
        inputs: list[Input] = []
        while self._coming and self._coming[0][0] <= now:
            inputs.append(heappop(self._coming)[3])
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
                end = now + self.durations[effect.job]
                self.coming(end, 1, Ended(effect.job, effect.attempt, 0))
        for record in step.over:
            self.over[record.spec.pool].append(record)
        return step


def story(past: Any, begin: float) -> tuple[Story, list[JobRecord]]:
    """What was before the piece, as the journal would tell it."""
    records = []
    for (job, duration), start in past.jobs:
        if start + duration <= begin:
            spec = JobSpec(f"before {job.id}", job.pool, job.width, user=job.user, name=job.name)
            records.append(JobRecord(spec, job.submit, 0.0, JobPhase.FINISHED, decided=start,
                                     started=start, ended=start + duration))  # fmt: skip
    told = Story(past.begin, begin)
    told.add_ended(records)
    return told, records


def teach(heard: Heard, records: Sequence[JobRecord]) -> None:
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


def naive(world: World, record: JobRecord) -> tuple[dict[str, tuple[float, float]], Any]:
    """What would be said without a playout, and how far the pool's own quantiles lie apart."""
    pool, now = record.spec.pool, world.now
    past = world.over[pool][-RECENT:]
    if len(past) < 10:
        return {}, None
    service = fmean(r.ended - r.decided for r in past)
    wait = fmean(r.decided - r.submitted for r in past)
    waits = sorted(r.decided - r.submitted for r in past)
    theirs = sorted(r.ended - r.submitted for r in past)
    state = world.engine.core.state.pools[pool]
    position = [job.job.id for job in state.waiting()].index(record.core) + 1 if (
        record.phase is JobPhase.PENDING) else 0  # fmt: skip
    quota = max(1, state.quota)
    width = fmean(r.spec.gpus for r in past)
    said = {
        "position · service": (now + position * service, now + (position + 1) * service),
        "position · service / jobs at once": (
            now + position * service * width / quota,
            now + position * service * width / quota + service,
        ),
        "mean": (now + wait, now + wait + service),
    }
    own = tuple(tuple(float(np.quantile(x, q)) for q in (0.5, 0.9)) for x in (theirs, waits))
    return said, own


def started(world: World, record: JobRecord) -> tuple[Times, list[float]]:
    """The end of a job that started at once."""
    job = plain_job(record)
    curve = world.heard.lasting.curve(job)
    ends = [world.now + curve.quantile(c) for c in world.heard.lasting.chances(job, WORLDS)]
    return Times(spread(ends)), ends


def ask(
    world: World, records: Sequence[JobRecord], before: Outlook | None
) -> tuple[list[Asked], Outlook | None]:
    """Estimate jobs that have just been submitted; also what was played for it."""
    heard, found = world.heard, []
    worlds: Worlds | None = None
    for record in records:
        if record.phase is JobPhase.PENDING:
            if worlds is None:
                worlds = Worlds(world.engine, heard.lasting, heard.lately, world.now)
            ends = worlds.ends[record.core]
            times = Times(spread(ends), spread(worlds.starts[record.core]))
        else:
            times, ends = started(world, record)
        job, pool = record.spec.id, record.spec.pool
        end, start = heard.calibration.corrected(pool, world.now, times)
        raw = (
            Said(times.end.p50, times.end.p90, None, (None, None)),
            times.start and Said(times.start.p50, times.start.p90, None, (None, None)),
        )
        heard.calibration.give(Given(job, pool, record.submitted, world.now, end, start))
        said = {"playout": (end, start), "uncorrected": raw}
        quick = (
            before
            and world.now - before.now < FRESH
            and newcomer(before, heard.lasting, record, world.now)
        )
        if quick:
            said["queue"] = heard.calibration.corrected(pool, world.now, quick)
        answers, apart = naive(world, record)
        if answers:
            found.append(Asked(record, said, ends, answers, apart))
    return found, before if worlds is None else worlds.said()


def run(jobs: int, seed: int) -> tuple[list[Asked], dict[str, Any]]:
    """Play the piece, and ask."""
    trace, table = philly()
    (piece,) = plan_pieces(trace, table, Pieces([8], 1, LENGTH, (0.6, 1.1), seed, SINCE))
    quotas = {pool.name: pool.quota for pool in piece.table.pools}
    arrivals = [a for a in piece.cut(trace).arrivals if a.job.width <= quotas[a.job.pool]]
    pairs = zip(trace.arrivals, starts_of(trace, table), strict=True)
    starts = {a.job.id: start for a, start in pairs if start is not None}
    told, records = story(piece.past(trace, starts), 0.0)
    world = World(Setup(tuple(piece.table.pools)), {a.job.id: a.duration for a in arrivals}, told)
    teach(world.heard, records)
    for record in records:
        world.over[record.spec.pool].append(record)
    for job, _ in arrivals:
        spec = JobSpec(job.id, job.pool, job.width, user=job.user, name=job.name)
        world.coming(job.submit, 2, Submit(spec))
    share = jobs / max(1, len(arrivals))
    asked: list[Asked] = []
    seconds: list[float] = []
    before, waited = None, 0
    while (step := world.turn()) is not None and world.now < LENGTH:
        new = [n.job for n in step.notices if n.kind == "submitted"]
        some = [j for j in new if draw("asked", j) / 2.0**64 < share]
        began = time.perf_counter()
        if some:
            found, before = ask(world, [world.engine.book.job(j) for j in some], before)
            asked += [each for each in found if world.now >= LEARN]
        if any(world.engine.book.job(j).phase is JobPhase.PENDING for j in some):
            seconds.append(time.perf_counter() - began)
        waited = max(waited, world.engine.core.state.waiting)
    while world.turn() is not None:
        pass
    about = {
        "pools": {p.name: p.quota for p in piece.table.pools},
        "jobs": len(arrivals),
        "asked": len(asked),
        "most waiting at a time": waited,
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
    """Seconds between the median, or the naive answer, and what happened."""
    found = []
    for each in asked:
        if by in each.naive:
            found.append(abs(each.naive[by][1 - what] - came(each, what)))
        elif by in each.said:
            said = each.said[by][what]
            if said is not None and said.p50 is not None and said.p50 < inf:
                found.append(abs(said.p50 - came(each, what)))
    return found


def table_of(asked: Sequence[Asked], what: int, by: str) -> dict[str, Any]:
    """How well one of them estimated."""
    those = [(each, said) for each in asked if by in each.said
             and (said := each.said[by][what]) is not None]  # fmt: skip
    if not those:
        return {}
    count = len(those)
    covered = [
        sum(said_at is None or came(each, what) <= said_at for each, said in those
            for said_at in ((said.p50, said.p90)[share],)) / count for share in (0, 1)
    ]  # fmt: skip
    finite = [(e, s) for e, s in those if s.p50 is not None and s.p90 is not None and s.p90 < inf]
    widths = [s.p90 - s.p50 for _, s in finite]
    own = [e.own[what] for e, _ in finite]
    kept = [came(e, what) - e.record.submitted <= e.own[what][1] for e, _ in finite]
    off = [abs(s.p50 - came(e, what)) for e, s in finite]
    jct = [abs(s.p50 - came(e, 0)) / max(1.0, s.p50 - e.record.submitted) for e, s in finite]
    found = {
        "jobs": count,
        "p50 covers": round(covered[0], 4),
        "p90 covers": round(covered[1], 4),
        "beyond the horizon": count - len(finite),
        "median p90 - p50": round(median(widths)),
        "median p90 - p50 of the pool": round(median(p90 - p50 for p50, p90 in own)),
        "p90 of the pool covers": round(sum(kept) / len(kept), 4),
        "median absolute error": round(median(off)),
        "mean absolute error": round(fmean(off)),
    }
    if not what:
        found["pred_err"] = {
            f"p{share}": round(float(np.quantile(jct, share / 100)), 3) for share in (50, 90, 99)
        }
    return found


def reached(asked: Sequence[Asked]) -> list[float]:
    """What share of ends came before each place among the worlds' ends: the calibration curve."""
    found = []
    for place in range(WORLDS):
        held = [came(e, 0) <= sorted(e.worlds)[place] for e in asked]
        found.append(round(sum(held) / len(held), 4))
    return found


def by_horizon(asked: Sequence[Asked]) -> dict[str, Any]:
    """Ends by how far away they were thought to be."""
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
    waited = [each for each in asked if each.said["playout"][1] is not None]
    for by in ("playout", "queue", *asked[0].naive):
        values = np.sort(errors(waited, 1, by))
        axes[1].plot(np.maximum(values, 1.0), np.arange(1, len(values) + 1) / len(values), label=by)
    axes[1].set(
        xscale="log", xlabel="seconds off", ylabel="share", title="Starts of those that waited"
    )
    for by in ("playout", "queue", *asked[0].naive):
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


def main() -> None:
    jobs = int(sys.argv[1]) if len(sys.argv) > 1 else 1500
    seed = int(sys.argv[2]) if len(sys.argv) > 2 else 0
    asked, result = run(jobs, seed)
    waited = [each for each in asked if each.said["playout"][1] is not None]
    result["waited"] = len(waited)
    for name, what, those in (("starts", 1, waited), ("ends", 0, asked)):
        result[name] = {by: table_of(those, what, by) for by in ("playout", "uncorrected", "queue")}
        for by in asked[0].naive:
            off = errors(those, what, by)
            result[name][by] = {"median absolute error": round(median(off)),
                                "mean absolute error": round(fmean(off))}  # fmt: skip
    result["ends by horizon"] = by_horizon(asked)
    result["calibration, uncorrected"] = reached(asked)
    suffix = f"_{seed}" if seed else ""
    figure = Figure(figsize=(10, 3.2))
    draw_all(asked, result, figure)
    figure.savefig(PICTURES / f"eta{suffix}.svg", metadata={"Date": None})
    keep(f"daemon_eta{suffix}", result)


if __name__ == "__main__":
    main()
