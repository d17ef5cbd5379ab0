"""A workload like CloudML's (§2): pools of a public cloud, their users, bursts in a closed loop.

A user works on one experiment after the other. An experiment is a chain of bursts of similar jobs
under one tag: the user submits a burst, waits until the last of its jobs has ended, thinks, and
submits the next. When jobs end depends on the pool's queue, so the log is made by playing first
come, first served; a replay of that in a closed loop gives the same log again.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Sequence
from math import ceil, exp, log, log2
from random import Random
from typing import NamedTuple

from replay.errors import UserError
from replay.limits import MAX_JOBS_MADE
from replay.synth import DAY, MINUTE
from replay.trace import PoolTable, Trace
from sia import Core
from sia.decisions import StartJob
from sia.events import JobSubmitted
from sia.model import Job, Pool
from sia.playout import Arrival, play
from sia.policies import load

HOUR = 3600.0

Range = tuple[float, float]
"""Least and most."""


class Cloud(NamedTuple):
    """What the pools, users and experiments of the cloud are like.

    §2 gives Figs. 2 and 3 and few numbers; where it gives none, the reason is said.
    """

    pools: int = 20
    days: float = 28.0
    quota: Range = (4, 256)
    """GPUs, log-uniform: Helios' clusters have 8 to 208 (Earth, May 2020), Philly's up to 512."""
    slots: Range = (4, 32)
    """Jobs of its usual width that a pool can run at once: less leaves nothing to queue for."""
    widest: int = 32
    """GPUs of the usual width at most: 4 nodes of 8."""
    mixed: float = 0.15
    """Pools whose experiments differ in width: the "notable exceptions" to one width a pool."""
    odd: float = 0.02
    """Experiments of half the usual width in the other pools: they have nearly one width."""
    load: Range = (0.15, 0.85)
    """Of its GPU-time, what a pool uses, uniform whatever its size: half is idle in all (Fig. 2),
    and utilisation does not depend on size."""
    median: Range = (20 * MINUTE, 5 * HOUR)
    """Seconds, log-uniform: the median experiment of a pool; with `spread`, jobs last from minutes
    to several days."""
    spread: Range = (0.9, 1.9)
    """Sigma of the logarithm of durations between a pool's experiments: p99 / median is about
    e^(2.3 sigma), so above 10 from sigma 1 on, in over half of the pools (Fig. 3c)."""
    alike: float = 0.3
    """The same within an experiment: its jobs mostly fall into one bin of §5.4.2."""
    failing: float = 0.05
    """Jobs that die within `MAYFLY`, whatever their experiment: Philly and Helios have more."""
    duration: Range = (MINUTE, 5 * DAY)
    """Seconds, the least and most that a job runs: "minutes to several days"."""
    burst: Range = (0.04, 0.4)
    """Of its pool, what a typical burst asks for, log-uniform over pools: the largest of a month's
    is then above the whole pool in over half of the pools (Fig. 3b)."""
    burst_spread: float = 0.9
    """Sigma of the logarithm of that between experiments: few large sweeps, many small ones."""
    largest: float = 6.0
    """Times the pool that one burst may ask for: Helios Venus saw 6.9."""
    bursts: float = 5.0
    """Of an experiment, on average; geometric: most are given up early."""
    think: float = 15 * MINUTE
    """Seconds, the median time from the last end to the next burst within an experiment: results
    are looked at soon (§2, closed loop)."""
    think_spread: float = 1.2
    """Sigma of its logarithm: 5 % think for less than 2 minutes, 5 % for more than 2 hours."""
    tuned: float = 0.25
    """Users that are programs (parameter search, §2): they think for seconds and never sleep."""
    users: tuple[int, int] = (3, 24)
    """Of a pool: as many as it takes to reach its load if each is at it half of the time."""
    zone: Range = (0, 9 * HOUR)
    """By how much later the sun rises for a pool's users: from central Europe to California. In one
    zone, nights would empty all pools at once, as neither Fig. 2 nor Helios shows."""
    rises: Range = (7 * HOUR, 11 * HOUR)
    """When a user's day begins, seconds after midnight; it has `awake` seconds."""
    awake: float = 14 * HOUR
    works: Range = (0.3, 0.9)
    """Of Saturdays and Sundays, and of the other days, on how many a user works."""


MAYFLY = (MINUTE, 10 * MINUTE)
"""Seconds after which a failing job ends: a mistake shows when data are read, or at first use."""

PROMPT = (5.0, 30.0)
"""Seconds that a program takes from the last end to the next burst."""

APART = (0.2, 2.0)
"""Seconds between two jobs of a burst, which a script submits."""

PAUSES = [MINUTE * 10 ** (i / 8) for i in range(37)]
"""Mean seconds between two experiments of a user, among which a pool's load is looked for: from a
minute to three weeks, in steps of a third."""

JOBS_A_DAY = 60
"""Of a pool, about (measured over seeds): for refusing what would not fit in memory."""


def make_cloud(cloud: Cloud, seed: int) -> tuple[Trace, PoolTable]:
    """Make a workload; the same cloud and seed always give the same one, pool by pool.

    Second 0 is a Monday's midnight. More pools leave the first ones as they are. Raises UserError
    for more jobs than fit, or none.
    """
    expected = cloud.pools * max(cloud.days, 1.0) * JOBS_A_DAY
    if expected > MAX_JOBS_MADE:
        raise UserError(
            f"--days {cloud.days:g} --pools {cloud.pools}: about {expected:.0f} jobs; "
            f"make at most {MAX_JOBS_MADE}"
        )
    natures = [_nature(cloud, seed, f"p{i}") for i in range(cloud.pools)]
    arrivals = [a for nature in natures for a in _calibrated(cloud, seed, nature)]
    arrivals.sort(key=lambda arrival: arrival.job.submit)
    if not arrivals:
        raise UserError(f"--days {cloud.days:g}: no job came in that time; make it longer")
    return Trace(arrivals), PoolTable([nature.pool for nature in natures])


class _Nature(NamedTuple):
    """What one pool is like; see `Cloud`."""

    pool: Pool
    width: int
    mixed: bool
    load: float
    median: float
    spread: float
    burst: float
    users: int
    zone: float


def _nature(cloud: Cloud, seed: int, name: str) -> _Nature:
    random = Random(f"{seed} {name}")  # noqa: S311
    drawn = _log_uniform(random, cloud.quota)
    fewest, most = cloud.slots
    narrow = max(0, ceil(log2(drawn / most)))
    wide = max(narrow, int(log2(min(cloud.widest, drawn / fewest))))
    width = 2 ** random.randint(narrow, wide)
    quota = width * max(int(fewest), round(drawn / width))
    load_of_pool = random.uniform(*cloud.load)
    burst = _log_uniform(random, cloud.burst)
    # A burst's mean, not its median, and half of a user's time: the rest is thought and slept.
    busy = burst * exp(cloud.burst_spread**2 / 2) / 2
    least, greatest = cloud.users
    return _Nature(
        pool=Pool(name, quota),
        width=width,
        mixed=random.random() < cloud.mixed,
        load=load_of_pool,
        median=_log_uniform(random, cloud.median),
        spread=random.uniform(*cloud.spread),
        burst=burst,
        users=min(greatest, max(least, ceil(2 * load_of_pool / busy))),
        zone=random.uniform(*cloud.zone),
    )


def _calibrated(cloud: Cloud, seed: int, nature: _Nature) -> list[Arrival]:
    """The log of a pool whose users pause between experiments so long that its load comes out."""
    tried: dict[float, _Log] = {}

    def unused(pause: float) -> float:
        tried[pause] = _live(cloud, seed, nature, pause)
        return 1 - tried[pause].load

    found = bisect_left(PAUSES, 1 - nature.load, key=unused)
    return tried[PAUSES[min(found, len(PAUSES) - 1)]].arrivals


class _Log(NamedTuple):
    """Jobs as they were submitted, and the share of the pool's GPU-time that they used."""

    arrivals: list[Arrival]
    load: float


def _live(cloud: Cloud, seed: int, nature: _Nature, pause: float) -> _Log:
    """Have the users of a pool live, its queue first come, first served, to the last day."""
    end = cloud.days * DAY
    users = {
        name: _User(cloud, nature, f"{seed} {name}", name, pause)
        for name in (f"{nature.pool.name}-u{i}" for i in range(nature.users))
    }
    known: dict[str, Arrival] = {}

    def submits(user: _User, now: float) -> list[Arrival]:
        burst = [arrival for arrival in user.burst(now) if arrival.job.submit < end]
        known.update((arrival.job.id, arrival) for arrival in burst)
        user.waits_for = len(burst)
        return burst

    def followers(now: float, job_id: str) -> Sequence[Arrival]:
        user = users[known[job_id].job.user]
        user.waits_for -= 1
        return () if user.waits_for else submits(user, now)

    first = [arrival for user in users.values() for arrival in submits(user, 0.0)]
    first.sort(key=lambda arrival: arrival.job.submit)
    log_of_pool: list[Arrival] = []
    used = 0.0
    for instant in play(Core([nature.pool], load("fcfs")()), first, followers=followers):
        log_of_pool += [known[e.job.id] for e in instant.events if type(e) is JobSubmitted]
        for decision in instant.decisions:
            if type(decision) is StartJob and instant.now < end:
                job, duration = known[decision.job_id]
                used += job.width * min(duration, end - instant.now)
    return _Log(log_of_pool, used / (nature.pool.quota * end))


class _Experiment(NamedTuple):
    """Similar jobs in a chain of bursts: GPUs, seconds, jobs a burst."""

    tag: str
    width: int
    median: float
    size: float
    bursts: int


class _User:
    """One who submits bursts; draws depend on the number of the burst alone, not on its time."""

    def __init__(self, cloud: Cloud, nature: _Nature, seed: str, name: str, pause: float) -> None:
        self._cloud, self._nature, self._seed, self._pause = cloud, nature, seed, pause
        random = Random(seed)  # noqa: S311
        self._name = name
        self._tuned = random.random() < cloud.tuned
        self._rises = nature.zone + random.uniform(*cloud.rises)
        self._bursts = self._experiments = self._left = 0
        self._experiment: _Experiment
        self.waits_for = 0

    def burst(self, now: float) -> list[Arrival]:
        """The burst that follows the one whose last job has ended now."""
        random = Random(f"{self._seed} burst {self._bursts}")  # noqa: S311
        again = self._left > 0
        time = now + self._wait(random, again=again)
        if not again:
            self._experiment = self._begin()
            self._left = self._experiment.bursts
        jobs = self._jobs(random, time if again and self._tuned else self._when_awake(time))
        self._bursts += 1
        self._left -= 1
        return jobs

    def _wait(self, random: Random, *, again: bool) -> float:
        if not self._bursts:
            return random.uniform(0, self._pause)  # at second 0 they are anywhere in their ways
        if not again:
            return random.expovariate(1 / self._pause)
        if self._tuned:
            return random.uniform(*PROMPT)
        return self._cloud.think * exp(random.gauss(0, self._cloud.think_spread))

    def _when_awake(self, time: float) -> float:
        """This time, or when the user is next at work."""
        while True:
            day, since = divmod(time - self._rises, DAY)
            if since < self._cloud.awake and self._day(day)[0]:
                return time
            time = (day + 1) * DAY + self._rises + self._day(day + 1)[1]

    def _day(self, day: float) -> tuple[bool, float]:
        """Whether the user works on a day, and how many seconds later than usual it begins."""
        random = Random(f"{self._seed} day {day:.0f}")  # noqa: S311
        return random.random() < self._cloud.works[day % 7 < 5], random.uniform(0, HOUR)

    def _begin(self) -> _Experiment:
        cloud, nature = self._cloud, self._nature
        random = Random(f"{self._seed} experiment {self._experiments}")  # noqa: S311
        tag = f"{self._name}-x{self._experiments}"
        self._experiments += 1
        width = nature.width
        if nature.mixed:
            width = 2 ** random.randint(0, int(log2(min(4 * width, nature.pool.quota / 2))))
        elif random.random() < cloud.odd:
            width = max(1, width // 2)
        share = min(cloud.largest, nature.burst * exp(random.gauss(0, cloud.burst_spread)))
        return _Experiment(
            tag,
            width,
            median=_clamp(nature.median * exp(random.gauss(0, nature.spread)), cloud.duration),
            size=share * nature.pool.quota / width,
            bursts=1 + int(log(1 - random.random()) / log(1 - 1 / cloud.bursts)),
        )

    def _jobs(self, random: Random, time: float) -> list[Arrival]:
        cloud, experiment = self._cloud, self._experiment
        size = max(1, round(experiment.size * random.uniform(0.5, 1.5)))
        jobs = []
        for i in range(size):
            job = Job(
                f"{self._name}-b{self._bursts}-{i}",
                self._nature.pool.name,
                round(time, 3),
                experiment.width,
                self._name,
                experiment.tag,
            )
            if random.random() < cloud.failing:
                duration = random.uniform(*MAYFLY)
            else:
                duration = experiment.median * exp(random.gauss(0, cloud.alike))
            jobs.append(Arrival(job, float(round(_clamp(duration, cloud.duration)))))
            time += random.uniform(*APART)
        return jobs


def _log_uniform(random: Random, bounds: Range) -> float:
    return exp(random.uniform(log(bounds[0]), log(bounds[1])))


def _clamp(value: float, bounds: Range) -> float:
    return min(max(value, bounds[0]), bounds[1])
