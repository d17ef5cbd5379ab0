"""Draws a cluster's cells as text: one character per GPU, as many nodes per line as fit."""

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
"""The characters and their meanings; `pinned` is free. They differ without colour, too."""

COLOURS = {DEDICATED: "blue", SPARE: "yellow", PINNED: "magenta", BAD: "red"}

FEW = 4
"""Maximum of equal nodes or racks in a row that are drawn one by one; more become a line with a
count."""

BETWEEN = "  "


def painted(marks: str) -> str:
    """Coloured characters; `click.echo` removes the colours if the output is no terminal."""
    return "".join(
        click.style("".join(run), fg=COLOURS[mark]) if mark in COLOURS else "".join(run)
        for mark, run in groupby(marks)
    )


def gaps(shape: Shape) -> list[int]:
    """Return the number of spaces before each GPU of a node: the number of levels that begin there.

    Levels with a single child, and the node itself, have no space.
    """
    sizes = {size for size in shape.size[1 : shape.node] if 1 < size < shape.size[shape.node]}
    places = range(shape.size[shape.node])
    return [sum(place % size == 0 for size in sizes) if place else 0 for place in places]


def legend() -> str:
    """Return the meaning of the characters in one line."""
    marks = "   ".join(f"{painted(mark)} {words}" for mark, words in MARKS.items())
    return f"[ ] a node   {marks}   ! a bad node"


def described(shape: Shape) -> str:
    """Return text like `rack of 2 node of 8 gpu`."""
    levels = reversed(shape.levels)
    return " of ".join(
        printable(shape.names[level])
        if level == shape.top
        else f"{shape.fan[level + 1]} {printable(shape.names[level])}"
        for level in levels
    )


class ChainPicture:
    """Draws one chain.

    Args:
        shape: The levels of the chain.
        nodes: The nodes of the chain, in order.
        marks: A character for each GPU of each node, in the order of cells.
        width: Characters per line.
    """

    def __init__(
        self, shape: Shape, nodes: Sequence[NodeSpec], marks: Sequence[str], width: int
    ) -> None:
        """Compute the widths of names and nodes. O(nodes)."""
        self._shape, self._width = shape, width
        self._names = [printable(node.name) + "!" * node.bad for node in nodes]
        self._looks = [*zip(marks, (node.bad for node in nodes), strict=True)]
        self._gaps = gaps(shape)
        self._wide = max(map(len, self._names), default=0)

    def lines(self) -> Iterator[str]:
        """Return the lines. O(GPUs)."""
        shape = self._shape
        tops = len(self._names) * shape.size[shape.node] // shape.size[shape.top]
        if shape.top == shape.node:
            yield from self._flow(range(tops), 0)
        else:
            yield from self._cells(shape.top, range(tops), 0)

    def _cells(self, level: int, numbers: range, indent: int) -> Iterator[str]:
        """Draw cells above the nodes; of many equal cells in a row only the first."""
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
        """Draw nodes, as many per line as fit; many equal nodes become one line."""
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
        """Draw a node's GPUs, with spaces between its cells."""
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
