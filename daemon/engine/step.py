"""What the parts of the engine work on together, and what one step gathers."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from daemon.engine.areas import AreaPlacement
from daemon.lending.accounts import Accounts
from daemon.lending.shadow import ShadowCore
from daemon.model.account import DEFECTS
from daemon.model.book import Book, JobRecord, job_of
from daemon.model.job import JobSpec
from daemon.model.outputs import Effect, Notice, Refused
from daemon.model.timers import Timers
from sia.core.core import Core
from sia.decisions import Decision
from sia.events import Event, JobFinished, TimePassed


class StepContext:
    """One step's papers, beside what stays: the book, the core, the GPUs in use, the timers.

    Attributes:
        now: The step's time, in seconds since the epoch.
        events: Facts that the core has not been told yet.
        told: Those that it has, in this step.
        decisions: What it decided in this step.
        accounts: What is booked of both.
        effects: What the backend is to do.
        notices: What people are to hear.
        over: Jobs that have ended in this step.
        watched: Some pool may have to be kept from lending, or no longer.
        turned: Nodes that went out or came back since it was counted what is out.
        requoted: Quotas are others since then.
        rehearsal: What lending would do, while it is not done but worked out.
        arrays: Those that were asked for in this step, by name: what their jobs are like, and why
            none of them is taken.
    """

    def __init__(self, book: Book, core: Core, seats: AreaPlacement | None) -> None:
        """Begin with a clean desk."""
        self.book = book
        self.core = core
        self.seats = seats
        self.timers = Timers()
        self.carry_out: Callable[[Sequence[Decision]], None] = lambda _: None
        self.rehearsal: ShadowCore | None = None
        self.watched = self.requoted = True
        self.turned: dict[str, None] = {}
        self.accounts = Accounts(book, core)
        self.clear(float("-inf"))

    def clear(self, now: float) -> None:
        """Begin a step."""
        self.now = now
        self.events: list[Event] = []
        self.told: list[Event] = []
        self.decisions: list[Decision] = []
        self.effects: list[Effect] = []
        self.notices: list[Notice] = []
        self.over: list[JobRecord] = []
        self.arrays: dict[str, tuple[JobSpec, Refused | None]] = {}

    def take_over(self, other: StepContext) -> None:
        """Go on with a step that another desk has begun, and whose core knows of all events."""
        self.now, self.told, self.decisions = other.now, other.told, other.decisions
        self.effects, self.notices, self.over = other.effects, other.notices, other.over
        self.accounts.take_over(other.accounts)

    def tell(
        self, kind: str, *, job: str = "", pool: str = "", node: str = "", **data: Any
    ) -> None:
        """Have people hear of something."""
        self.book.notices += 1
        notice = Notice(self.book.notices, self.now, kind, job, pool, node, data)
        self.notices.append(notice)

    def flush(self) -> None:
        """Tell the core what has happened, have it decide, and carry that out.

        Nothing where nothing has happened that it should know of and it asked for no call. Raises
        ValueError as `Core.step` does.
        """
        core, events = self.core, self.events
        if self.now >= core.wake > float("-inf"):
            events.append(TimePassed(self.now))
        if not events:
            return
        decisions = core.step(self.now, events)
        self.events = []
        self.told += events
        self.decisions += decisions
        self.accounts.hear(events, decisions)
        self.carry_out(decisions)
        if self.rehearsal is not None:
            self.rehearsal.hear(self.now, events, decisions)

    def rehearse_up_to_now(self) -> None:
        """Before it ends: what is over by now counts."""
        if self.rehearsal is not None:
            self.rehearsal.hear(self.now, (), ())
            self.tell_rehearsed()

    def rehearse(self) -> None:
        """At the end of a step: let time pass for what is rehearsed, or begin with it."""
        kept = self.book.shadow
        if self.rehearsal is not None:
            self.rehearsal.hear(self.now, (), ())
        elif kept is not None and kept.until is None:
            self.rehearsal = ShadowCore.begin(kept, self.core, self.now)

    def settle_rehearsal(self) -> None:
        """Work out what the last step came to there, at the latest before the next one.

        Nothing that goes wrong there is to touch what is real: it begins anew then.
        """
        shadow = self.rehearsal
        if shadow is None:
            return
        try:
            shadow.settle()
        except DEFECTS:
            shadow.kept.renewed += 1
            self.rehearsal = ShadowCore.begin(shadow.kept, self.core, self.core.state.now)

    def tell_rehearsed(self) -> None:
        """Have people hear of the loans that lending would have made."""
        self.settle_rehearsal()
        kept = self.book.shadow
        for told in () if kept is None else kept.told:
            self.tell(
                "would_lend", job=job_of(told.core_id), pool=told.lender, gpus=told.gpus,
                to=told.to, at=told.at,
            )  # fmt: skip
        if kept is not None:
            kept.told = []

    def vacate(self, record: JobRecord) -> None:
        """A job is on its GPUs no more: the core hears that it ended, whoever lent gets back."""
        self.events.append(JobFinished(self.now, record.core))
        record.core = ""
        job_id = record.spec.id
        if record.placed and self.seats is not None:
            self.seats.free(record.nodes)
        self.book.seatless.pop(job_id, None)
        for donor, gpus in record.loans:
            self.tell("loan_closed", job=job_id, pool=donor, gpus=gpus, to=record.spec.pool)
        record.loans = ()


def refused(status: int, title: str, detail: str, mend: str) -> Refused:
    """What a client did or gave that cannot be."""
    return Refused(status, title, detail, mend)


def unknown_job(job_id: str) -> Refused:
    """There is no such job."""
    return Refused(404, "no such job", f"there is no job {job_id!r}", "see: sia jobs")
