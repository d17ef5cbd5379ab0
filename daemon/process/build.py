"""Builds a daemon from its configuration: journal, clock, backend, service."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import partial
from typing import TYPE_CHECKING, NamedTuple

from daemon.answers.estimates.estimator import EtaService
from daemon.backends.interface import Backend, BuildContext
from daemon.config.config import Config
from daemon.config.database import DatabaseUrl
from daemon.doors.views.series.sampler import UsageHistory
from daemon.doors.webhooks.webhooks import Hooks
from daemon.forecasts.forecaster import ForecastService, Predictors
from daemon.forecasts.retraining import USUAL_EVERY, Models, Retraining
from daemon.journal.journal import Journal
from daemon.lending.accounts import BOOK_EVERY
from daemon.model.job import PoolMode
from daemon.model.setup import Budget, Node, Setup
from daemon.runtime.clock import Clock, FastClock
from daemon.runtime.job_token import ReportVariables
from daemon.service.admission import Admission
from daemon.service.observer import Observer
from daemon.service.service import Service
from sia.console.errors import UserError
from sia.model import Nodes, Options
from sia.policies import load
from sia.wording import counted, some

if TYPE_CHECKING:
    from daemon.process.lease import PostgresLease


class Daemon(NamedTuple):
    """The parts of a daemon, not started yet."""

    service: Service
    journal: Journal
    clock: Clock
    setup: Setup
    hooks: Hooks
    """Webhooks: `open` and `run` them while the service runs."""
    admission: Admission
    """Limits that are checked before jobs are submitted."""
    eta: EtaService
    """Estimates of starts and ends: `run` it while the service runs."""
    usage: UsageHistory
    """Series of use, waits and loans: `run` it while the service runs."""
    foresight: ForecastService | None = None
    """The forecasts, if the policy uses any."""
    retraining: Retraining | None = None
    """Retraining of load models: `run` it while the service runs."""


def build(
    config: Config,
    watch: Observer,
    lease: PostgresLease | None = None,
    reports: ReportVariables | None = None,
) -> Daemon:
    """Build the daemon; its database is open and locked when this returns.

    PostgreSQL needs the `lease`. `reports` are the variables with which jobs report progress.

    Raises UserError if the database or the machine does not match the
    configuration.
    """
    journal = _journal(config, lease)
    try:
        clock = _clock(config, journal)
        backend: Backend = config.backend.build(BuildContext(config, clock, journal))
        areas = getattr(backend, "areas", {})
        setup = setup_of(config, backend.gpus, areas, again=bool(journal.snapshots()))
        predictors, models = Predictors(setup, config.forecast), Models(config.models)
        if config.chosen_by_backtest and load(setup.policy).needs.loads:
            predictors = predictors._replace(chosen_by_backtest=True)
        foresight = None
        if predictors.any:
            known = partial(models.read, windows=setup.options.windows)
            foresight = ForecastService(predictors, known)
            foresight.drift = config.drift
        service = Service(
            setup,
            backend,
            journal,
            clock,
            watch=watch,
            foresight=foresight,
            fence=lease,
            snapshot_every=config.snapshot_every,
            reports=reports,
            solver=config.solver or None,
        )
        if foresight is not None:
            foresight.unwell = partial(service.parts.say, "forecasts")
        hooks = Hooks(config.webhooks, service, lenient=lease is not None)
    except BaseException:
        journal.close()
        raise
    retraining = None
    if foresight is not None and (predictors.chosen_by_backtest or predictors.learns):
        every = USUAL_EVERY if config.retrain is None else config.retrain
        retraining = Retraining(models, foresight, clock, setup, every)
        retraining.unwell = partial(service.parts.say, "retraining")
    admission = _admission(config, service)
    eta = EtaService(service, off=not config.estimates)
    return Daemon(
        service, journal, clock, setup, hooks, admission, eta, UsageHistory(service), foresight,
        retraining
    )  # fmt: skip


def _admission(config: Config, service: Service) -> Admission:
    usual = config.limits.pool
    pools = {pool.name: pool.limit(usual) for pool in config.pools}
    return Admission(config.limits, pools, lambda: service.book, service.jobs_past)


def _journal(config: Config, lease: PostgresLease | None) -> Journal:
    if isinstance(config.database, DatabaseUrl):
        from daemon.journal.postgres import PostgresStore  # noqa: PLC0415  not everybody has psycopg

        assert lease is not None, "nobody may write there without"
        store = PostgresStore(config.database, lease.epoch)
        return Journal(store, keep_records=config.retention, keep_history=config.history)
    folder = config.database.parent
    try:
        folder.mkdir(parents=True, exist_ok=True, mode=0o700)
    except OSError as error:
        raise UserError(f"{folder}: {error.strerror}; change daemon.state") from None
    return Journal(config.database, keep_records=config.retention, keep_history=config.history)


def _clock(config: Config, journal: Journal) -> Clock:
    """Return the clock; simulated jobs may run on a faster one."""
    anchor = journal.anchor()
    speed = config.backend.clock_speed
    if speed != 1.0:
        return FastClock(speed, Clock().now(), anchor)
    return Clock(anchor)


def _refuse_unknown(
    config: Config, nodes: Sequence[Node], areas: Mapping[str, tuple[str, ...]], *, again: bool
) -> None:
    """Raise UserError for attributes of nodes that the backend did not find, or with areas.

    A daemon that has run before (`again`) may start although a node no longer exists.
    """
    if not config.backend.finds_nodes or not config.nodes:
        return
    names = [node.name for node in nodes]
    for node in () if again else config.nodes:
        if node.name not in names:
            known = some(names)
            raise UserError(
                f"node.{node.name}: the backend found no such node; remove it, or name one of "
                f"{known}"
            )
    if any({*area} != {*names} for area in areas.values()):
        raise UserError(
            "node.attributes: the pools' partitions have different nodes, but a plan by attributes "
            "may use nodes of all partitions; give all pools the same nodes, or remove [[node]]"
        )


def setup_of(
    config: Config,
    found: Nodes | None,
    areas: Mapping[str, tuple[str, ...]],
    *,
    again: bool = False,
) -> Setup:
    """Return the engine's setup.

    `found` has the GPUs that the backend reports. `areas` has the nodes of each pool, for backends
    where all GPUs of a job must be in the nodes of one pool. `again` means that the daemon has run
    before; the engine then knows nodes that the backend no longer finds. Raises UserError if the
    pools own more GPUs than there are.
    """
    nodes: tuple[Node, ...] = ()
    if config.cells is None:
        declared = ((node.name, tuple(range(node.gpus or 0))) for node in config.nodes)
        attributes = {node.name: node.attributes for node in config.nodes}
        nodes = tuple(
            Node(name, gpus, attributes.get(name, ())) for name, gpus in found or declared
        )
    owned = sum(pool.quota for pool in config.pools)
    there = sum(len(node.gpus) for node in nodes)
    if nodes and there < owned and not (found and again):
        raise UserError(
            f"this machine has {counted(there, 'GPU')}, and the pools own {owned}; give the pools "
            "smaller quotas or set backend.gpus"
        )
    _refuse_unknown(config, nodes, areas, again=again)
    options = Options(
        windows=config.windows, tick=config.tick, slack=config.slack,
        resume_cost=config.resume_cost, stops_per_hour=config.stops_per_hour, grace=config.grace,
        owners=True,
    )  # fmt: skip
    pools = tuple(pool.pool for pool in config.pools)
    modes: dict[str, PoolMode] = {}
    for pool in config.pools:
        if pool.state is not PoolMode.OPEN:
            modes[pool.name] = pool.state
    budgets = {pool.name: pool.budget for pool in config.pools if pool.budget != Budget()}
    return Setup(
        pools, config.policy, options, nodes, cells=config.cells, modes=modes, areas=dict(areas),
        discovered=bool(nodes and found),
        budgets=budgets, grants=config.grants, lending=config.lending, grace=config.grace,
        stops_per_job=config.stops_per_job, preemptible=config.preemptible,
        resizes="resize" in config.backend.can, book_every=BOOK_EVERY,
    )  # fmt: skip
