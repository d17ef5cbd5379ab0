"""The daemon's configuration as plain values. `daemon.config.read` reads and checks them."""

from __future__ import annotations

import os
from collections.abc import Iterator
from ipaddress import ip_address
from pathlib import Path
from typing import Annotated, Any, ClassVar, Literal, NamedTuple, Self

import msgspec
from msgspec import Meta, Struct

from cells.layout.spec import Spec
from daemon.config.access import JobLimit, LimitsConfig, Rate, RateLimit, TlsConfig
from daemon.config.database import DatabaseUrl
from daemon.config.mqtt import MqttConfig
from daemon.config.webhooks import WebhookConfig
from daemon.model.job import LendingMode, PoolMode
from daemon.model.limits import (
    GRACE,
    KEEP_HISTORY,
    KEEP_RECORDS,
    MAX_BUDGET,
    MAX_WEIGHT,
    SNAPSHOT_EVERY,
    STOPS_PER_JOB,
)
from daemon.model.names import MAX_NAME, GpuCount, Name
from daemon.model.setup import Budget, Grant
from sia.contract.labels import name_of
from sia.contract.plugins import load_plugin
from sia.limits import MAX_QUOTA, TICK, WINDOWS
from sia.model import NEVER_STOPPED, Pool, StopCost

Ability = Literal[
    "adopted_widths",
    "commands",
    "logs",
    "preempt",
    "requeue",
    "resize",
    "save_by_command",
    "save_by_signal",
    "trials",
]
"""Optional abilities of a backend. "adopted_widths": change the width of adopted jobs. "commands":
run commands (jobs need a command). "logs": store logs. "preempt": stop jobs that start again later
(`PreemptEffect`). "requeue": requeue a job as another attempt. "resize": change the width of a
running job (`ResizeEffect`); without it, such a job is stopped and started again.
"save_by_command", "save_by_signal": tell jobs to save their work by the command or the signal that
they name; without them, by SIGTERM. "trials": run a trial of a job on fewer
GPUs than it asks for."""

BACKENDS = "sia.backends"
"""Entry point group of backends."""

USUAL_BACKEND = "simulated"
"""Default of `backend.kind`."""

PORT = 8642
"""Default port; no other known service uses it."""

FIRST_NAME = "sia.toml"
"""File that commands read by default if it exists in the working directory."""

LENDING = "sia"
"""Default policy of a site that does not say that its jobs may be stopped: the policy of the
paper."""

RECLAIMING = "sia-reclaim"
"""Default policy of a site that says so."""

USUAL_FORECAST = "peaks+survival"
"""Default forecast, until another one gains more on the daemon's history."""

CELLS_FORECAST = "peaks+survival:0.95"
"""Default forecast of `sia` in a cluster with cells, where one guest that outlasts its window
delays a whole queue: it delays 84 of 104,808 jobs of Philly, and `peaks+survival` 1,841
(docs/understand/cells.md). The daemon chooses another one only if the site sets `retrain`, because
the replays that choose a forecast simulate no cells."""

CLUSTER = "main"
"""Default name of the cluster."""

ClusterName = Annotated[str, Meta(pattern=r"^[A-Za-z0-9][A-Za-z0-9.-]{0,62}(?!\n)$")]
"""Name of a cluster. It is part of tokens and of MQTT topics, so the characters are limited."""


DriftMode = Literal["off", "say", "keep"]


def usual_policy(preemptible: StopCost | None) -> str:
    """Return the default policy, given the cost of a stop that the site has configured."""
    return LENDING if preemptible in (None, NEVER_STOPPED) else RECLAIMING


def usual_forecast(policy: str, *, cells: bool) -> str:
    """Return the default forecast of a policy, which may have options."""
    return CELLS_FORECAST if cells and name_of(policy) == LENDING else USUAL_FORECAST


class PoolConfig(Struct, frozen=True):
    """`[[pool]]`: the configured settings of a pool, before operators change them."""

    name: Name
    quota: GpuCount
    group: Annotated[str, Meta(max_length=MAX_NAME)] = ""
    share: bool = True
    lend_limit: GpuCount | None = None
    """Maximum number of GPUs that the pool lends at a time."""
    borrow_limit: GpuCount | None = None
    """Maximum number of GPUs that the pool's jobs borrow at a time."""
    weight: Annotated[float, Meta(ge=1 / MAX_WEIGHT, le=MAX_WEIGHT)] = 1.0
    """A policy visits pools in the order of used GPUs / (quota · weight)."""
    lend_budget_hours: Annotated[float, Meta(ge=0, le=MAX_BUDGET)] | None = None
    """Maximum GPU-hours that the pool lends in a calendar month (UTC)."""
    slowed_budget_pct: Annotated[float, Meta(ge=0, le=100)] | None = None
    """Maximum percentage of the pool's jobs that may start later than in the baseline."""
    slowed_budget_minutes: Annotated[float, Meta(ge=0, le=MAX_BUDGET)] | None = None
    """Maximum sum of the minutes by which the jobs that the pool starts in a calendar month (UTC)
    may start later than in the baseline."""
    state: PoolMode = PoolMode.OPEN
    rate: Rate | None = None
    """Maximum number of jobs accepted per second. This and the two keys below default to
    `[limits]`."""
    burst: JobLimit | None = None
    """Number of jobs accepted at once before the rate applies."""
    max_waiting: JobLimit | None = None
    """Maximum number of pending jobs of the pool."""

    def limit(self, usual: RateLimit) -> RateLimit:
        """Return the pool's admission limits; `usual` has the defaults."""
        burst = self.burst if self.rate or self.burst else usual.burst
        return RateLimit(self.rate or usual.rate, burst, self.max_waiting or usual.max_waiting)

    @property
    def budget(self) -> Budget:
        """Return the pool's lending budget."""
        return Budget(self.lend_budget_hours, self.slowed_budget_pct, self.slowed_budget_minutes)

    @property
    def pool(self) -> Pool:
        """Return the pool as the core uses it."""
        limits = self.lend_limit, self.borrow_limit, self.weight
        return Pool(self.name, self.quota, self.group, self.share, *limits)


class NodeConfig(Struct, frozen=True):
    """`[[node]]`: a node of a cluster without cells, or attributes of a node that is found."""

    name: Name
    gpus: Annotated[int, Meta(ge=1, le=MAX_QUOTA)] | None = None
    """None if the backend finds the nodes."""
    attributes: tuple[str, ...] = ()
    """Words such as `fast`; some are a kind and a value, such as `rack:r1`."""


class BackendConfig(Struct, frozen=True):
    """`[backend]`: base of the sections of all kinds of backends.

    A backend derives its section from this and names the class under entry point `sia.backends`;
    the name is the `kind`. The module must be quick to import, even where an optional dependency of
    the backend is missing: `build` imports the rest.
    """

    can: ClassVar[frozenset[Ability]] = frozenset()
    """Abilities of the backend besides starting and ending jobs. A policy that needs others is
    refused before the backend is built."""
    jobs_are_here: ClassVar[bool] = False
    """Whether jobs run on the daemon's machine, so that they reach its loopback address."""
    finds_nodes: ClassVar[bool] = False
    """Whether the backend reads the nodes from its cluster; `[[node]]` then has attributes only."""

    @property
    def clock_speed(self) -> float:
        """Speed of the daemon's clock, as a factor of real time."""
        return 1.0

    def placed(self, base: Path, state: Path) -> Self:
        """Return a copy whose relative paths are resolved against `base` or `state`.

        `base` is the folder of the configuration file, `state` the state folder.
        """
        return self

    def problems(self, config: Config) -> Iterator[str]:
        """Return one line for each problem of the section: `KEY: WHAT; HOW TO FIX IT`."""
        return iter(())

    def build(self, context: Any) -> Any:
        """Build the backend from a `BuildContext` (`daemon.backends.interface`)."""
        raise NotImplementedError


def backend_section(kind: str) -> type[BackendConfig]:
    """Import the section of a kind of backend. Raises KeyError if none is installed."""
    section: type[BackendConfig] = load_plugin(BACKENDS, kind)
    return section


def _simulated() -> BackendConfig:
    """Return the section of the default backend, with default values."""
    return backend_section(USUAL_BACKEND)()


ON_THIS_MACHINE = {"0.0.0.0": "127.0.0.1", "::": "::1"}  # noqa: S104  compares, does not bind
"""Loopback hosts by the host that stands for all interfaces."""


class Address(NamedTuple):
    """The address on which the daemon listens."""

    host: str
    port: int
    scheme: str = "http"
    """`https` if the daemon serves TLS."""

    @property
    def url(self) -> str:
        """Return the base URL for clients."""
        host = f"[{self.host}]" if ":" in self.host else self.host
        return f"{self.scheme}://{host}:{self.port}"

    @property
    def from_here(self) -> Address:
        """The same address as this machine's own clients use it."""
        return self._replace(host=ON_THIS_MACHINE.get(self.host, self.host))

    @property
    def loopback(self) -> bool:
        """Whether only this machine can reach the address."""
        try:
            return ip_address(self.host).is_loopback
        except ValueError:
            return self.host == "localhost"


LOOPBACK = Address("127.0.0.1", PORT)

DEFAULT_POOLS = (PoolConfig("default", 8),)
"""Pool of a daemon without a configuration file, which owns all simulated GPUs: as many as a usual
node has. The real pools are known only to the site."""


def state_folder() -> Path:
    """Return the default state folder: `$XDG_STATE_HOME/sia`, or `~/.local/state/sia`."""
    base = os.environ.get("XDG_STATE_HOME") or str(Path.home() / ".local" / "state")
    return Path(base) / "sia"


class Config(Struct, frozen=True, kw_only=True):
    """The whole configuration.

    Times are seconds. Paths are absolute, or relative to the working directory.
    """

    database: Path | DatabaseUrl
    token_file: Path
    listen: Address = LOOPBACK
    url: str = ""
    """URL under which jobs report their progress, several separated by commas; empty: `listen`."""
    cluster: str = CLUSTER
    """Name of the cluster in tokens, MQTT topics and reports."""
    policy: str = LENDING
    solver: str = ""
    """Solver of a policy that plans with one; empty for the best that is installed."""
    forecast: str = USUAL_FORECAST
    """Forecasts of the policy, written like the part of a label after `@`; "none" for no
    forecasts."""
    chosen_by_backtest: bool = False
    """Whether it may be replaced by a forecast that gains more on the daemon's history."""
    retrain: float | None = None
    """Seconds between two trainings; None for the default."""
    models: Path
    """Folder of trained models; each model has its own folder in it."""
    windows: tuple[float, ...] = WINDOWS
    tick: float = TICK
    slack: float = 1.0
    lending: LendingMode | None = None
    """Initial lending mode of a new journal; None means on."""
    drift: DriftMode = "say"
    """Reaction to drift: `off` ignores drift, `say` reports it, `keep` also stops lending."""
    grace: float = GRACE
    """Grace time in seconds, in which a job can save its work before a stop."""
    resume_cost: float = 0.0
    """Seconds without progress after a stopped job starts again, for jobs without an own cost of
    stops."""
    preemptible: StopCost | None = None
    """Cost of a stop for jobs that do not state it. Setting it means that jobs may be stopped."""
    stops_per_job: int = STOPS_PER_JOB
    """Maximum number of stops of a job; 0 for no limit."""
    stops_per_hour: int = 0
    """Maximum number of stops of all jobs within an hour; 0 for no limit."""
    estimates: bool = True
    """Whether child processes of the daemon estimate when jobs start and end."""
    snapshot_every: int = SNAPSHOT_EVERY
    """Number of inputs between two snapshots."""
    retention: float = KEEP_RECORDS
    """Seconds for which the journal keeps steps that are older than its snapshots."""
    history: float = KEEP_HISTORY
    """Seconds for which the journal keeps ended jobs, events and accounts. It has no key in
    sia.toml."""
    log_level: Literal["debug", "info", "warning", "error"] = "info"
    backend: BackendConfig = msgspec.field(default_factory=_simulated)
    pools: tuple[PoolConfig, ...] = DEFAULT_POOLS
    nodes: tuple[NodeConfig, ...] = ()
    """Nodes of a cluster without cells. Empty: one node with the GPUs of all pools."""
    cells: Spec | None = None
    webhooks: tuple[WebhookConfig, ...] = ()
    mqtt: MqttConfig | None = None
    """The MQTT broker; None disables MQTT."""
    tls: TlsConfig = TlsConfig()
    limits: LimitsConfig = LimitsConfig()
    grants: tuple[Grant, ...] = ()

    @property
    def front(self) -> Path:
        """File in the state folder in which `sia wfq update` stores the front."""
        return self.models.parent / "front" / "front.json"

    def url_for_jobs(self, port: int) -> str:
        """Return the URL under which jobs reach this daemon on `port`; "" if they cannot.

        Jobs on other machines cannot reach a loopback address, and an address on all interfaces
        does not name a machine.
        """
        listen = self.listen._replace(port=port)
        if self.url or self.backend.jobs_are_here:
            return self.url or listen.from_here.url
        return "" if listen.from_here.loopback else listen.url

    @classmethod
    def embedded(cls, folder: Path | None = None) -> Config:
        """Return the configuration of a daemon that runs without `sia.toml`."""
        state = state_folder() if folder is None else folder
        return cls(
            database=state / "sia.db", token_file=state / "token", models=state / "models",
            chosen_by_backtest=True,
        )  # fmt: skip
