"""Names of a cluster's chains, nodes and GPUs."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from cells.layout.requests import OnNode
from cells.layout.shape import Cell, Shape
from cells.layout.spec import CellsError, Pinned, Spec, Top, check_nodes, shapes, some


class NodeNames:
    """Names of a chain's nodes and numbers of their GPUs.

    Args:
        shape: The chain.
    """

    def __init__(self, shape: Shape) -> None:
        """Start with none."""
        self._shape = shape
        self._size = shape.size[shape.node]
        self.names: list[str] = []
        self.gpus: list[tuple[int, ...]] = []

    def copy(self) -> NodeNames:
        """One of its own. O(nodes)."""
        other = NodeNames(self._shape)
        other.names, other.gpus = self.names.copy(), self.gpus.copy()
        return other

    def one(self, cell: Cell, width: int) -> OnNode:
        """The first GPUs of a cell on one node, so many as a width. O(width)."""
        level, number = cell
        node, first = divmod(number * self._shape.size[level], self._size)
        return self.names[node], self.gpus[node][first : first + width]

    def all_of(self, widths: Sequence[int], cells: Sequence[Cell]) -> tuple[OnNode, ...]:
        """GPUs of gang members; the cells are in their order. O(cells + GPUs of the widths)."""
        if len(cells) == 1:
            return (self.one(cells[0], widths[0]),)
        found: dict[str, tuple[int, ...]] = {}
        for width, of_member in self._shape.by_member(widths, cells):
            left = width
            for cell in of_member:
                node, gpus = self.one(cell, min(left, self._shape.size[cell.level]))
                found[node] = found.get(node, ()) + gpus
                left -= len(gpus)
        return tuple(found.items())


class Cluster:
    """What the cells are called.

    Attributes:
        shapes: The chains, by the type of their top cells.
        nodes: Chain and number of each node.
        of: Names and GPUs of the nodes of each chain.
        gone: Cells of nodes that were removed, by chain.

    Args:
        spec: Types and chains; its top cells are added one by one.
    """

    def __init__(self, spec: Spec) -> None:
        """Take in the chains. Raises CellsError."""
        self.shapes = shapes(spec)
        check_nodes(spec, self.shapes)
        self.nodes: dict[str, tuple[str, int]] = {}
        self.gone: dict[str, list[Cell]] = {name: [] for name in self.shapes}
        self.of = {name: NodeNames(shape) for name, shape in self.shapes.items()}

    def copy(self) -> Cluster:
        """One of its own. O(nodes)."""
        other = Cluster(Spec((), (), ()))
        other.shapes, other.nodes = self.shapes, self.nodes.copy()
        other.gone = {chain: cells.copy() for chain, cells in self.gone.items()}
        other.of = {chain: nodes.copy() for chain, nodes in self.of.items()}
        return other

    def add(self, top: Top) -> None:
        """Name the nodes of a new top cell."""
        shape, of = self.shapes[top.type], self.of[top.type]
        for node in top.nodes:
            self.nodes[node.name] = (top.type, len(of.names))
            of.names.append(node.name)
            of.gpus.append(node.gpus or tuple(range(shape.size[shape.node])))

    def remove(self, node: str) -> None:
        """Forget a node's name; jobs on it are still shown under it."""
        chain, number = self.nodes.pop(node)
        self.gone[chain].append(Cell(self.shapes[chain].node, number))

    def call(self, chain: str, number: int, name: str) -> None:
        """Show a node under another name, as one that is removed is. Raises CellsError."""
        names = self.of[self.chain(chain)].names
        if not 0 <= number < len(names):
            raise CellsError(f"chain {chain} has no node {number}; restore another snapshot")
        names[number] = name

    def chain(self, chain: str) -> str:
        """The chain of a name, or the only one. Raises CellsError."""
        if not chain and len(self.shapes) == 1:
            return next(iter(self.shapes))
        if chain not in self.shapes:
            raise CellsError(f"no chain {chain!r}; name one of {some(self.shapes)}")
        return chain

    def node(self, node: str) -> tuple[str, int]:
        """A node's chain and number. Raises CellsError."""
        if node not in self.nodes:
            raise CellsError(f"no node {node!r}; name one of the cluster's")
        return self.nodes[node]

    def pinned_cell(self, key: str, pinned: Pinned) -> tuple[str, Cell]:
        """The cell that is pinned; it must be just one of its type."""
        for name in pinned.nodes:
            if name not in self.nodes:
                raise CellsError(f"{key}.nodes: no node {name!r}; name one of the file's")
        chain, first = self.nodes[pinned.nodes[0]] if pinned.nodes else ("", 0)
        if not chain or {self.nodes[name][0] for name in pinned.nodes} != {chain}:
            raise CellsError(f"{key}.nodes: name the nodes of one chain")
        shape, numbers = self.shapes[chain], self.of[chain].gpus[first]
        if pinned.type not in shape.names:
            raise CellsError(f"{key}.type: no {pinned.type!r} in chain {chain}")
        if pinned.gpus and (len(pinned.nodes) != 1 or not {*pinned.gpus} <= {*numbers}):
            raise CellsError(f"{key}.gpus: must be GPUs of the one node that is named")
        size = shape.size[shape.node]
        leaves = {self.nodes[name][1] * size + k for name in pinned.nodes for k in range(size)}
        if pinned.gpus:
            leaves = {first * size + numbers.index(gpu) for gpu in pinned.gpus}
        cell = shape.around(Cell(0, min(leaves)), shape.names.index(pinned.type))
        if leaves != set(shape.leaves(cell)):
            raise CellsError(f"{key}: these GPUs are not one {pinned.type}; name all of one cell")
        return chain, cell

    def rows(
        self, quotas: Mapping[str, Mapping[str, Mapping[str, int]]]
    ) -> dict[tuple[str, str], list[int]]:
        """Quota cells of each level, by pool and chain. Raises CellsError with the key."""
        rows: dict[tuple[str, str], list[int]] = {}
        for pool, chains in quotas.items():
            for chain, types in chains.items():
                if chain not in self.shapes:
                    known = some(self.shapes)
                    raise CellsError(f"quota.{pool}.{chain}: no such chain; there are {known}")
                names = self.shapes[chain].names
                row = rows.setdefault((pool, chain), [0] * len(names))
                for kind, count in types.items():
                    key = f"quota.{pool}.{chain}.{kind}"
                    if kind not in names:
                        raise CellsError(f"{key}: no such type; there are {', '.join(names)}")
                    if count < 1:
                        raise CellsError(f"{key}: {count} cells; write 1 or more, or leave it out")
                    row[names.index(kind)] = count
        return rows
