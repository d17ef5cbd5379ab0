"""What a cloud like CloudML is made of (§2): each number with its reason."""

from __future__ import annotations

from typing import NamedTuple

from sia.model import Pool
from sia.wording import DAY, HOUR, MINUTE

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
    spread: Range = (1.0, 2.0)
    """Sigma of the logarithm of durations between a pool's experiments: p99 / median is about
    e^(2.3 sigma), so above 10 from sigma 1 on, in over half of the pools (Fig. 3c)."""
    alike: float = 0.3
    """The same within an experiment: its jobs mostly fall into one bin of §5.4.2."""
    failing: float = 0.05
    """Jobs that die within `MAYFLY`, whatever their experiment: no tag foresees these."""
    duration: Range = (MINUTE, 5 * DAY)
    """Seconds, the least and most that a job runs: "minutes to several days"."""
    burst: Range = (0.04, 0.45)
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
    """Sigma of its logarithm: 5 % think for less than 2 minutes, 5 % for more than 1.8 hours."""
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


class PoolProfile(NamedTuple):
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
