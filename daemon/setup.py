"""What the engine is built of: pools, nodes or cells, the policy and its options."""

from __future__ import annotations

from msgspec import Struct

from cells.spec import Spec
from daemon.jobs import PoolMode
from sia.model import Options, Pool


class Node(Struct, frozen=True, gc=False, forbid_unknown_fields=True):
    """A node and the numbers of its GPUs."""

    name: str
    gpus: tuple[int, ...]


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
