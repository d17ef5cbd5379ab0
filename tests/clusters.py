"""Clusters of cells for tests."""

from __future__ import annotations

from cells.answers import Request
from cells.cells import Cells
from cells.spec import CellType, Node, Pinned, Quota, Spec, Top

TYPES = (
    CellType("gpu"),
    CellType("pair", "gpu", 2),
    CellType("quad", "pair", 2),
    CellType("node", "quad", 2, node=True),
)


def spec(racks=2, nodes=2, quotas=None, pinned=(), bad=()):
    """Racks of nodes of 8 GPUs: `n0`, `n1`, …; quotas as `{"a": {"node": 2}}`."""
    tops = []
    for rack in range(racks):
        names = [f"n{rack * nodes + i}" for i in range(nodes)]
        tops.append(Top("rack", tuple(Node(name, bad=name in bad) for name in names)))
    rows = [
        Quota(pool, "rack", kind, count)
        for pool, counts in (quotas or {}).items()
        for kind, count in counts.items()
    ]
    types = (*TYPES, CellType("rack", "node", nodes))
    return Spec(types, tuple(tops), tuple(rows), tuple(pinned))


def cluster(racks=2, nodes=2, quotas=None, pinned=(), bad=(), **options):
    return Cells(spec(racks, nodes, quotas, pinned, bad), **options)


def wants(pool, *widths, **more):
    return Request(pool, widths, **more)


def pinned_node(name, pool, node):
    return Pinned(name, pool, "node", (node,))
