"""Workloads with deadlines and preferences, drawn from classes of a log's jobs (JamaisVu, §5)."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Sequence
from itertools import accumulate, pairwise
from math import exp, log
from random import Random
from statistics import fmean, pstdev
from typing import NamedTuple

from replay.logs.limits import MAX_DRAWN
from replay.logs.trace import Trace
from sia.core.playout import Arrival
from sia.model import GpuNode, Job

GPU = "gpu"
SAME_RACK = "same:rack"

ROUNDS = 100
"""Maximum rounds of k-means; in one dimension it converges within a few dozen."""

DRAWS = 1000
"""Maximum number of widths drawn for a job; if none fits, it gets the smallest width."""


class Composition(NamedTuple):
    """A row of Table 3: shares of jobs with a deadline by constraint; the rest is best effort."""

    hard: float
    """Jobs that run only on the nodes that they prefer."""
    soft: float
    """Jobs that run slower on other nodes."""
    free: float
    slowdown: float
    slacks: tuple[float, ...]
    """Slacks in percent of the run time; one is drawn for each job."""


COMPOSITIONS = {
    "EXP1": Composition(0.25, 0.25, 0.0, 1.5, (20, 40, 60, 80)),
    "EXP2": Composition(1 / 6, 1 / 3, 0.0, 1.4, (25, 50, 75)),
    "EXP3": Composition(0.0, 0.5, 0.0, 1.4, (50, 60, 70, 80)),
}
"""Table 3 without DEADLINE-n, which `composition` makes."""

DEADLINE = "DEADLINE-"


def composition(name: str) -> Composition:
    """Return a row of Table 3: EXP1, EXP2, EXP3 or DEADLINE-n. Raises ValueError."""
    if name in COMPOSITIONS:
        return COMPOSITIONS[name]
    slack = name.removeprefix(DEADLINE)
    if slack == name or not slack.isdecimal() or len(slack) > 6:
        known = ", ".join(COMPOSITIONS)
        raise ValueError(f"{name}: use {known}, or DEADLINE-n with n percent of slack, like 60")
    return Composition(0.0, 0.0, 0.5, 1.0, (float(slack),))


class JobClass(NamedTuple):
    """Jobs of about the same run time."""

    members: Sequence[Arrival]
    mean: float
    """Mean of the logarithms of the run times in seconds."""
    deviation: float
    shortest: float
    longest: float

    def run_time(self, random: Random) -> float:
        """Draw a run time from a lognormal distribution within the class's bounds, in seconds."""
        drawn = exp(random.gauss(self.mean, self.deviation))
        return min(self.longest, max(self.shortest, drawn))


def classes_of(arrivals: Sequence[Arrival], count: int) -> list[JobClass]:
    """Return classes of jobs by k-means on the logarithm of the run time, the shortest first.

    There are fewer than `count` if there are fewer different run times. Jobs that take no time are
    left out. O(jobs · log jobs + rounds · count).
    """
    jobs = sorted((each for each in arrivals if each.duration > 0), key=lambda each: each.duration)
    logs = [log(each.duration) for each in jobs]
    different = sorted(set(logs))
    count = min(count, len(different))
    if not count:
        return []
    sums = [0.0, *accumulate(logs)]
    centres = [different[(2 * i + 1) * len(different) // (2 * count)] for i in range(count)]
    cuts: list[int] = []
    for _ in range(ROUNDS):
        middles = [(a + b) / 2 for a, b in pairwise(centres)]
        new = [0, *(bisect_right(logs, middle) for middle in middles), len(logs)]
        if new == cuts:
            break
        cuts = new
        centres = [
            (sums[b] - sums[a]) / (b - a) if b > a else centre
            for centre, a, b in zip(centres, cuts, cuts[1:], strict=False)
        ]
    return [
        JobClass(jobs[a:b], fmean(logs[a:b]), pstdev(logs[a:b]),
                 jobs[a].duration, jobs[b - 1].duration)
        for a, b in pairwise(cuts)
        if b > a
    ]  # fmt: skip


class DrawnWorkload(NamedTuple):
    """A workload, and its load: the share of the cluster's GPU-time that its jobs request."""

    trace: Trace
    load: float


class RackCluster(NamedTuple):
    """Nodes of one GPU in equal racks; a quarter of each rack has attribute `gpu`."""

    nodes: int
    racks: int

    def list_nodes(self) -> list[GpuNode]:
        """Return the nodes."""
        found = []
        for number in range(self.nodes):
            rack, place = divmod(number, self.nodes // self.racks)
            first = place < self.nodes // self.racks / 4
            found.append(GpuNode(f"n{number}", 1, ((GPU,) if first else ()) + (f"rack:r{rack}",)))
        return found


def draw_workload(
    classes: Sequence[JobClass],
    widths: Sequence[int],
    row: Composition,
    cluster: RackCluster,
    load: float,
    length: float,
    seed: int,
) -> DrawnWorkload:
    """Draw jobs until they request `load` times the cluster's GPU-time in `length` seconds.

    For each job, a class is drawn with a probability proportional to its size; the run time from
    the class's distribution; user, name and other features from one of the class's jobs; and the
    width from `widths`. Submissions are uniform over the length, as in a Poisson process. Half of
    the preferences are for `gpu`, half for one rack; the widths of such jobs fit these nodes.
    """
    random = Random(seed)  # noqa: S311  an experiment, no secret
    nodes = cluster.list_nodes()
    rooms = {
        GPU: sum(GPU in node.attributes for node in nodes),
        SAME_RACK: cluster.nodes // cluster.racks,
    }
    sizes = [len(each.members) for each in classes]
    wanted, work = load * cluster.nodes * length, 0.0
    found: list[Arrival] = []
    while work < wanted and len(found) < MAX_DRAWN:
        chosen = random.choices(classes, sizes)[0]
        features = random.choice(chosen.members).job
        run_time, submit = chosen.run_time(random), random.uniform(0.0, length)
        point, slack = random.random(), random.choice(row.slacks)
        slo, prefers, slowdown = point < row.hard + row.soft + row.free, "", None
        if point < row.hard + row.soft:
            prefers = random.choice((GPU, SAME_RACK))
            slowdown = None if point < row.hard else row.slowdown
        width = _width(widths, rooms.get(prefers, cluster.nodes), random)
        deadline = submit + run_time * (1.0 + slack / 100.0) if slo else None
        job = Job(
            f"j{len(found)}", "all", submit, width, user=features.user, name=features.name,
            deadline=deadline, prefers=prefers, slowdown=slowdown,
        )  # fmt: skip
        found.append(Arrival(job, run_time))
        work += width * run_time
    found.sort(key=lambda each: each.job.submit)
    return DrawnWorkload(Trace(found), work / (cluster.nodes * length))


def _width(widths: Sequence[int], most: int, random: Random) -> int:
    for _ in range(DRAWS):
        width = random.choice(widths)
        if width <= most:
            return width
    return min(most, *widths)
