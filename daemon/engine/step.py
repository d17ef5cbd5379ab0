"""The state of one engine step, and the interface of the components that observe steps."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from math import inf
from typing import Any

from msgspec.structs import replace

from daemon.engine.placement import AreaPlacement
from daemon.model.book import Book, JobRecord
from daemon.model.job import JobSpec
from daemon.model.outputs import Effect, Notice, Refused
from daemon.model.timers import Timers
from sia.core.core import Core
from sia.decisions import Decision
from sia.events import Event, JobFinished, JobPreempted, JobProgressed, TimePassed


class StepObserver:
    """A component that follows every step: accounts, guard rails, outages, shadow lending.

    The engine calls each hook of its observers in a fixed order. A hook does nothing unless a
    subclass overrides it.
    """

    @property
    def due(self) -> float:
        """The time at which this component needs the next step; infinite if it needs none."""
        return inf

    def begin_step(self) -> None:
        """Handle the time that has passed, before timers and inputs."""

    def before_pass(self) -> None:
        """Add events for the core, after the inputs and before the core decides."""

    def after_pass(self, events: Sequence[Event], decisions: Sequence[Decision]) -> None:
        """Record one pass of the core: the events that the core got, and its decisions."""

    def end_step(self) -> None:
        """Handle the outcome of the step."""

    def settle(self) -> None:
        """Do all deferred work now. This does not change the state that later steps find."""

    def check(self) -> None:
        """Assert that the component's state agrees with the book and the core."""


def hooks(observers: Sequence[StepObserver], name: str) -> tuple[Callable[..., None], ...]:
    """Return the observers' overrides of the hook `name`, in order.

    Most observers override two or three hooks; calls of empty hooks would be 3 % of a small step.
    """
    nothing = getattr(StepObserver, name)
    return tuple(getattr(o, name) for o in observers if getattr(type(o), name) is not nothing)


class StepContext:
    """State that the engine's components share, and what the current step has produced.

    Attributes:
        book: Jobs, pools, nodes and maintenance windows.
        core: The scheduler's core.
        placement: The GPUs in use; None with cells and where no nodes are configured.
        timers: Times at which a job, pool or node has to be checked again.
        after_pass: The observers' hooks that follow each pass of the core.
        carry_out: Applies the core's decisions.
        now: Time of the step, in seconds since the epoch.
        events: Events that the core has not been given yet.
        corrections: Work done by jobs, by core id; the core gets it together with the events.
        applied: Events that the core was given in this step.
        decisions: The core's decisions in this step.
        effects: Orders for the backend.
        notices: Entries of the event stream.
        ended: Jobs that ended in this step.
        recheck_pools: Whether the guard rails have to check every pool.
        changed_nodes: Nodes that went out or came back since outages were last counted.
        quotas_changed: Whether a quota has changed since outages were last counted.
        arrays: Arrays submitted in this step, by name: the spec that their jobs share, and the
            refusal if the array cannot be accepted.
    """

    def __init__(self, book: Book, core: Core, placement: AreaPlacement | None) -> None:
        """Create an empty context; no step has begun."""
        self.book = book
        self.core = core
        self.placement = placement
        self.timers = Timers()
        self.after_pass: Sequence[Callable[..., None]] = ()
        self.carry_out: Callable[[Sequence[Decision]], None] = lambda _: None
        self.recheck_pools = self.quotas_changed = True
        self.changed_nodes: dict[str, None] = {}
        self.begin(float("-inf"))

    def begin(self, now: float) -> None:
        """Begin a step at this time."""
        self.now = now
        self.events: list[Event] = []
        self.corrections: dict[str, JobPreempted | JobProgressed] = {}
        self.applied: list[Event] = []
        self.decisions: list[Decision] = []
        self.effects: list[Effect] = []
        self.notices: list[Notice] = []
        self.ended: list[JobRecord] = []
        self.arrays: dict[str, tuple[JobSpec, Refused | None]] = {}

    def continue_from(self, previous: StepContext) -> None:
        """Continue a step that `previous` began. The core has been given all of its events."""
        self.now, self.applied, self.decisions = previous.now, previous.applied, previous.decisions
        self.effects, self.notices, self.ended = previous.effects, previous.notices, previous.ended

    def notify(
        self, kind: str, *, job: str = "", pool: str = "", node: str = "", **data: Any
    ) -> None:
        """Append a notice to the event stream."""
        self.book.notices += 1
        notice = Notice(self.book.notices, self.now, kind, job, pool, node, data)
        self.notices.append(notice)

    def flush(self) -> None:
        """Give the pending events to the core and carry out its decisions.

        The core is not called if no event is pending and its next requested wake-up is in the
        future. Raises ValueError as `Core.step` does.
        """
        core = self.core
        if self.now >= core.wake:
            self.events.append(TimePassed(self.now))
        while self.events or self.corrections:  # carrying out decisions may add further events
            events, self.events = self.events, []
            if self.corrections:
                events += self.corrections.values()
                self.corrections = {}
            decisions = core.step(self.now, events)
            self.applied += events
            self.decisions += decisions
            for after_pass in self.after_pass:
                after_pass(events, decisions)
            self.carry_out(decisions)

    def correct(self, event: JobPreempted | JobProgressed) -> None:
        """Tell the core how much work a job has done, unless the job leaves the core in this step.

        A later correction of the same step replaces an earlier one. An estimate, a regime and
        widths that only the earlier one has are kept.
        """
        earlier = self.corrections.get(event.job_id)
        if isinstance(earlier, JobProgressed) and isinstance(event, JobProgressed):
            event = replace(
                event,
                run_time=earlier.run_time if event.run_time is None else event.run_time,
                regime=earlier.regime if event.regime is None else event.regime,
                widths=earlier.widths if event.widths is None else event.widths,
            )
        self.corrections[event.job_id] = event

    def release_gpus(self, record: JobRecord) -> None:
        """Free a job's GPUs, and take the job out of the core."""
        self.leave_core(record)
        self.free_gpus(record)

    def leave_core(self, record: JobRecord) -> None:
        """Tell the core that a job has finished, and close its loans.

        The job's GPUs stay in use until `free_gpus`.
        """
        if record.core:
            if self.corrections:
                self.corrections.pop(record.core, None)
            self.events.append(JobFinished(self.now, record.core))
            record.core = ""
        self.book.seatless.pop(record.spec.id, None)
        if record.loans:
            self.close_loans(record)

    def free_gpus(self, record: JobRecord) -> None:
        """Free the GPUs of a job's attempt."""
        if record.placed and self.placement is not None:
            self.placement.free(record.nodes)
        record.taken = 0
        self.book.leaving.pop(record.spec.id, None)

    def close_loans(self, record: JobRecord) -> None:
        """Report that a job's loans are closed."""
        job_id, pool = record.spec.id, record.spec.pool
        for donor, gpus in record.loans:
            self.notify("loan_closed", job=job_id, pool=donor, gpus=gpus, to=pool)
        record.loans = ()


def unknown_job(job_id: str) -> Refused:
    """Return the refusal of a command for a job that does not exist."""
    return Refused(404, "no such job", f"there is no job {job_id!r}", "see: sia jobs")
