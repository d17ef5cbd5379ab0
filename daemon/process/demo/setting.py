"""Setting of the demo: pools, configuration, and the weeks before its first second."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import closing
from math import inf
from pathlib import Path
from typing import NamedTuple

from daemon.backends.simulated.config import SimulatedConfig
from daemon.config.config import Address, Config, PoolConfig
from daemon.journal.journal import Journal, JournalEntry
from daemon.journal.recovery import recover
from daemon.model.book import JobRecord
from daemon.model.inputs import Tick
from daemon.model.job import JobPhase, JobSpec
from daemon.process.build import setup_of
from daemon.runtime.clock import Anchor
from replay.synthetic.teams import TEAMS, Crowd
from sia.core.core import Core
from sia.core.playout import Arrival, play
from sia.decisions import StartJob
from sia.model import Job, Stream
from sia.policies import make
from sia.wording import DAY, HOUR

SPEED = HOUR
"""Speed of the simulated clock: one hour a second."""

LEARNED = 14 * DAY + 8 * HOUR
"""Second of the simulated time until which no pool shares: forecasts look back for two weeks."""

BEGIN = LEARNED + 2 * DAY
"""Second of the simulated time at which the viewer begins to watch: a Wednesday at 8:00. At this
time pages show two days of sharing, and on Thursday a pool becomes active that has lent since
Friday."""

WINDOWS = tuple(hours * HOUR for hours in (1 / 12, 1 / 4, 1 / 2, 1, 2, 4, 12))
"""Lengths of the forecast windows in seconds."""

HISTORY = 60 * DAY
"""Seconds for which the journal keeps ended jobs, so that a forgotten demo does not grow: two
months, which pages can show, take about 100 MB."""


class Lived(NamedTuple):
    """A job that ended before pools shared; times are seconds of the simulated time."""

    job: Job
    start: float
    end: float


def config_in(folder: Path) -> Config:
    """Return the demo's configuration; all files are in this folder."""
    return Config(
        database=folder / "sia.db",
        token_file=folder / "token",
        models=folder / "models",
        listen=Address("127.0.0.1", 0),
        windows=WINDOWS,
        backend=SimulatedConfig(SPEED),
        history=HISTORY,
        pools=tuple(PoolConfig(team.profile.pool.name, team.profile.pool.quota) for team in TEAMS),
    )


def spec_of(arrival: Arrival) -> JobSpec:
    """Return a job as it is submitted."""
    job = arrival.job
    return JobSpec(
        job.id, job.pool, job.width, user=job.user, name=job.name, duration=arrival.duration
    )


def live_alone(crowd: Crowd, until: float) -> list[Lived]:
    """Simulate the crowd up to a time with each pool alone: first come, first served.

    Jobs that have not ended by then are put back into the crowd, to be submitted then.
    """
    core = Core([team.profile.pool for team in TEAMS], make("fcfs"))
    open_: dict[str, Arrival] = {}
    starts: dict[str, float] = {}
    past: list[Lived] = []

    def planned() -> list[Arrival]:
        found = crowd.due(inf)
        open_.update((arrival.job.id, arrival) for arrival in found)
        return found

    def followers(now: float, job_id: str) -> list[Arrival]:
        if now > until:
            return []  # the job is put back
        past.append(Lived(open_.pop(job_id).job, starts.pop(job_id), now))
        crowd.ended(now, job_id)
        return planned()

    for instant in play(core, planned(), followers=followers):
        if instant.now > until:
            break
        for decision in instant.decisions:
            if type(decision) is StartJob:
                starts[decision.job_id] = instant.now
    crowd.put_back(
        Arrival(job.submitted_at(max(until, job.submit)), lasts) for job, lasts in open_.values()
    )
    return past


def begin_journal(config: Config, past: list[Lived], origin: float, now: float) -> None:
    """Write a journal with these ended jobs; second 0 is `origin` on the daemon's clock."""
    assert isinstance(config.database, Path), "the demo uses a file"
    with closing(Journal(config.database, keep_history=config.history)) as journal:
        recover(journal, setup_of(config, None, {}))
        entry = JournalEntry(1, Anchor("", 0.0, now), [Tick()], (), over=[*_records(past, origin)])
        journal.commit(entry)


def _records(past: list[Lived], origin: float) -> Iterator[JobRecord]:
    for job, start, end in past:
        yield JobRecord(
            spec_of(Arrival(job, end - start)),
            origin + job.submit,
            end - start,
            JobPhase.FINISHED,
            attempt=1,
            placed=True,
            decided=origin + start,
            started=origin + start,
            ended=origin + end,
            stream=Stream.DEDICATED,
        )
