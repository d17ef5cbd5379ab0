"""Requests for cells and their results, as values."""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum
from typing import NamedTuple


class Request(NamedTuple):
    """A request for cells. All jobs of a pool with the same widths share one request.

    Attributes:
        pool: The pool whose quota a dedicated job uses, or that requests spare GPUs.
        widths: GPUs of each member of the gang; most jobs have one member. A member no wider than a
            node gets one cell of the smallest sufficient type. A wider member gets whole nodes.
        chain: The type of the chain's top cells. May be empty if the cluster has one chain.
        pin: The name of a pinned cell to use, for dedicated jobs.
        gpus: The total GPUs that the gang declared, if it did.
    """

    pool: str
    widths: tuple[int, ...]
    chain: str = ""
    pin: str = ""
    gpus: int | None = None


OnNode = tuple[str, tuple[int, ...]]
"""A node's name and the numbers of GPUs on it."""


class CellPlacement(NamedTuple):
    """The nodes and GPUs of a job.

    Attributes:
        nodes: The name of each node and the numbers of the job's GPUs on it, in the order of the
            members. Nodes and GPUs of one member are in the order of the cells file.
    """

    nodes: tuple[OnNode, ...]


class BlockReason(Enum):
    """Why a request has to wait."""

    QUOTA = "quota"
    """The pool has no such cells unused."""
    SPARE = "spare"
    """Only spare jobs block the request."""
    SHORT = "short"
    """Too few healthy cells are left, or splitting one would break another pool's guarantee."""


@dataclass(frozen=True, slots=True)
class Blocked:
    """The result for a request that has to wait. Nothing was changed.

    Attributes:
        reason: Why the request has to wait.
        spare_jobs: If the reason is SPARE, the spare jobs that have to end first.
    """

    reason: BlockReason
    spare_jobs: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class CellShortage:
    """Cells that the healthy nodes cannot provide.

    Attributes:
        chain: The chain.
        type: The cell type.
        count: The number of missing cells of the unused quota of all `pools` together. If `broken`:
            the number of the pool's bound cells that have a part on a node that is out.
        pools: The affected pools; exactly one if `broken`.
        broken: Whether the cells are bound to the pool or pinned. Jobs may still run in them.
    """

    chain: str
    type: str
    count: int
    pools: tuple[str, ...]
    broken: bool = False
