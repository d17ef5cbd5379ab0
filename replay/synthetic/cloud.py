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

from replay.logs.limits import MAX_JOBS_MADE
from replay.logs.trace import PoolTable, Trace
from replay.synthetic.cloud_parameters import Cloud, PoolProfile, Range
from replay.synthetic.cloud_users import User
from sia import Core
from sia.console.errors import UserError
from sia.core.playout import Arrival, play
from sia.decisions import StartJob
from sia.events import JobSubmitted
from sia.model import Pool
from sia.policies import make
from sia.wording import DAY, MINUTE

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
        raise UserError(f"--days {cloud.days:g}: no job was submitted in that time; make it longer")
    return Trace(arrivals), PoolTable([nature.pool for nature in natures])


def _nature(cloud: Cloud, seed: int, name: str) -> PoolProfile:
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
    return PoolProfile(
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


def _calibrated(cloud: Cloud, seed: int, nature: PoolProfile) -> list[Arrival]:
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


def _live(cloud: Cloud, seed: int, nature: PoolProfile, pause: float) -> _Log:
    """Have the users of a pool live, its queue first come, first served, to the last day."""
    end = cloud.days * DAY
    users = {
        name: User(cloud, nature, f"{seed} {name}", name, pause)
        for name in (f"{nature.pool.name}-u{i}" for i in range(nature.users))
    }
    known: dict[str, Arrival] = {}

    def submits(user: User, now: float) -> list[Arrival]:
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
    for instant in play(Core([nature.pool], make("fcfs")), first, followers=followers):
        log_of_pool += [known[e.job.id] for e in instant.events if type(e) is JobSubmitted]
        for decision in instant.decisions:
            if type(decision) is StartJob and instant.now < end:
                job, duration = known[decision.job_id]
                used += job.width * min(duration, end - instant.now)
    return _Log(log_of_pool, used / (nature.pool.quota * end))


def _log_uniform(random: Random, bounds: Range) -> float:
    return exp(random.uniform(log(bounds[0]), log(bounds[1])))
