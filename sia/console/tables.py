"""Tables on a terminal."""

from __future__ import annotations

from collections.abc import Collection, Sequence

import click

from sia.console.terminal import printable

EMPTY = "none"
"""Printed in place of rows, so that an empty table is not taken for a table that was cut off."""


def show_table(
    title: str,
    header: Sequence[str],
    rows: Sequence[Sequence[str]],
    text: Collection[str] = (),
) -> None:
    """Print a table; the first column is text, as are those named. Rows never break.

    Print `none` below the header if there are no rows.
    """
    cells = [[printable(cell) for cell in row] for row in (header, *rows)]
    widths = [max(map(len, column)) for column in zip(*cells, strict=True)]
    sides = ["<" if name in {header[0], *text} else ">" for name in header]
    shape = "  ".join(f"{{:{side}{width}}}" for side, width in zip(sides, widths, strict=True))
    lines = [shape.format(*row).rstrip() for row in cells]
    lines.insert(1, "─" * (sum(widths) + 2 * len(widths) - 2))
    if not rows:
        lines.append(EMPTY)
    click.echo("\n".join(["", printable(title), "", *lines]))
