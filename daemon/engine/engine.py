"""The engine: inputs in; answers, decisions, effects and notices out. Pure, like the core.

One step applies all inputs of one moment in their order, tells the core what has happened, and
carries out what it decides. The same inputs give the same steps, byte for byte.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from math import inf
from typing import Any, NamedTuple

from msgspec import Struct, json
from msgspec.structs import replace

from cells.cells import Cells
from cells.layout.spec import Spec, shapes
from daemon.engine.areas import AreaPlacement
from daemon.engine.guardrails import GuardRails
from daemon.engine.invariants import check_book
from daemon.engine.jobs import Jobs
from daemon.engine.nodes import BEGIN, CONFIG, OVER, NodeStates
from daemon.engine.outages import OutageChange, Outages
from daemon.engine.pools import OVERRIDE, Pools
from daemon.engine.reconfigure import adapted, changes
from daemon.engine.runs import LIMIT, WARN, Runs
from daemon.engine.step import StepContext
from daemon.engine.tokens import Tokens
from daemon.lending.shadow import ShadowCore
from daemon.model.account import Account, Booked, ShadowState
from daemon.model.audit_facts import AuditChange, facts_of, trace
from daemon.model.book import Book, JobRecord, NodeRecord, pool_record
from daemon.model.inputs import (
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
    Requeued,
    Resume,
    RevokeToken,
    SetPool,
    SetPriority,
    SignOut,
    Started,
    StartFailed,
    Stray,
    Submit,
    Tick,
)
from daemon.model.job import ON_GPUS, JobPhase, LendingMode, PoolMode
from daemon.model.outputs import Accepted, Answer, Effect, Notice, Refused, StopEffect
from daemon.model.setup import Node, Setup
from daemon.runtime.chunked_json import json_chunks
from sia.core.core import Core
from sia.core.snapshot import Snapshot, dump, restore
from sia.decisions import Decision
from sia.events import Event, ForecastUpdated, GpusOut, PoolChanged
from sia.policies import load
from sia.virtual.virtual_clock import VirtualClock

VERSION = 1
"""Of the engine's snapshots: another number for each change that older code would misread."""


class Step(NamedTuple):
    """What one step came to; `answers` are in the order of the inputs."""

    answers: list[Answer]
    decisions: Sequence[Decision]
    effects: Sequence[Effect]
    notices: Sequence[Notice]
    events: Sequence[Event]
    """All that the core was told."""
    over: Sequence[JobRecord]
    """Jobs that have ended."""
    traces: Sequence[AuditChange | None] = ()
    """What each input that changes something found and left, beside its answer; None of others."""
    booked: Booked = Booked()
    """What pools' accounts say of it."""


class _Version(Struct):
    version: int


class EngineSnapshot(Struct, frozen=True, forbid_unknown_fields=True):
    """An engine between two steps."""

    version: int
    book: Book
    core: Snapshot
    shadow: Snapshot | None = None
    """The core that lends while the real one does not: see `rehearsal`."""


class Engine:
    """All that the daemon decides.

    Attributes:
        book: Jobs, pools, nodes and maintenance, for reading.
        core: The core of `sia`, for reading.
    """

    def __init__(self, book: Book, core: Core, shadow: Core | None = None) -> None:
        """Go on with what these say. O(n log n)."""
        self._begin(book, core)
        if shadow is not None and book.shadow is not None:
            desk = self._desk
            desk.rehearsal = ShadowCore(book.shadow, shadow)

    def _begin(self, book: Book, core: Core) -> None:
        self.book, self.core = book, core
        nodes: list[Node] = []
        if book.setup.cells is None:
            nodes += (Node(node.name, node.gpus) for node in book.nodes.values())
        desk = self._desk = StepContext(
            book, core, AreaPlacement(nodes, book.setup.areas) if nodes else None
        )
        self._jobs = Jobs(desk)
        self._runs = Runs(desk, self._jobs)
        self._pools = Pools(desk, self._jobs)
        self._nodes = NodeStates(desk)
        self._rails = GuardRails(desk)
        self._outages = Outages(desk)
        tokens = Tokens(desk)
        self._of_timer: dict[str, Runs | Pools | NodeStates] = {
            WARN: self._runs,
            LIMIT: self._runs,
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
            SetPool: self._pools.set_pool,
            Lending: self._pools.set_lending,
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
            Limited: self._runs.limited,
            NodeDown: self._nodes.down,
            NodeUp: self._nodes.up,
            Foreseen: self._foresee,
            ModelChanged: self._change_model,
            ForecastHealth: self._rails.drifted,
            Configured: self._configure,
            IssueToken: tokens.issue,
            RevokeToken: tokens.revoke,
            SignOut: tokens.sign_out,
            AuditNote: _pass,
            Tick: _pass,
        }
        self._resume()

    @property
    def due(self) -> float:
        """When it wants to be called at the latest, if only with a `Tick`; infinite if never."""
        wake, desk = self.core.wake, self._desk
        desk.settle_rehearsal()
        due = inf if desk.rehearsal is None else desk.rehearsal.due
        wake = wake if wake > -inf else inf
        return min(desk.timers.next, desk.accounts.due, wake, due, self._rails.due)

    def step(self, now: float, inputs: Sequence[Input]) -> Step:
        """Apply what came from outside, in its order, and decide.

        Costs what the inputs and the core's pass do; nothing grows with jobs that nothing
        happens to. Raises ValueError when time runs backwards, with nothing changed.
        """
        if now < self.core.state.now:
            raise ValueError(f"time runs backwards: {now} after {self.core.state.now}")
        desk = self._desk
        desk.clear(now)
        desk.tell_rehearsed()
        self._rails.pass_time()
        desk.accounts.pass_time(now)
        for name in desk.accounts.renewed:
            desk.tell("account_renewed", pool=name, times=self.book.accounts[name].renewed)
        while (timer := desk.timers.due(now)) is not None:
            self._of_timer[timer.kind].due(timer)
        done = [self._handle(each) for each in inputs]
        desk = self._desk  # another one, if it was configured anew
        self._rails.look()
        self._outages.look()
        desk.flush()
        desk.rehearse()
        self._rails.end_step()
        self._runs.seat()
        desk.accounts.end_step(len(desk.over))
        self.book.forget()
        return Step(
            [answer for answer, _ in done], desk.decisions, desk.effects, desk.notices, desk.told,
            desk.over, [trace for _, trace in done], desk.accounts.booked,
        )  # fmt: skip

    def _handle(self, asked: Input) -> tuple[Answer, AuditChange | None]:
        before = facts_of(self.book, asked)
        answer = self._handlers[type(asked)](asked)
        if before is None:
            return answer, None
        return answer, trace(asked, before, facts_of(self.book, asked) or {})

    def prepare(self) -> None:
        """Have accounts be up to date, for whoever looks: no step is another than without it."""
        self._desk.accounts.settle()
        self._desk.settle_rehearsal()

    def kept(self, pool: str, now: float) -> dict[str, str]:
        """Return why a pool lends nothing now, by kind of reason; see `GuardRails.words`."""
        return self._rails.words(self.book.pools[pool], now)

    def out_ahead(self, edges: Iterable[OutageChange]) -> Iterator[GpusOut]:
        """What the core hears of nodes and quotas to come: see `Outages.ahead`."""
        return self._outages.ahead(edges)

    def only_play(self) -> None:
        """Be a future that is played from now on: only what decides is worked out.

        Accounts are kept where budgets hang on them; what lending would do no more.
        """
        desk = self._desk
        self.book.shadow = desk.rehearsal = None
        if not self._rails.may_look:
            desk.accounts.close()

    def rest(self) -> None:
        """Do now, while nobody waits, what the next step would: no other than without it."""
        self._desk.accounts.catch_up()

    def unended(self) -> list[StopEffect]:
        """Jobs that were told to end, or warned, and have not ended yet. O(jobs)."""
        told: list[StopEffect] = []
        for record in self.book.jobs.values():
            if record.phase is JobPhase.ENDING:
                told.append(StopEffect(record.spec.id, record.attempt, "end"))
            elif record.phase is JobPhase.RUNNING and record.warned:
                told.append(StopEffect(record.spec.id, record.attempt, "warn"))
        return told

    def dump(self) -> bytes:
        """All that it knows: the same bytes for the same state. O(n).

        In a thread it holds up others for milliseconds at a time; no step may be made meanwhile.
        """
        self.prepare()
        shadow = self._desk.rehearsal
        kept = EngineSnapshot(
            VERSION, self.book, dump(self.core), None if shadow is None else shadow.dump()
        )
        return b"".join(json_chunks(kept, Book, Snapshot, Account, VirtualClock))

    @classmethod
    def new(cls, setup: Setup) -> Engine:
        """An empty cluster. Raises ValueError as `Core` does, KeyError for an unknown policy."""
        cells = None if setup.cells is None else Cells(setup.cells, lend_rests=setup.lend_rests)
        book, policy = _new_book(setup), load(setup.policy)
        core = Core(setup.pools, policy(), setup.options, cells)
        if setup.lending not in (None, LendingMode.ON):
            book.lending = False
            core = restore(replace(dump(core), lending=False), policy())
            book.shadow = ShadowState(0.0) if setup.lending is LendingMode.SHADOW else None
        return cls(book, core)

    @classmethod
    def restore(cls, data: bytes) -> Engine:
        """An engine that goes on where the one stood that was dumped. O(n · log n).

        Raises ValueError for another version, and for what contradicts itself.
        """
        version = json.decode(data, type=_Version).version
        if version != VERSION:
            raise ValueError(f"a snapshot of version {version}; this one reads {VERSION}")
        kept = json.decode(data, type=EngineSnapshot)
        policy = load(kept.book.setup.policy)
        shadow = None if kept.shadow is None else restore(kept.shadow, policy())
        return cls(kept.book, restore(kept.core, policy()), shadow)

    def _resume(self) -> None:
        """Work out anew which GPUs are in use, and what is due when."""
        book, seats = self.book, self._desk.seats
        for record in book.jobs.values():
            self._runs.set_timers(record)
            if seats is not None and record.placed and record.phase in ON_GPUS:
                seats.take(record.nodes)
        for pool in book.pools.values():
            self._pools.set_timer(pool)
        for window in book.windows.values():
            self._nodes.set_timers(window)
        if seats is not None:
            for node in book.nodes.values():
                if node.reasons:
                    seats.out(node.name)

    def check(self) -> None:
        """Assert that book, core and GPUs in use agree. O(n)."""
        self.core.check()
        self._rails.check()
        self._outages.check()
        check_book(self.book, self.core)
        seats = self._desk.seats
        if seats is not None:
            used = [r.nodes for r in self.book.jobs.values() if r.placed and r.phase in ON_GPUS]
            seats.check({name: node.gpus for name, node in self.book.nodes.items()}, used)
        if self._desk.rehearsal is not None:
            self._desk.rehearsal.check()

    def _foresee(self, news: Foreseen) -> Answer:
        self._desk.events.append(ForecastUpdated(self._desk.now, news.loads))
        return Accepted()

    def _configure(self, asked: Configured) -> Answer:
        papers = self._desk
        self._outages.look()
        papers.flush()  # what was due before is done under the settings of before
        papers.accounts.settle()
        before, made = self.book, adapted(self.book, self.core, asked.setup, asked.unseen)
        if isinstance(made, Refused):
            return made
        self._begin(*made)
        desk = self._desk
        desk.take_over(papers)
        for window in before.windows.values():
            if window.id not in self.book.windows:
                desk.tell("maintenance_dropped", node=window.node, id=window.id)
        desk.events += changes(self.book, before.setup, desk.now)
        mode = asked.setup.lending
        if mode is not None and mode is not before.setup.lending:
            self._pools.switch(mode, "configuration")
        for event in desk.events:
            if isinstance(event, PoolChanged):
                desk.tell("pool_changed", pool=event.pool, quota=event.quota, by="configuration")
        desk.tell("configured")
        return Accepted()

    def _change_model(self, news: ModelChanged) -> Answer:
        self.book.model = news.digest
        self._desk.tell("model", name=news.name, digest=news.digest, why=news.why)
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
    """The cells of each pool, by chain and type."""
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
