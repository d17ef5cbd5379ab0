"""What a cells file says, and whether it can be."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from math import prod

from cells.layout.shape import MAX_GPUS, Cell, Shape


class CellsError(ValueError):
    """What was asked of the cells cannot be: one line with the key or name, what, and the mend."""


@dataclass(frozen=True, slots=True)
class CellType:
    """A type of cells: so many children of another type; a leaf (a GPU or a slice) has none."""

    name: str
    child: str = ""
    count: int = 1
    node: bool = False


@dataclass(frozen=True, slots=True)
class NodeSpec:
    """A node of the cluster; GPU numbers are 0, 1, … in the order of its leaves if not given."""

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
    """So many cells of a type in a chain, named by its top cells' type, that a pool owns."""

    pool: str
    chain: str
    type: str
    count: int


@dataclass(frozen=True, slots=True)
class Pinned:
    """A certain physical cell that one pool owns besides its quota: whole nodes, or GPUs of one."""

    name: str
    pool: str
    type: str
    nodes: tuple[str, ...]
    gpus: tuple[int, ...] = ()


@dataclass(frozen=True, slots=True)
class Spec:
    """All that a cells file says."""

    types: tuple[CellType, ...]
    tops: tuple[Top, ...]
    quotas: tuple[QuotaSpec, ...]
    pinned: tuple[Pinned, ...] = ()


NAMED = 8
"""Names in one message: more make no line."""

MAX_NUMBER = 10**9 - 1
"""Of a GPU on its node: nine digits, which places in results are read with."""

MAX_LEVELS = 16
"""Types in a chain: real ones have six; a longer one is more likely a slip."""


def shapes(spec: Spec) -> dict[str, Shape]:
    """The chains, by the type of their top cells. Raises CellsError."""
    types = _checked(spec.types)
    tops = dict.fromkeys(top.type for top in spec.tops)
    for i, top in enumerate(spec.tops):
        if top.type not in types:
            raise CellsError(f"cells[{i}].type: no type {top.type!r}; {_known(types)}")
    return {name: _shape(types, name) for name in tops}


def only_chain(kinds: Sequence[CellType]) -> Shape:
    """The one chain that these types make. Raises CellsError."""
    types = _checked(kinds)
    children = {kind.child for kind in kinds}
    tops = [name for name in types if name not in children]
    if len(tops) != 1:
        many = f"{', '.join(tops[:8])} are each in no other" if tops else "there are none"
        raise CellsError(f"types: {many}; name the cells of each chain, or leave one chain")
    return _shape(types, tops[0])


def _checked(kinds: Sequence[CellType]) -> dict[str, CellType]:
    """The types by name, if each is well formed. Raises CellsError."""
    types: dict[str, CellType] = {}
    for i, kind in enumerate(kinds):
        if kind.name in types:
            raise CellsError(f"types[{i}].name: {kind.name!r} is named twice; name it once")
        if kind.count < 1:
            raise CellsError(f"types[{i}].count: {kind.count} children; write 1 or more")
        if not kind.child and kind.count != 1:
            raise CellsError(f"types[{i}].count: {kind.name!r} has a count but no child; add child")
        types[kind.name] = kind
    for i, kind in enumerate(kinds):
        if kind.child and kind.child not in types:
            raise CellsError(f"types[{i}].child: no type {kind.child!r}; {_known(types)}")
        _line(types, i, kind)
    return types


def some(names: Collection[str]) -> str:
    """The first few of them, and how many more there are."""
    shown = list(names)[:NAMED]
    return ", ".join(shown) + (f" and {len(names) - NAMED} more" if len(names) > NAMED else "")


def _known(names: Collection[str]) -> str:
    return f"there are {some(names)}" if names else "there are none"


def _line(types: dict[str, CellType], place: int, kind: CellType) -> list[CellType]:
    """A type, its child, its child's child, down to the leaf."""
    line, seen = [kind], {kind.name}
    while line[-1].child:
        child = line[-1].child
        if child in seen:
            raise CellsError(f"types[{place}].child: {child!r} would hold itself; break the circle")
        seen.add(child)
        if child not in types:
            break
        line.append(types[child])
    if len(line) > MAX_LEVELS:
        raise CellsError(f"types[{place}].child: {len(line)} levels; at most {MAX_LEVELS} can be")
    return line


def _shape(types: dict[str, CellType], top: str) -> Shape:
    line = _line(types, 0, types[top])[::-1]
    gpus = prod(kind.count for kind in line if kind.child)
    if gpus > MAX_GPUS:
        raise CellsError(
            f"types: a {top} has {gpus:,} GPUs; at most {MAX_GPUS:,} can be: see count"
        )
    nodes = [level for level, kind in enumerate(line) if kind.node]
    if len(nodes) != 1:
        found = f"{len(nodes)} types with node = true" if nodes else "no type with node = true"
        raise CellsError(f"types: {found} in the chain of {top!r}; mark the one that is a node")
    return Shape([k.name for k in line], [k.count if k.child else 1 for k in line], nodes[0])


def check_nodes(spec: Spec, chains: dict[str, Shape]) -> None:
    """Nodes are named once, and have the GPUs of their type. Raises CellsError."""
    seen: set[str] = set()
    gpus = sum(chains[top.type].size[-1] for top in spec.tops)
    if gpus > MAX_GPUS:
        raise CellsError(f"cells: {gpus:,} GPUs in all; at most {MAX_GPUS:,} can be")
    for i, top in enumerate(spec.tops):
        check_top(f"cells[{i}]", top, chains[top.type], seen)


def check_top(key: str, top: Top, shape: Shape, seen: set[str]) -> None:
    """One top cell's nodes; names are added to those seen. Raises CellsError."""
    wanted = shape.size[shape.top] // shape.size[shape.node]
    if len(top.nodes) != wanted:
        raise CellsError(f"{key}.nodes: {len(top.nodes)}, but a {top.type} has {wanted}")
    for node in top.nodes:
        if node.name in seen or not node.name:
            problem = "is named twice; name it once" if node.name else "is no name; write one"
            raise CellsError(f"{key}.nodes: {node.name!r} {problem}")
        seen.add(node.name)
        gpus = shape.size[shape.node]
        if node.gpus and len(set(node.gpus)) < len(node.gpus):
            twice = next(g for g in node.gpus if node.gpus.count(g) > 1)
            raise CellsError(f"{key}.nodes: {node.name}: GPU {twice} twice; number it once")
        if node.gpus and (len(node.gpus) != gpus or min(node.gpus) < 0):
            raise CellsError(f"{key}.nodes: {node.name}: gpus must be {gpus} numbers from 0 on")
        if node.gpus and max(node.gpus) > MAX_NUMBER:
            raise CellsError(
                f"{key}.nodes: {node.name}: GPU {max(node.gpus)}; number them below 10⁹"
            )


def check_fit(
    chain: str,
    shape: Shape,
    tops: int,
    asked: Mapping[str, Sequence[int]],
    pinned: Sequence[Cell] = (),
) -> None:
    """All quotas (by pool) and pinned cells of a chain find cells in it together.

    Raises CellsError.
    """
    quota = [sum(row[level] for row in asked.values()) for level in shape.levels]
    free, cut = tops, _cut(shape, pinned)
    for level in reversed(shape.levels):
        if level < shape.top:
            free *= shape.fan[level + 1]
        whole = free - len(cut[level])
        if quota[level] > whole:
            who = some([f"{pool} {row[level]}" for pool, row in asked.items() if row[level]])
            raise CellsError(
                f"quota: {quota[level]} {shape.names[level]} asked of chain {chain}, "
                f"{max(0, whole)} can be there beside pinned cells and quota of larger types; "
                f"lower a quota ({who})"
            )
        free -= quota[level] + sum(cell.level == level for cell in pinned)


def _cut(shape: Shape, pinned: Sequence[Cell]) -> list[set[int]]:
    """Cells of each level that hold a smaller pinned one: they are no whole cells.

    A pinned cell itself is among them too, as nobody else can have it.
    """
    cut: list[set[int]] = [set() for _ in shape.levels]
    for cell in pinned:
        for level in range(cell.level, shape.top + 1):
            cut[level].add(shape.around(cell, level).number)
    return cut


def largest(shape: Shape, cells: Sequence[Cell]) -> list[Cell]:
    """Those that lie in no other of them, each once. O(cells · levels)."""
    known = set(cells)
    return [
        cell
        for cell in dict.fromkeys(cells)
        if not any(shape.around(cell, k) in known for k in range(cell.level + 1, shape.top + 1))
    ]
