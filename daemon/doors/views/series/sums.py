"""Sums over a period, for the cluster, a pool or a user. Sums of two periods can be added.

A row of the table `series` holds one of these.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from math import exp, log
from typing import NamedTuple, TypeVar

from msgspec import Struct, field

from daemon.doors.views.statements import later_of
from daemon.model.account import Verdict
from sia.limits import SLOWED

K = TypeVar("K", int, str)
V = TypeVar("V", int, float)

GAUGES = ("quota", "dedicated", "lent", "borrowed", "idle", "waiting", "waiting_gpus")
"""Names of the values of a sample, as in `PoolView`. `waiting` is a number of jobs, the others are
numbers of GPUs. For a user, `dedicated` has all GPUs of the user's own pool that the user's jobs
hold, and quota, lent and idle are 0."""

BASE = 1.1
"""Ratio of the upper limits of neighbouring bins of waits. A quantile is then within 5 % of a
wait."""

SECOND = 1.0
"""Seconds below which a wait counts as 0."""

NAMES = 50
"""Maximum number of pools that one row names; `OTHERS` has the sum of all others. With this many
names a row has at most about 2 kB, and 500 rows are read in some milliseconds."""

OTHERS = ""
"""Name for the sum of all pools that a row does not name; no pool has this name."""


class Key(NamedTuple):
    """Key of a row: a pool, a user of a pool, or the cluster if both are empty."""

    pool: str = ""
    user: str = ""


class Gain(Struct, array_like=True):
    """Time that the jobs of a pool gained and lost by sharing, in seconds."""

    jobs: int = 0
    slowed: int = 0
    gained: float = 0.0
    lost: float = 0.0

    def add(self, other: Gain) -> None:
        """Add the sums of another period."""
        self.jobs += other.jobs
        self.slowed += other.slowed
        self.gained += other.gained
        self.lost += other.lost


class Waits(Struct, array_like=True):
    """Waits of jobs in seconds: their number, their sum, and their number by bin."""

    count: int = 0
    total: float = 0.0
    bins: dict[int, int] = {}

    def count_in(self, wait: float) -> None:
        """Count one wait."""
        self.count += 1
        self.total += wait
        number = _bin(wait)
        self.bins[number] = self.bins.get(number, 0) + 1

    def add(self, other: Waits) -> None:
        """Add the waits of another period. O(bins)."""
        self.count += other.count
        self.total += other.total
        _add(self.bins, other.bins)

    @property
    def mean(self) -> float | None:
        """The mean in seconds; None if there is no wait."""
        return self.total / self.count if self.count else None

    def quantile(self, share: float) -> float | None:
        """Return the wait that `share` of the jobs did not exceed, within 5 %; None without waits.

        O(bins · log bins).
        """
        rank, seen = share * self.count, 0
        for number, count in sorted(self.bins.items()):
            seen += count
            if seen >= rank:
                return _middle(number)
        return None


class Sums(Struct, array_like=True):
    """Sums over one period. Only the sums of the cluster have `gains`."""

    looks: int = 0
    """Number of samples; each value of `gauges` is a sum over the samples."""
    gauges: list[float] = field(default_factory=lambda: [0.0] * len(GAUGES))
    lenders: dict[str, float] = {}
    """GPUs borrowed from each lender, summed over the samples."""
    borrowers: dict[str, float] = {}
    """GPUs lent to each borrower, summed over the samples."""
    gain: Gain = field(default_factory=Gain)
    waited: Waits = field(default_factory=Waits)
    """Waits of jobs that have started, and (`alone`) the waits of the same jobs in the baseline."""
    alone: Waits = field(default_factory=Waits)
    windows: int = 0
    """Number of forecast windows that ended; `foreseen` and `came` are the sums of forecasts and
    loads, in GPUs."""
    foreseen: float = 0.0
    came: float = 0.0
    gains: dict[str, Gain] = {}

    def add(self, other: Sums) -> None:
        """Add the sums of another period. O(names + bins)."""
        self.looks += other.looks
        for i, value in enumerate(other.gauges):
            self.gauges[i] += value
        _add(self.lenders, other.lenders)
        _add(self.borrowers, other.borrowers)
        self.gain.add(other.gain)
        self.waited.add(other.waited)
        self.alone.add(other.alone)
        self.windows += other.windows
        self.foreseen += other.foreseen
        self.came += other.came
        for pool, gain in other.gains.items():
            self.gains.setdefault(pool, Gain()).add(gain)

    def judge(self, verdict: Verdict) -> None:
        """Count a job whose start in the baseline is known, as its pool's account does."""
        if verdict.forgotten:
            return
        self.gain.jobs += 1
        later = later_of(verdict)
        if verdict.started is not None and verdict.alone is not None:
            self.waited.count_in(max(0.0, verdict.started - verdict.submitted))
            self.alone.count_in(max(0.0, verdict.alone - verdict.submitted))
        if later is None:
            return
        if later > SLOWED:
            self.gain.slowed += 1
            self.gain.lost += later
        elif later < 0:
            self.gain.gained -= later

    def gauge(self, name: str) -> float | None:
        """Return the mean of a gauge over the samples; None if there is no sample."""
        return self.gauges[GAUGES.index(name)] / self.looks if self.looks else None

    def cut(self) -> None:
        """Keep the `NAMES` largest entries of each kind, and add the others up under `OTHERS`."""
        self.lenders, self.borrowers = largest(self.lenders, NAMES), largest(self.borrowers, NAMES)
        if len(self.gains) > NAMES + 1:
            by_size = sorted(self.gains, key=lambda pool: (-self.gains[pool].gained, pool))
            for pool in [pool for pool in by_size if pool != OTHERS][NAMES:]:
                self.gains.setdefault(OTHERS, Gain()).add(self.gains.pop(pool))


def total(parts: Iterable[Sums]) -> Sums:
    """Return the sum of several periods."""
    found = Sums()
    for part in parts:
        found.add(part)
    return found


def largest(values: Mapping[str, float], count: int) -> dict[str, float]:
    """Return the `count` largest values by name, largest first, and the sum of the others."""
    names = sorted(values.keys() - {OTHERS}, key=lambda name: (-values[name], name))
    rest = sum(values[name] for name in names[count:]) + values.get(OTHERS, 0.0)
    return {name: values[name] for name in names[:count]} | ({OTHERS: rest} if rest else {})


def _add(into: dict[K, V], other: Mapping[K, V]) -> None:
    for key, value in other.items():
        into[key] = into[key] + value if key in into else value


def _bin(wait: float) -> int:
    """Return the number of the bin of a wait: bin n > 0 begins at `BASE`**(n - 1) seconds."""
    return 0 if wait < SECOND else int(log(wait) / log(BASE)) + 1


def _middle(number: int) -> float:
    return 0.0 if number == 0 else exp((number - 0.5) * log(BASE))
