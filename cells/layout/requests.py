"""What is asked of cells, and what they answer."""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum
from typing import NamedTuple


class Request(NamedTuple):
    """What a job asks for; the same for all of a pool's jobs of a width.

    Attributes:
        pool: Whose quota it uses, or who asks for spare GPUs.
        widths: GPUs of each member of the gang: one number for most jobs. A member no wider than a
            node lies in one cell of the smallest type that holds it; a wider one gets whole nodes.
        chain: Type of the chain's top cells; may be left empty where there is but one.
        pin: Name of a pinned cell to lie in, for dedicated jobs.
        gpus: GPUs that the gang declared in all, if it did.
    """

    pool: str
    widths: tuple[int, ...]
    chain: str = ""
    pin: str = ""
    gpus: int | None = None


OnNode = tuple[str, tuple[int, ...]]
"""A node's name and numbers of GPUs on it."""


class CellPlacement(NamedTuple):
    """Where a job is.

    Attributes:
        nodes: Name of each node and the numbers of the job's GPUs on it, in the order of its
            members; nodes and GPUs of one member in the order of the file.
    """

    nodes: tuple[OnNode, ...]


class BlockReason(Enum):
    """Why a request has to wait."""

    QUOTA = "quota"
    """The pool does not have such cells unused."""
    SPARE = "spare"
    """Spare jobs are in the way, and nothing else."""
    SHORT = "short"
    """Too few healthy cells are left for it, or splitting one is unsafe for other pools."""


@dataclass(frozen=True, slots=True)
class Blocked:
    """A request that has to wait; nothing was changed.

    Attributes:
        reason: Why.
        spare_jobs: Those whose end it waits for, if spare jobs are the reason.
    """

    reason: BlockReason
    spare_jobs: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class CellShortage:
    """Cells that healthy nodes no longer give.

    Attributes:
        chain: The chain.
        type: Type of the cells.
        count: How many are missing, of the unused quota of these pools together; or, where broken,
            how many cells of the one pool have a part on a node that is out, or are no longer its.
        pools: Which pools.
        broken: They are bound to the pool, or pinned; jobs may still run in them.
    """

    chain: str
    type: str
    count: int
    pools: tuple[str, ...]
    broken: bool = False
