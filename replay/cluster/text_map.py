"""A cluster's cells as lines of text: a character for each GPU, so many nodes a line as fit."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from itertools import groupby

import click

from cells.layout.shape import Shape
from cells.layout.spec import NodeSpec
from sia.console.terminal import printable

DEDICATED, SPARE, PINNED, FREE, BAD = "#+o.x"

MARKS = {
    DEDICATED: "dedicated",
    SPARE: "spare",
    PINNED: "pinned",
    FREE: "free",
    BAD: "bad",
}
"""What each character means, `pinned` being free; all differ without colour, too."""

COLOURS = {DEDICATED: "blue", SPARE: "yellow", PINNED: "magenta", BAD: "red"}

FEW = 4
"""Equal nodes or racks in a row that are still drawn one by one; more are one line with a count."""

BETWEEN = "  "


def painted(marks: str) -> str:
    """Characters in their colours; `click.echo` takes these away where there is no terminal."""
    return "".join(
        click.style("".join(run), fg=COLOURS[mark]) if mark in COLOURS else "".join(run)
        for mark, run in groupby(marks)
    )


def gaps(shape: Shape) -> list[int]:
    """Spaces before each GPU of a node: one for each level of which a cell begins there.

    Levels of a single child, and the node itself, make none.
    """
    sizes = {size for size in shape.size[1 : shape.node] if 1 < size < shape.size[shape.node]}
    places = range(shape.size[shape.node])
    return [sum(place % size == 0 for size in sizes) if place else 0 for place in places]


def legend() -> str:
    """What the characters mean, in one line."""
    marks = "   ".join(f"{painted(mark)} {words}" for mark, words in MARKS.items())
    return f"[ ] a node   {marks}   ! a bad node"


def described(shape: Shape) -> str:
    """`rack of 2 node of 8 gpu`."""
    levels = reversed(shape.levels)
    return " of ".join(
        printable(shape.names[level])
        if level == shape.top
        else f"{shape.fan[level + 1]} {printable(shape.names[level])}"
        for level in levels
    )


class ChainPicture:
    """The picture of one chain.

    Args:
        shape: Its levels.
        nodes: Its nodes, in order.
        marks: A character for each GPU of each node, in the order in which they lie.
        width: Characters of a line.
    """

    def __init__(
        self, shape: Shape, nodes: Sequence[NodeSpec], marks: Sequence[str], width: int
    ) -> None:
        """Work out how wide names and nodes are. O(nodes)."""
        self._shape, self._width = shape, width
        self._names = [printable(node.name) + "!" * node.bad for node in nodes]
        self._looks = [*zip(marks, (node.bad for node in nodes), strict=True)]
        self._gaps = gaps(shape)
        self._wide = max(map(len, self._names), default=0)

    def lines(self) -> Iterator[str]:
        """The lines, painted. O(GPUs)."""
        shape = self._shape
        tops = len(self._names) * shape.size[shape.node] // shape.size[shape.top]
        if shape.top == shape.node:
            yield from self._flow(range(tops), 0)
        else:
            yield from self._cells(shape.top, range(tops), 0)

    def _cells(self, level: int, numbers: range, indent: int) -> Iterator[str]:
        """Cells above the nodes; of many alike in a row only the first is drawn."""
        for _, run in groupby(numbers, key=lambda number: self._contents(level, number)):
            alike = [*run]
            for number in alike if len(alike) <= FEW else alike[:1]:
                yield from self._cell(level, number, indent)
            if len(alike) > FEW:
                more = f"… {len(alike) - 1:,} more like it, to {self._label(level, alike[-1])}"
                yield " " * indent + more

    def _cell(self, level: int, number: int, indent: int) -> Iterator[str]:
        label = self._label(level, number)
        fan = self._shape.fan[level]
        below = range(number * fan, (number + 1) * fan)
        if level - 1 > self._shape.node:
            yield " " * indent + label
            yield from self._cells(level - 1, below, indent + len(BETWEEN))
            return
        count = len(self._names) // self._nodes(level)
        margin = len(self._label(level, count - 1)) + len(BETWEEN)
        for i, line in enumerate(self._flow(below, indent + margin)):
            yield " " * indent + ("" if i else label).ljust(margin) + line

    def _flow(self, nodes: Iterable[int], margin: int) -> Iterator[str]:
        """Nodes, as many a line as fit beside the margin; many equal ones are a line."""
        shown = self._wide + sum(self._gaps) + len(self._gaps) + len(" []")
        across = max(1, (self._width - margin + len(BETWEEN)) // (shown + len(BETWEEN)))
        waiting: list[str] = []
        for (marks, _), run in groupby(nodes, key=self._looks.__getitem__):
            alike = [*run]
            if len(alike) <= FEW:
                waiting += [f"{self._names[i]:{self._wide}} {self._row(marks)}" for i in alike]
                continue
            yield from _chunks(waiting, across)
            waiting = []
            names = f"{self._names[alike[0]]} to {self._names[alike[-1]]}"
            yield f"{names}  {len(alike):,} × {self._row(marks)}"
        yield from _chunks(waiting, across)

    def _row(self, marks: str) -> str:
        """A node's GPUs, with spaces between its cells."""
        spaced = "".join(" " * gap + mark for gap, mark in zip(self._gaps, marks, strict=True))
        return f"[{painted(spaced)}]"

    def _label(self, level: int, number: int) -> str:
        return f"{printable(self._shape.names[level])} {number}"

    def _nodes(self, level: int) -> int:
        return self._shape.size[level] // self._shape.size[self._shape.node]

    def _contents(self, level: int, number: int) -> Sequence[tuple[str, bool]]:
        nodes = self._nodes(level)
        return self._looks[number * nodes : (number + 1) * nodes]


def _chunks(items: Sequence[str], across: int) -> Iterator[str]:
    for first in range(0, len(items), across):
        yield BETWEEN.join(items[first : first + across])
