"""`Core.step`: one instant in, its decisions out."""

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
    """One cluster under one policy. The drivers (replay, daemon) call `step` and nothing else.

    Attributes:
        state: What it knows.
        policy: Who proposes.
        committer: The only writer of the state.
        wake: When it last asked to be called (seconds); minus infinity if that time has come.
    """

    def __init__(
        self,
        pools: Iterable[Pool],
        policy: Policy,
        options: Options | None = None,
        cells: Cells | None = None,
    ) -> None:
        """Build an empty cluster, of `cells` if they are given.

        Raises ValueError as `ClusterState` does, and for a policy that knows no cells.
        """
        if cells is not None and not policy.places:
            raise ValueError(f"{type(policy).__name__} knows no cells")
        self.state = ClusterState(pools, options or Options(), cells)
        self.policy = policy
        policy.attach(self.state)
        self.committer = Committer(self.state, policy)
        self.wake = float("-inf")

    def step(self, now: float, events: Sequence[Event]) -> list[Decision]:
        """Apply all events of this instant, then decide once.

        Raises ValueError when time runs backwards, with nothing changed, or when an event cannot
        have happened: see `Committer.apply`.
        """
        state = self.state
        if not now >= state.now:
            raise ValueError(f"time runs backwards: {now} after {state.now}")
        state.now = now
        if now >= self.wake:
            self.wake = float("-inf")  # it has come, and may be wished for again
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
            # The policy was cut short: have it look at everything again, soon.
            state.dirty.update(dict.fromkeys(state.pools.values()))
            self._ask((now // state.options.tick + 1.0) * state.options.tick, decisions)
            return decisions
        state.dirty.clear()
        return decisions

    def _ask(self, time: float, decisions: list[Decision]) -> None:
        """Wish to be woken, unless that is what was wished last."""
        assert time >= self.state.now, f"{time} is no time to be woken at after {self.state.now}"
        if time != self.wake:
            self.wake = time
            decisions.append(WakeAt(time))

    def copy(self) -> Core:
        """A core in the same state that shares nothing with this one: for "what if". O(state)."""
        return deepcopy(self)

    def check(self) -> None:
        """Assert every invariant of the state, of the loans and of the policy's own queues."""
        self.state.check()
        self.committer.check()
        self.policy.check()
