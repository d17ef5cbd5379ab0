"""The decision core: `Core.step` takes the events of one instant and returns the decisions."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from contextlib import suppress
from copy import deepcopy
from math import inf
from typing import Any

from cells.cells import Cells
from sia.contract.policy import Changes, Policy, next_multiple
from sia.contract.proposals import ProposalResult
from sia.contract.views import JobStateView
from sia.core.commit import Committer, RefusedError
from sia.core.guard import PolicyFailure, attached, told
from sia.decisions import Decision, ProposalRefused, WakeAt
from sia.events import RANK, Event
from sia.limits import MAX_REFUSED
from sia.model import GpuNode, Options, Pool
from sia.state.speeds import SpeedRow
from sia.state.state import ClusterState, PoolState


class Core:
    """One cluster under one policy. The drivers (replay, daemon) call only `step`.

    Attributes:
        state: The pools, groups and jobs.
        policy: The policy, which makes proposals.
        committer: The only writer of the state.
        wake: When `step` must be called even without an event (seconds), or infinity if never.
    """

    def __init__(
        self,
        pools: Iterable[Pool],
        policy: Policy,
        options: Options | None = None,
        cells: Cells | None = None,
        nodes: Sequence[GpuNode] = (),
        speeds: Sequence[SpeedRow] = (),
    ) -> None:
        """Build a cluster without jobs, with `cells`, or `nodes` that differ, if given.

        `speeds` has the speeds of models by number of nodes.

        Raises ValueError as `ClusterState` does, and for cells or nodes with a policy that does not
        support them; PolicyFailedError, which is one, if the policy raises when it is attached.
        """
        if nodes and (cells is not None or not policy.on_nodes):
            name = type(policy).__name__
            raise ValueError(f"policy {name} does not support nodes that differ, or not in cells")
        if cells is not None and not policy.places:
            raise ValueError(f"policy {type(policy).__name__} does not support cells")
        if cells is not None:
            policy = policy.for_cells()
        self.state = ClusterState(pools, options or Options(), cells, nodes, speeds)
        self.policy = policy
        attached(policy, self.state)
        self.state.dirty.update(dict.fromkeys(self.state.pools.values()))
        self._changes = Changes(self.state.dirty)  # the argument of each pass
        self.committer = Committer(self.state, policy)
        self.wake = inf  # of the latest `WakeAt`, until its time has come
        self._round = policy.round

    def step(self, now: float, events: Sequence[Event]) -> list[Decision]:
        """Apply all events of this instant, then make one decision pass.

        Args:
            now: The time in seconds. It must not be before the time of the last step.
            events: The events, in any order; they are applied in the order of `events.RANK`.

        Raises ValueError if time runs backwards, with nothing changed, or for an event that cannot
        have happened; see `Committer.apply`.
        """
        state, committer = self.state, self.committer
        if not now >= state.now:
            raise ValueError(f"time runs backwards: {now} after {state.now}")
        state.now = now
        decisions: list[Decision] = []
        if len(events) > 1:
            events = sorted(events, key=lambda event: RANK[type(event)])
        committer.apply(events, decisions)
        self.policy = committer.policy  # its options may have changed
        if committer.failure is not None:
            self._restart_policy(committer.failure, (), decisions)
        changes = self._changes
        if now >= self.wake or changes.round or changes.expired:
            self._heed_timers(now, changes)
        failure = self._pass(changes, now, decisions) or committer.failure
        if failure is not None:
            self._restart_policy(failure, changes.expired, decisions)
        state.dirty.clear()
        if committer.again:
            state.dirty.update(committer.again)
            committer.again.clear()
        timers = committer.timers
        if self._round is not None:
            timers.round = next_multiple(now, self._round) if state.jobs else inf
        due = timers.next
        if due != self.wake:  # else the latest order stands
            self.wake = due
            if due < inf:
                decisions.append(WakeAt(due))
        return decisions

    def tolerate(self) -> None:
        """Continue if the policy raises, as in a daemon. Otherwise `step` raises its exception."""
        self.committer.tolerate()

    def _heed_timers(self, now: float, changes: Changes) -> None:
        """Clear the timers that are due, and add expired leases and the round to `changes`.

        Leases and rounds that the last pass already got are removed from `changes`.
        """
        timers = self.committer.timers
        if now >= timers.wish:
            timers.wish = inf  # the policy may ask for another time
        if now >= timers.retry:
            timers.retry = inf
        changes.round = now >= timers.round
        changes.expired = self.committer.expire(now)
        if now >= self.wake:
            self.wake = inf

    def _pass(
        self, changes: Changes, now: float, decisions: list[Decision]
    ) -> PolicyFailure | None:
        """Carry out proposals until the policy has no more or repeats what was refused.

        Returns the policy's exception, if it raised one.
        """
        carry_out = self.committer.carry_out
        refused: dict[tuple[type, str], int] | None = None
        result: Any = None
        try:
            proposals = self.policy.propose(now, changes)
            send = proposals.send
        except Exception as error:  # noqa: BLE001  whatever a policy does
            return PolicyFailure("propose", error)
        while True:
            try:
                proposal = send(result)
                carry = carry_out[type(proposal)]
            except StopIteration:
                return None
            except Exception as error:  # noqa: BLE001  whatever a policy does
                return PolicyFailure("propose", error)
            try:
                result = carry(proposal, now, decisions)
            except RefusedError as error:
                result = ProposalResult.REFUSED
                self._refuse(error, now, decisions)
                kind = type(proposal), error.job_id
                refused = refused or {}
                refused[kind] = refused.get(kind, 0) + 1
                if refused[kind] > MAX_REFUSED:
                    proposals.close()  # the policy ignores the result
                    return None

    def _restart_policy(
        self, failure: PolicyFailure, expired: Sequence[JobStateView], decisions: list[Decision]
    ) -> None:
        """Replace a policy that raised by a new one, and end the pass.

        The core makes the pass again at the next event or tick. The new policy is in the state that
        a snapshot would restore, so that a driver that is restarted decides the same as one that is
        not. Raises the policy's exception if the core is not tolerant.
        """
        state, timers, failed = self.state, self.committer.timers, self.policy
        if not self.committer.tolerant:
            raise failure.error
        self.committer.failure = None
        self._refuse(RefusedError("", told(failure), impossible=True), state.now, decisions)
        for job in expired:
            known = state.jobs[job.job.id]
            if known.stream is not None and known.lease is None:
                timers.lease(known, timers.retry)
        self.policy = self._renewed(failed)
        self.committer.serve(self.policy)

    def _renewed(self, failed: Policy) -> Policy:
        """Return a new policy with the memory of the failed one, if this memory is usable.

        Returns the failed one if a new one cannot take the state.
        """
        policy = type(failed)(failed.params)
        with suppress(Exception):  # the failure may have spoilt what it remembers
            policy.resume(self.state, failed.memory())
            return policy
        policy = type(failed)(failed.params)
        with suppress(Exception):
            policy.attach(self.state)
            return policy
        return failed

    def _refuse(self, error: RefusedError, now: float, decisions: list[Decision]) -> None:
        """Record a refusal, and have the job's pool considered again at the next tick."""
        state = self.state
        decisions.append(ProposalRefused(error.job_id, error.why, error.impossible))
        job = state.jobs.get(error.job_id)
        again: Iterable[PoolState] = state.pools.values() if job is None else [job.pool]
        self.committer.again.update(dict.fromkeys(again))
        timers = self.committer.timers
        timers.retry = min(timers.retry, next_multiple(now, state.options.tick))

    def resume_timers(self, wish: float, retry: float, late_round: float = inf) -> None:
        """Restore the timers after jobs and leases were restored. Times are in seconds.

        `wish` is when the policy asked to be called. `late_round` is when a round was due that no
        pass has begun yet.
        """
        timers = self.committer.timers
        timers.wish, timers.retry = wish, retry
        if self._round is not None and self.state.jobs:
            timers.round = min(late_round, next_multiple(self.state.now, self._round))
        self.wake = timers.next

    def copy(self) -> Core:
        """Return an independent core in the same state, for what-if questions. O(state)."""
        return deepcopy(self)

    def check(self) -> None:
        """Assert every invariant of the state, the loans and the policy's queues."""
        self.state.check()
        self.committer.check()
        self.policy.check()
