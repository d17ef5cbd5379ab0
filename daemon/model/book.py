"""What the daemon knows besides the core: jobs, pools, nodes, maintenance.

Records are plain values that `msgspec` writes and reads as they are: a snapshot copies nothing.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from functools import cached_property
from math import inf

from msgspec import Struct

from daemon.model.access import Role
from daemon.model.account import Account, Lent, Loan, ShadowState, Verdict
from daemon.model.job import JobPhase, JobSpec, LendingMode, PoolMode
from daemon.model.job_index import JobIndex
from daemon.model.limits import KEEP_ENDED
from daemon.model.setup import Budget, Setup
from sia.limits import UNLIMITED
from sia.model import Nodes, Pool, Stream

STAY = "\x1f"
"""Between a job's id and the number of its stay in the core; no job's id has it."""


class JobRecord(Struct, omit_defaults=True, forbid_unknown_fields=True):
    """A job and where it is in its life. Times are seconds since the epoch."""

    spec: JobSpec
    submitted: float
    run_time: float
    """How long the daemon thinks that it runs."""
    phase: JobPhase = JobPhase.PENDING
    priority: int = 0
    core: str = ""
    """Its id in the core; empty while it is not there."""
    stays: int = 0
    """How often it has been there."""
    attempt: int = 0
    """Starts so far: what an earlier one is said to have done counts no more."""
    placed: bool = False
    """Whether the backend was told of this attempt; it is not before its GPUs are free."""
    decided: float | None = None
    """When this attempt was decided."""
    started: float | None = None
    """When the backend said that it runs."""
    ended: float | None = None
    stream: Stream | None = None
    reason: str = ""
    """Why it was started."""
    nodes: Nodes = ()
    loans: tuple[tuple[str, int], ...] = ()
    """(pool, GPUs): whose GPUs it uses, where they are lent."""
    stop: str = ""
    """Why it is being ended."""
    warned: bool = False
    code: int | None = None
    signal: int | None = None
    why: str = ""
    """How it ended."""
    by: str = ""
    """Who submitted it."""
    area: str = ""
    """The pool in whose area its nodes are, where there are areas."""
    limit: float | None = None
    """How long it may run, where that is not what was said at its submission."""
    believed: bool = False
    """Whether that limit counts for how long it is thought to run."""
    joined: float | None = None
    """When it came into its pool's queue, for the last time; None where that was as submitted."""

    @property
    def queued(self) -> float:
        """Since when it waits, or waited before it was started: held it did not, nor while it ran.

        Infinite where nobody knows: an earlier release did not write down when it came back.
        """
        if self.joined is not None:
            return self.joined
        return self.submitted if self.stays <= 1 else inf

    @property
    def time_limit(self) -> float | None:
        """How long it may run before it is ended (seconds)."""
        return self.spec.time_limit if self.limit is None else self.limit

    @property
    def bound(self) -> float | None:
        """The limit beyond which nobody thinks that it runs (seconds)."""
        return self.time_limit if self.believed else self.spec.time_limit


class Override(Struct, frozen=True, forbid_unknown_fields=True):
    """What becomes of a pool at a time; what is None does not change then."""

    until: float
    quota: int | None = None
    cells: Mapping[str, Mapping[str, int]] | None = None
    state: PoolMode | None = None
    lend_limit: int | None = None
    borrow_limit: int | None = None
    weight: float | None = None
    lend_budget_hours: float | None = None
    slowed_budget_pct: float | None = None


class Spent(Struct):
    """What a pool has lent in a month, up to `since`: GPU-seconds, since it has had a budget."""

    month: int
    seconds: float
    since: float
    lends: int = 0
    """So many GPUs from then on; with `Setup.rails` 1 it is looked at before anything happens."""
    look: float = 0.0
    """When it is looked at again, if nothing else happens, from `Setup.rails` 2 on."""

    def upto(self, now: float) -> float:
        """GPU-seconds lent up to a time of the same month."""
        return self.seconds + self.lends * max(0.0, now - self.since)


class PoolRecord(Struct, omit_defaults=True, forbid_unknown_fields=True):
    """A pool as it is now; `version` grows with each change."""

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
    """Jobs that wait outside the core while the pool is on hold, in their order."""
    override: Override | None = None
    lend_budget_hours: float | None = None
    """GPU-hours that it lends in a calendar month at most."""
    slowed_budget_pct: float | None = None
    """Percent of its jobs that may begin later than in the pool alone."""
    spent: Spent | None = None
    marks: tuple[int, int] | None = None
    """Jobs, and slowed ones, of its account when the percentage was set."""
    kept: dict[str, str] = {}
    """Why it lends nothing, by kind of reason, in words: see `engine_rails`."""
    told: dict[str, str] = {}
    """What the core and people know of that."""
    rests_until: float = 0.0
    """When it lends again after a job of its group was late; 0 where none was."""


def pool_record(
    pool: Pool, cells: Mapping[str, Mapping[str, int]], state: PoolMode, budget: Budget
) -> PoolRecord:
    """A pool as it is configured."""
    return PoolRecord(
        pool.name, pool.quota, pool.group, pool.share, cells, state,
        pool.lend_limit, pool.borrow_limit, pool.weight,
        lend_budget_hours=budget.lend_budget_hours, slowed_budget_pct=budget.slowed_budget_pct,
    )  # fmt: skip


def core_limits(pool: PoolRecord) -> tuple[int, int]:
    """What a pool lends and borrows at most, as the core has it: nothing while it is kept from it.

    That is what it was `told`: what is to change is told first.
    """
    lend, borrow = (UNLIMITED if n is None else n for n in (pool.lend_limit, pool.borrow_limit))
    return 0 if pool.told else lend, borrow


class NodeRecord(Struct, omit_defaults=True, forbid_unknown_fields=True):
    """A node. It is out while anybody has a reason for it."""

    name: str
    gpus: tuple[int, ...] = ()
    reasons: dict[str, str] = {}
    """Who takes it out, and why: `operator`, `config`, `backend`, or a maintenance window."""


class MaintenanceWindow(Struct, frozen=True, gc=False, forbid_unknown_fields=True):
    """A node's maintenance."""

    id: str
    node: str
    start: float
    end: float
    why: str
    begun: bool = False


class TokenRecord(Struct, frozen=True, gc=False, omit_defaults=True, forbid_unknown_fields=True):
    """A token, of which nobody here knows more than the digest. Times are seconds."""

    name: str
    role: Role
    digest: str
    created: float
    pools: tuple[str, ...] = ()
    expires: float | None = None
    by: str = ""
    """Who issued it."""
    signed_out: int = 0
    """How often all of its sessions were ended."""

    def over(self, now: float) -> bool:
        """Whether it counts no more."""
        return self.expires is not None and self.expires <= now


class Book(Struct, forbid_unknown_fields=True, dict=True):
    """All of it. `jobs` are alive, in order of submission; `ended` are the newest others.

    Jobs come and go by its methods alone.
    """

    setup: Setup
    jobs: dict[str, JobRecord] = {}
    ended: dict[str, JobRecord] = {}
    arrays: dict[str, tuple[int, int]] = {}
    """Of each array: its size, and how many of its jobs are here."""
    pools: dict[str, PoolRecord] = {}
    nodes: dict[str, NodeRecord] = {}
    windows: dict[str, MaintenanceWindow] = {}
    seatless: dict[str, None] = {}
    """Jobs that were started and wait for their GPUs to be free, in order."""
    lending: bool = True
    notices: int = 0
    """So many have been given."""
    model: str = ""
    """The forecasts' model, by its digest."""
    tokens: dict[str, TokenRecord] = {}
    """By their digests: whoever comes in is found at once."""
    shadow: ShadowState | None = None
    """What lending would have come to, the last time that it was not done but worked out."""
    accounts: dict[str, Account] = {}
    """By pool, from the first step on."""
    lent: dict[str, dict[str, Loan]] = {}
    """Loans under way, by job and lender."""
    verdicts: list[Verdict] = []
    """To be booked with the next step, as are these parts of loans."""
    rows: list[Lent] = []
    found: float = 0.0
    """When the first of them was found."""
    booked: float = 0.0
    """When something could be booked last, and how many steps there have been since."""
    unbooked: int = 0
    heard: float | None = None
    """When the core was last told or decided something that is not booked yet."""
    signed_out: int = 0
    """How often all sessions of the machine's own token were ended."""

    @property
    def mode(self) -> LendingMode:
        """How the operator's switch stands."""
        if self.lending:
            return LendingMode.ON
        rehearses = self.shadow is not None and self.shadow.until is None
        return LendingMode.SHADOW if rehearses else LendingMode.OFF

    def job(self, job_id: str) -> JobRecord | None:
        """A job that is alive or has ended lately. O(1)."""
        return self.jobs.get(job_id) or self.ended.get(job_id)

    def named(self, job_id: str) -> list[JobRecord]:
        """The job of that id, or those of the array, that are here. O(size)."""
        known = self.job(job_id)
        if known is not None:
            return [known]
        size = self.arrays.get(job_id, (0, 0))[0]
        found = (self.job(f"{job_id}.{i}") for i in range(size))
        return [record for record in found if record is not None and record.spec.array is not None]

    def pool_of(self, job_id: str) -> str | None:
        """The pool of a job, or of an array, that is here. O(1), and O(size) for an array."""
        known = self.job(job_id)
        if known is not None:
            return known.spec.pool
        size = self.arrays.get(job_id, (0, 0))[0]
        found = (self.job(f"{job_id}.{i}") for i in range(size))
        return next((record.spec.pool for record in found if record is not None), None)

    def knows(self, job_id: str) -> bool:
        """Whether that is a job, or an array, that is here. O(1)."""
        return self.job(job_id) is not None or job_id in self.arrays

    def add(self, record: JobRecord) -> None:
        """Take a new job in. O(1)."""
        spec = record.spec
        self._alive.add(spec.pool, spec.id)
        self.jobs[spec.id] = record
        if spec.array is not None:
            name = array_of(spec)
            self.arrays[name] = spec.array[1], self.arrays.get(name, (0, 0))[1] + 1

    def end(self, record: JobRecord) -> None:
        """A job is over. O(1)."""
        spec = record.spec
        self._alive.drop(spec.pool, spec.id)
        self._over.add(spec.pool, spec.id)
        del self.jobs[spec.id]
        self.ended[spec.id] = record

    def forget(self) -> None:
        """Forget the oldest that have ended: O(jobs forgotten).

        At the end of a step: within it, one that comes again would be taken for a new one.
        """
        while len(self.ended) > KEEP_ENDED:
            self._forget(next(iter(self.ended)))

    def _forget(self, job_id: str) -> None:
        spec = self.ended[job_id].spec
        self._over.drop(spec.pool, job_id)
        del self.ended[job_id]
        if spec.array is not None:
            name = array_of(spec)
            size, here = self.arrays.pop(name)
            if here > 1:
                self.arrays[name] = size, here - 1

    @cached_property
    def _alive(self) -> JobIndex:
        return _lines(self.jobs)

    @cached_property
    def _over(self) -> JobIndex:
        return _lines(self.ended)

    def newest(self, pools: Iterable[str] | None = None, after: str = "") -> Iterator[JobRecord]:
        """Jobs alive, the latest first, then those that have ended, likewise; or those after one.

        Of some pools, or of all (None). O(pools log jobs) for the first.
        """
        if after not in self.ended:
            for job_id in self._alive.newest(pools, after):
                yield self.jobs[job_id]
            after = ""
        for job_id in self._over.newest(pools, after):
            yield self.ended[job_id]

    def token(self, name: str) -> TokenRecord | None:
        """The token of that name. O(tokens)."""
        return next((token for token in self.tokens.values() if token.name == name), None)

    def loans(self) -> Iterable[JobRecord]:
        """Jobs on GPUs that are lent to them. O(jobs)."""
        return (record for record in self.jobs.values() if record.loans)


def _lines(records: Mapping[str, JobRecord]) -> JobIndex:
    lines = JobIndex()
    for job_id, record in records.items():
        lines.add(record.spec.pool, job_id)
    return lines


def array_of(spec: JobSpec) -> str:
    """The name of the array that a job is of."""
    return spec.id.rpartition(".")[0]


def job_of(core_id: str) -> str:
    """The job of an id in the core."""
    return core_id.partition(STAY)[0]
