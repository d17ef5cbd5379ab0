"""A file with the nodes of a cluster: `node,gpus[,attributes][,free]`, one row for each node."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path

from replay.logs.read import (
    BadCellError,
    bad_row,
    columns_of,
    complete,
    open_table,
    shown,
    whole,
)
from replay.logs.trace import PoolTable, Trace
from sia.console.errors import UserError
from sia.limits import MAX_GROUP
from sia.model import GpuNode
from sia.policies import load
from sia.state.nodes import NodeTable
from sia.state.strl import ALL, asks_of, durations, wanted_of

COLUMNS = ("node", "gpus")


def read_nodes(path: Path) -> list[GpuNode]:
    """Read a nodes file, in its order. Raises UserError.

    Attributes are separated by spaces. Without column `free`, or where it is empty, all GPUs of a
    node are free.
    """
    nodes: dict[str, GpuNode] = {}
    with open_table(path) as table:
        at = columns_of(path, table.header, COLUMNS)
        for row in table.rows:
            try:
                complete(row.cells, len(table.header), "node")
                node = _node(row.cells, at)
                if node.name in nodes:
                    fix = "write one row for each node"
                    raise BadCellError("node", f"duplicate {shown(node.name)}", fix, "")
            except BadCellError as bad:
                raise bad_row(path, row, bad) from None
            nodes[node.name] = node
    if not nodes:
        raise UserError(f"{path}: the file has no nodes; write one row for each: node,gpus")
    if sum(node.gpus for node in nodes.values()) > MAX_GROUP:
        raise UserError(
            f"{path}: column gpus: the nodes have more than {MAX_GROUP} GPUs; check the numbers"
        )
    return [*nodes.values()]


def write_nodes(path: Path, nodes: Sequence[GpuNode]) -> None:
    """Write a nodes file."""
    lines = [f"{node.name},{node.gpus},{' '.join(node.attributes)}" for node in nodes]
    path.write_text("\n".join(["node,gpus,attributes", *lines, ""]))


def checked_nodes(path: Path | None, table: PoolTable) -> tuple[GpuNode, ...]:
    """Read the nodes of these pools, if there is a file.

    Raises UserError if they do not belong together.
    """
    if path is None:
        return ()
    nodes = read_nodes(path)
    groups = {pool.group if pool.share else f"alone {pool.name}" for pool in table.pools}
    if len(groups) > 1:
        raise UserError(
            f"--nodes {path}: the pools are of {len(groups)} sharing groups, and the file does "
            "not state the group of a node; replay each group separately"
        )
    there = sum(node.usable for node in nodes)
    owned = sum(pool.quota for pool in table.pools)
    if there < owned:
        raise UserError(
            f"--nodes {path}: the nodes have {there} GPUs, the pools own {owned}; add nodes, or "
            "lower quotas"
        )
    return tuple(nodes)


TOO_WIDE = "wider than the nodes that it can run on"
NOWHERE = "no node has what it prefers, and it runs nowhere else"
"""The reasons for leaving out jobs if nodes differ."""


def on_nodes(trace: Trace, nodes: Sequence[GpuNode], labels: Iterable[str]) -> Trace:
    """Return the jobs that can run on these nodes; the others are counted by reason.

    Raises UserError if a job can run on some nodes only and a policy does not consider that.
    O(jobs).
    """
    if not nodes:
        return trace
    _refuse_choosy(labels, trace)
    table, dropped, kept = NodeTable(nodes), Counter(trace.dropped), []
    for arrival in trace.arrivals:
        room = table.room(arrival.job)
        if arrival.job.width <= room:
            kept.append(arrival)
        else:
            dropped[TOO_WIDE if room else NOWHERE] += 1
    return replace(trace, arrivals=kept, dropped=dropped)


def _refuse_choosy(labels: Iterable[str], trace: Trace) -> None:
    for label in labels:
        policy = load(label)
        if not policy.on_nodes or "prefers" in policy.heeds:
            continue
        for job, _ in trace.arrivals:
            if job.prefers and job.slowdown is None:
                raise UserError(
                    f"--policy {label}: job {job.id} has prefers {job.prefers} and no slowdown, so "
                    "it runs on no other nodes, and this policy does not heed prefers; fill column "
                    "slowdown, or use jvu or prio"
                )
            if job.strl and ALL not in durations(wanted_of(asks_of(job.strl))):
                raise UserError(
                    f"--policy {label}: job {job.id} has strl without the set {ALL}, so it runs on "
                    f"some nodes only, and this policy does not heed strl; add an nck of {ALL}, or "
                    "use jvu or prio"
                )


def _node(cells: Sequence[str], at: Mapping[str, int]) -> GpuNode:
    name = cells[at["node"]].strip()
    if not name:
        raise BadCellError("node", "empty", "name the node", "")
    gpus = whole(cells, "gpus", at["gpus"], least=1)
    attributes = tuple(cells[at["attributes"]].split()) if "attributes" in at else ()
    for attribute in attributes:
        kind, colon, value = attribute.partition(":")
        if not kind or (colon and not value):
            fix = "write a word, or a kind and a value like rack:r1"
            raise BadCellError("attributes", f"{shown(attribute)} is no attribute", fix, "")
    if len(set(attributes)) < len(attributes):
        raise BadCellError("attributes", "an attribute is repeated", "remove one", "")
    free = gpus
    if "free" in at and cells[at["free"]].strip():
        free = whole(cells, "free", at["free"], least=0)
        if free > gpus:
            problem = f"{free} GPUs are free, but the node has {gpus}"
            raise BadCellError("free", problem, "write at most the GPUs of the node", "")
    return GpuNode(name, gpus, attributes, free)
