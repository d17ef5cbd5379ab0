"""The only writer of `ClusterState`: applies events, and checks and carries out proposals.

Each proposal of a policy is checked against the current state before it is carried out.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from math import inf
from typing import Any

from msgspec import convert
from msgspec.structs import replace

from sia.contract.policy import Policy
from sia.contract.proposals import (
    Dedicate,
    Lease,
    Preempt,
    Promise,
    ProposalResult,
    Reconsider,
    Record,
    Reject,
    ReleaseCells,
    ReserveCells,
    Resize,
    Solve,
    Start,
    Try,
    Wake,
)
from sia.contract.views import JobStateView
from sia.core.core_timers import CoreTimers
from sia.core.guard import GuardedPolicy, PolicyFailedError, PolicyFailure, attached
from sia.decisions import (
    Decision,
    DedicateJob,
    JobPromised,
    JobRejected,
    JobTried,
    PreemptJob,
    ResizeJob,
    RowRecorded,
    SolveProgram,
    StartJob,
)
from sia.events import (
    Event,
    ForecastUpdated,
    FutureRevealed,
    GpusOut,
    JobCancelled,
    JobFinished,
    JobPreempted,
    JobProgressed,
    JobSubmitted,
    LendingSwitched,
    NodeBack,
    NodeOut,
    PolicyTuned,
    PoolChanged,
    PriorityChanged,
    ProgramSolved,
    RunTimesUpdated,
    TimePassed,
)
from sia.limits import MAX_GROUP, MAX_QUOTA
from sia.model import NEVER_STOPPED, RESTART, Job, Nodes, Stream
from sia.state.bounds import check_job, check_priority, check_sharing
from sia.state.loans import LoanCounts
from sia.state.nodes import NodeCounts
from sia.state.places import Places
from sia.state.state import ClusterState, JobState, PoolState
from sia.wording import HOUR


class RefusedError(Exception):
    """A proposal that cannot be carried out. Nothing was changed.

    `job_id` is empty for a proposal that is about no job.
    """

    def __init__(self, job_id: str, why: str, *, impossible: bool = False) -> None:
        """Create the error for a job, with the reason.

        `impossible` is true for a proposal that is wrong in any state.
        """
        super().__init__(f"job {job_id}: {why}")
        self.job_id = job_id
        self.why = why
        self.impossible = impossible


def _check_width(job: Job, width: int) -> None:
    whole = type(width) is int
    if not (whole and (job.min_width or 1) <= width <= (job.max_width or job.width)):
        raise RefusedError(job.id, f"cannot run on {width} GPUs", impossible=True)


def _width_of(job: JobState, wanted: int) -> int:
    """Return the requested width, or raise `RefusedError` if the job cannot have it."""
    if wanted != job.width:
        _check_width(job.job, wanted)
    return wanted


def _too_wide(job: JobState, width: int) -> RefusedError:
    """Return why a start on `width` GPUs is refused: too few are idle, or left in the quota."""
    pool = job.pool
    if width > pool.idle:
        never = width > pool.group.quota
        return RefusedError(job.job.id, f"needs {width} GPUs, {pool.idle} idle", impossible=never)
    return RefusedError(job.job.id, f"{pool.name} would exceed its quota")


def _check_lease(job: JobState, until: float, now: float) -> None:
    if not now < until < inf:
        raise RefusedError(job.job.id, f"a lease cannot end at {until}", impossible=True)


class Committer:
    """Applies events and proposals to one state, and reports every queue change to the policy.

    Attributes:
        accounts: The GPUs and loans of the jobs.
        timers: When the core has to be called without an event.
        cells_freed: Whether cells were freed since jobs that wait for cells were last considered.
        stops: Times of the stops and resizes within the last hour, if their number is limited.
        requests: The number of programs that the policy has asked to solve.
        open_request: Whether the latest of them has no answer yet.
        policy: The policy that gets the changes. An event may replace it by one with other options.
        told: The receiver of changes: the policy, wrapped in a guard if the core is tolerant.
        tolerant: Whether exceptions of the policy are recorded, as in a daemon, or raised.
        failure: The policy's first exception since the last recovery, if the core is tolerant.
        again: Pools that count as changed in the next pass as well.
        carry_out: By type of proposal, the method that carries it out and returns its result.
    """

    def __init__(self, state: ClusterState, policy: Policy) -> None:
        """Create the writer of `state` for `policy`."""
        self._state = state
        self.tolerant = False
        self.serve(policy)
        self.accounts = LoanCounts()
        self.timers = CoreTimers()
        self.cells_freed = False
        self.stops: deque[float] = deque()
        self.requests = 0
        self.open_request = False
        self.failure: PolicyFailure | None = None
        self.again: dict[PoolState, None] = {}
        self._taken_back: list[PreemptJob] = []  # of starts on nodes that are out
        self.carry_out: dict[type, Callable[[Any, float, list[Decision]], ProposalResult]] = {
            Start: self._start,
            Preempt: self._preempt,
            Resize: self._resize,
            Dedicate: self._dedicate,
            Lease: self._lease,
            ReserveCells: self._reserve_cells,
            ReleaseCells: self._release_cells,
            Solve: self._solve,
            Promise: self._promise,
            Record: self._record,
            Try: self._try,
            Reject: self._reject,
            Reconsider: self._reconsider_pool,
            Wake: self._wake,
        }
        self._handlers: dict[type, Callable[[Any], None]] = {
            JobSubmitted: self._submitted,
            JobFinished: self._finished,
            JobPreempted: self._preempted,
            JobProgressed: self._progressed,
            JobCancelled: self._cancelled,
            PolicyTuned: self._policy_tuned,
            PoolChanged: self._pool_changed,
            LendingSwitched: self._lending_switched,
            GpusOut: self._gpus_out,
            NodeOut: self._node_out,
            NodeBack: self._node_back,
            ForecastUpdated: self._forecast_updated,
            FutureRevealed: self._future_revealed,
            RunTimesUpdated: self._run_times_updated,
            PriorityChanged: self._priority_changed,
            ProgramSolved: self._program_solved,
            TimePassed: self._time_passed,
        }

    def serve(self, policy: Policy) -> None:
        """Report to this policy from now on, instead of the present one."""
        self.policy = policy
        self.told = GuardedPolicy(policy, self._policy_failed) if self.tolerant else policy

    def tolerate(self) -> None:
        """From now on record the first exception of the policy instead of raising it."""
        self.tolerant = True
        self.serve(self.policy)

    def _policy_failed(self, failure: PolicyFailure) -> None:
        self.failure = self.failure or failure

    def _policy_tuned(self, event: PolicyTuned) -> None:
        """Replace the policy by one with other options; mark all pools as changed. O(n).

        Raises ValueError for a policy that is not tunable, or options that it does not have.
        """
        old = self.policy
        if not old.tunable:
            raise ValueError(f"policy {type(old).__name__} cannot change its options")
        policy = type(old)(convert(event.params, old.Params))
        try:
            attached(policy, self._state)
        except PolicyFailedError as error:
            if not self.tolerant:
                raise
            self._policy_failed(error.failure)
        self.serve(policy)
        self._state.dirty.update(dict.fromkeys(self._state.pools.values()))

    def apply(self, events: Iterable[Event], decisions: list[Decision]) -> None:
        """Apply events in order; append loans that move and starts taken back to `decisions`.

        Raises ValueError for an event that cannot have happened: an unknown pool or job, an id in
        use, or a width, quota or run time out of bounds. Events before it are then applied, it and
        later ones are not.
        """
        handlers = self._handlers
        try:
            for event in events:
                handlers[type(event)](event)
        finally:
            if self._taken_back:
                decisions += self._taken_back
                self._taken_back.clear()
        if self.accounts.overdrawn:
            self.accounts.settle(decisions)
        if self.cells_freed:
            self.cells_freed = False
            if self._state.awaiting_cells:
                self._reconsider()

    def expire(self, now: float) -> list[JobState]:
        """Take away the leases that are over; return their jobs. O(log n) for each."""
        jobs = [self._state.jobs[job_id] for job_id in self.timers.expired(now)]
        for job in jobs:
            job.lease = None
        return jobs

    def _known(self, job: JobStateView) -> JobState:
        """Return the state behind a view, or raise `RefusedError` if the job has left."""
        known = self._state.jobs.get(job.job.id)
        if known is not job:
            raise RefusedError(job.job.id, "it is no longer in the cluster")
        return known

    def _start(self, proposal: Start, now: float, decisions: list[Decision]) -> ProposalResult:
        """Start the proposed job, or raise `RefusedError` with the state unchanged.

        The result is `NO_CELLS` or `OVER_LIMIT`, without a change or decision, if no cells are
        available for the job now, if it would exceed a borrow limit, or if it would leave too few
        idle GPUs for nodes that are out.

        O(1) plus the placement, O(log pools) for each lender whose loans change, and O(log
        preempted) for a job that was preempted.
        """
        view, stream, wanted, until = proposal.job, proposal.stream, proposal.width, proposal.until
        state = self._state
        job = state.jobs.get(view.job.id)
        if job is None or job is not view or job.stream is not None:
            raise RefusedError(view.job.id, "not pending")
        pool = job.pool
        width = _width_of(job, wanted) if wanted else job.width
        own = stream is Stream.DEDICATED
        if width > pool.group.idle or (own and pool.dedicated + width > pool.quota):
            raise _too_wide(job, width)
        if until is not None:
            _check_lease(job, until, now)
        if not own and width > pool.room:
            return ProposalResult.OVER_LIMIT
        nodes: Nodes | None = ()
        if state.nodes is not None:
            nodes = self._take_nodes(job, width, proposal.nodes)
        elif state.places is not None or proposal.inside:
            nodes = self._take_cells(job, width, proposal)
        if nodes is None:
            return ProposalResult.NO_CELLS
        self._leave_queue(job)
        loans = self.accounts.take(job, width, stream, decisions)
        decisions.append(StartJob(job.job.id, stream, proposal.reason, loans, wanted, nodes))
        if job.attempt or wanted or job.slowdown != 1.0:
            self._begin(job, now)
        else:
            job.attempt, job.start, job.since = 1, now, now
        if until is not None:
            self.timers.lease(job, until)
        self.told.left(job)
        return ProposalResult.DONE

    def _try(self, proposal: Try, now: float, decisions: list[Decision]) -> ProposalResult:
        """Start a trial, or raise `RefusedError` with the state unchanged; see `_start`."""
        job, gpus = self._known(proposal.job), proposal.gpus
        if job.stream is not None:
            raise RefusedError(job.job.id, "not pending")
        if self._state.places is not None:
            raise RefusedError(job.job.id, "there are no trials in cells", impossible=True)
        if not 0 < gpus <= job.pool.idle:
            raise RefusedError(job.job.id, f"needs {gpus} GPUs, {job.pool.idle} idle")
        _check_lease(job, proposal.until, now)
        own = job.pool.dedicated + gpus <= job.pool.quota
        if not own and gpus > job.pool.room:
            return ProposalResult.OVER_LIMIT
        stream = Stream.DEDICATED if own else Stream.SPARE
        differ = self._state.nodes is not None
        nodes = self._take_nodes(job, gpus, proposal.nodes) if differ else ()
        self._leave_queue(job)
        loans = self.accounts.take(job, gpus, stream, decisions)
        width = 0 if gpus == job.job.width else gpus
        decisions.append(JobTried(job.job.id, *proposal.spread))
        decisions.append(StartJob(job.job.id, stream, proposal.reason, loans, width, nodes))
        self._begin(job, now)
        job.speed, job.trial = 1.0, True
        self.timers.lease(job, proposal.until)
        self.told.left(job)
        return ProposalResult.DONE

    def _record(self, proposal: Record, _now: float, decisions: list[Decision]) -> ProposalResult:
        decisions.append(RowRecorded(proposal.table, proposal.row))
        return ProposalResult.DONE

    def _take_cells(self, job: JobState, width: int, proposal: Start) -> Nodes | None:
        """Take cells for a job, or return None if there are none now."""
        places, stream, inside = self._state.places, proposal.stream, proposal.inside
        if inside and not (
            places and places.is_reserved(inside) and inside not in self._state.jobs
        ):
            raise RefusedError(job.job.id, f"no cells are reserved for an ended job {inside}")
        assert places is not None
        place = places.take(job.job.id, job.pool.name, width, stream, proposal.holds, inside)
        if place is None:
            self._await_cells(job, stream)
        return place

    def _take_nodes(self, job: JobState, width: int, wanted: NodeCounts) -> Nodes:
        """Take GPUs of nodes for a job, or raise `RefusedError` with nothing changed.

        A policy that names none gets those that are closest together.
        """
        table = self._state.nodes
        assert table is not None
        wanted = wanted or table.closest(job.job, width)
        if why := table.why_not(job.job, width, wanted):
            raise RefusedError(job.job.id, why)
        slowdown = table.slowdown(job.job, dict(wanted))
        if slowdown is None:
            raise RefusedError(job.job.id, f"cannot run on nodes {wanted}", impossible=True)
        job.slowdown = slowdown
        return table.take(job.job.id, wanted)

    def _await_cells(self, job: JobStateView, stream: Stream) -> None:
        """Reconsider the pool when cells are freed, unless only its own jobs block the start.

        Pools of all sharing groups use the cells of a chain, so a job of another group may free
        them.
        """
        state = self._state
        if stream is Stream.SPARE:
            lacks = len(state.groups) > 1
        else:
            lacks = state.places is not None and state.places.in_quota(job.pool.name, job.width)
        if lacks:
            state.awaiting_cells[state.pools[job.pool.name]] = None

    def _reconsider(self) -> None:
        """Mark the pools that wait for cells as changed."""
        self._state.dirty.update(self._state.awaiting_cells)
        self._state.awaiting_cells.clear()

    def _reserve_cells(
        self, proposal: ReserveCells, _now: float, _decisions: list[Decision]
    ) -> ProposalResult:
        """Reserve cells for a job, or raise `RefusedError` with nothing changed.

        Costs as much as a placement. There is no decision, because no job starts or stops. The
        result is `NO_CELLS` if the pool has none now.
        """
        job, places = proposal.job, self._state.places  # the job may have ended in spare cells
        if places is None or places.is_reserved(job.job.id):
            raise RefusedError(job.job.id, "cells already reserved", impossible=places is None)
        if job.stream is Stream.DEDICATED and self._state.jobs.get(job.job.id) is job:
            places.keep(job.job.id)
            return ProposalResult.DONE
        if proposal.around:
            if job.stream is not Stream.SPARE or self._state.jobs.get(job.job.id) is not job:
                raise RefusedError(job.job.id, "it does not run as a spare job")
            done = places.reserve_around(job.job.id, job.pool.name, job.job.width)
            return ProposalResult.DONE if done else ProposalResult.NO_CELLS
        places.reserve(job.job.id, job.pool.name, job.job.width, proposal.price)
        if places.is_reserved(job.job.id):
            return ProposalResult.DONE
        self._await_cells(job, Stream.DEDICATED)
        return ProposalResult.NO_CELLS

    def _release_cells(
        self, proposal: ReleaseCells, _now: float, _decisions: list[Decision]
    ) -> ProposalResult:
        """Release a job's cells, or raise `RefusedError` with nothing changed."""
        job_id, places = proposal.job.job.id, self._state.places
        if places is None or not places.is_reserved(job_id):
            raise RefusedError(job_id, "no cells reserved", impossible=places is None)
        running = self._state.jobs.get(job_id)
        if running is not None and running.stream is Stream.DEDICATED:
            raise RefusedError(job_id, "it runs in the cells reserved for it", impossible=True)
        places.release(job_id)
        self._reconsider()
        self._state.dirty[self._state.pools[proposal.job.pool.name]] = None
        return ProposalResult.DONE

    def _preempt(self, proposal: Preempt, now: float, decisions: list[Decision]) -> ProposalResult:
        """Stop the proposed job and queue it, or raise `RefusedError` with the state unchanged.

        The result is `OVER_LIMIT`, without a change or decision, if there were too many stops
        within an hour. The end of a trial counts as no stop, because the trial was to end then.
        O(log preempted), plus O(log pools) for each of its lenders.
        """
        job = self._stoppable(proposal.job)
        if not job.trial and not self._may_stop(now):
            return ProposalResult.OVER_LIMIT
        killed = proposal.kill and job.job.preemptible is None
        lost = killed or job.trial or job.job.preemptible == RESTART
        job.done = 0.0 if lost else job.work(now)
        if not job.trial:
            self._count_stop(now)
        job.trial = False
        self._take_back(job)
        self._to_queue(job)
        decisions.append(PreemptJob(job.job.id, proposal.reason, killed))
        self.told.submitted(job)
        self.accounts.settle(decisions)
        return ProposalResult.DONE

    def _resize(self, proposal: Resize, now: float, decisions: list[Decision]) -> ProposalResult:
        """Change the width of the proposed job, or raise `RefusedError` with the state unchanged.

        The result is `OVER_LIMIT`, without a change or decision, if the job would exceed a borrow
        limit, or if there were too many stops within an hour. The complexity is that of a start.
        """
        width, stream = proposal.width, proposal.stream
        job = self._stoppable(proposal.job)
        pool = job.pool
        if self._state.places is not None or self._state.nodes is not None:
            where = "cells" if self._state.nodes is None else "nodes that differ"
            raise RefusedError(
                job.job.id, f"cannot be resized in a cluster with {where}", impossible=True
            )
        _check_width(job.job, width)
        if not self._may_stop(now):
            return ProposalResult.OVER_LIMIT
        restarts = job.job.preemptible == RESTART
        if stream is job.stream and width <= job.width:
            job.done = 0.0 if restarts else job.work(now)
            loans = self.accounts.shrink(job, width)
        else:
            there = pool.idle + job.frees
            if width > there:
                raise RefusedError(job.job.id, f"needs {width} GPUs, {there} would be idle")
            own = job.width if job.stream is Stream.DEDICATED else 0
            if stream is Stream.DEDICATED:
                if pool.dedicated - own + width > pool.quota:
                    raise RefusedError(job.job.id, f"{pool.name} would exceed its quota")
            elif width > self.accounts.room_for(job):
                return ProposalResult.OVER_LIMIT
            job.done = 0.0 if restarts else job.work(now)
            self.accounts.give_back(job)
            loans = self.accounts.take(job, width, stream, decisions)
        self._count_stop(now)
        decisions.append(ResizeJob(job.job.id, width, stream, proposal.reason, loans))
        self._begin(job, now)
        self.told.resized(job)
        self.accounts.settle(decisions)
        return ProposalResult.DONE

    def _dedicate(
        self, proposal: Dedicate, _now: float, decisions: list[Decision]
    ) -> ProposalResult:
        """Count a running spare job within its pool's quota, or raise `RefusedError`.

        O(log pools) for each of its lenders, and for each loan that moves.
        """
        job = self._known(proposal.job)
        pool, width = job.pool, job.width
        if job.stream is not Stream.SPARE:
            raise RefusedError(job.job.id, "it does not run as a spare job")
        if self._state.places is not None:
            raise RefusedError(job.job.id, "cannot change its cells while it runs", impossible=True)
        if pool.dedicated + width > pool.quota:
            raise RefusedError(job.job.id, f"{pool.name} would exceed its quota")
        if pool.idle < 0:
            raise RefusedError(job.job.id, f"the group has lent {-pool.idle} GPUs that it lost")
        self.accounts.give_back(job)
        self.accounts.take(job, width, Stream.DEDICATED, decisions)
        decisions.append(DedicateJob(job.job.id, proposal.reason))
        self.accounts.settle(decisions)
        return ProposalResult.DONE

    def _may_stop(self, now: float) -> bool:
        """Return whether one more job may be stopped within this hour. O(1) amortized."""
        most, stops = self._state.options.stops_per_hour, self.stops
        while stops and stops[0] <= now - HOUR:
            stops.popleft()
        return not most or len(stops) < most

    def _count_stop(self, now: float) -> None:
        if self._state.options.stops_per_hour:
            self.stops.append(now)

    def _lease(self, proposal: Lease, now: float, _decisions: list[Decision]) -> ProposalResult:
        """Set or remove the end of a running job's lease. O(log n)."""
        job, until = self._known(proposal.job), proposal.until
        if job.stream is None:
            raise RefusedError(job.job.id, "it does not run")
        if until is not None:
            _check_lease(job, until, now)
        self.timers.lease(job, until)
        return ProposalResult.DONE

    def _solve(self, proposal: Solve, _now: float, decisions: list[Decision]) -> ProposalResult:
        """Order a program to be solved; it replaces the open request. O(program)."""
        try:
            proposal.program.check()
            proposal.limit.check()
            assert len(proposal.start) in (0, len(proposal.program.costs)), "start: another length"
        except (AssertionError, IndexError, TypeError, ValueError) as error:
            raise RefusedError("", f"not a program: {error!r}", impossible=True) from None
        self.requests += 1
        self.open_request = True
        decisions.append(
            SolveProgram(self.requests, proposal.program, proposal.limit, proposal.start)
        )
        return ProposalResult.DONE

    def _promise(self, proposal: Promise, _now: float, decisions: list[Decision]) -> ProposalResult:
        job = self._known(proposal.job)
        if not 0 <= proposal.step < len(job.job.steps):
            why = f"its deadline has no step {proposal.step}"
            raise RefusedError(job.job.id, why, impossible=True)
        decisions.append(JobPromised(job.job.id, proposal.step, proposal.planned, proposal.why))
        return ProposalResult.DONE

    def _reject(self, proposal: Reject, _now: float, decisions: list[Decision]) -> ProposalResult:
        job = self._known(proposal.job)
        decisions.append(JobRejected(job.job.id, proposal.why, proposal.soonest))
        return ProposalResult.DONE

    def _reconsider_pool(
        self, proposal: Reconsider, _now: float, _decisions: list[Decision]
    ) -> ProposalResult:
        self.again[self._state.pools[proposal.pool.name]] = None
        return ProposalResult.DONE

    def _wake(self, proposal: Wake, now: float, _decisions: list[Decision]) -> ProposalResult:
        if not now < proposal.time < inf:
            raise RefusedError("", f"cannot wake at {proposal.time}", impossible=True)
        self.timers.wish = proposal.time
        return ProposalResult.DONE

    def _stoppable(self, view: JobStateView) -> JobState:
        """Return the state of a job that runs and may be stopped, or raise `RefusedError`."""
        job = self._state.jobs.get(view.job.id)
        if job is None or job is not view or job.stream is None:
            raise RefusedError(view.job.id, "it does not run")
        if job.job.preemptible == NEVER_STOPPED:
            raise RefusedError(job.job.id, "must not be stopped", impossible=True)
        return job

    def _begin(self, job: JobState, now: float) -> None:
        """Start a segment on the GPUs that the job now has."""
        job.start = job.since = now
        job.overhead = job.pause(self._state.options.resume_cost)
        job.attempt += 1
        if job.width != job.job.width or job.slowdown != 1.0:
            job.speed = job.job.speed(job.width) * job.pace / job.slowdown
        elif job.speed != job.pace:
            job.speed = job.pace

    def _submitted(self, event: JobSubmitted) -> None:
        state = self._state
        job = event.job
        pool = state.pools.get(job.pool)
        if pool is None:
            raise ValueError(f"job {job.id}: no pool {job.pool!r}")
        if job.id in state.jobs:
            raise ValueError(f"job {job.id} already exists")
        check_job(job, event.run_time)
        if event.done and not 0 < event.done < inf:
            raise ValueError(f"job {job.id}: the work done must be finite and at least 0")
        waiting = JobState(job, pool, event.run_time, state.arrivals + 1)
        if event.done:
            waiting.done, waiting.attempt = event.done, 1
        if state.places is not None:
            waiting.gpus = state.places.gpus(pool.name, job.width)
        self.told.submitted(waiting)  # first, because the policy may raise
        state.arrivals += 1
        state.jobs[job.id] = waiting
        later = job.priority or waiting.attempt
        (pool.out_of_order if later else pool.pending)[waiting.sequence] = waiting
        pool.pending_width += waiting.gpus
        state.waiting += 1
        state.dirty[pool] = None

    def _finished(self, event: JobFinished) -> None:
        """Remove a job that ended; one that was being stopped may still have ended by itself."""
        state = self._state
        job = state.jobs.get(event.job_id)
        if job is None or (job.stream is None and not job.attempt):
            raise ValueError(f"job {event.job_id} ended but is not running")
        if job.stream is None:
            self._withdraw(job)
            return
        del state.jobs[event.job_id]
        self._take_back(job)
        state.dirty[job.pool] = None
        self.told.finished(job)

    def _cancelled(self, event: JobCancelled) -> None:
        job = self._state.jobs.get(event.job_id)
        if job is None or job.stream is not None:
            raise ValueError(f"job {event.job_id} was cancelled but is not pending")
        self._withdraw(job)

    def _withdraw(self, job: JobState) -> None:
        """Remove a pending job."""
        del self._state.jobs[job.job.id]
        self._leave_queue(job)
        self.told.left(job)
        self._state.dirty[job.pool] = None

    def _preempted(self, event: JobPreempted) -> None:
        """Correct the work that a stopped job keeps: it still ran after the decision to stop it."""
        job = self._state.jobs.get(event.job_id)
        if job is None or not job.attempt or not 0 <= event.done < inf:
            raise ValueError(f"job {event.job_id} was stopped but had not been started")
        with self._changing(job):
            job.done = event.done
            if job.stream is not None:  # it was started again: the attempt can only begin now
                job.since = event.time
            elif event.last:
                job.job = replace(job.job, preemptible=NEVER_STOPPED)
        self._state.dirty[job.pool] = None

    def _progressed(self, event: JobProgressed) -> None:
        job = self._state.jobs.get(event.job_id)
        if job is None or job.stream is None:
            raise ValueError(f"job {event.job_id} reported progress but is not running")
        run_time = job.run_time if event.run_time is None else event.run_time
        if not (0 <= event.done < inf and 0 < event.speed < inf and 0 <= run_time < inf):
            raise ValueError(f"job {event.job_id}: progress must be finite and its speed above 0")
        if not 0 <= event.overhead < inf:
            raise ValueError(f"job {event.job_id}: the overhead must be finite and at least 0")
        least, most = event.widths or (job.job.min_width, job.job.max_width)
        if event.widths is not None and not 1 <= least <= job.job.width <= most <= MAX_QUOTA:
            raise ValueError(f"job {event.job_id}: widths must be from 1 to {MAX_QUOTA} and ascend")
        with self._changing(job):
            if event.widths is not None:
                job.job = replace(job.job, min_width=least, max_width=most)
            job.done, job.since, job.overhead = event.done, event.time, event.overhead
            job.speed, job.run_time = event.speed, run_time
            job.pace = event.speed * job.slowdown / job.job.speed(job.width)
            if event.regime is not None:
                job.regime = event.regime
                # A job that lost work is in this regime with less done than when it began before.
                earlier = [min(mark, event.done) for mark in job.begun[: event.regime]]
                job.begun = (*earlier, *[event.done] * (event.regime - len(earlier)))
        self._state.dirty[job.pool] = None

    @contextmanager
    def _changing(self, job: JobState) -> Iterator[None]:
        """Remove a job from the policy's index while the values that order it change."""
        told = self.told
        if job.stream is None:
            told.left(job)
            yield
            told.submitted(job)
        else:
            told.before_progress(job)
            yield
            told.progressed(job)

    def _pool_changed(self, event: PoolChanged) -> None:
        pool = self._state.pools.get(event.pool)
        if pool is None:
            raise ValueError(f"no pool {event.pool!r}")
        if not 0 <= event.quota <= MAX_QUOTA:
            raise ValueError(f"pool {event.pool}: quota must be 0 to {MAX_QUOTA}")
        lend = pool.lend_limit if event.lend_limit is None else event.lend_limit
        borrow = pool.borrow_limit if event.borrow_limit is None else event.borrow_limit
        weight = pool.weight if event.weight is None else event.weight
        check_sharing(event.pool, lend, borrow, weight)
        owned = pool.group.quota + event.quota - pool.quota
        if owned > MAX_GROUP:
            raise ValueError(f"pool {event.pool}: a sharing group may own at most {MAX_GROUP} GPUs")
        if self._state.places is not None:
            self._state.places.set_quota(pool.name, event.quota, event.cells)
            self.cells_freed = True
        pool.weight = weight
        self.accounts.requota(pool, event.quota)
        if (lend, borrow) != (pool.lend_limit, pool.borrow_limit):
            pool.lend_limit, pool.borrow_limit = lend, borrow
            self.accounts.relimit(pool.group)
        self._state.dirty[pool] = None

    def _lending_switched(self, event: LendingSwitched) -> None:
        for group in self._state.groups:
            group.lending = event.on
            self.accounts.relimit(group)
        self._state.dirty.update(dict.fromkeys(self._state.pools.values()))

    def _gpus_out(self, event: GpusOut) -> None:
        pool = self._state.pools.get(event.pool)
        if pool is None:
            raise ValueError(f"no pool {event.pool!r}")
        if self._state.places is not None or not 0 <= event.gpus <= MAX_GROUP:
            raise ValueError(
                f"pool {event.pool}: GPUs out must be 0 to {MAX_GROUP}, in a cluster without cells"
            )
        pool.group.out = event.gpus
        self.accounts.relimit(pool.group)
        self._state.dirty[pool] = None

    def _node_out(self, event: NodeOut) -> None:
        if self._state.nodes is None:
            self._places().take_out(event.node, event.why)
            return
        jobs = [self._planned(job_id, event.node) for job_id in dict.fromkeys(event.waiting)]
        self._state.nodes.take_out(event.node)
        for job in jobs:
            self._take_back(job)
            job.start = job.since = self._state.now
            self._to_queue(job)
            why = f"node {event.node} is out, and its GPUs were not free yet"
            self._taken_back.append(PreemptJob(job.job.id, why))
            self.told.submitted(job)  # it finds the job where it was while this counted as a run
            job.taken_back += 1
        self._state.dirty.update(dict.fromkeys(self._state.pools.values()))  # starts were planned

    def _planned(self, job_id: str, node: str) -> JobState:
        """Return a job whose start can be taken back. Raises ValueError if it has no GPUs."""
        job = self._state.jobs.get(job_id)
        if job is None or job.stream is None:
            raise ValueError(f"job {job_id} waits for node {node} but was not started")
        return job

    def _node_back(self, event: NodeBack) -> None:
        if self._state.nodes is None:
            self._places().bring_back(event.node)
        else:
            self._state.nodes.bring_back(event.node)
        # Any pending job may fit on the node.
        self._state.dirty.update(dict.fromkeys(self._state.pools.values()))

    def _places(self) -> Places:
        places = self._state.places
        if places is None:
            raise ValueError("a cluster without cells and nodes that differ has no nodes")
        return places

    def _forecast_updated(self, event: ForecastUpdated) -> None:
        pools, windows = self._state.pools, range(len(self._state.options.windows))
        for load in event.loads:
            if load.pool not in pools or load.window not in windows or load.gpus < 0:
                raise ValueError(f"invalid forecast {load}")
        for name, window, gpus in event.loads:
            pool = pools[name]
            pool.load[window] = gpus
            self._state.dirty[pool] = None

    def _future_revealed(self, event: FutureRevealed) -> None:
        self.told.revealed(event.jobs)

    def _run_times_updated(self, event: RunTimesUpdated) -> None:
        if not self.policy.needs.updates:
            raise ValueError("the policy does not accept updated estimates")
        jobs = self._state.jobs
        for job_id, run_time in event.estimates:
            job = jobs.get(job_id)
            if job is None or job.stream is not None or not 0 <= run_time < inf:
                raise ValueError(f"job {job_id}: no waiting job can get the estimate {run_time}")
        for job_id, run_time in event.estimates:
            job = jobs[job_id]
            self.told.left(job)
            job.run_time = run_time
            self.told.submitted(job)
            self._state.dirty[job.pool] = None

    def _priority_changed(self, event: PriorityChanged) -> None:
        job = self._state.jobs.get(event.job_id)
        if job is None or job.stream is not None:
            raise ValueError(f"job {event.job_id} got a priority but is not pending")
        check_priority(event.job_id, event.priority)
        self._leave_queue(job)
        self.told.left(job)
        job.rank(event.priority)
        self.told.submitted(job)
        self._requeue(job)
        self._state.dirty[job.pool] = None

    def _program_solved(self, event: ProgramSolved) -> None:
        """Pass the answer on, unless it is to an older request."""
        if self.open_request and event.request == self.requests:
            self.open_request = False
            self.told.solved(event)

    def _time_passed(self, event: TimePassed) -> None:
        """Do nothing: the event exists only to cause a decision pass."""

    def _take_back(self, job: JobState) -> None:
        """Release a job's GPUs and cells, and end its lease."""
        state = self._state
        if job.lease is not None:
            self.timers.lease(job, None)
        if state.places is not None:
            state.places.free(job.job.id)
            self.cells_freed = True
        if state.nodes is not None:
            state.nodes.give_back(job.job.id)
        self.accounts.give_back(job)

    def _leave_queue(self, job: JobState) -> None:
        pool = job.pool
        if pool.pending.pop(job.sequence, None) is None:
            del pool.out_of_order[job.sequence]
        pool.pending_width -= job.gpus
        self._state.waiting -= 1

    def _to_queue(self, job: JobState) -> None:
        """Return a job that has no GPUs any more to its queue."""
        job.stream = None
        job.width = job.job.width
        job.speed = job.slowdown = 1.0
        self._requeue(job)

    def _requeue(self, job: JobState) -> None:
        """Queue a job at its place in the order of arrival and priority."""
        job.pool.out_of_order[job.sequence] = job
        job.pool.pending_width += job.gpus
        self._state.waiting += 1

    def check(self) -> None:
        """Assert that loans are consistent. O(pools)."""
        self.accounts.check(self._state.groups)
        self.timers.check(self._state.jobs)
