"""Whom policies make later in cells than first come, first served, on 24 small pieces of Philly.

    python -m benchmarks.replays.cells_late [POLICY[,POLICY…]]

The pieces are the first twelve with 4 pools and the first twelve with 8 that `cells_pieces` would
take; the ten of Fig. 16 are among them. All jobs may be stopped and start over, and the first two
days are not measured. Rows are stored in `results/replays/cells_late.json` after each piece, with
policies of your own in `results/replays/cells_forecasts.json`.
"""

from __future__ import annotations

import sys
from time import process_time
from typing import Any

from benchmarks.common import keep
from benchmarks.replays.cells_pieces import POOLS, philly, pieces, replayed

STORE, OWN, PIECES = "replays/cells_late", "replays/cells_forecasts", 12


def main() -> None:
    """Replay the pieces one after the other."""
    labels = sys.argv[1].split(",") if len(sys.argv) > 1 else ["sia-recall"]
    store = OWN if len(sys.argv) > 1 else STORE
    rows: list[dict[str, Any]] = []
    for pools in POOLS:
        for piece in pieces(pools, PIECES):
            philly()
            begun = process_time()
            found = replayed(piece, ("fcfs", *labels), cells=True)
            cpu = round(process_time() - begun, 1)
            rows.append({"pools": pools, "piece": piece.run, "cpu_s": cpu, **found})
            print(rows[-1], flush=True)
            keep(
                store, {**{label: sums(rows, label) for label in labels}, "rows": rows}, quiet=True
            )


def sums(rows: list[dict[str, Any]], label: str) -> dict[str, Any]:
    """Return the sums over all pieces."""
    return {
        "pieces": len(rows),
        "jobs": sum(row[label]["measured"] for row in rows),
        "slowed": sum(row[label]["slowed"] for row in rows),
        "pieces_with_slowed": sum(row[label]["slowed"] > 0 for row in rows),
        "slowdown_max_min": max(row[label]["slowdown_max_min"] for row in rows),
    }


if __name__ == "__main__":
    main()
