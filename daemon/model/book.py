"""The engine's state besides the core: jobs, pools, nodes, maintenance windows, tokens.

Records are plain values that `msgspec` encodes without a conversion, so a snapshot copies nothing.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterable, Iterator, Mapping
from functools import cached_property
from heapq import merge
from math import inf

from msgspec import Struct

from daemon.model.access import Role
from daemon.model.account import Account, Lent, Loan, ShadowState, Turns, Verdict
from daemon.model.job import JobPhase, JobSpec, LendingMode, PoolMode
from daemon.model.limits import KEEP_ENDED
from daemon.model.setup import Budget, Setup
from sia.decisions import SolveProgram
from sia.limits import UNLIMITED
from sia.model import Nodes, Pool, Stream

SPARE = 64
"""Number of removed entries that a pool's list may have, in addition to as many as there are jobs,
before the list is rebuilt."""


class JobIndex:
    """Job ids by pool, in order of addition. It must not change during an iteration."""

    def __init__(self) -> None:
        """Create an empty index."""
        self._last = 0
        self._numbers: dict[str, int] = {}
        self._pools: dict[str, _PoolJobs] = {}

    def add(self, pool: str, job_id: str) -> None:
        """Append a job. O(1)."""
        self._last += 1
        self._numbers[job_id] = self._last
        jobs = self._pools.get(pool)
        if jobs is None:
            jobs = self._pools[pool] = _PoolJobs()
        jobs.add(self._last, job_id)

    def drop(self, pool: str, job_id: str) -> None:
        """Remove a job. O(1) amortized."""
        jobs = self._pools[pool]
        jobs.drop(self._numbers.pop(job_id))
        if not jobs.ids:
            del self._pools[pool]

    def newest(self, pools: Iterable[str] | None, after: str = "") -> Iterator[str]:
        """Yield ids, newest first, of these pools or of all (None).

        With `after`, only ids that come after this one, if it exists. O(pools · log jobs) for the
        first id.
        """
        names = self._pools if pools is None else pools
        before = self._numbers.get(after, self._last + 1)
        parts = [self._pools[name].before(before) for name in names if name in self._pools]
        for _, job_id in merge(*parts, reverse=True):
            yield job_id

    def check(self, records: Mapping[str, JobRecord]) -> None:
        """Assert that it has these jobs in their order, each in its pool. O(jobs)."""
        found: list[tuple[int, str]] = []
        for name, jobs in self._pools.items():
            jobs.check(name)
            found += jobs.ids.items()
            assert all(records[job_id].spec.pool == name for job_id in jobs.ids.values()), name
        found.sort()
        assert [job_id for _, job_id in found] == [*records], "the index of jobs"
        assert [*self._numbers.items()] == [(job_id, number) for number, job_id in found]


class _PoolJobs:
    """The ids of one pool by their numbers, which only grow."""

    def __init__(self) -> None:
        self.ids: dict[int, str] = {}
        self._numbers: list[int] = []  # including removed ones, until the list is rebuilt

    def add(self, number: int, job_id: str) -> None:
        self.ids[number] = job_id
        self._numbers.append(number)

    def drop(self, number: int) -> None:
        del self.ids[number]
        if len(self._numbers) > 2 * len(self.ids) + SPARE:
            self._numbers = [*self.ids]

    def check(self, name: str) -> None:
        """Assert that the list has the numbers of all jobs in order."""
        ids = self.ids
        assert [number for number in self._numbers if number in ids] == [*ids], name

    def before(self, number: int) -> Iterator[tuple[int, str]]:
        for i in range(bisect_left(self._numbers, number) - 1, -1, -1):
            found = self._numbers[i]
            if found in self.ids:
                yield found, self.ids[found]


STAY = "\x1f"
"""Character between a job's id and the number of its stay in the core. No job id contains it."""


class Progress(Struct, frozen=True, gc=False, omit_defaults=True, forbid_unknown_fields=True):
    """The latest progress report of a job's attempt."""

    at: float
    """Time of the report, in seconds since the epoch."""
    done: float
    """Share of the whole work that is done, from 0 to 1."""
    work: float
    """Work that is done, in seconds at the job's own width."""
    speed: float
    """Seconds of work per second from then on."""
    left: float | None = None
    """Seconds of work that were left at `at`; None if this does not follow from the reports."""
    regime: int | None = None
    """Index of the regime, from 0; None if the job has not reported one."""

    @property
    def end(self) -> float | None:
        """Expected end at the reported speed; None if unknown."""
        return None if self.left is None else self.at + self.left / self.speed


class DeadlineAnswer(Struct, frozen=True, omit_defaults=True):
    """The policy's latest answer about a job's deadline. Times are seconds since the epoch."""

    guaranteed: bool
    at: float
    """Time of the answer."""
    step: int | None = None
    """Index, from 0, of the step by which the job ends by the plan."""
    by: float | None = None
    """The time of that step."""
    latest: float | None = None
    """Time of the last step: the promised latest end."""
    planned: float | None = None
    """End by the plan."""
    soonest: float | None = None
    """The earliest end of a job without a guarantee in the present plan. It is not promised."""
    why: str = ""
    """Why the deadline is not, or no longer, promised, or why the step has changed."""


class JobRecord(Struct, omit_defaults=True, forbid_unknown_fields=True):
    """A job and its state. Times are seconds since the epoch."""

    spec: JobSpec
    submitted: float
    run_time: float
    """Estimate of the run time, in seconds."""
    phase: JobPhase = JobPhase.PENDING
    priority: int = 0
    core: str = ""
    """Id of the job in the core; "" while the job is not in the core."""
    stays: int = 0
    """How often the job has entered the core."""
    attempt: int = 0
    """Number of the attempt, counted from 1. Observations of earlier attempts are ignored."""
    placed: bool = False
    """Whether the backend has the order to start this attempt. It gets the order once the GPUs
    are free."""
    decided: float | None = None
    """When the core decided to start this attempt."""
    started: float | None = None
    """Time at which the backend reported that the job runs."""
    ended: float | None = None
    stream: Stream | None = None
    reason: str = ""
    """The core's reason for the start."""
    nodes: Nodes = ()
    loans: tuple[tuple[str, int], ...] = ()
    """Lenders of the GPUs that the job uses, and the number of GPUs of each."""
    stop: str = ""
    """Why the daemon is ending the job."""
    warned: bool = False
    code: int | None = None
    signal: int | None = None
    why: str = ""
    """Why the job ended."""
    by: str = ""
    """The client that submitted the job."""
    area: str = ""
    """The pool whose area the job's nodes are in; "" if there are no areas."""
    limit: float | None = None
    """Time limit in seconds, if it was changed after submission."""
    believed: bool = False
    """Whether `limit` also bounds the estimate of its run time."""
    joined: float | None = None
    """When the job was queued for the last time; None if that was at submission."""
    promise: DeadlineAnswer | None = None
    """The policy's answer about the job's deadline; None before an answer."""
    progress: Progress | None = None
    """The latest progress report of the latest attempt; None without a report."""
    whole: float = 0.0
    """The whole work of the job in seconds at its own width, from its reports; 0 if unknown."""
    widths: tuple[int, int] | None = None
    """Minimum and maximum number of GPUs that follow from the job's trials; None: as submitted."""
    width: int = 0
    """Number of GPUs from the core, if it differs from the requested number; else 0."""
    taken: int = 0
    """Number of GPUs of the attempt that the backend was ordered to start; 0 if there is none."""
    seats: Nodes = ()
    """With cells: the GPUs of the next attempt, while the previous one has not stopped yet."""
    done: float = 0.0
    """Work done until `since`, in seconds at the job's own width."""
    since: float | None = None
    """Time at which `done` was determined: the attempt's start, or its latest progress report. None
    while the attempt does not run."""
    overhead: float = 0.0
    """Seconds after `since` without progress, in which the attempt loads the work of earlier
    ones."""
    speed: float = 1.0
    """Seconds of work per second."""
    ran: float = 0.0
    """Run time in seconds of earlier attempts whose work the job has kept; its time limit includes
    them."""
    begun: bool = False
    """Whether the core has started the job since the job last entered the core."""
    kept: float = 0.0
    """Work of earlier attempts that the job has kept, in seconds at its own width."""
    stops: int = 0
    """Number of stops after which the job was requeued with the work that it had done."""
    trials: int = 0
    """Number of these stops that ended a trial."""
    told: float | None = None
    """Time at which the attempt was told to stop."""
    forced: bool = False
    """Whether the grace time is over, so that the backend ends the attempt."""
    recalled: bool = False
    """Whether the job was told to stop in order to give spare GPUs back."""
    killed: bool = False
    """Whether the latest stop costs all of the job's work (`PreemptJob.kill`)."""
    preempted: str = ""
    """The core's reason for the latest stop."""
    trial: tuple[int, int] | None = None
    """The number of nodes of its trial, and the number that it would use by itself, while its
    latest start is a trial; a stop then costs all of its work."""
    first: tuple[float, float] | None = None
    """Time and `done` of the first report of its attempt, from which a trial measures its speed."""
    single: float = 0.0
    """Seconds that its whole work would take as measured in a trial on one node; 0 if unknown."""

    @property
    def expected(self) -> float:
        """The best known run time in seconds: from the job's reports, or else `run_time`."""
        return self.whole or self.run_time

    @property
    def is_promised(self) -> bool:
        """Whether the job's deadline is guaranteed."""
        return self.promise is not None and self.promise.guaranteed

    @property
    def gpus(self) -> int:
        """Number of GPUs that the core has given to the job, or would give to it."""
        return self.width or self.spec.gpus

    def work(self, now: float) -> float:
        """Return the work done until `now`, in seconds at the job's own width."""
        if self.since is None:
            return self.done
        return self.done + max(0.0, now - self.since - self.overhead) * self.speed

    def left(self, total: float, now: float) -> float:
        """Return the seconds that the job still needs on its current GPUs for a work of `total`."""
        rest = max(0.0, total - self.work(now)) / self.speed
        pause = self.overhead if self.since is None else self.since + self.overhead - now
        return rest + max(0.0, pause)

    @property
    def queued(self) -> float:
        """Begin of the job's latest wait.

        Times on hold and on GPUs do not count. Infinite if unknown.
        """
        if self.joined is not None:
            return self.joined
        return self.submitted if self.stays <= 1 else inf

    @property
    def time_limit(self) -> float | None:
        """Time limit in seconds; None without one."""
        return self.spec.time_limit if self.limit is None else self.limit

    @property
    def bound(self) -> float | None:
        """Upper bound of the run time estimate in seconds; None without one."""
        return self.time_limit if self.believed else self.spec.time_limit


class Override(Struct, frozen=True, forbid_unknown_fields=True):
    """The values that a pool returns to at `until`. A field that is None does not change."""

    until: float
    quota: int | None = None
    cells: Mapping[str, Mapping[str, int]] | None = None
    state: PoolMode | None = None
    lend_limit: int | None = None
    borrow_limit: int | None = None
    weight: float | None = None
    lend_budget_hours: float | None = None
    slowed_budget_pct: float | None = None
    slowed_budget_minutes: float | None = None


class Spent(Struct):
    """GPU-seconds that a pool has lent in a month, from the first time that it had a budget."""

    month: int
    seconds: float
    since: float
    lends: int = 0
    """Number of GPUs lent since `since`."""
    look: float = 0.0
    """Time of the next check of the pool, if no other event causes one before."""

    def upto(self, now: float) -> float:
        """Return the GPU-seconds lent up to a time in the same month."""
        return self.seconds + self.lends * max(0.0, now - self.since)


class PoolRecord(Struct, omit_defaults=True, forbid_unknown_fields=True):
    """A pool's current settings and state. `version` grows with each change."""

    name: str
    quota: int
    group: str = ""
    share: bool = True
    cells: Mapping[str, Mapping[str, int]] = {}
    state: PoolMode = PoolMode.OPEN
    lend_limit: int | None = None
    borrow_limit: int | None = None
    weight: float = 1.0
    version: int = 1
    waiting: dict[str, None] = {}
    """Pending jobs that are outside the core because the pool is on hold, in order."""
    override: Override | None = None
    lend_budget_hours: float | None = None
    """Maximum GPU-hours that the pool lends in a calendar month (UTC)."""
    slowed_budget_pct: float | None = None
    """Maximum percentage of the pool's jobs that may start later than without sharing."""
    slowed_budget_minutes: float | None = None
    """Maximum sum of the minutes by which the jobs that it starts in a calendar month (UTC) may
    start later than without sharing."""
    spent: Spent | None = None
    marks: tuple[int, int] | None = None
    """(jobs, delayed jobs) of its account when `slowed_budget_pct` was set."""
    delayed_from: tuple[int, float] | None = None
    """The month in which delays are counted for `slowed_budget_minutes`, and the seconds of delay
    of all jobs before, at its begin or when the budget was set."""
    kept: dict[str, str] = {}
    """Reasons why the pool must not lend now, by kind; see `GuardRails`."""
    told: dict[str, str] = {}
    """The reasons in `kept` that were passed to the core and the event stream."""
    rests_until: float = 0.0
    """Time at which the pool may lend again after a job of its group was late; 0 if no job was."""
    drift: str = ""
    """Why the pool's forecasts are unreliable; "" if they are reliable."""
    forecast_from: float = 0.0
    """Loads of the pool before this time are not used, because its forecasts have drifted since; 0
    if they have never drifted."""


def pool_record(
    pool: Pool, cells: Mapping[str, Mapping[str, int]], state: PoolMode, budget: Budget
) -> PoolRecord:
    """Create the record of a configured pool."""
    return PoolRecord(
        pool.name, pool.quota, pool.group, pool.share, cells, state,
        pool.lend_limit, pool.borrow_limit, pool.weight,
        lend_budget_hours=budget.lend_budget_hours, slowed_budget_pct=budget.slowed_budget_pct,
        slowed_budget_minutes=budget.slowed_budget_minutes,
    )  # fmt: skip


def core_limits(pool: PoolRecord) -> tuple[int, int]:
    """Return a pool's limits of lending and borrowing for the core.

    The pool lends nothing while `told` has a reason. A change of `kept` takes effect once it is in
    `told`.
    """
    lend, borrow = (UNLIMITED if n is None else n for n in (pool.lend_limit, pool.borrow_limit))
    return 0 if pool.told else lend, borrow


class NodeRecord(Struct, omit_defaults=True, forbid_unknown_fields=True):
    """A node. It is out while it has a reason to be."""

    name: str
    gpus: tuple[int, ...] = ()
    reasons: dict[str, str] = {}
    """Reasons why the node is out, by source: `operator`, `config`, `backend`, or a maintenance
    window."""


class MaintenanceWindow(Struct, frozen=True, gc=False, forbid_unknown_fields=True):
    """A maintenance window of a node. Times are seconds since the epoch."""

    id: str
    node: str
    start: float
    end: float
    why: str
    begun: bool = False


class TokenRecord(Struct, frozen=True, gc=False, omit_defaults=True, forbid_unknown_fields=True):
    """A token, known only by its digest. Times are seconds since the epoch."""

    name: str
    role: Role
    digest: str
    created: float
    pools: tuple[str, ...] = ()
    expires: float | None = None
    by: str = ""
    """The client that issued it."""
    signed_out: int = 0
    """How often all sessions of the token were ended."""

    def over(self, now: float) -> bool:
        """Return whether the token has expired."""
        return self.expires is not None and self.expires <= now


class Book(Struct, forbid_unknown_fields=True, dict=True):
    """All records.

    `jobs` have not ended, in order of submission; `ended` are the latest ended ones.

    Only the methods of this class add and remove jobs.
    """

    setup: Setup
    jobs: dict[str, JobRecord] = {}
    ended: dict[str, JobRecord] = {}
    arrays: dict[str, tuple[int, int]] = {}
    """Size of each array, and how many of its jobs are in memory."""
    pools: dict[str, PoolRecord] = {}
    nodes: dict[str, NodeRecord] = {}
    windows: dict[str, MaintenanceWindow] = {}
    seatless: dict[str, None] = {}
    """Jobs that the core has started and whose GPUs are not free yet, in order of start."""
    leaving: dict[str, None] = {}
    """Jobs that are being stopped: the core counts their GPUs as free, but the attempts still have
    them."""
    lending: bool = True
    notices: int = 0
    """Sequence number of the latest notice."""
    model: str = ""
    """Digest of the forecast model."""
    adopted: str = ""
    """Label of the forecast that a backtest has chosen; "" for the configuration's forecast."""
    tokens: dict[str, TokenRecord] = {}
    """Tokens by digest, so that the token of a request is found in O(1)."""
    shadow: ShadowState | None = None
    """Result of the current shadow mode, or else of the last one."""
    turns: dict[str, Turns] = {}
    """Turns and guests of each pool that has had any."""
    accounts: dict[str, Account] = {}
    """Account of each pool, from the first step on."""
    lent: dict[str, dict[str, Loan]] = {}
    """Open loans, by job and lender."""
    verdicts: list[Verdict] = []
    """Verdicts, and (in `rows`) closed loans, that no step has booked yet."""
    rows: list[Lent] = []
    found: float = 0.0
    """Time at which the oldest of them was found."""
    booked: float = 0.0
    """Time of the last step that booked; `unbooked` is the number of steps since then."""
    unbooked: int = 0
    heard: float | None = None
    """Time of the latest event or decision of the core that no step has booked yet."""
    solving: SolveProgram | None = None
    """The core's open request to a solver."""
    refused: dict[str, str] = {}
    """Why the core last refused a proposal about a job, by job ("" for a proposal about none). An
    entry is removed once a proposal is carried out. So each reason is reported once, although the
    policy repeats its proposal at each tick."""
    signed_out: int = 0
    """How often all sessions of the token file's token were ended."""

    @property
    def mode(self) -> LendingMode:
        """The lending mode."""
        if self.lending:
            return LendingMode.ON
        shadow = self.shadow is not None and self.shadow.until is None
        return LendingMode.SHADOW if shadow else LendingMode.OFF

    def job(self, job_id: str) -> JobRecord | None:
        """Return a job that is in memory; None if there is none. O(1)."""
        return self.jobs.get(job_id) or self.ended.get(job_id)

    def named(self, job_id: str) -> list[JobRecord]:
        """Return the job of this id, or the jobs of this array, that are in memory. O(size)."""
        known = self.job(job_id)
        if known is not None:
            return [known]
        size = self.arrays.get(job_id, (0, 0))[0]
        found = (self.job(f"{job_id}.{i}") for i in range(size))
        return [record for record in found if record is not None and record.spec.array is not None]

    def pool_of(self, job_id: str) -> str | None:
        """Return the pool of a job or array in memory. O(1), and O(size) for an array."""
        known = self.job(job_id)
        if known is not None:
            return known.spec.pool
        size = self.arrays.get(job_id, (0, 0))[0]
        found = (self.job(f"{job_id}.{i}") for i in range(size))
        return next((record.spec.pool for record in found if record is not None), None)

    def knows(self, job_id: str) -> bool:
        """Return whether this is the id of a job or array in memory. O(1)."""
        return self.job(job_id) is not None or job_id in self.arrays

    def add(self, record: JobRecord) -> None:
        """Add a job. O(1)."""
        spec = record.spec
        self._unended.add(spec.pool, spec.id)
        self.jobs[spec.id] = record
        if spec.array is not None:
            name = array_of(spec)
            self.arrays[name] = spec.array[1], self.arrays.get(name, (0, 0))[1] + 1

    def end(self, record: JobRecord) -> None:
        """Move a job to those that have ended. O(1)."""
        spec = record.spec
        self._unended.drop(spec.pool, spec.id)
        self._ended.add(spec.pool, spec.id)
        self.refused.pop(spec.id, None)
        del self.jobs[spec.id]
        self.ended[spec.id] = record

    def evict(self) -> None:
        """Evict the jobs that ended first, down to `KEEP_ENDED`. O(evicted jobs).

        Call this only at the end of a step: within the step, a resubmission would count as a new
        job.
        """
        while len(self.ended) > KEEP_ENDED:
            self._evict(next(iter(self.ended)))

    def _evict(self, job_id: str) -> None:
        spec = self.ended[job_id].spec
        self._ended.drop(spec.pool, job_id)
        del self.ended[job_id]
        if spec.array is not None:
            name = array_of(spec)
            size, here = self.arrays.pop(name)
            if here > 1:
                self.arrays[name] = size, here - 1

    @cached_property
    def _unended(self) -> JobIndex:
        return _index(self.jobs)

    @cached_property
    def _ended(self) -> JobIndex:
        return _index(self.ended)

    def newest(self, pools: Iterable[str] | None = None, after: str = "") -> Iterator[JobRecord]:
        """Yield jobs, newest first: those that have not ended, then those that have.

        `pools` restricts them to these pools; `after` starts after this job. O(pools · log jobs)
        for the first job.
        """
        if after not in self.ended:
            for job_id in self._unended.newest(pools, after):
                yield self.jobs[job_id]
            after = ""
        for job_id in self._ended.newest(pools, after):
            yield self.ended[job_id]

    def check_index(self) -> None:
        """Assert that `newest` will yield all jobs in order. O(jobs)."""
        self._unended.check(self.jobs)
        self._ended.check(self.ended)

    def token(self, name: str) -> TokenRecord | None:
        """Return the token of this name. O(tokens)."""
        return next((token for token in self.tokens.values() if token.name == name), None)

    def loans(self) -> Iterable[JobRecord]:
        """Return the jobs that use borrowed GPUs. O(jobs)."""
        return (record for record in self.jobs.values() if record.loans)


def _index(records: Mapping[str, JobRecord]) -> JobIndex:
    index = JobIndex()
    for job_id, record in records.items():
        index.add(record.spec.pool, job_id)
    return index


def array_of(spec: JobSpec) -> str:
    """Return the name of the array that a job belongs to."""
    return spec.id.rpartition(".")[0]


def job_of(core_id: str) -> str:
    """Return the id of the job that has this id in the core."""
    return core_id.partition(STAY)[0]
