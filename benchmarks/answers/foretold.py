"""Accuracy of what-if answers and estimates for new jobs, also on sites without history.

`python -m benchmarks.answers.foretold [--days 4] [--label after] [SITE …]` plays the daemon's
engine in virtual time, with forecasts `peaks+survival`. Before a job is submitted, `whatif` is
asked when it would start and end; as it is submitted, it is estimated; then what happens is
compared with both. The sites:

- `demo`: a made-up cloud of six pools, which knows two weeks from before. An hour goes by in a
  second, as in `sia demo`, so that the present is played forward once in `--every` seconds of its
  clock.
- `fresh`: the same cloud, of which nothing is known.
- `philly`: eight of Philly's pools (day 62), of which nothing is known.
"""

from __future__ import annotations

import argparse
import asyncio
import os
from collections.abc import Callable, Iterable, Sequence
from math import exp, inf, log
from statistics import fmean, median
from types import SimpleNamespace
from typing import Any, NamedTuple

from msgspec import msgpack

from benchmarks.answers.eta import DAY, World, story
from benchmarks.common import keep, philly
from daemon.answers.estimates.calibration import Given
from daemon.answers.estimates.estimator import EtaService
from daemon.answers.estimates.worlds import outlook
from daemon.answers.simulate.forward import Played
from daemon.answers.whatif.compare import compare
from daemon.answers.whatif.whatif import Question, WhatIfOutcome, play_changed
from daemon.forecasts.history import JournalHistory
from daemon.model.inputs import Submit
from daemon.model.job import JobSpec
from daemon.model.setup import Setup
from daemon.process.demo.setting import WINDOWS
from daemon.wire.jobs import JobRequest
from daemon.wire.whatif import WhatIf
from predictors.random_forecast import draw
from replay.experiment.design import PieceDesign, plan_pieces
from replay.logs.trace import PoolTable
from replay.run.starts import starts_of
from replay.synthetic.cloud import make_cloud
from replay.synthetic.cloud_parameters import Cloud
from sia.core.playout import Arrival
from sia.model import Job, Options

HOUR = 3600.0
POOLS, BEFORE, MORNING = 6, 14, 8
"""Pools of the made-up cloud, the days before, and the hour at which it begins."""

EVERY = {"demo": 2.0 * HOUR, "fresh": 1800.0, "philly": 1800.0}
"""Seconds of the daemon's clock between two playouts."""

NEAR = 60.0
"""Seconds added to waits before they are divided: there is no multiple of no wait."""

FACTOR = 4.0
"""What differs by more than this contradicts."""


class Site(NamedTuple):
    """The pools of a site, its jobs from time 0 on, and the jobs before."""

    table: PoolTable
    arrivals: Sequence[Arrival]
    past: Sequence[tuple[Arrival, float]]
    options: Options


class Foretold(NamedTuple):
    """The estimates of a job at its submission."""

    job: str
    made: float
    whatif: float | None
    """When it starts."""
    given: Given | None


def site_of(name: str, days: float, seed: int) -> Site:
    """One of them."""
    if name == "philly":
        trace, table = philly()
        (piece,) = plan_pieces(
            trace, table, PieceDesign([8], 1, 7 * DAY, (0.6, 1.1), seed, 62 * DAY)
        )
        quotas = {pool.name: pool.quota for pool in piece.table.pools}
        cut = [a for a in piece.cut(trace).arrivals if a.job.width <= quotas[a.job.pool]]
        came = [a for a in cut if a.job.submit < days * DAY]
        return Site(piece.table, came, (), Options())
    whole, table = make_cloud(Cloud(pools=POOLS, days=BEFORE + 7), seed)
    begin = BEFORE * DAY + MORNING * HOUR
    came, past = [], []
    for arrival, start in zip(whole.arrivals, starts_of(whole, table), strict=True):
        job, lasts = arrival
        if begin <= job.submit < begin + days * DAY:
            came.append(Arrival(_moved(job, -begin), lasts))
        elif name == "demo" and start is not None and start + lasts < begin:
            past.append((Arrival(_moved(job, -begin), lasts), start - begin))
    return Site(table, came, past, Options(windows=WINDOWS))


def _moved(job: Job, by: float) -> Job:
    return Job(job.id, job.pool, job.submit + by, job.width, job.user, job.name)


class Lived:
    """A site in virtual time, with its estimators."""

    def __init__(self, site: Site, every: float, asked: int) -> None:
        """Nothing has come yet; `whatif` is asked about so many jobs, drawn by lot."""
        self.share = asked / max(1, len(site.arrivals))
        setup = Setup(tuple(site.table.pools), options=site.options)
        history, records = JournalHistory(0.0, 0.0), []
        if site.past:
            began = min(arrival.job.submit for arrival, _ in site.past)
            history, records = story(SimpleNamespace(begin=began, jobs=site.past), 0.0)
        durations = {a.job.id: a.duration for a in site.arrivals}
        self.world = World(setup, durations, history, None)
        service = SimpleNamespace(
            clock=SimpleNamespace(now=lambda: self.world.now, seconds_until=lambda _: 30.0),
            engine=self.world.engine, book=self.world.engine.book,
        )  # fmt: skip
        self.eta = EtaService(service)  # type: ignore[arg-type]
        self.eta.heard, self.eta.ready = self.world.heard, True
        self.eta.heard.learn(self.eta.heard.events(records))
        self.every, self.looked = every, -inf
        self.given: list[Given] = []
        give = self.eta.heard.calibration.give

        def kept(given: Given) -> None:
            self.given.append(given)
            give(given)

        self.eta.heard.calibration.give = kept  # type: ignore[method-assign]
        self.said: list[Foretold] = []
        for job, _ in site.arrivals:
            spec = JobSpec(job.id, job.pool, job.width, user=job.user, name=job.name)
            self.world.coming(job.submit, 2, Submit(spec))

    def go(self, until: float) -> None:
        """Play until all has ended, or for three times as long as jobs come."""
        world = self.world
        with asyncio.Runner() as runner:
            while world.next < 3 * until:
                coming = self._coming()
                foretold = {spec.id: self.whatif(spec) for spec in coming}
                step = world.turn()
                if step is None:
                    break
                for notice in step.notices:
                    if notice.kind == "submitted":
                        self.eta.at_submission(notice.job)
                for name, estimate in foretold.items():
                    given = self.eta.at_submission(name)
                    self.said.append(Foretold(name, world.now, estimate, given))
                if world.now - self.looked >= self.every and self.eta.heard.lasting.knows():
                    self.looked = world.now
                    heard = self.eta.heard
                    found = outlook(world.engine, heard.lasting, heard.lately, world.now)
                    runner.run(self.eta.looked(found))

    def _coming(self) -> list[JobSpec]:
        """The jobs that come with the next turn: those that are asked about."""
        then = self.world.next
        return [
            what.spec
            for when, _, _, what in self.world.waiting
            if when <= then
            and isinstance(what, Submit)
            and draw("asked", what.spec.id) / 2.0**64 < self.share
        ]

    def whatif(self, spec: JobSpec) -> float | None:
        """When it would start."""
        world = self.world
        now = world.next
        asked = WhatIf(submit=[JobRequest(spec.pool, spec.gpus, name=spec.name, user=spec.user)])
        new = JobSpec("asked", spec.pool, spec.gpus, user=spec.user, name=spec.name)
        known = self.eta.known(len(world.engine.core.state.jobs))
        question = Question(asked, (new,), world.forecaster.guess, known)
        encoded = in_a_child(lambda: msgpack.encode(play_changed(world.engine, now, question)))
        answer, nobody = (
            msgpack.decode(encoded, type=WhatIfOutcome),
            WhatIfOutcome(played=Played(now, cut=False, starts=[])),
        )
        if answer.played is None:
            return None
        book = world.engine.book
        (job,) = compare(book, now, question, nobody, answer, lambda _: True).jobs
        assert job.then is not None, "it is not cancelled"
        return job.then.start


def in_a_child(work: Callable[[], bytes]) -> bytes:
    """What it returns, done by a process of its own, as the daemon does."""
    read, write = os.pipe()
    child = os.fork()
    if not child:
        os.close(read)
        with os.fdopen(write, "wb") as pipe:
            pipe.write(work())
        os._exit(0)
    os.close(write)
    with os.fdopen(read, "rb") as pipe:
        answer = pipe.read()
    os.waitpid(child, 0)
    return answer


def result_of(played: Lived) -> dict[str, Any]:
    """Return all results."""
    over = {r.spec.id: r for records in played.world.over.values() for r in records}
    alive = played.world.engine.book.jobs
    began = {name: r.decided for name, r in {**alive, **over}.items()}
    ended = {name: r.ended for name, r in over.items()}
    starts = [(g.made, g.start, began.get(g.job)) for g in played.given if g.start is not None]
    ends = [(g.made, g.end, ended.get(g.job)) for g in played.given]
    at = {s.given.job for s in played.said if s.given is not None and s.given.start is not None}
    first = [
        (g.made, g.start, began.get(g.job))
        for g in (s.given for s in played.said)
        if g is not None and g.job in at
    ]
    return {
        "jobs": len(played.said),
        "whatif": _whatif(played.said, began),
        "starts, all given": _covered(starts),
        "starts, at submission": _covered(first),
        "ends, all given": _covered(ends),
    }


def _covered(stated: Iterable[tuple[float, Any, float | None]]) -> dict[str, Any]:
    """Of the first day, and of those after it."""
    rows = [*stated]
    return {
        "first day": _coverage([row for row in rows if row[0] < DAY]),
        "after": _coverage([row for row in rows if row[0] >= DAY]),
    }


def _coverage(rows: Sequence[tuple[float, Any, float | None]]) -> dict[str, Any]:
    if not rows:
        return {"estimates": 0}
    found: dict[str, Any] = {"estimates": len(rows)}
    for name in ("p50", "p90"):
        held = [
            getattr(stated, name) is None or (came is not None and came <= getattr(stated, name))
            for _, stated, came in rows
        ]
        found[f"{name} covers"] = round(fmean(held), 3)
    widths = [s.p90 - s.p50 for _, s, _ in rows if s.p50 is not None and s.p90 is not None]
    found["median p90 - p50"] = round(median(widths)) if widths else None
    off = [abs(s.p50 - c) for _, s, c in rows if s.p50 is not None and c is not None]
    found["median error"] = round(median(off)) if off else None
    found["beyond the horizon"] = sum(s.p90 is None for _, s, _ in rows)
    return found


def _whatif(answers: Sequence[Foretold], began: dict[str, float | None]) -> dict[str, Any]:
    """Return the results for jobs that waited, or were estimated to wait."""
    came = [s for s in answers if began.get(s.job) is not None]
    rows = [
        s for s in came
        if s.whatif is None or s.whatif > s.made or (began[s.job] or 0.0) > s.made
    ]  # fmt: skip
    eta = [s for s in rows if s.given is not None]
    waits = [(_wait(s.whatif, s.made), _wait(began[s.job], s.made)) for s in rows]
    known = [(answers, true) for answers, true in waits if answers is not None]
    pairs = [(_wait(s.whatif, s.made), _wait(_start(s), s.made)) for s in eta]
    both = [(a, b) for a, b in pairs if a is not None and b is not None]
    return {
        "waited, or were said to": len(rows),
        "of which eta says something": len(eta),
        "no start said": sum(answers is None for answers, _ in waits),
        "the same, and eta says one": sum(a is None and b is not None for a, b in pairs),
        f"off by more than {FACTOR:g} times": sum(_apart(*pair) > FACTOR for pair in known),
        f"more than {FACTOR:g} times as far away as eta says": sum(
            _apart(*pair) > FACTOR for pair in both
        ),
        "median factor off": round(median(_apart(*pair) for pair in known), 2) if known else None,
        "median factor from eta": round(median(_apart(*p) for p in both), 2) if both else None,
    }


def _start(estimate: Foretold) -> float | None:
    assert estimate.given is not None, "only of those that are estimated"
    return estimate.made if estimate.given.start is None else estimate.given.start.p50


def _wait(moment: float | None, made: float) -> float | None:
    return None if moment is None else max(0.0, moment - made)


def _apart(one: float, other: float) -> float:
    return exp(abs(log((one + NEAR) / (other + NEAR))))


def main() -> None:
    """Run the benchmark."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--days", type=float, default=4.0)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--label", default="")
    parser.add_argument("--asked", type=int, default=400, help="jobs that whatif is asked about")
    parser.add_argument("--every", type=float, help="seconds between two looks ahead")
    parser.add_argument("sites", nargs="*", default=[*EVERY])
    given = parser.parse_args()
    results: dict[str, Any] = {}
    for name in given.sites:
        site = site_of(name, given.days, given.seed)
        played = Lived(site, given.every or EVERY[name], given.asked)
        played.go(given.days * DAY)
        results[f"{name}, seed {given.seed}"] = result_of(played)
    keep("_".join(["answers/foretold", *filter(None, [given.label])]), results)


if __name__ == "__main__":
    main()
