"""Allocate + free pairs a second of cells on 100,000 GPUs, safety check included; and memory.

12,500 nodes of 8 GPUs in 782 racks of 16 (the last rack is full too: 12,512 nodes), 90 % occupied.
CPU time of one thread; memory as Python's allocator counts it, in a second build.
"""

from __future__ import annotations

import time
import tracemalloc
from random import Random
from typing import Any

from benchmarks.common import NODE, keep, spread
from cells.cells import Cells
from cells.layout.requests import Request
from cells.layout.spec import CellType, NodeSpec, QuotaSpec, Spec, Top

RUNS = 3
RACKS, NODES, POOLS = 782, 16, 8
PAIRS = 20_000
WIDTHS = (1, 1, 1, 2, 4, 8)
OCCUPIED = 0.9

TYPES = (*NODE, CellType("rack", "node", NODES))


def spec(kind: str) -> Spec:
    """All of the cluster is owned, in equal parts, as nodes or as racks."""
    tops = [
        Top("rack", tuple(NodeSpec(f"n{rack}-{i}") for i in range(NODES))) for rack in range(RACKS)
    ]
    cells = RACKS if kind == "rack" else RACKS * NODES
    quotas = [QuotaSpec(f"p{i}", "rack", kind, cells // POOLS) for i in range(POOLS)]
    return Spec(TYPES, tuple(tops), tuple(quotas))


def filled(kind: str, *, spare: bool) -> tuple[Cells, list[str]]:
    """Jobs on 90 % of the GPUs; a fifth of them spare, if so asked."""
    rng, cells = Random(0), Cells(spec(kind))
    jobs: list[str] = []
    used = 0
    while used < OCCUPIED * RACKS * NODES * 8:
        name, width = f"j{len(jobs)}", rng.choice(WIDTHS)
        request = Request(f"p{rng.randrange(POOLS)}", (width,))
        if spare and rng.random() < 0.2:
            done = cells.lend(name, request) is not None
        else:
            done = cells.allocate(name, request) is not None
        if done:
            jobs.append(name)
            used += width
    return cells, jobs


def pairs_a_second(kind: str, *, spare: bool) -> float:
    """Free a job at random and allocate another of any width, again and again."""
    cells, jobs = filled(kind, spare=spare)
    rng = Random(1)
    picks = [
        (rng.randrange(len(jobs)), rng.choice(WIDTHS), rng.randrange(POOLS)) for _ in range(PAIRS)
    ]
    began = time.process_time()
    for n, (place, width, pool) in enumerate(picks):
        name = f"new{n}"
        outcome = cells.allocate(name, Request(f"p{pool}", (width,)))
        if outcome is not None:
            jobs[place], name = name, jobs[place]
            cells.free(name)
        else:
            cells.free(jobs[place])
            again = cells.allocate(jobs[place], Request(f"p{pool}", (1,)))
            assert again is not None
    return PAIRS / (time.process_time() - began)


def megabytes() -> float:
    """Of the filled cluster, and nothing else."""
    tracemalloc.start()
    kept = filled("node", spare=True)
    used, _ = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert kept
    return round(used / 2**20, 1)


def main() -> None:
    results: dict[str, Any] = {"gpus": RACKS * NODES * 8, "occupied": OCCUPIED}
    for kind in ("node", "rack"):
        for spare in (False, True):
            rates = [pairs_a_second(kind, spare=spare) for _ in range(RUNS)]
            jobs = "a fifth spare" if spare else "all dedicated"
            results[f"pairs_a_second, quota in {kind}s, {jobs}"] = spread(rates)
    keep("replays/cells", {**results, "megabytes": megabytes()})


if __name__ == "__main__":
    main()
