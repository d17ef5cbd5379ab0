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
        """The node as the core knows it: GPUs are numbered from 0."""
        return GpuNode(self.name, len(self.gpus), self.attributes)


class Budget(Struct, frozen=True, gc=False, omit_defaults=True, forbid_unknown_fields=True):
    """A pool's lending budget; None for no bound."""

    lend_budget_hours: float | None = None
    """Most GPU-hours lent in a calendar month (UTC)."""
    slowed_budget_pct: float | None = None
    """Most percent of its jobs that may start later than without sharing."""


EACH = "*"
"""The user of a grant to each user, one by one."""


class Grant(Struct, frozen=True, gc=False, omit_defaults=True, forbid_unknown_fields=True):
    """`[[grant]]`: bounds on what jobs may ask for. A bound that is None does not restrict."""

    user: Annotated[str, Meta(max_length=MAX_NAME)] = ""
    """The user whose jobs it bounds; empty for those of all users together, `*` for those of each
    user who has no grant for the same pool."""
    pool: Annotated[str, Meta(max_length=MAX_NAME)] = ""
    """The pool whose jobs it bounds; empty for those of all pools together."""
    max_value: Annotated[float, Meta(ge=0, le=MAX_VALUE)] | None = None
    """Highest value of one job."""
    never_jobs: Annotated[int, Meta(ge=0, le=MAX_GROUP)] | None = None
    """Most unended jobs at a time that must not be stopped."""
    never_gpus: GpuCount | None = None
    """Most GPUs of such jobs at a time."""
    extra_budget: Annotated[float, Meta(ge=0, le=MAX_BUDGET)] | None = None
    """Most budget of unended jobs beyond 1 for each."""
    gpu_hours: Annotated[float, Meta(ge=0, le=MAX_BUDGET)] | None = None
    """Most GPU-hours of unended jobs with a deadline, by what they say of their run time."""

    @property
    def bounds(self) -> dict[str, float | None]:
        """The bounds by their names."""
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
    """Whether the backend found the nodes. One that it finds no longer stays, but is out, until the
    jobs on it have ended."""
    cells: Spec | None = None
    modes: dict[str, PoolMode] = {}
    """State of the pools that are not open at first."""
    areas: dict[str, tuple[str, ...]] = {}
    """By pool, the nodes that one job may use together, such as a partition. Without areas a job
    may use all nodes."""
    budgets: dict[str, Budget] = {}
    """Budgets of the pools that have one."""
    grants: tuple[Grant, ...] = ()
    """Bounds on values, budgets, deadlines and on jobs that must not be stopped."""
    lending: LendingMode | None = None
    """Lending mode at first, and again whenever the configuration changes it; None for on."""
    grace: float = GRACE
    """Seconds that a job has to save its work when it is told to stop."""
    stops_per_job: int = 0
    """How often a job may be stopped; then it runs to its end. 0 for any number."""
    preemptible: StopCost | None = None
    """What a stop costs jobs that do not say; None if the policy decides."""
    resizes: bool = False
    """Whether the backend changes the width of a running job. If not, the job is stopped and
    starts on the new width."""
    book_every: int = 1
    """Steps between bookings of the accounts."""
    configured: str = ""
    """The policy of the configuration, if a command has changed its options since; `policy` then
    has those in force."""
    before: str = ""
    """The policy before the last command that changed its options."""
    tuned: float = 0.0
    """When that command was, in seconds since the epoch; 0 if there was none."""

    def continuing(self, previous: Setup) -> Setup:
        """Return this configuration with what commands have set under the previous one.

        The options of a policy that a command has set last until the configuration has another
        policy.
        """
        if not previous.configured or previous.configured != self.policy:
            return self
        return replace(
            self, policy=previous.policy, configured=self.policy, before=previous.before,
            tuned=previous.tuned,
        )  # fmt: skip

    def nodes_for(self, policy: Policy) -> tuple[GpuNode, ...]:
        """Return the nodes for a core whose policy heeds what jobs prefer; none if all are alike.

        Other policies count GPUs, and the engine chooses the nodes.
        """
        differ = "prefers" in policy.heeds and any(node.attributes for node in self.nodes)
        return tuple(node.as_core for node in self.nodes) if differ else ()

    def stop_cost(self, spec: JobSpec) -> StopCost | None:
        """Return what a stop costs a job: what it says, or what the site says of its jobs."""
        return self.preemptible if spec.preemptible is None else spec.preemptible

    def budget(self, pool: str) -> Budget:
        """Return a pool's budget, without bounds if none is configured."""
        return self.budgets.get(pool, Budget())
