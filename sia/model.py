"""Jobs, pools, forecasts and options as immutable values."""

from __future__ import annotations

from enum import Enum
from typing import Literal, NamedTuple

from msgspec import Struct
from msgspec.structs import replace

from sia.limits import TICK, WINDOWS

StopCost = float | Literal["restart", "never"]
"""The cost of a stop: seconds of work, all work ("restart"), or no stop is allowed ("never")."""

RESTART: StopCost = "restart"
NEVER_STOPPED: StopCost = "never"
STOP_WORDS: dict[str, StopCost] = {"restart": RESTART, "never": NEVER_STOPPED}
"""The costs that users write as words."""

Nodes = tuple[tuple[str, tuple[int, ...]], ...]
"""GPU indices by node; empty unless the cluster has cells or nodes that differ."""


FULL_REWARD, LEAST_REWARD = 100.0, 1.0
"""Rewards of an end by the deadline, and of an end after the last step (Chronus, §3.3.1)."""

LATE = 1e-3 - 1e-6
"""Seconds by which an end may be later than a step of a deadline and still meet it: less than a
millisecond, minus a millionth for the rounding of float64."""


class DeadlineStep(NamedTuple):
    """A step of a deadline: an end at or before `at` (seconds) earns `reward`."""

    at: float
    reward: float


class Stream(Enum):
    """The stream in which a job was started (§5.3)."""

    DEDICATED = "dedicated"
    """In queue order, within the pool's own quota."""
    SPARE = "spare"
    """Out of order, on GPUs that no pool is expected to need before the job ends."""


class Regime(NamedTuple):
    """A part of a training job in one configuration, such as one batch size."""

    config: str
    epochs: float
    seconds: float
    """Duration of an epoch in seconds, with the job's own width."""
    steps: float | None = None
    """Steps per second; None if unknown."""


class Job(Struct, frozen=True, gc=False, omit_defaults=True):
    """A job as submitted, without its run time.

    `submit` is in seconds. `width` is the number of GPUs, which start and end together (a gang).
    `min_width` and `max_width` bound the width of an elastic job; 0 means not given.
    """

    id: str
    pool: str
    submit: float
    width: int
    user: str = ""
    name: str = ""
    min_width: int = 0
    max_width: int = 0
    demand: tuple[tuple[int, float], ...] = ()
    """Run time in seconds by number of GPUs, ascending; empty means linear speed-up (PCS, §3)."""
    preemptible: StopCost | None = None
    """The cost of each stop; None if the job states none, so that the policy decides."""
    priority: int = 0
    """Within a queue, jobs of higher priority come first, regardless of arrival."""
    deadline: float | None = None
    """When the job should end at the latest, in seconds as `submit`."""
    soft: tuple[tuple[float, float], ...] = ()
    """Steps of the deadline: multiples, ascending, of the time from `submit` to `deadline`, and the
    reward of an end by then. Empty for a strict deadline (Chronus, §3.3.1)."""
    value: float | None = None
    """The value of an end by the deadline; None for the policy's usual value."""
    budget: float | None = None
    """The job's weight against other jobs in policies with budgets; None for 1."""
    estimate: float | None = None
    """The user's estimate of the run time in seconds at the job's own width."""
    prefers: str = ""
    """Attribute of the nodes on which the job runs at full speed; empty for any node."""
    slowdown: float | None = None
    """Factor of at least 1 on the run time on other nodes; None if it cannot run there."""
    strl: str = ""
    """A STRL expression in place of `prefers`, `slowdown` and `value`: the nodes on which the job
    may run, from which time, for how long, and the value; see `sia.state.strl`. Empty for none."""
    mode: str = ""
    """How its speed changes while it runs, as in `static`, `accordion` or `gns`."""
    min_run_time: float | None = None
    """Seconds that it should run without a stop after each start. A policy that stops jobs starts
    it early only if it expects not to stop it within this time. None if not stated."""
    model: str = ""
    """Name of the model that it trains."""
    regimes: tuple[Regime, ...] = ()
    """Its configurations in order. A policy that predicts uses only the regimes that the job has
    reached, the number of regimes, and the seconds of an epoch in each; see
    `sia.policies.shockwave`."""
    sched_class: str = ""
    """How sensitive it is to waiting, such as Google's 0 to 3; only forecasts use it."""
    one_node: bool = False
    """Whether all its GPUs must be of one node, where nodes differ."""
    fixed_width: bool = False
    """Whether it cannot run on fewer GPUs than its width, also not in a trial."""

    @property
    def stop_seconds(self) -> float | None:
        """The cost of a stop in seconds of work, or None if it is not a number of seconds."""
        cost = self.preemptible
        return None if cost is None or isinstance(cost, str) else cost

    @property
    def steps(self) -> tuple[DeadlineStep, ...]:
        """The steps of its deadline, in order of time; empty without a deadline. O(steps)."""
        if self.deadline is None:
            return ()
        first = (
            ()
            if self.soft and self.soft[0][0] == 1.0
            else (DeadlineStep(self.deadline, FULL_REWARD),)
        )
        span = self.deadline - self.submit
        later = (
            DeadlineStep(self.deadline if times == 1.0 else self.submit + times * span, reward)
            for times, reward in self.soft
        )
        return (*first, *later)

    def step_met(self, end: float) -> int | None:
        """Return the number, from 0, of the step that an end (seconds) meets, or None."""
        for number, step in enumerate(self.steps):
            if end - step.at < LATE:
                return number
        return None

    def submitted_at(self, time: float) -> Job:
        """Return the job with another submission time and its deadline moved by the same time."""
        deadline = None if self.deadline is None else self.deadline + (time - self.submit)
        return replace(self, submit=time, deadline=deadline)

    def speed(self, gpus: float) -> float:
        """Return the speed on `gpus` GPUs relative to the speed on `width`.

        Without `demand` the speed is proportional to the GPUs. With `demand` the rate is
        interpolated linearly between its points and constant outside them. O(points).
        """
        if not self.demand:
            return gpus / self.width
        return _rate(self.demand, gpus) / _rate(self.demand, self.width)


def seconds_on(demand: tuple[tuple[int, float], ...], gpus: float) -> float:
    """Return the run time in seconds on `gpus` GPUs that a demand states. O(points)."""
    return 1.0 / _rate(demand, gpus)


def _rate(demand: tuple[tuple[int, float], ...], gpus: float) -> float:
    """Return the rate of work, 1 / seconds, interpolated at `gpus`."""
    before = demand[0]
    if gpus <= before[0]:
        return 1.0 / before[1]
    for point in demand[1:]:
        if gpus <= point[0]:
            part = (gpus - before[0]) / (point[0] - before[0])
            return (1.0 - part) / before[1] + part / point[1]
        before = point
    return 1.0 / before[1]


class Pool(Struct, frozen=True):
    """A pool: a quota of GPUs with an owner.

    Pools lend only within their sharing `group`; a pool with `share` off neither lends nor
    borrows. Limits apply to new loans, not to dedicated jobs: if a dedicated job needs GPUs that
    its pool has lent and only pools at their limit have idle GPUs for the guest, the loan moves
    there beyond the limit.
    """

    name: str
    quota: int
    group: str = ""
    share: bool = True
    lend_limit: int | None = None
    """The most GPUs that it lends at a time; None means no limit."""
    borrow_limit: int | None = None
    """The most GPUs that its spare jobs borrow at a time; None means no limit."""
    weight: float = 1.0
    """Factor on the quota in the order CurrentAllocation / Quota: a higher weight comes earlier."""

    @property
    def sharing_group(self) -> tuple[str, str]:
        """A key that is equal for pools that may lend to each other."""
        return self.group, "" if self.share else self.name


class GpuNode(Struct, frozen=True):
    """A machine with GPUs of one kind, and the attributes that distinguish it."""

    name: str
    gpus: int
    attributes: tuple[str, ...] = ()
    """Words such as `fast`, or pairs of kind and value such as `rack:r1`."""
    free: int | None = None
    """Number of GPUs that can be used, if others use some of them all the time; None for all."""

    @property
    def usable(self) -> int:
        """GPUs that can be used."""
        return self.gpus if self.free is None else self.free

    def value(self, kind: str) -> str | None:
        """Return the value of an attribute `kind:value`, or None if the node has none."""
        for attribute in self.attributes:
            word, colon, value = attribute.partition(":")
            if colon and word == kind:
                return value
        return None


class FutureJob(Struct, frozen=True, gc=False):
    """A job known before it arrives, with its virtual start time in the baseline (§5.1)."""

    job: Job
    run_time: float
    virtual_start: float


class Load(NamedTuple):
    """TotalNewLoad of a pool and window: GPUs that arrive in (now, now + window] (§5.2)."""

    pool: str
    window: int
    gpus: int


class Estimate(NamedTuple):
    """The run-time estimate of a pending job, in seconds."""

    job_id: str
    run_time: float


class Options(Struct, frozen=True):
    """Options of the core and its policies (§5.3). Windows are in seconds, ascending."""

    windows: tuple[float, ...] = WINDOWS
    tick: float = TICK
    slack: float = 1.0
    """Factor on SIA's reservations; 1 is the paper's, a higher value reserves more."""
    spare_priority: dict[str, int] = {}
    """Pools with a higher number get spare GPUs first; pools not named have 0."""
    resume_cost: float = 0.0
    """Seconds without progress after a job resumes or changes its width."""
    stops_per_hour: int = 0
    """The most stops and changes of width within an hour, of all jobs; 0 for any number."""
    grace: float = 0.0
    """Seconds for which a stopped job may keep its GPUs; 0 if stops free them at once."""
    exact: bool = False
    """Whether all forecasts are exact, as only a replay's can be. If not, `sia` is more careful in
    a cluster with cells."""
    owners: bool = False
    """Whether policies that plan over all GPUs of a sharing group start each pool's own jobs within
    its quota first. In the papers' systems there are no pools; a daemon sets this."""
    no_lending: frozenset[tuple[str, float]] = frozenset()
    """Pairs of pool and window (seconds) for which the pool reserves all of its unused quota;
    it can still borrow."""
