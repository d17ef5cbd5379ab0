"""The observers that wrap `daemon.lending`: pool accounts and shadow lending."""

from __future__ import annotations

from collections.abc import Sequence
from math import inf

from daemon.engine.step import StepContext, StepObserver
from daemon.lending.accounts import Accounts
from daemon.lending.shadow import ShadowCore
from daemon.model.account import DEFECTS, ShadowState
from daemon.model.book import job_of
from sia.core.core import Core
from sia.core.guard import PolicyFailedError
from sia.core.snapshot import Snapshot
from sia.decisions import Decision, SolveProgram
from sia.events import Event, ProgramSolved


class AccountsObserver(StepObserver):
    """Feeds the pool accounts, and reports accounts that were restarted after a defect."""

    def __init__(self, context: StepContext, accounts: Accounts) -> None:
        """Feed `accounts` from the steps of this context."""
        self._context = context
        self.accounts = accounts

    @property
    def due(self) -> float:
        """Time at which the accounts next have something to book; infinite if never."""
        return self.accounts.due

    def begin_step(self) -> None:
        """Book what is known, if bookings are due in this step."""
        context = self._context
        self.accounts.begin_step(context.now)
        for name in self.accounts.renewed:
            renewed = context.book.accounts[name].renewed
            context.notify("account_renewed", pool=name, times=renewed)

    def after_pass(self, events: Sequence[Event], decisions: Sequence[Decision]) -> None:
        """Queue the events and decisions for the accounts. O(1)."""
        self.accounts.record(events, decisions)

    def end_step(self) -> None:
        """Settle the accounts before the book evicts jobs that they still refer to."""
        self.accounts.end_step(len(self._context.ended))

    def settle(self) -> None:
        """Bring the accounts up to date."""
        self.accounts.settle()


class ShadowLending(StepObserver):
    """Runs the shadow core while lending is in shadow mode.

    The shadow core never affects real decisions. If it fails, it restarts from the real core.
    """

    def __init__(self, context: StepContext, core: Core | None = None) -> None:
        """Continue with this shadow core; without one, `end_step` starts one when needed."""
        self._context, self._book = context, context.book
        state = context.book.shadow
        self._shadow = None if core is None or state is None else ShadowCore(state, core)

    @property
    def due(self) -> float:
        """Time at which the shadow core has a job to end or a loan to report."""
        self.settle()
        return inf if self._shadow is None else self._shadow.due

    def begin_step(self) -> None:
        """Report the loans that lending would have made."""
        state = self._book.shadow
        if state is None:
            return
        self.settle()
        for loan in state.told:
            self._context.notify(
                "would_lend", job=job_of(loan.core_id), pool=loan.lender, gpus=loan.gpus,
                to=loan.to, at=loan.at,
            )  # fmt: skip
        state.told = []

    def after_pass(self, events: Sequence[Event], decisions: Sequence[Decision]) -> None:
        """Queue the events and decisions for the shadow core. O(1)."""
        if self._shadow is not None:
            self._shadow.record(self._context.now, events, decisions)

    def end_step(self) -> None:
        """Advance the time of the shadow core, or start one if shadow mode has begun."""
        context, state = self._context, self._book.shadow
        if self._shadow is not None:
            self._shadow.record(context.now, (), ())
        elif state is not None and state.until is None:
            self._begin(state, context.now)

    def settle(self) -> None:
        """Bring the shadow core up to date; restart it from the real core if it fails."""
        shadow = self._shadow
        if shadow is None:
            return
        try:
            shadow.settle()
        except DEFECTS:
            shadow.state.renewed += 1
            self._begin(shadow.state, self._context.core.state.now)

    def _begin(self, state: ShadowState, now: float) -> None:
        """Start a shadow core; the next step tries again if the policy cannot be copied."""
        core, asked = self._context.core, self._book.solving
        try:
            self._shadow = ShadowCore.begin(
                state, core, now, asked if core.committer.open_request else None
            )
        except PolicyFailedError:
            self._shadow = None

    @property
    def solving(self) -> SolveProgram | None:
        """The open request of the shadow core to a solver."""
        if self._shadow is None:
            return None
        self.settle()
        return None if self._shadow is None else self._shadow.state.solving

    def hear(self, answer: ProgramSolved) -> None:
        """Queue the answer to a request of the shadow core."""
        if self._shadow is not None:
            self._shadow.hear(answer)

    def end(self) -> None:
        """End shadow mode: count and report everything up to now."""
        state = self._book.shadow
        if state is None or state.until is not None:
            return
        if self._shadow is not None:
            self._shadow.record(self._context.now, (), ())
            self.begin_step()
        state.left = state.pending
        state.until, state.twins, state.solving = self._context.now, {}, None
        self.drop()

    def drop(self) -> None:
        """Discard the shadow core. `end_step` starts another one if shadow mode is still on."""
        self._shadow = None

    def dump(self) -> Snapshot | None:
        """Return the shadow core as plain values; None if there is none."""
        return None if self._shadow is None else self._shadow.dump()

    def check(self) -> None:
        """Assert that the shadow core agrees with its state."""
        if self._shadow is not None:
            self._shadow.check()
