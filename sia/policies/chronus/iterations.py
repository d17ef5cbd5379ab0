"""How long a job runs, from the time of an iteration on one node and on two (Chronus, §3.2.2)."""

from __future__ import annotations

from math import log2


def iteration_seconds(one: float, two: float, nodes: int) -> float:
    """Return the seconds of an iteration on `nodes` nodes: t1 + log2 n · (t2 - t1).

    A second node cannot make an iteration faster: if `two` is below `one`, this is noise.
    """
    return one + log2(nodes) * max(0.0, two - one)


def run_seconds(one: float, two: float, gpus: int, node_gpus: int, iterations: float) -> float:
    """Return the run time of `iterations` on `gpus` GPUs, in seconds."""
    return iteration_seconds(one, two, -(-gpus // node_gpus)) * iterations
