"""Describes how many cells pools lack because nodes are bad."""

from __future__ import annotations

from cells.cells import Cells
from cells.layout.requests import CellShortage
from cells.layout.spec import Pinned, Spec
from sia.wording import some


def shortages(spec: Spec) -> list[str]:
    """Return a line for each type of cells of which pools own more than healthy nodes have.

    O(nodes + pools · levels). The file must be valid.
    """
    cells = Cells(spec)
    quotas = cells.quotas()
    return [
        _pinned(spec, short) if short.broken else _quota(spec, short, quotas)
        for short in cells.shortages()
    ]


def _quota(spec: Spec, short: CellShortage, quotas: dict[str, dict[str, dict[str, int]]]) -> str:
    """Return a line like `pool a owns 2 node, 1 of these is missing: n3, n4 are bad`."""
    owned = sum(quotas[pool][short.chain].get(short.type, 0) for pool in short.pools)
    several = len(short.pools) > 1
    who = f"pools {some(short.pools)} together own" if several else f"pool {short.pools[0]} owns"
    missing = f"{short.count:,} of these {'is' if short.count == 1 else 'are'} missing"
    bad = [
        node.name for top in spec.tops if top.type == short.chain for node in top.nodes if node.bad
    ]
    return f"{who} {owned:,} {short.type}, {missing}: {_are_bad(bad)}"


def _pinned(spec: Spec, short: CellShortage) -> str:
    """Return such lines for pinned cells. Without jobs, no other cells are assigned to nodes."""
    bad = {node.name for top in spec.tops for node in top.nodes if node.bad}

    def hit(pinned: Pinned) -> list[str]:
        return [node for node in pinned.nodes if node in bad]

    lost = [p for p in spec.pinned if (p.pool, p.type) == (*short.pools, short.type) and hit(p)]
    nodes = [*dict.fromkeys(node for pinned in lost for node in hit(pinned))]
    names = some([pinned.name for pinned in lost])
    return f"pool {short.pools[0]} has no whole {names} (pinned): {_are_bad(nodes)}"


def _are_bad(nodes: list[str]) -> str:
    return f"{some(nodes)} {'is' if len(nodes) == 1 else 'are'} bad"
