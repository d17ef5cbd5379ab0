"""Names of a cluster's chains, nodes and GPUs."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from cells.layout.requests import OnNode
from cells.layout.shape import Cell, Shape
from cells.layout.spec import CellsError, Pinned, Spec, Top, check_nodes, shapes, shortened


class NodeNames:
    """The names of a chain's nodes and the numbers of their GPUs.

    Args:
        shape: The shape of the chain.
    """

    def __init__(self, shape: Shape) -> None:
        """Start without nodes."""
        self._shape = shape
        self._size = shape.size[shape.node]
        self.names: list[str] = []
        self.gpus: list[tuple[int, ...]] = []

    def copy(self) -> NodeNames:
        """Return an independent copy. O(nodes)."""
        other = NodeNames(self._shape)
        other.names, other.gpus = self.names.copy(), self.gpus.copy()
        return other

    def one(self, cell: Cell, width: int) -> OnNode:
        """Return the node and the first `width` GPUs of a cell on one node. O(width)."""
        level, number = cell
        node, first = divmod(number * self._shape.size[level], self._size)
        return self.names[node], self.gpus[node][first : first + width]

    def all_of(self, widths: Sequence[int], cells: Sequence[Cell]) -> tuple[OnNode, ...]:
        """Return nodes and GPUs of a gang, its cells in member order. O(cells + total width)."""
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
    """The names of chains and nodes, and the mapping from nodes to cells.

    Attributes:
        shapes: The shape of each chain, by the type of its top cells.
        nodes: The chain and number of each node.
        nodes_of: The node names and GPU numbers of each chain.
        gone: The cells of removed nodes, by chain.

    Args:
        spec: Types and chains. Its top cells are added one by one with `add`.
    """

    def __init__(self, spec: Spec) -> None:
        """Build the shapes of the chains. Raises CellsError."""
        self.shapes = shapes(spec)
        check_nodes(spec, self.shapes)
        self.nodes: dict[str, tuple[str, int]] = {}
        self.gone: dict[str, list[Cell]] = {name: [] for name in self.shapes}
        self.nodes_of = {name: NodeNames(shape) for name, shape in self.shapes.items()}

    def copy(self) -> Cluster:
        """Return an independent copy. O(nodes)."""
        other = Cluster(Spec((), (), ()))
        other.shapes, other.nodes = self.shapes, self.nodes.copy()
        other.gone = {chain: cells.copy() for chain, cells in self.gone.items()}
        other.nodes_of = {chain: nodes.copy() for chain, nodes in self.nodes_of.items()}
        return other

    def add(self, top: Top) -> None:
        """Register the nodes of a new top cell."""
        shape, of = self.shapes[top.type], self.nodes_of[top.type]
        for node in top.nodes:
            self.nodes[node.name] = (top.type, len(of.names))
            of.names.append(node.name)
            of.gpus.append(node.gpus or tuple(range(shape.size[shape.node])))

    def remove(self, node: str) -> None:
        """Unregister a node. Placements of jobs still show its name."""
        chain, number = self.nodes.pop(node)
        self.gone[chain].append(Cell(self.shapes[chain].node, number))

    def rename_node(self, chain: str, number: int, name: str) -> None:
        """Change the displayed name of a node, for example of a removed one. Raises CellsError."""
        names = self.nodes_of[self.chain(chain)].names
        if not 0 <= number < len(names):
            raise CellsError(f"chain {chain} has no node {number}; restore another snapshot")
        names[number] = name

    def chain(self, chain: str) -> str:
        """Return the chain of this name, or the only one if the name is empty.

        Raises CellsError.
        """
        if not chain and len(self.shapes) == 1:
            return next(iter(self.shapes))
        if chain not in self.shapes:
            raise CellsError(f"no chain {chain!r}; use one of {shortened(self.shapes)}")
        return chain

    def node(self, node: str) -> tuple[str, int]:
        """Return a node's chain and number. Raises CellsError."""
        if node not in self.nodes:
            raise CellsError(f"no node {node!r} in the cluster; check the cells file")
        return self.nodes[node]

    def pinned_cell(self, key: str, pinned: Pinned) -> tuple[str, Cell]:
        """Return the chain and cell that a pinned entry describes.

        Raises CellsError unless nodes and GPUs are exactly one cell of the given type.
        """
        for name in pinned.nodes:
            if name not in self.nodes:
                raise CellsError(f"{key}.nodes: no node {name!r}; use a node listed under cells")
        chain, first = self.nodes[pinned.nodes[0]] if pinned.nodes else ("", 0)
        if not chain or {self.nodes[name][0] for name in pinned.nodes} != {chain}:
            raise CellsError(f"{key}.nodes: list nodes of one chain")
        shape, numbers = self.shapes[chain], self.nodes_of[chain].gpus[first]
        if pinned.type not in shape.names:
            raise CellsError(f"{key}.type: no {pinned.type!r} in chain {chain}")
        if pinned.gpus and (len(pinned.nodes) != 1 or not {*pinned.gpus} <= {*numbers}):
            raise CellsError(f"{key}.gpus: list one node under nodes, and only GPUs of it")
        size = shape.size[shape.node]
        leaves = {self.nodes[name][1] * size + k for name in pinned.nodes for k in range(size)}
        if pinned.gpus:
            leaves = {first * size + numbers.index(gpu) for gpu in pinned.gpus}
        cell = shape.around(Cell(0, min(leaves)), shape.names.index(pinned.type))
        if leaves != set(shape.leaves(cell)):
            raise CellsError(f"{key}: these GPUs are not one {pinned.type}; list all GPUs of one")
        return chain, cell

    def rows(
        self, quotas: Mapping[str, Mapping[str, Mapping[str, int]]]
    ) -> dict[tuple[str, str], list[int]]:
        """Return quota cells of each level, by pool and chain. Raises CellsError with the key."""
        rows: dict[tuple[str, str], list[int]] = {}
        for pool, chains in quotas.items():
            for chain, types in chains.items():
                if chain not in self.shapes:
                    known = shortened(self.shapes)
                    raise CellsError(f"quota.{pool}.{chain}: no such chain; use one of {known}")
                names = self.shapes[chain].names
                row = rows.setdefault((pool, chain), [0] * len(names))
                for kind, count in types.items():
                    key = f"quota.{pool}.{chain}.{kind}"
                    if kind not in names:
                        raise CellsError(f"{key}: no such type; use one of {', '.join(names)}")
                    if count < 1:
                        raise CellsError(f"{key}: must be at least 1 (got {count}), or left out")
                    row[names.index(kind)] = count
        return rows
