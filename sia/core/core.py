"""The decision core: `Core.step` takes the events of one instant and returns the decisions."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from copy import deepcopy

from cells.cells import Cells
from sia.core.commit import Committer, RefusedError
from sia.decisions import Decision, ProposalRefused, WakeAt
from sia.events import RANK, Event
from sia.model import Options, Pool
from sia.policies import Policy, PreemptProposal, ReleaseCells, ReserveCells, StartProposal
from sia.state.state import ClusterState


class Core:
    """One cluster under one policy. The drivers (replay, daemon) call only `step`.

    Attributes:
        state: The pools, groups and jobs.
        policy: The policy, which makes proposals.
        committer: The only writer of the state.
        wake: When it last asked to be called (seconds), minus infinity once that time has come.
    """

    def __init__(
        self,
        pools: Iterable[Pool],
        policy: Policy,
        options: Options | None = None,
        cells: Cells | None = None,
    ) -> None:
        """Build a cluster without jobs, with `cells` if given.

        Raises ValueError as `ClusterState` does, and for cells with a policy that does not support
        them.
        """
        if cells is not None and not policy.places:
            raise ValueError(f"policy {type(policy).__name__} does not support cells")
        self.state = ClusterState(pools, options or Options(), cells)
        self.policy = policy
        policy.attach(self.state)
        self.committer = Committer(self.state, policy)
        self.wake = float("-inf")

    def step(self, now: float, events: Sequence[Event]) -> list[Decision]:
        """Apply all events of this instant, then make one decision pass.

        Args:
            now: The time in seconds. It must not be before the time of the last step.
            events: The events, in any order; they are applied in the order of `events.RANK`.

        Raises ValueError if time runs backwards, with nothing changed, or for an event that cannot
        have happened; see `Committer.apply`.
        """
        state = self.state
        if not now >= state.now:
            raise ValueError(f"time runs backwards: {now} after {state.now}")
        state.now = now
        if now >= self.wake:
            self.wake = float("-inf")  # the time has come; the policy may ask for it again
        decisions: list[Decision] = []
        if len(events) > 1:
            events = sorted(events, key=lambda event: RANK[type(event)])
        self.committer.apply(events, decisions)
        try:
            for proposal in self.policy.propose(now):
                if type(proposal) is float:
                    self._ask(proposal, decisions)
                elif type(proposal) is StartProposal:
                    self.committer.start(proposal, now, decisions)
                elif type(proposal) is ReserveCells or type(proposal) is ReleaseCells:
                    self.committer.keep(proposal)
                elif type(proposal) is PreemptProposal:
                    self.committer.preempt(proposal, now, decisions)
                else:
                    self.committer.resize(proposal, now, decisions)  # type: ignore[arg-type]
        except RefusedError as refused:
            decisions.append(ProposalRefused(refused.job_id, refused.why))
            # The pass was cut short: mark all pools as changed and wake at the next tick.
            state.dirty.update(dict.fromkeys(state.pools.values()))
            self._ask((now // state.options.tick + 1.0) * state.options.tick, decisions)
            return decisions
        state.dirty.clear()
        return decisions

    def _ask(self, time: float, decisions: list[Decision]) -> None:
        """Ask to be woken at a time, unless the last wake asked for is the same."""
        assert time >= self.state.now, f"wake at {time} is before {self.state.now}"
        if time != self.wake:
            self.wake = time
            decisions.append(WakeAt(time))

    def copy(self) -> Core:
        """Return an independent core in the same state, for what-if questions. O(state)."""
        return deepcopy(self)

    def check(self) -> None:
        """Assert every invariant of the state, the loans and the policy's queues."""
        self.state.check()
        self.committer.check()
        self.policy.check()
