"""What the engine is built of: pools, nodes or cells, the policy and its options."""

from __future__ import annotations

from msgspec import Struct

from cells.layout.spec import Spec
from daemon.model.job import LendingMode, PoolMode
from sia.model import Options, Pool

HOURS_AHEAD = 2
"""From which of these rules on what is thought to be left of loans counts as lent."""

OUT_LEFT = 3
"""From which of these rules on GPUs that are out are not lent."""

RAILS = 3
"""Rules of guard rails now. From 1 on hours are those of the ledger, a first slowed job is on
credit, and a group rests after a late one; from 2 on what is thought to be left of loans counts as
lent; from 3 on GPUs that are out are not lent. Journals of others are read by those that they were
written by."""


class Node(Struct, frozen=True, gc=False, forbid_unknown_fields=True):
    """A node and the numbers of its GPUs."""

    name: str
    gpus: tuple[int, ...]


class Budget(Struct, frozen=True, gc=False, omit_defaults=True, forbid_unknown_fields=True):
    """How much a pool lends at most; None is without bounds."""

    lend_budget_hours: float | None = None
    """GPU-hours in a calendar month."""
    slowed_budget_pct: float | None = None
    """Percent of its jobs that may begin later than in the pool alone."""


class Setup(Struct, frozen=True, tag=True, omit_defaults=True, forbid_unknown_fields=True):
    """As the operator has configured it. It is the first thing that a journal says.

    Without `nodes` and `cells` jobs get no GPU numbers: the backend finds them some.
    """

    pools: tuple[Pool, ...]
    policy: str = "sia"
    options: Options = Options()
    nodes: tuple[Node, ...] = ()
    cells: Spec | None = None
    lend_rests: bool = False
    modes: dict[str, PoolMode] = {}
    """Of pools that do not begin open."""
    areas: dict[str, tuple[str, ...]] = {}
    """Nodes of which one start has all of its own, by pool; without any, jobs go over all nodes."""
    budgets: dict[str, Budget] = {}
    """Of pools that have one."""
    lending: LendingMode | None = None
    """How the switch stands at first, and whenever the configuration says something new of it."""
    book_every: int = 1
    """Steps from one booking of accounts to the next: older releases booked in each."""

    rails: int = 0
    """Rules of guard rails: 0 as the first release of them had them; see `RAILS`."""

    def budget(self, pool: str) -> Budget:
        """Of a pool; without bounds if nothing was said."""
        return self.budgets.get(pool, Budget())
