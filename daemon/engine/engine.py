"""The state machine: a step takes inputs and returns answers, decisions, effects and notices.

A step applies the inputs of one moment in order, gives the resulting events to the core, and
carries out the core's decisions. The engine is pure: the same inputs give the same steps, byte for
byte. Recovery from the journal depends on this.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import partial
from typing import Any, NamedTuple

from msgspec import Struct, json
from msgspec.structs import replace

from cells.cells import Cells
from cells.layout.spec import Spec, shapes
from daemon.engine.guardrails import GuardRails
from daemon.engine.invariants import check_book, check_nodes
from daemon.engine.jobs import GRACE_OVER, Jobs
from daemon.engine.nodes import BEGIN, CONFIG, OVER, NodeStates
from daemon.engine.observers import AccountsObserver, ShadowLending
from daemon.engine.outages import OutageChange, Outages
from daemon.engine.placement import AreaPlacement
from daemon.engine.pools import OVERRIDE, Pools
from daemon.engine.progress import ProgressReports
from daemon.engine.reconfigure import (
    adapted,
    changes,
    taken_back,
    tuned,
    without_narrow_trials,
)
from daemon.engine.runs import LIMIT, WARN, Runs
from daemon.engine.step import StepContext, StepObserver, hooks
from daemon.engine.tokens import Tokens
from daemon.lending.accounts import Accounts
from daemon.model.account import Account, Booked, ShadowState
from daemon.model.audit_facts import AuditChange, facts_of, trace
from daemon.model.book import Book, JobRecord, NodeRecord, pool_record
from daemon.model.inputs import (
    Answered,
    AuditNote,
    Cancel,
    CancelMaintenance,
    Configured,
    Drain,
    Ended,
    Estimated,
    ForecastHealth,
    Foreseen,
    Hold,
    Input,
    IssueToken,
    Lending,
    Limited,
    Lost,
    Maintain,
    ModelChanged,
    NodeDown,
    NodeUp,
    Release,
    Reported,
    Requeued,
    Resized,
    Resume,
    RevokeToken,
    SetPolicy,
    SetPool,
    SetPriority,
    SignOut,
    Started,
    StartFailed,
    Stopped,
    Stray,
    Submit,
    Tick,
)
from daemon.model.job import ON_GPUS, JobPhase, LendingMode, PoolMode
from daemon.model.outputs import Accepted, Answer, Effect, Notice, Refused, StartEffect, StopEffect
from daemon.model.setup import Node, Setup
from daemon.runtime.chunked_json import json_chunks
from sia.core.core import Core
from sia.core.guard import PolicyFailedError, attached
from sia.core.snapshot import Snapshot, dump, plain_params, restore
from sia.decisions import Decision, PreemptJob, SolveProgram
from sia.events import (
    Event,
    ForecastUpdated,
    GpusOut,
    PolicyTuned,
    PoolChanged,
    ProgramSolved,
    TimePassed,
)
from sia.policies import make
from sia.virtual.virtual_clock import VirtualClock
from sia.wording import counted

VERSION = 1
"""Version of the snapshot format. It increases whenever older code would misread a snapshot."""


class Step(NamedTuple):
    """The result of one step."""

    answers: list[Answer]
    """One answer for each input, in order."""
    decisions: Sequence[Decision]
    effects: Sequence[Effect]
    notices: Sequence[Notice]
    events: Sequence[Event]
    """The events that the core was given."""
    over: Sequence[JobRecord]
    """Jobs that ended in this step."""
    traces: Sequence[AuditChange | None] = ()
    """For each input: the change as recorded in the audit; None if the input is not audited."""
    booked: Booked = Booked()
    """Verdicts and loans that this step adds to the pools' accounts."""


class _Version(Struct):
    version: int


class EngineSnapshot(Struct, frozen=True, forbid_unknown_fields=True):
    """The engine's whole state between two steps."""

    version: int
    book: Book
    core: Snapshot
    shadow: Snapshot | None = None
    """The shadow core, while lending is in shadow mode."""


class Engine:
    """Decides everything that the daemon does.

    Attributes:
        book: Jobs, pools, nodes and maintenance windows. Read only.
        core: The scheduler's core. Read only.
    """

    def __init__(self, book: Book, core: Core, shadow: Core | None = None) -> None:
        """Continue from this state, with the shadow core if there is one. O(n log n)."""
        self._begin(book, core, shadow)

    def _begin(self, book: Book, core: Core, shadow: Core | None = None) -> None:
        self.book, self.core = book, core
        core.tolerate()  # an error in the policy must not fail the step
        nodes: list[Node] = []
        if book.setup.cells is None:
            nodes += (Node(node.name, node.gpus) for node in book.nodes.values())
        context = self._context = StepContext(
            book, core, AreaPlacement(nodes, book.setup.areas) if nodes else None
        )
        self._accounts = Accounts(book, core)
        self._shadow = ShadowLending(context, shadow)
        self._rails = GuardRails(context, self._accounts)
        self._outages = Outages(context)
        self._observers: tuple[StepObserver, ...] = (
            self._shadow, self._rails, self._outages, AccountsObserver(context, self._accounts),
        )  # fmt: skip
        self._timed = [o for o in self._observers if type(o).due is not StepObserver.due]
        self._begin_step = hooks(self._observers, "begin_step")
        self._before_pass = hooks(self._observers, "before_pass")
        context.after_pass = hooks(self._observers, "after_pass")
        self._end_step = hooks(self._observers, "end_step")
        self._jobs = Jobs(context)
        self._runs = Runs(context, self._jobs)
        self._pools = Pools(context, self._jobs, self._shadow)
        self._nodes = NodeStates(context)
        tokens = Tokens(context)
        self._of_timer: dict[str, Runs | Pools | NodeStates] = {
            WARN: self._runs,
            LIMIT: self._runs,
            GRACE_OVER: self._runs,
            OVERRIDE: self._pools,
            OVER: self._nodes,
            BEGIN: self._nodes,
        }
        self._handlers: dict[type, Callable[[Any], Answer]] = {
            Submit: self._jobs.submit,
            Cancel: self._jobs.cancel,
            Hold: self._jobs.hold,
            Release: self._jobs.release,
            SetPriority: self._jobs.set_priority,
            Estimated: self._jobs.estimate,
            Reported: ProgressReports(context).report,
            SetPool: self._pools.set_pool,
            Lending: self._pools.set_lending,
            SetPolicy: self._set_policy,
            Drain: self._nodes.drain,
            Resume: self._nodes.resume,
            Maintain: self._nodes.maintain,
            CancelMaintenance: self._nodes.cancel,
            Started: self._runs.started,
            Ended: self._runs.ended,
            StartFailed: self._runs.start_failed,
            Lost: self._runs.lost,
            Stray: self._runs.stray,
            Requeued: self._runs.requeued,
            Stopped: self._runs.stopped,
            Resized: self._runs.resized,
            Limited: self._runs.limited,
            NodeDown: self._nodes.down,
            NodeUp: self._nodes.up,
            Foreseen: self._foresee,
            ModelChanged: self._change_model,
            ForecastHealth: self._rails.set_forecast_health,
            Configured: self._configure,
            Answered: self._solve,
            IssueToken: tokens.issue,
            RevokeToken: tokens.revoke,
            SignOut: tokens.sign_out,
            AuditNote: _pass,
            Tick: _pass,
        }
        self._resume()

    @property
    def due(self) -> float:
        """Latest time of the next step, in seconds since the epoch; infinite if no step is needed.

        If no input comes before, the step is made with a `Tick`.
        """
        due = min(self._context.timers.next, self.core.wake)
        for observer in self._timed:
            due = min(due, observer.due)
        return due

    def step(self, now: float, inputs: Sequence[Input]) -> Step:
        """Apply these inputs in order, and decide.

        The cost is the cost of the inputs and of the core's pass. Jobs that are not affected add
        nothing. Raises ValueError, with nothing changed, if `now` is before the last step.
        """
        if now < self.core.state.now:
            raise ValueError(f"time runs backwards: {now} after {self.core.state.now}")
        self._context.begin(now)
        for begin_step in self._begin_step:
            begin_step()
        self._run_timers(now)
        done = [self._handle(each) for each in inputs]  # `Configured` replaces the context
        for before_pass in self._before_pass:
            before_pass()
        context = self._context
        context.flush()
        for end_step in self._end_step:
            end_step()
        self._runs.place_pending()
        self.book.evict()
        return Step(
            [answer for answer, _ in done], context.decisions, context.effects, context.notices,
            context.applied, context.ended, [trace for _, trace in done], self._accounts.booked,
        )  # fmt: skip

    def _run_timers(self, now: float) -> None:
        timers = self._context.timers
        while (timer := timers.due(now)) is not None:
            self._of_timer[timer.kind].due(timer)

    def _handle(self, asked: Input) -> tuple[Answer, AuditChange | None]:
        before = facts_of(self.book, asked)
        answer = self._handlers[type(asked)](asked)
        if before is None:
            return answer, None
        return answer, trace(asked, before, facts_of(self.book, asked) or {})

    def settle_accounts(self) -> None:
        """Do the observers' deferred work, before accounts are read.

        Later steps are the same without it.
        """
        for observer in self._observers:
            observer.settle()

    def not_lending_reasons(self, pool: str, now: float) -> dict[str, str]:
        """Return why a pool lends nothing now, by kind of reason; see `GuardRails.reasons`."""
        return self._rails.reasons(self.book.pools[pool], now)

    def delayed_minutes(self, pool: str, now: float) -> float | None:
        """Return a pool's minutes of delay this month; see `GuardRails.delayed_minutes`."""
        return self._rails.delayed_minutes(self.book.pools[pool], now)

    def planned_outages(self, edges: Iterable[OutageChange]) -> Iterator[GpusOut]:
        """Yield the events that planned outages and quota changes will cause; see `Outages`."""
        return self._outages.ahead(edges)

    def become_forecast(self) -> None:
        """Turn this engine into one that only simulates: drop everything that affects no decision.

        The shadow core is dropped. Accounts are kept only if budgets depend on them.
        """
        self.book.shadow = None
        self._shadow.drop()
        if not self._rails.any_budget:
            self._accounts.close()

    def do_idle_work(self) -> None:
        """Do work that the next step would do, in advance. The step has the same result."""
        self._accounts.catch_up()

    def start_order(self, record: JobRecord) -> StartEffect:
        """Return the order to start a job's current attempt."""
        return self._runs.start_order(record)

    def open_orders(self) -> list[Effect]:
        """Return the orders to end, stop or warn jobs that still have GPUs. O(jobs)."""
        orders: list[Effect] = []
        for record in self.book.jobs.values():
            if record.phase is JobPhase.STOPPING:
                orders.append(self._runs.stop_order(record))
            elif record.phase is JobPhase.RUNNING and record.spec.id in self.book.leaving:
                orders.append(self._runs.resize_order(record))
            elif record.phase is JobPhase.ENDING:
                orders.append(StopEffect(record.spec.id, record.attempt, "end"))
            elif record.phase is JobPhase.RUNNING and record.warned:
                orders.append(StopEffect(record.spec.id, record.attempt, "warn"))
        return orders

    def dump(self) -> bytes:
        """Return the whole state as JSON: equal states give equal bytes. O(n).

        On a thread, this blocks other threads for milliseconds at a time. No step may be made
        meanwhile.
        """
        self.settle_accounts()
        snapshot = EngineSnapshot(VERSION, self.book, dump(self.core), self._shadow.dump())
        return b"".join(json_chunks(snapshot, Book, Snapshot, Account, VirtualClock))

    @classmethod
    def new(cls, setup: Setup) -> Engine:
        """Create an engine without jobs.

        Raises ValueError as `Core` does, and KeyError if there is no such policy.
        """
        cells = None if setup.cells is None else Cells(setup.cells)
        book, policy = _new_book(setup), partial(make, setup.policy)
        made = policy()
        core = Core(setup.pools, made, setup.options, cells, setup.nodes_for(made))
        if setup.lending not in (None, LendingMode.ON):
            book.lending = False
            core = restore(replace(dump(core), lending=False), policy())
            book.shadow = ShadowState(0.0) if setup.lending is LendingMode.SHADOW else None
        return cls(book, core)

    @classmethod
    def restore(cls, data: bytes) -> Engine:
        """Create an engine from the result of `dump`. O(n · log n).

        Raises ValueError for another version of the format and for inconsistent data.
        """
        version = json.decode(data, type=_Version).version
        if version != VERSION:
            raise ValueError(f"snapshot version {version} is not supported, only {VERSION}")
        snapshot = json.decode(data, type=EngineSnapshot)
        policy = partial(make, snapshot.book.setup.policy)
        shadow = None if snapshot.shadow is None else restore(snapshot.shadow, policy())
        return cls(snapshot.book, restore(snapshot.core, policy()), shadow)

    def _resume(self) -> None:
        """Rebuild the timers and the GPUs in use from the book."""
        book, placement = self.book, self._context.placement
        for record in book.jobs.values():
            self._runs.set_timers(record)
            if placement is not None and record.placed and record.phase in ON_GPUS:
                placement.take(record.nodes)
        for pool in book.pools.values():
            self._pools.set_timer(pool)
        for window in book.windows.values():
            self._nodes.set_timers(window)
        if placement is not None:
            for node in book.nodes.values():
                if node.reasons:
                    placement.out(node.name)

    def check(self) -> None:
        """Assert that book, core, GPUs in use and observers agree. O(n)."""
        self.core.check()
        for observer in self._observers:
            observer.check()
        check_book(self.book, self.core)
        placement = self._context.placement
        if placement is not None:
            used = [r.nodes for r in self.book.jobs.values() if r.placed and r.phase in ON_GPUS]
            placement.check({name: node.gpus for name, node in self.book.nodes.items()}, used)
        if self.core.state.nodes is not None:
            check_nodes(self.book, self.core.state.nodes)

    def _foresee(self, news: Foreseen) -> Answer:
        self._context.events.append(ForecastUpdated(self._context.now, news.loads))
        return Accepted()

    @property
    def shadow_request(self) -> SolveProgram | None:
        """The shadow core's open request to a solver; None if there is none.

        The answer is an input with `Answered.shadow` set.
        """
        return self._shadow.solving

    def _solve(self, seen: Answered) -> Answer:
        """Pass the answer to the core's open request to the core; ignore all other answers."""
        now = self._context.now
        answer = ProgramSolved(now, seen.request, seen.status, seen.values, seen.bound)
        if seen.shadow:
            self._shadow.hear(answer)
            return Accepted()
        asked = self.book.solving
        if asked is None or asked.request != seen.request:
            return Refused(
                409, "not this request", f"request {seen.request} is not open", "ignore it"
            )
        self.book.solving = None
        self._context.events.append(answer)
        return Accepted()

    def _configure(self, asked: Configured) -> Answer:
        previous, accounts, before = self._context, self._accounts, self.book
        self._outages.before_pass()
        previous.flush()  # make the decisions that were due under the old settings
        accounts.settle()
        promised = [record for record in before.jobs.values() if record.is_promised]
        tried = [record for record in before.jobs.values() if record.trial is not None]
        core, stops = without_narrow_trials(self.core, before.setup, asked.setup)
        made = adapted(before, core, asked.setup, asked.unseen)
        if isinstance(made, Refused):
            return made
        self._begin(*made)
        context = self._context
        context.continue_from(previous)
        context.decisions += stops
        self._runs.carry_out(stops)
        self._accounts.continue_from(accounts)
        for window in before.windows.values():
            if window.id not in self.book.windows:
                context.notify("maintenance_dropped", node=window.node, id=window.id)
        for record in taken_back(self.book, self.core):
            self._runs.withdraw(record, "the plan of the new policy says on which nodes it runs")
        context.events += changes(self.book, before.setup, context.now)
        old, new = before.setup, asked.setup
        if (old.policy, old.preemptible) != (new.policy, new.preemptible):
            context.events.append(TimePassed(context.now))  # the core may decide otherwise at once
        mode = asked.setup.lending
        if mode is not None and mode is not before.setup.lending:
            self._pools.switch(mode, "configuration")
        for event in context.events:
            if isinstance(event, PoolChanged):
                context.notify(
                    "pool_changed", pool=event.pool, quota=event.quota, by="configuration"
                )
        if context.core.policy.needs.preemption and not previous.core.policy.needs.preemption:
            self._runs.tell_all_work()
        self._runs.tell_forgotten(promised)
        cut = {stop.job_id for stop in stops if isinstance(stop, PreemptJob)}
        ordinary = [r.spec.id for r in tried if r.trial is None and r.core not in cut]
        more: dict[str, Any] = {"untried": ordinary} if ordinary else {}
        context.notify("configured", **more)
        return Accepted()

    def _set_policy(self, asked: SetPolicy) -> Answer:
        """Change the options of the policy, after making the decisions due under the old ones."""
        made = tuned(self.book.setup, asked.policy)
        if isinstance(made, Refused):
            return made
        if made == self.book.setup:
            return Accepted(new=False)
        policy, pools = make(made.policy), self.book.pools.values()
        largest = max((pool.quota for pool in pools), default=0)
        if asked.policy and policy.queues > largest:
            return Refused(
                422, "policy",
                f"{policy.queues} queues, but the largest pool has {counted(largest, 'GPU')}",
                "give fewer sizes, as queues share whole GPUs",
            )  # fmt: skip
        context = self._context
        context.flush()
        try:
            policy = attached(policy, self.core.state)
        except PolicyFailedError as error:
            return Refused(409, "policy", str(error), "give other options")
        self.book.setup = replace(made, tuned=context.now)
        context.events.append(PolicyTuned(context.now, plain_params(policy)))
        context.notify("policy", policy=made.policy, before=made.before, by=asked.actor)
        return Accepted()

    def _change_model(self, news: ModelChanged) -> Answer:
        self.book.model, self.book.adopted = news.digest, news.label
        self._context.notify("model", name=news.name, digest=news.digest, why=news.why)
        return Accepted()


def _pass(_: Tick | AuditNote) -> Answer:
    return Accepted()


def _new_book(setup: Setup) -> Book:
    book = Book(setup)
    cells = _quotas(setup)
    for pool in setup.pools:
        state = setup.modes.get(pool.name, PoolMode.OPEN)
        own, budget = cells.get(pool.name, {}), setup.budget(pool.name)
        book.pools[pool.name] = pool_record(pool, own, state, budget)
    for node in setup.nodes:
        book.nodes[node.name] = NodeRecord(node.name, node.gpus)
    if setup.cells is not None:
        book.nodes.update(_nodes_of(setup.cells))
    return book


def _quotas(setup: Setup) -> dict[str, dict[str, dict[str, int]]]:
    """Return how many cells each pool owns, by chain and type."""
    found: dict[str, dict[str, dict[str, int]]] = {}
    for quota in () if setup.cells is None else setup.cells.quotas:
        found.setdefault(quota.pool, {}).setdefault(quota.chain, {})[quota.type] = quota.count
    return found


def _nodes_of(spec: Spec) -> dict[str, NodeRecord]:
    found = {}
    for top in spec.tops:
        shape = shapes(spec)[top.type]
        for node in top.nodes:
            gpus = node.gpus or tuple(range(shape.size[shape.node]))
            found[node.name] = NodeRecord(node.name, gpus, {CONFIG: "bad"} if node.bad else {})
    return found
