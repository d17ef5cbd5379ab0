"""The parameters of a cloud like CloudML (§2), each with its reason."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from sia.model import Pool
from sia.wording import DAY, HOUR, MINUTE

Range = tuple[float, float]
"""Minimum and maximum."""


class Cloud(NamedTuple):
    """The parameters of pools, users and experiments of the cloud.

    §2 has Figs. 2 and 3 and few numbers; other values have their reason here.
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
    """Share of its GPU-time that a pool uses, uniform at any size: half is idle in total (Fig. 2),
    and utilisation does not depend on size."""
    median: Range = (20 * MINUTE, 5 * HOUR)
    """Median duration of a pool's experiments in seconds, log-uniform. With `spread`, jobs take
    from minutes to several days."""
    spread: Range = (1.0, 2.0)
    """Sigma of the logarithm of durations between a pool's experiments. p99 / median is about
    e^(2.3 sigma), so above 10 for sigma > 1, as in over half of the pools (Fig. 3c)."""
    alike: float = 0.3
    """The same within an experiment, whose jobs mostly fall into one bin of §5.4.2."""
    failing: float = 0.05
    """Share of jobs that fail within `MAYFLY`, in any experiment: no tag predicts these."""
    duration: Range = (MINUTE, 5 * DAY)
    """Minimum and maximum duration of a job in seconds: "minutes to several days"."""
    burst: Range = (0.04, 0.45)
    """GPUs of a typical burst as a share of the pool, log-uniform over pools. The largest burst of
    a month then exceeds the whole pool in over half of the pools (Fig. 3b)."""
    burst_spread: float = 0.9
    """Sigma of the logarithm of that between experiments: few large sweeps, many small ones."""
    largest: float = 6.0
    """Maximum GPUs of a burst as a multiple of the pool: Helios Venus has 6.9."""
    bursts: float = 5.0
    """Mean number of bursts of an experiment; geometric, as most experiments are given up early."""
    think: float = 15 * MINUTE
    """Median seconds from the last end to the next burst within an experiment: users look at
    results soon (§2, closed loop)."""
    think_spread: float = 1.2
    """Sigma of its logarithm: 5 % think for less than 2 minutes, 5 % for more than 1.8 hours."""
    tuned: float = 0.25
    """Share of users that are programs (parameter search, §2): they think for seconds and never
    sleep."""
    users: tuple[int, int] = (3, 24)
    """Number of users of a pool: as many as reach its load if each is active half of the time."""
    zone: Range = (0, 9 * HOUR)
    """Range of the users' time zones, from central Europe to California. With one time zone, nights
    would empty all pools at once, which neither Fig. 2 nor Helios shows."""
    rises: Range = (7 * HOUR, 11 * HOUR)
    """When a user's day begins, in seconds after midnight; it lasts `awake` seconds."""
    awake: float = 14 * HOUR
    works: Sequence[float] = (0.9,) * 5 + (0.3,) * 2
    """Share of Mondays, of Tuesdays, … on which a user works."""


MAYFLY = (MINUTE, 10 * MINUTE)
"""Maximum seconds until a failing job ends: errors show when data are read, or at first use."""

PROMPT = (5.0, 30.0)
"""Seconds that a program takes from the last end to the next burst."""

APART = (0.2, 2.0)
"""Seconds between two jobs of a burst, which a script submits."""


class PoolProfile(NamedTuple):
    """The parameters of one pool; see `Cloud`."""

    pool: Pool
    width: int
    mixed: bool
    load: float
    median: float
    spread: float
    burst: float
    users: int
    zone: float
