"""The contents of a cells file, and their validation."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from math import prod

from cells.layout.shape import MAX_GPUS, Cell, Shape


class CellsError(ValueError):
    """An invalid request or specification: one line with key or name, problem and fix."""


@dataclass(frozen=True, slots=True)
class CellType:
    """A cell type with `count` children of another type. A leaf (a GPU or a slice) has no child."""

    name: str
    child: str = ""
    count: int = 1
    node: bool = False


@dataclass(frozen=True, slots=True)
class NodeSpec:
    """A node. If GPU numbers are not given, its leaves are numbered 0, 1, … in order."""

    name: str
    gpus: tuple[int, ...] = ()
    bad: bool = False


@dataclass(frozen=True, slots=True)
class Top:
    """A top cell with its nodes, in the order of its children."""

    type: str
    nodes: tuple[NodeSpec, ...]


@dataclass(frozen=True, slots=True)
class QuotaSpec:
    """Cells of one type and chain that a pool owns. The type of its top cells names the chain."""

    pool: str
    chain: str
    type: str
    count: int


@dataclass(frozen=True, slots=True)
class Pinned:
    """A specific physical cell, whole nodes or GPUs of one, that a pool owns besides its quota."""

    name: str
    pool: str
    type: str
    nodes: tuple[str, ...]
    gpus: tuple[int, ...] = ()


@dataclass(frozen=True, slots=True)
class Spec:
    """The contents of a cells file."""

    types: tuple[CellType, ...]
    tops: tuple[Top, ...]
    quotas: tuple[QuotaSpec, ...]
    pinned: tuple[Pinned, ...] = ()


MAX_NAMES = 8
"""Maximum number of names in one message, so that the message stays a line."""

MAX_NUMBER = 10**9 - 1
"""Largest number of a GPU on its node. Readers of placements in results expect nine digits."""

MAX_LEVELS = 16
"""Maximum number of types in a chain. Real chains have up to six; more is likely a mistake."""


def shapes(spec: Spec) -> dict[str, Shape]:
    """Return the shape of each chain, by the type of its top cells. Raises CellsError."""
    types = _checked(spec.types)
    tops = dict.fromkeys(top.type for top in spec.tops)
    for i, top in enumerate(spec.tops):
        if top.type not in types:
            raise CellsError(f"cells[{i}].type: no type {top.type!r}; {_known(types)}")
    return {name: _shape(types, name) for name in tops}


def only_chain(kinds: Sequence[CellType]) -> Shape:
    """Return the shape of the only chain that these types form. Raises CellsError."""
    types = _checked(kinds)
    children = {kind.child for kind in kinds}
    tops = [name for name in types if name not in children]
    if len(tops) != 1:
        many = f"several top types ({', '.join(tops[:8])})" if tops else "no top type"
        raise CellsError(f"types: {many}; list the cells of each chain, or keep one chain")
    return _shape(types, tops[0])


def _checked(kinds: Sequence[CellType]) -> dict[str, CellType]:
    """Return the types by name. Raises CellsError if one is malformed."""
    types: dict[str, CellType] = {}
    for i, kind in enumerate(kinds):
        if kind.name in types:
            raise CellsError(f"types[{i}].name: duplicate name {kind.name!r}; use another")
        if kind.count < 1:
            raise CellsError(f"types[{i}].count: must be at least 1 (got {kind.count})")
        if not kind.child and kind.count != 1:
            raise CellsError(f"types[{i}].count: {kind.name!r} has a count but no child; add child")
        types[kind.name] = kind
    for i, kind in enumerate(kinds):
        if kind.child and kind.child not in types:
            raise CellsError(f"types[{i}].child: no type {kind.child!r}; {_known(types)}")
        _line(types, i, kind)
    return types


def shortened(names: Collection[str]) -> str:
    """Join the first few names, and add the number of the others."""
    shown = list(names)[:MAX_NAMES]
    return ", ".join(shown) + (
        f" and {len(names) - MAX_NAMES} more" if len(names) > MAX_NAMES else ""
    )


def _known(names: Collection[str]) -> str:
    return f"use one of {shortened(names)}" if names else "define it under types"


def _line(types: dict[str, CellType], place: int, kind: CellType) -> list[CellType]:
    """Return a type, its child, its child's child, and so on down to the leaf."""
    line, seen = [kind], {kind.name}
    while line[-1].child:
        child = line[-1].child
        if child in seen:
            raise CellsError(f"types[{place}].child: {child!r} contains itself; remove the cycle")
        seen.add(child)
        if child not in types:
            break
        line.append(types[child])
    if len(line) > MAX_LEVELS:
        raise CellsError(
            f"types[{place}].child: {len(line)} levels exceed the limit of {MAX_LEVELS}"
        )
    return line


def _shape(types: dict[str, CellType], top: str) -> Shape:
    line = _line(types, 0, types[top])[::-1]
    gpus = prod(kind.count for kind in line if kind.child)
    if gpus > MAX_GPUS:
        raise CellsError(
            f"types: a {top} has {gpus:,} GPUs, more than the limit of {MAX_GPUS:,}; lower a count"
        )
    nodes = [level for level, kind in enumerate(line) if kind.node]
    if len(nodes) != 1:
        found = f"{len(nodes)} types with node = true" if nodes else "no type with node = true"
        raise CellsError(f"types: {found} in the chain of {top!r}; set it on exactly one type")
    return Shape([k.name for k in line], [k.count if k.child else 1 for k in line], nodes[0])


def check_nodes(spec: Spec, chains: dict[str, Shape]) -> None:
    """Check that node names are unique and GPU counts match the node types. Raises CellsError."""
    seen: set[str] = set()
    gpus = sum(chains[top.type].size[-1] for top in spec.tops)
    if gpus > MAX_GPUS:
        raise CellsError(f"cells: {gpus:,} GPUs in total exceed the limit of {MAX_GPUS:,}")
    for i, top in enumerate(spec.tops):
        check_top(f"cells[{i}]", top, chains[top.type], seen)


def check_top(key: str, top: Top, shape: Shape, seen: set[str]) -> None:
    """Check one top cell's nodes, and add their names to `seen`. Raises CellsError."""
    wanted = shape.size[shape.top] // shape.size[shape.node]
    if len(top.nodes) != wanted:
        raise CellsError(f"{key}.nodes: a {top.type} has {wanted} nodes (got {len(top.nodes)})")
    for node in top.nodes:
        if node.name in seen or not node.name:
            problem = f"duplicate node {node.name!r}; list it once" if node.name else "empty name"
            raise CellsError(f"{key}.nodes: {problem}")
        seen.add(node.name)
        gpus = shape.size[shape.node]
        if node.gpus and len(set(node.gpus)) < len(node.gpus):
            twice = next(g for g in node.gpus if node.gpus.count(g) > 1)
            raise CellsError(f"{key}.nodes: {node.name}: GPU {twice} is listed twice")
        if node.gpus and (len(node.gpus) != gpus or min(node.gpus) < 0):
            raise CellsError(f"{key}.nodes: {node.name}: gpus must be {gpus} numbers of at least 0")
        if node.gpus and max(node.gpus) > MAX_NUMBER:
            raise CellsError(
                f"{key}.nodes: {node.name}: GPU numbers must be below 10⁹ (got {max(node.gpus)})"
            )


def check_fit(
    chain: str,
    shape: Shape,
    tops: int,
    asked: Mapping[str, Sequence[int]],
    pinned: Sequence[Cell] = (),
) -> None:
    """Check that all quotas and pinned cells of a chain fit into it together.

    Args:
        chain: The chain's name, for messages.
        shape: Its shape.
        tops: The number of its top cells.
        asked: Quota cells of each level, by pool.
        pinned: Pinned cells, and cells of removed nodes.

    Raises CellsError.
    """
    quota = [sum(row[level] for row in asked.values()) for level in shape.levels]
    free, cut = tops, _cut(shape, pinned)
    for level in reversed(shape.levels):
        if level < shape.top:
            free *= shape.fan[level + 1]
        whole = free - len(cut[level])
        if quota[level] > whole:
            who = shortened([f"{pool} {row[level]}" for pool, row in asked.items() if row[level]])
            raise CellsError(
                f"quota: {quota[level]} {shape.names[level]} requested in chain {chain}, but only "
                f"{max(0, whole)} fit next to pinned cells and quotas of larger types; "
                f"lower a quota ({who})"
            )
        free -= quota[level] + sum(cell.level == level for cell in pinned)


def _cut(shape: Shape, pinned: Sequence[Cell]) -> list[set[int]]:
    """Return, by level, the cells that contain a pinned cell and cannot serve as whole quota cells.

    The pinned cells themselves are included, because no other pool can have them.
    """
    cut: list[set[int]] = [set() for _ in shape.levels]
    for cell in pinned:
        for level in range(cell.level, shape.top + 1):
            cut[level].add(shape.around(cell, level).number)
    return cut


def largest(shape: Shape, cells: Sequence[Cell]) -> list[Cell]:
    """Return the cells that lie in no other of the given cells, each once. O(cells · levels)."""
    known = set(cells)
    return [
        cell
        for cell in dict.fromkeys(cells)
        if not any(shape.around(cell, k) in known for k in range(cell.level + 1, shape.top + 1))
    ]
