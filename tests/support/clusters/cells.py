"""Clusters of cells for tests."""

from __future__ import annotations

from cells.cells import Cells
from cells.layout.requests import Request
from cells.layout.spec import CellsError, CellType, NodeSpec, Pinned, QuotaSpec, Spec, Top

TYPES = (
    CellType("gpu"),
    CellType("pair", "gpu", 2),
    CellType("quad", "pair", 2),
    CellType("node", "quad", 2, node=True),
)

TYPES_FILE = """
types = [
    { name = "gpu" },
    { name = "pair", child = "gpu", count = 2 },
    { name = "quad", child = "pair", count = 2 },
    { name = "node", child = "quad", count = 2, node = true },
]
"""
"""The same types as a cells file."""


def spec(racks=2, nodes=2, quotas=None, pinned=(), bad=()):
    """Build racks of nodes `n0`, `n1`, … with 8 GPUs each; quotas are like `{"a": {"node": 2}}`."""
    tops = []
    for rack in range(racks):
        names = [f"n{rack * nodes + i}" for i in range(nodes)]
        tops.append(Top("rack", tuple(NodeSpec(name, bad=name in bad) for name in names)))
    rows = [
        QuotaSpec(pool, "rack", kind, count)
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


LINES = {
    "rack": (
        CellType("gpu"),
        CellType("pair", "gpu", 2),
        CellType("box", "pair", 2, node=True),
        CellType("rack", "box", 3),
    ),
    "row": (
        CellType("card"),
        CellType("host", "card", 3, node=True),
        CellType("shelf", "host", 2),
        CellType("row", "shelf", 2),
    ),
    "server": (
        CellType("slice"),
        CellType("half", "slice", 2),
        CellType("server", "half", 2, node=True),
    ),
}
"""Chains by the type of their top cells: racks, rows of racks, and single servers."""

NODES = {"rack": 3, "row": 4, "server": 1}
"""Number of nodes in a top cell."""


def top(kind, name, bad=()):
    nodes = [f"{name}{i}" for i in range(NODES[kind])]
    return Top(kind, tuple(NodeSpec(node, bad=node in bad) for node in nodes))


def some_quotas(rng, pools, kinds):
    """Draw quotas of one or two cell types of each chain for each pool; they need not fit."""
    return {
        pool: {
            kind: {
                rng.choice(LINES[kind]).name: rng.randint(1, 3) for _ in range(rng.randint(1, 2))
            }
            for kind in kinds
        }
        for pool in pools
    }


def machine(rng, pools="abc", *, pinned=True, chains=2, **options):
    """Draw a small cluster of one or two chains with quotas; pool `a` may own a pinned cell."""
    while True:
        kinds = rng.sample(list(LINES), rng.randint(1, chains))
        tops = [top(kind, f"{kind}{i}-") for kind in kinds for i in range(rng.randint(1, 3))]
        rows = tuple(
            QuotaSpec(pool, kind, of, count)
            for pool, of_chain in some_quotas(rng, pools, kinds).items()
            for kind, types in of_chain.items()
            for of, count in types.items()
        )
        node = next(k.name for k in LINES[kinds[0]] if k.node)
        pins = [Pinned("vip", "a", node, (tops[0].nodes[0].name,))] * (
            pinned and rng.random() < 0.5
        )
        types = tuple(kind for of in kinds for kind in LINES[of])
        try:
            return Cells(Spec(types, tuple(tops), rows, tuple(pins)), **options)
        except CellsError:  # the quotas do not fit
            continue
