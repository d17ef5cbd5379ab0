"""The report's section on cells: nodes in use, and sizes of the free cells."""

from __future__ import annotations

from typing import Any

from replay.cluster.gpu_names import CellGpus
from replay.cluster.occupancy import Occupancy, PlacedSpan, occupancy
from replay.cluster.occupancy_figures import PARTS, draw_fragmentation, draw_occupancy
from replay.plotting.numbers import inlined
from replay.run.arrays import Replayed
from replay.run.schedule import nodes_text
from sia.wording import percent


def cells_section(replayed: Replayed) -> dict[str, Any] | None:
    """Return the figures of each policy; None without cells."""
    spec = replayed.settings.cells
    if spec is None:
        return None
    gpus = CellGpus(spec)
    begin, end = replayed.range()
    shown = []
    for number, (policy, outcome) in enumerate(replayed.outcomes.items()):
        runs = outcome.schedule.runs(outcome.trace)
        stays = [PlacedSpan(nodes_text(run.nodes), run.start, run.end, run.spare) for run in runs]
        found = occupancy(gpus, stays, begin, end)
        pieces = [inlined(draw_fragmentation(found, chain.name, number)) for chain in gpus.chains]
        picture = inlined(draw_occupancy(found, number))
        shown.append((policy, _whole(found), picture, pieces))
    return {"policies": shown, "parts": PARTS}


def _whole(found: Occupancy) -> str:
    """Return a sentence on the share of free GPUs that are in completely free nodes."""
    free = whole = 0
    for cells in found.free.values():
        shape = cells.shape
        free += int(cells.whole[0].sum())
        whole += int(cells.whole[shape.node].sum()) * shape.size[shape.node]
    if not free:
        return "no GPU was ever free"
    return f"{percent(100 * whole / free)} % of the free GPUs were in completely free nodes"
