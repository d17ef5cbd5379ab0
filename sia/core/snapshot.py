"""Snapshots of a core as plain values.

`dump` returns the whole state of a core between two steps. `restore` builds a core that makes
exactly the same decisions from then on. A snapshot holds facts: quotas, jobs and their loans in the
order in which they were made, pools to consider in the next pass, cells, and what the policy
remembers (`Policy.memory`). Sums, queues and indexes are recomputed.
"""

from __future__ import annotations

from collections.abc import Iterable
from math import inf
from typing import Any

from msgspec import UNSET, Struct, UnsetType, ValidationError, convert, json
from msgspec.structs import fields

from cells.cells import Cells
from cells.snapshot import CellsSnapshot
from sia.contract.policy import Policy
from sia.core.core import Core
from sia.core.guard import PolicyFailedError, PolicyFailure, told
from sia.limits import MAX_QUOTA, STRIDE, UNLIMITED
from sia.model import GpuNode, Job, Nodes, Options, Pool, Stream
from sia.state.bounds import check_job
from sia.state.nodes import NodeTable
from sia.state.places import Places
from sia.state.speeds import SpeedRow
from sia.state.state import ClusterState, JobState, PoolState

VERSION = 3
"""Version of the format. Increase it for each change that older code would misread."""


class JobSnapshot(Struct, frozen=True, gc=False, omit_defaults=True, forbid_unknown_fields=True):
    """A job, as in `JobState`. Fields after `arrival` are set for jobs that run or have run."""

    job: Job
    run_time: float
    arrival: int
    stream: Stream | None = None
    width: int = 0
    """GPUs that it runs on, if not its own width."""
    attempt: int = 0
    start: float = 0.0
    done: float = 0.0
    overhead: float = 0.0
    speed: float = 1.0
    loans: tuple[tuple[str, int], ...] = ()
    """(pool, GPUs) of each lender, oldest first."""
    since: float | UnsetType = UNSET
    """When `done` was last known, if after `start`."""
    pace: float = 1.0
    regime: int | None = None
    begun: tuple[float, ...] = ()
    """The work at which each regime but the first one began."""
    lease: float | None = None
    trial: bool = False
    nodes: Nodes = ()
    """Its GPUs, in a cluster whose nodes differ."""
    taken_back: int = 0


class PoolSnapshot(Struct, frozen=True, forbid_unknown_fields=True):
    """A pool with its current quota, limits and weight."""

    pool: Pool
    load: tuple[int, ...]
    """TotalNewLoad of each window."""
    lent_to: tuple[str, ...]
    """Jobs on GPUs of its quota, its own spare jobs included; oldest loan first."""


class PlacesSnapshot(Struct, frozen=True, forbid_unknown_fields=True):
    """The cells of a cluster that has cells."""

    cells: CellsSnapshot
    chains: dict[str, str]
    """The chain of each pool, "" if its group never owned cells."""
    came_free: bool
    placeless: tuple[str, ...]
    """Pools with jobs that wait for cells which jobs of other pools may free."""


class Snapshot(Struct, frozen=True, forbid_unknown_fields=True):
    """A core between two steps. Times are in seconds; None is minus infinity."""

    version: int
    policy: str
    """The name of the policy's class."""
    params: dict[str, Any]
    """The policy's own options."""
    options: Options
    now: float | None
    wake: float | None
    """When the policy last asked to be called."""
    arrivals: int
    lending: bool
    pools: tuple[PoolSnapshot, ...]
    jobs: tuple[JobSnapshot, ...]
    """In order of arrival."""
    dirty: tuple[str, ...]
    """Pools that changed since the last pass."""
    overdrawn: tuple[str, ...]
    """The first pool of each group with a pool that lends GPUs it lost."""
    memory: Any = None
    cells: PlacesSnapshot | None = None
    out: dict[str, int] | UnsetType = UNSET
    """GPUs that are out in a cluster without cells, by the first pool of each affected group.

    Left out if there are none.
    """
    retry: float | None = None
    """When a refused proposal is considered again."""
    requests: int = 0
    """Programs that the policy has asked to solve."""
    open_request: bool = False
    round: float | UnsetType = UNSET
    """When a round was due that no pass has begun, as a step failed; left out if there is none."""
    stops: tuple[float, ...] | UnsetType = UNSET
    """When jobs were stopped within the last hour, if that is limited; ascending.

    Left out if there are none.
    """
    nodes: tuple[GpuNode, ...] | UnsetType = UNSET
    """The nodes of a cluster whose nodes differ; else left out."""
    nodes_out: tuple[str, ...] | UnsetType = UNSET
    """The nodes that are out; left out if there are none."""
    speeds: tuple[SpeedRow, ...] | UnsetType = UNSET
    """Speeds of models by number of nodes; left out if none is known."""


class _Version(Struct):
    version: int


def encode(snapshot: Snapshot) -> bytes:
    """Return the snapshot as JSON, with the same bytes for equal snapshots. O(n)."""
    return json.encode(snapshot, order="deterministic")


def decode(data: bytes) -> Snapshot:
    """Parse JSON. Raises ValueError for another version or an invalid snapshot. O(n)."""
    _check_version(json.decode(data, type=_Version).version)
    return json.decode(data, type=Snapshot)


def _check_version(version: int) -> None:
    if version != VERSION:
        raise ValueError(
            f"snapshot version {version} is not supported (expected {VERSION}); restore it with "
            "the release that wrote it"
        )


def plain_params(policy: Policy) -> dict[str, Any]:
    """Return the options of a policy as JSON has them."""
    params: dict[str, Any] = json.decode(json.encode(policy.params))
    return params


def dump(core: Core, *, forgets: bool = False) -> Snapshot:
    """Return a snapshot that shares nothing with the core. O(jobs + pools + cells).

    With `forgets` the snapshot has no memory of the policy. Otherwise raises PolicyFailedError if
    `Policy.memory` raises.
    """
    state = core.state
    return Snapshot(
        version=VERSION,
        policy=type(core.policy).__name__,
        params=plain_params(core.policy),
        options=state.options,
        now=_finite(state.now),
        wake=_finite(core.committer.timers.wish),
        arrivals=state.arrivals,
        lending=all(group.lending for group in state.groups),
        pools=tuple(map(_pool_record, state.pools.values())),
        jobs=tuple(_job_record(job, state.nodes) for job in state.jobs.values()),
        dirty=_names(state.dirty),
        overdrawn=tuple(group.first for group in core.committer.accounts.overdrawn),
        memory=None if forgets else memory_of(core.policy),
        cells=None if state.places is None else _cells_record(core, state.places),
        out={group.first: group.out for group in state.groups if group.out} or UNSET,
        retry=_finite(core.committer.timers.retry),
        requests=core.committer.requests,
        open_request=core.committer.open_request,
        round=_late_round(core),
        stops=tuple(core.committer.stops) or UNSET,
        nodes=UNSET if state.nodes is None else tuple(state.nodes.nodes.values()),
        nodes_out=UNSET if state.nodes is None else tuple(state.nodes.out) or UNSET,
        speeds=UNSET if state.nodes is None else state.nodes.speeds.rows or UNSET,
    )


def memory_of(policy: Policy) -> Any:
    """Return the memory of a policy. Raises PolicyFailedError if the policy raises."""
    try:
        return policy.memory()
    except Exception as error:
        raise PolicyFailedError(PolicyFailure("memory", error)) from error


def _resume(policy: Policy, state: ClusterState, memory: Any) -> None:
    """Call `Policy.resume`. Raises ValueError if the policy raises any exception."""
    try:
        policy.resume(state, memory)
    except (ValueError, AssertionError, ArithmeticError, LookupError):
        raise
    except Exception as error:
        raise ValueError(told(PolicyFailure("resume", error))) from error


def _late_round(core: Core) -> float | UnsetType:
    due = core.committer.timers.round
    return due if due <= core.state.now else UNSET


def _finite(time: float) -> float | None:
    return time if -inf < time < inf else None


def _names(pools: Iterable[PoolState]) -> tuple[str, ...]:
    return tuple(pool.name for pool in pools)


def _pool_record(state: PoolState) -> PoolSnapshot:
    name, group = state.name, state.group
    share = group.name != f"{name} alone" or len(group.pools) > 1
    pool = Pool(
        name,
        state.quota,
        group.name if share else "",
        share,
        _limit(state.lend_limit),
        _limit(state.borrow_limit),
        state.weight,
    )
    return PoolSnapshot(pool, tuple(state.load), tuple(state.lent_to))


def _limit(gpus: int) -> int | None:
    return None if gpus == UNLIMITED else gpus


def _job_record(state: JobState, table: NodeTable | None) -> JobSnapshot:
    job = state.job
    if not state.attempt:
        return JobSnapshot(job, state.run_time, state.arrival)
    return JobSnapshot(
        job,
        state.run_time,
        state.arrival,
        state.stream,
        state.width if state.width != job.width else 0,
        state.attempt,
        state.start,
        state.done,
        state.overhead,
        state.speed,
        tuple((lender.name, gpus) for lender, gpus in state.loans.items()),
        UNSET if state.since == state.start else state.since,
        state.pace,
        state.regime,
        state.begun,
        state.lease,
        state.trial,
        () if table is None else table.of(job.id),
        state.taken_back,
    )


def _cells_record(core: Core, places: Places) -> PlacesSnapshot:
    placeless = _names(core.state.awaiting_cells)
    return PlacesSnapshot(places.dump(), places.chains(), core.committer.cells_freed, placeless)


def _same_params(snapshot: Snapshot, policy: Policy) -> bool:
    """Return whether a policy has the snapshot's options.

    An option that the release of the snapshot did not have yet had its usual value there. One that
    this release does not have is another option.
    """
    if snapshot.params == plain_params(policy):
        return True
    if not snapshot.params.keys() <= {field.encode_name for field in fields(policy.Params)}:
        return False
    try:
        return bool(convert(snapshot.params, policy.Params) == policy.params)
    except ValidationError:
        return False


def restore(snapshot: Snapshot, policy: Policy) -> Core:
    """Build a core that continues from a snapshot. O(n · log n) in jobs, pools and cells.

    Args:
        snapshot: A result of `dump`.
        policy: A new policy of the class, and with the options, that the snapshot names.

    Raises:
        ValueError: The snapshot has another version or policy, or contradicts itself.
    """
    _check_version(snapshot.version)
    if snapshot.cells is not None:
        policy = policy.for_cells()
    if snapshot.policy != type(policy).__name__:
        raise ValueError(
            f"the snapshot is of policy {snapshot.policy}, not {type(policy).__name__}"
        )
    if not _same_params(snapshot, policy):
        raise ValueError(
            f"the snapshot is of {snapshot.policy} with options {snapshot.params}, "
            f"not {plain_params(policy)}"
        )
    try:
        pools = [record.pool for record in snapshot.pools]
        nodes = () if snapshot.nodes is UNSET else snapshot.nodes
        speeds = () if snapshot.speeds is UNSET else snapshot.speeds
        core = Core(pools, policy, snapshot.options, nodes=nodes, speeds=speeds)
        for node in () if snapshot.nodes_out is UNSET else snapshot.nodes_out:
            if core.state.nodes is not None:
                core.state.nodes.take_out(node)
        _fill(core, snapshot)
        core.check()
    except (AssertionError, ArithmeticError, LookupError) as error:
        raise ValueError(f"the snapshot contradicts itself: {error!r}") from error
    return core


def _fill(core: Core, snapshot: Snapshot) -> None:
    state, accounts = core.state, core.committer.accounts
    if not all(t is None or -inf < t < inf for t in (snapshot.now, snapshot.wake, snapshot.retry)):
        raise ValueError("now and wake must be finite")
    state.now = -inf if snapshot.now is None else snapshot.now
    if snapshot.cells is not None:
        _place(core, snapshot.cells)
    _submit(state, snapshot)
    for record in snapshot.pools:
        _lend(state, record)
    out = {} if snapshot.out is UNSET else snapshot.out
    if out and (snapshot.cells is not None or min(out.values()) < 0):
        raise ValueError("GPUs out must be at least 0, in a cluster without cells")
    for group in state.groups_of(out):
        group.out = out[group.first]
    for group in state.groups:
        group.idle = sum(pool.unused for pool in group.pools)
        group.lending = snapshot.lending
        accounts.relimit(group)
    _resume(core.policy, state, snapshot.memory)
    state.dirty.clear()
    state.dirty.update(dict.fromkeys(state.pools_of(snapshot.dirty)))
    accounts.overdrawn = dict.fromkeys(state.groups_of(snapshot.overdrawn))
    accounts.unsettled = bool(accounts.overdrawn)
    _restore_timers(core, snapshot)


def _restore_timers(core: Core, snapshot: Snapshot) -> None:
    committer = core.committer
    for record in snapshot.jobs:
        if record.lease is not None:
            if record.stream is None or not core.state.now < record.lease < inf:
                raise ValueError(f"job {record.job.id}: a lease needs a running job and an end")
            committer.timers.lease(core.state.jobs[record.job.id], record.lease)
    committer.requests, committer.open_request = snapshot.requests, snapshot.open_request
    stops = () if snapshot.stops is UNSET else snapshot.stops
    if not all(-inf < time <= core.state.now for time in stops):
        raise ValueError("stops must be in the past")
    committer.stops.extend(sorted(stops))
    wish, retry = (inf if time is None else time for time in (snapshot.wake, snapshot.retry))
    late = inf if snapshot.round is UNSET else snapshot.round
    if late < inf and not -inf < late <= core.state.now:
        raise ValueError("a late round must be in the past")
    core.resume_timers(wish, retry, late)


def _place(core: Core, record: PlacesSnapshot) -> None:
    state = core.state
    if not core.policy.places:
        raise ValueError(f"policy {type(core.policy).__name__} does not support cells")
    quotas = [{pool.name: pool.quota for pool in group.pools} for group in state.groups]
    state.places = Places(Cells.restore(record.cells), quotas, record.chains)
    state.awaiting_cells = dict.fromkeys(state.pools_of(record.placeless))
    core.committer.cells_freed = record.came_free


def _submit(state: ClusterState, snapshot: Snapshot) -> None:
    """Restore all jobs, pending and running."""
    jobs, pools, places = state.jobs, state.pools, state.places
    before = 0
    if not 0 <= snapshot.arrivals < STRIDE:
        raise ValueError(f"arrivals must be 0 to {STRIDE - 1} (got {snapshot.arrivals})")
    for record in snapshot.jobs:
        job, arrival = record.job, record.arrival
        pool = pools.get(job.pool)
        if pool is None:
            raise ValueError(f"job {job.id}: no pool {job.pool!r}")
        if job.id in jobs or not before < arrival <= snapshot.arrivals:
            raise ValueError(f"job {job.id} is listed twice or not in order of arrival")
        check_job(job, record.run_time)
        before = arrival
        made = jobs[job.id] = JobState(job, pool, record.run_time, arrival)
        if places is not None:
            made.gpus = places.gpus(pool.name, job.width)
        if record.attempt or record.stream is not None:
            _run(made, record, state)
        if record.stream is None:
            (pool.out_of_order if record.attempt or job.priority else pool.pending)[
                made.sequence
            ] = made
            pool.pending_width += made.gpus
            state.waiting += 1
    state.arrivals = snapshot.arrivals


def _run(job: JobState, record: JobSnapshot, state: ClusterState) -> None:
    """Restore the progress and the GPUs of a job."""
    since = record.start if record.since is UNSET else record.since
    times = record.start, since, record.done, record.overhead, record.speed
    if not all(-inf < time < inf for time in times) or not record.start <= since <= state.now:
        raise ValueError(f"job {job.job.id}: times {times} are not finite or in the future")
    if not 0 < record.pace < inf:
        raise ValueError(f"job {job.job.id}: pace must be above 0")
    ended = record.attempt - (record.stream is not None)
    counts = record.attempt >= 1 and 0 <= record.taken_back <= ended
    if not (counts and 0 <= record.width <= MAX_QUOTA and record.overhead >= 0):
        raise ValueError(f"job {job.job.id}: width, attempt or overhead is out of bounds")
    job.stream, job.width = record.stream, record.width or job.width
    job.attempt, job.start, job.since = record.attempt, record.start, since
    job.done, job.overhead, job.speed = record.done, record.overhead, record.speed
    job.pace, job.regime, job.trial = record.pace, record.regime, record.trial
    job.begun, job.taken_back = record.begun, record.taken_back
    if record.nodes:
        _hold(job, record.nodes, state)
    for lender, gpus in record.loans:
        if lender not in state.pools or gpus < 1 or state.pools[lender] in job.loans:
            raise ValueError(
                f"job {job.job.id}: invalid or duplicate loan of {gpus} GPUs by {lender!r}"
            )
        job.loans[state.pools[lender]] = gpus
    if sum(job.loans.values()) != (job.width if job.stream is Stream.SPARE else 0):
        raise ValueError(f"job {job.job.id}: loans do not add up to its GPUs")
    if job.stream is Stream.DEDICATED:
        job.pool.dedicated += job.width
    elif job.stream is Stream.SPARE:
        job.pool.spare += job.width


def _hold(job: JobState, nodes: Nodes, state: ClusterState) -> None:
    """Restore the GPUs of a running job where nodes differ."""
    table = state.nodes
    slowdown = None if table is None else table.slowdown(job.job, (node for node, _ in nodes))
    if table is None or slowdown is None or job.stream is None:
        raise ValueError(f"job {job.job.id}: it cannot have GPUs of nodes {nodes}")
    table.restore(job.job.id, nodes)
    job.slowdown = slowdown


def _lend(state: ClusterState, record: PoolSnapshot) -> None:
    """Restore the loans and forecasts of a pool."""
    pool = state.pools[record.pool.name]
    if len(record.load) != len(state.options.windows) or min(record.load, default=0) < 0:
        raise ValueError(f"pool {pool.name}: load must have one value of at least 0 per window")
    pool.load = [*record.load]
    for job_id in record.lent_to:
        job = state.jobs.get(job_id)
        if job is None or job_id in pool.lent_to or pool not in job.loans:
            raise ValueError(f"pool {pool.name}: no loan or a duplicate loan to job {job_id}")
        pool.lent_to[job_id] = job
        pool.lent += job.loans[pool]
        pool.lent_own += job.loans[pool] if job.pool is pool else 0
    pool.unused = max(0, pool.quota - pool.dedicated) - pool.lent
