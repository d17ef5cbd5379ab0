"""The engine's configuration: pools, nodes or cells, the policy and its options."""

from __future__ import annotations

from typing import Annotated

from msgspec import Meta, Struct
from msgspec.structs import replace

from cells.layout.spec import Spec
from daemon.model.job import JobSpec, LendingMode, PoolMode
from daemon.model.limits import GRACE, MAX_BUDGET
from daemon.model.names import MAX_NAME, GpuCount
from sia.contract.policy import Policy
from sia.limits import MAX_GROUP, MAX_VALUE
from sia.model import GpuNode, Options, Pool, StopCost


class Node(Struct, frozen=True, gc=False, omit_defaults=True, forbid_unknown_fields=True):
    """A node and the indices of its GPUs."""

    name: str
    gpus: tuple[int, ...]
    attributes: tuple[str, ...] = ()
    """Attributes of the node: words, or a kind and a value such as `rack:r1`."""

    @property
    def as_core(self) -> GpuNode:
        """The node as the core knows it: its GPUs are numbered from 0."""
        return GpuNode(self.name, len(self.gpus), self.attributes)


class Budget(Struct, frozen=True, gc=False, omit_defaults=True, forbid_unknown_fields=True):
    """A pool's lending budget; None means no bound."""

    lend_budget_hours: float | None = None
    """Maximum GPU-hours lent in a calendar month (UTC)."""
    slowed_budget_pct: float | None = None
    """Maximum percentage of the pool's jobs that may start later than without sharing."""
    slowed_budget_minutes: float | None = None
    """Maximum sum of the minutes by which the jobs that the pool starts in a calendar month (UTC)
    may start later than without sharing."""


EACH = "*"
"""Value of `user` in a grant to each user on its own."""


class Grant(Struct, frozen=True, gc=False, omit_defaults=True, forbid_unknown_fields=True):
    """`[[grant]]`: bounds on fields of jobs. A bound that is None does not restrict."""

    user: Annotated[str, Meta(max_length=MAX_NAME)] = ""
    """User whose jobs the grant bounds. "": the jobs of all users together. `*`: the jobs of each
    user who has no grant for the same pool."""
    pool: Annotated[str, Meta(max_length=MAX_NAME)] = ""
    """Pool whose jobs the grant bounds. "": the jobs of all pools together."""
    max_value: Annotated[float, Meta(ge=0, le=MAX_VALUE)] | None = None
    """Highest value of one job."""
    never_jobs: Annotated[int, Meta(ge=0, le=MAX_GROUP)] | None = None
    """Maximum number of unended jobs that must not be stopped."""
    never_gpus: GpuCount | None = None
    """Maximum number of GPUs of these jobs."""
    extra_budget: Annotated[float, Meta(ge=0, le=MAX_BUDGET)] | None = None
    """Maximum of the budgets of unended jobs above 1, summed: (budget - 1) for each."""
    gpu_hours: Annotated[float, Meta(ge=0, le=MAX_BUDGET)] | None = None
    """Maximum GPU-hours of unended jobs with a deadline, by their own estimates or time limits."""

    @property
    def bounds(self) -> dict[str, float | None]:
        """The bounds by name."""
        return {key: getattr(self, key) for key in self.__struct_fields__[2:]}


class Setup(Struct, frozen=True, tag=True, omit_defaults=True, forbid_unknown_fields=True):
    """The operator's configuration, the first entry of every journal.

    Without `nodes` and `cells` the engine assigns no GPUs: the backend does.
    """

    pools: tuple[Pool, ...]
    policy: str = "sia"
    options: Options = Options()
    nodes: tuple[Node, ...] = ()
    discovered: bool = False
    """Whether the backend found the nodes. A node that it no longer finds is kept, as out, until
    the jobs on it have ended."""
    cells: Spec | None = None
    modes: dict[str, PoolMode] = {}
    """Initial state of the pools that are not open at first."""
    areas: dict[str, tuple[str, ...]] = {}
    """By pool, the nodes that one job may use together, such as a partition. Without areas a job
    may use all nodes."""
    budgets: dict[str, Budget] = {}
    """Budgets of the pools that have one."""
    grants: tuple[Grant, ...] = ()
    """Bounds on values, budgets, deadlines and on jobs that must not be stopped."""
    lending: LendingMode | None = None
    """Lending mode at first, and again whenever the configuration changes it; None means on."""
    grace: float = GRACE
    """Grace time in seconds, in which a job can save its work before a stop."""
    stops_per_job: int = 0
    """Maximum number of stops of a job, after which it runs to its end. 0 means no limit."""
    preemptible: StopCost | None = None
    """Cost of a stop for jobs that do not state it; None if the policy decides."""
    resizes: bool = False
    """Whether the backend can change the width of a running job. If not, the job is stopped and
    starts again on the new width."""
    book_every: int = 1
    """Number of steps between two bookings of the accounts."""
    configured: str = ""
    """The configuration's policy, if a command has changed its options since; `policy` then has the
    options in force."""
    before: str = ""
    """The policy before the last command that changed its options."""
    tuned: float = 0.0
    """Time of that command, in seconds since the epoch; 0 if there was none."""

    def continuing(self, previous: Setup) -> Setup:
        """Return this configuration with the settings that commands made under the previous one.

        Options of a policy that were set by a command are kept until the configuration has another
        policy.
        """
        if not previous.configured or previous.configured != self.policy:
            return self
        return replace(
            self, policy=previous.policy, configured=self.policy, before=previous.before,
            tuned=previous.tuned,
        )  # fmt: skip

    def nodes_for(self, policy: Policy) -> tuple[GpuNode, ...]:
        """Return the nodes for a core whose policy heeds preferences; none if all are alike.

        Under other policies the core only counts GPUs, and the engine chooses the nodes.
        """
        differ = "prefers" in policy.heeds and any(node.attributes for node in self.nodes)
        return tuple(node.as_core for node in self.nodes) if differ else ()

    def stop_cost(self, spec: JobSpec) -> StopCost | None:
        """Return the cost of a stop for a job: its own, or else the configured one."""
        return self.preemptible if spec.preemptible is None else spec.preemptible

    def budget(self, pool: str) -> Budget:
        """Return a pool's budget, without bounds if none is configured."""
        return self.budgets.get(pool, Budget())
