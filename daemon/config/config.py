"""What a daemon is told at its start: plain values, checked whole by `config_read`."""

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
from daemon.model.limits import KEEP_RECORDS, MAX_BUDGET, MAX_WEIGHT, SNAPSHOT_EVERY
from daemon.model.names import MAX_NAME, GpuCount, Name
from daemon.model.setup import Budget
from sia.limits import MAX_QUOTA, TICK, WINDOWS
from sia.model import Pool
from sia.plugins import load_plugin

BACKENDS = "sia.backends"
"""The entry point group of backends."""

USUAL_BACKEND = "simulated"
"""The kind of backend if none is given."""

PORT = 8642
"""Where the daemon listens if nothing else is said; nobody else is known to."""

FIRST_NAME = "sia.toml"
"""The configuration that is read if no other is named, where there is one."""

CLUSTER = "main"
"""What a cluster is called that nobody named."""

ClusterName = Annotated[str, Meta(pattern=r"^[A-Za-z0-9][A-Za-z0-9.-]{0,62}(?!\n)$")]
"""It stands in tokens and in the names of topics."""


DriftMode = Literal["off", "say", "keep"]


class PoolConfig(Struct, frozen=True):
    """A pool as it is before anybody changes it: GPUs that somebody owns."""

    name: Name
    quota: GpuCount
    group: Annotated[str, Meta(max_length=MAX_NAME)] = ""
    share: bool = True
    lend_limit: GpuCount | None = None
    """GPUs of its own that others may hold at a time."""
    borrow_limit: GpuCount | None = None
    """GPUs of others that its jobs may hold at a time."""
    weight: Annotated[float, Meta(ge=1 / MAX_WEIGHT, le=MAX_WEIGHT)] = 1.0
    """Pools are visited by what they use / (quota · weight)."""
    lend_budget_hours: Annotated[float, Meta(ge=0, le=MAX_BUDGET)] | None = None
    """GPU-hours that it lends in a calendar month (UTC) at most."""
    slowed_budget_pct: Annotated[float, Meta(ge=0, le=100)] | None = None
    """Percent of its jobs that may begin later than in the pool alone."""
    state: PoolMode = PoolMode.OPEN
    rate: Rate | None = None
    """Jobs a second that are taken for it; like the two below, [limits] if nothing is said."""
    burst: JobLimit | None = None
    """Jobs at once before that counts."""
    max_waiting: JobLimit | None = None
    """Jobs that wait for it at a time."""

    def limit(self, usual: RateLimit) -> RateLimit:
        """How many jobs are taken for it; what it does not say is as usual."""
        burst = self.burst if self.rate or self.burst else usual.burst
        return RateLimit(self.rate or usual.rate, burst, self.max_waiting or usual.max_waiting)

    @property
    def budget(self) -> Budget:
        """How much it lends at most."""
        return Budget(self.lend_budget_hours, self.slowed_budget_pct)

    @property
    def pool(self) -> Pool:
        """What the replay knows of it."""
        limits = self.lend_limit, self.borrow_limit, self.weight
        return Pool(self.name, self.quota, self.group, self.share, *limits)


class NodeConfig(Struct, frozen=True):
    """A node, where there are no cells."""

    name: Name
    gpus: Annotated[int, Meta(ge=1, le=MAX_QUOTA)]


class BackendConfig(Struct, frozen=True):
    """`[backend]`: base of the sections of all kinds of backends.

    A backend derives its section from this and names the class under entry point `sia.backends`;
    the name is the `kind`. The module must be quick to import, even where an optional dependency of
    the backend is missing: `build` imports the rest.
    """

    finds_nodes: ClassVar[bool] = False
    """Whether it asks a cluster for the nodes, so that the configuration names none."""

    @property
    def clock_speed(self) -> float:
        """How much faster the daemon's clock goes than the clock on the wall."""
        return 1.0

    def placed(self, base: Path, state: Path) -> Self:
        """Take relative paths as from the configuration's folder, or from the state folder."""
        return self

    def problems(self, config: Config) -> Iterator[str]:
        """Return a line for each thing that is wrong with it: `KEY: WHAT; HOW TO FIX IT`."""
        return iter(())

    def build(self, context: Any) -> Any:
        """Build the backend from a `BuildContext` (`daemon.backends.interface`)."""
        raise NotImplementedError


def backend_section(kind: str) -> type[BackendConfig]:
    """Import the section of a kind of backend. Raises KeyError if none is installed."""
    section: type[BackendConfig] = load_plugin(BACKENDS, kind)
    return section


def _simulated() -> BackendConfig:
    """The backend of a daemon that is told of none."""
    return backend_section(USUAL_BACKEND)()


class Address(NamedTuple):
    """Where the daemon listens."""

    host: str
    port: int
    scheme: str = "http"
    """`https` where it encrypts."""

    @property
    def url(self) -> str:
        """As clients ask for it."""
        host = f"[{self.host}]" if ":" in self.host else self.host
        return f"{self.scheme}://{host}:{self.port}"

    @property
    def loopback(self) -> bool:
        """Whether only this machine can reach it."""
        try:
            return ip_address(self.host).is_loopback
        except ValueError:
            return self.host == "localhost"


LOOPBACK = Address("127.0.0.1", PORT)

DEFAULT_POOLS = (
    PoolConfig("vision", 64),
    PoolConfig("speech", 32),
    PoolConfig("language", 32),
    PoolConfig("robots", 16),
)
"""The pools of a daemon that nobody configured: small enough to queue, unequal enough to lend."""


def state_folder() -> Path:
    """Where a user's daemon keeps what it knows, unless it is told another folder."""
    base = os.environ.get("XDG_STATE_HOME") or str(Path.home() / ".local" / "state")
    return Path(base) / "sia"


class Config(Struct, frozen=True, kw_only=True):
    """All of it. Times are seconds; paths are absolute, or relative to the working folder."""

    database: Path | DatabaseUrl
    token_file: Path
    listen: Address = LOOPBACK
    cluster: str = CLUSTER
    """The name by which others know it, and its tokens."""
    policy: str = "sia"
    forecast: str = "peaks+survival"
    """What the policy foresees by, as after the @ of a replay's label; "none" for nothing."""
    retrain: float | None = None
    """Seconds from one training of a learned forecast to the next; None does not train."""
    models: Path
    """A folder with one for each model that was learned."""
    windows: tuple[float, ...] = WINDOWS
    tick: float = TICK
    slack: float = 1.0
    lending: LendingMode | None = None
    """How the switch for loans stands at first; on if nothing is said."""
    drift: DriftMode = "say"
    """Of pools whose forecasts are wrong too often: nothing, a word, or none lends until well."""
    estimates: bool = True
    """Whether children of the daemon play the present forward, to say when jobs start and end."""
    snapshot_every: int = SNAPSHOT_EVERY
    """Inputs between two snapshots."""
    retention: float = KEEP_RECORDS
    """How long records older than the snapshots are kept."""
    log_level: Literal["debug", "info", "warning", "error"] = "info"
    backend: BackendConfig = msgspec.field(default_factory=_simulated)
    pools: tuple[PoolConfig, ...] = DEFAULT_POOLS
    nodes: tuple[NodeConfig, ...] = ()
    """Where there are no cells; one node with the GPUs of all pools if none is named."""
    cells: Spec | None = None
    webhooks: tuple[WebhookConfig, ...] = ()
    mqtt: MqttConfig | None = None
    """The broker, if the daemon is to be on one."""
    tls: TlsConfig = TlsConfig()
    limits: LimitsConfig = LimitsConfig()

    @classmethod
    def embedded(cls, folder: Path | None = None) -> Config:
        """The configuration of a daemon that nobody configured."""
        state = state_folder() if folder is None else folder
        return cls(database=state / "sia.db", token_file=state / "token", models=state / "models")
