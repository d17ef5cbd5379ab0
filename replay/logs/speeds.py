"""A file with the speeds of models by GPUs and nodes: `model,gpus,nodes,speed`."""

from __future__ import annotations

from pathlib import Path

from replay.logs.read import BadCellError, bad_row, columns_of, complete, number, open_table, whole
from sia.console.errors import UserError
from sia.state.speeds import SpeedRow, Speeds

COLUMNS = ("model", "gpus", "nodes", "speed")


def read_speeds(path: Path) -> Speeds:
    """Read the speed of each model by number of GPUs and nodes. Raises UserError."""
    rows: dict[tuple[str, int, int], SpeedRow] = {}
    with open_table(path) as table:
        at = columns_of(path, table.header, COLUMNS)
        for row in table.rows:
            try:
                complete(row.cells, len(table.header), "model")
                cells = row.cells
                model = cells[at["model"]].strip()
                if not model:
                    raise BadCellError("model", "empty", "name the model", "")
                found = SpeedRow(
                    model,
                    whole(cells, "gpus", at["gpus"], least=1),
                    whole(cells, "nodes", at["nodes"], least=1),
                    number(cells, "speed", at["speed"], zero=False, unit="a speed"),
                )
                if found.nodes > found.gpus:
                    problem = f"{found.gpus} GPUs cannot lie on {found.nodes} nodes"
                    raise BadCellError("nodes", problem, "write at most as many as GPUs", "")
                if found[:3] in rows:
                    fix = "write one row for each model, gpus and nodes"
                    raise BadCellError("model", "a second row for the same nodes", fix, "")
            except BadCellError as bad:
                raise bad_row(path, row, bad) from None
            rows[found[:3]] = found
    if not rows:
        raise UserError(f"{path}: the file has no speeds; write one row for each: model,gpus,…")
    return Speeds(rows.values())
