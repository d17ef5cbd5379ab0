"""Why a job waits, in words: what it is behind, and which reservation holds GPUs back from it."""

from __future__ import annotations

from bisect import bisect_left
from math import ceil

from daemon.book import Book, JobRecord, NodeRecord
from daemon.engine_nodes import BACKEND, CONFIG, OPERATOR
from daemon.jobs import ON_GPUS, JobPhase
from replay.text import counted, duration
from sia.core import Core
from sia.limits import UNKNOWN_RUN_TIME
from sia.model import Options
from sia.policies.sia import Sia
from sia.policies.sia_ground import ROUNDING
from sia.state import GroupState, JobState, PoolState

NAMED = 3
"""Pools that are named for what is held back for them, the largest, and nodes that are out: more
make no line."""


def held_back(pool: PoolState, window: int, options: Options) -> int:
    """GPUs that SIA holds back for a pool in a window: min(waiting + foreseen, unused quota).

    In cells a few more may be, for jobs whose turn is to come.
    """
    unused = max(0, pool.quota - pool.dedicated)
    if (pool.name, options.windows[window]) in options.no_lending:
        return unused
    need = (pool.pending_width + pool.load[window]) * options.slack
    return min(ceil(need - ROUNDING), unused)


def position_of(core: Core, record: JobRecord) -> int | None:
    """Its place in its pool's queue, from 1 on; None for a job that waits in none. O(waiting)."""
    job = waiting_in(core, record)
    if job is None:
        return None
    pool, number = job.pool, job.sequence
    return 1 + sum(n < number for n in pool.pending) + sum(n < number for n in pool.aside)


def waiting_in(core: Core, record: JobRecord) -> JobState | None:
    """The job as the core knows it, where it waits there."""
    job = core.state.jobs.get(record.core) if record.core else None
    return job if job is not None and job.stream is None else None


def why(book: Book, core: Core, record: JobRecord) -> list[str]:
    """Why a job does not run yet, a line a reason; nothing for one that does. O(waiting)."""
    pool = record.spec.pool
    if record.phase is JobPhase.HELD:
        return [f"it is held: sia release {record.spec.id}"]
    if record.phase is JobPhase.STARTING:
        if record.placed:
            return ["it was started, and the backend has not yet said that it runs"]
        return _seatless(book, record)
    if record.phase is not JobPhase.PENDING:
        return []
    job = waiting_in(core, record)
    if job is None:
        return [f"pool {pool} is on hold: sia pool set {pool} --state open"]
    lines = [in_order(core, record, job)]
    if isinstance(core.policy, Sia):
        lines += _on_spare(book, core, job)
    if core.state.places is not None and (out := _out(book)):
        lines.append("nodes that are out give nothing, though they count here: " + "; ".join(out))
    return lines


def _seatless(book: Book, record: JobRecord) -> list[str]:
    """Why a job that has its turn is on no node yet. O(jobs)."""
    out = _out(book)
    if not out and book.setup.areas:
        needs = counted(record.spec.gpus, "GPU")
        return [f"it has its turn, and its {needs} are not free in any one partition yet"]
    if not out:
        return ["its GPUs are given to it, and who had them has not ended yet"]
    free = {name: len(node.gpus) for name, node in book.nodes.items() if not node.reasons}
    for other in book.jobs.values():
        if other.placed and other.phase in ON_GPUS:
            for node, gpus in other.nodes:
                if node in free:
                    free[node] -= len(gpus)
    needs = f"it has its turn and needs {counted(record.spec.gpus, 'GPU')}"
    return [f"{needs}; nodes that take jobs have {sum(free.values())} free", *out]


def _out(book: Book) -> list[str]:
    """Nodes that are out, by whom and why, with what brings them back. O(nodes)."""
    nodes = [node for node in book.nodes.values() if node.reasons]
    more = [f"and {counted(len(nodes) - NAMED, 'more node')}"] if len(nodes) > NAMED else []
    return [*map(_why_out, nodes[:NAMED]), *more]


def _why_out(node: NodeRecord) -> str:
    who = ", ".join(f"{name}: {why}" for name, why in node.reasons.items())
    mends = [_back(node.name, name) for name in node.reasons]
    return f"node {node.name} is out ({who}): " + ", ".join(mends)


def _back(node: str, who: str) -> str:
    """What takes a reason away."""
    if who == OPERATOR:
        return f"sia resume {node}"
    if who == CONFIG:
        return "the cells file says so"
    if who == BACKEND:
        return "its own cluster says so: mend it there"
    return f"sia maintenance cancel {who.partition(' ')[2]}"


def in_order(core: Core, record: JobRecord, job: JobState) -> str:
    """Why it does not start inside its pool's quota."""
    pool = job.pool
    left = max(0, pool.quota - pool.dedicated)
    uses = f"{pool.name} has {left} of its {counted(pool.quota, 'GPU')} left"
    head = pool.head
    if head is not job and head is not None:
        place = position_of(core, record)
        first = head.job.id.partition("\x1f")[0]
        return (
            f"number {place} in its queue, in which jobs start in order: "
            f"the first, {first}, needs {_with_rest(head)}, and {uses}"
        )
    needs = f"it needs {_with_rest(job)}"
    if job.gpus > left:
        return f"first in its queue: {needs}, and {uses}"
    if core.state.places is not None:
        return f"first in its queue, and {uses}; {needs} that lie together, {_why_apart(core, job)}"
    return (
        f"first in its queue, and {uses}, of which {min(left, pool.idle)} are idle; "
        f"{needs}, and starts as soon as they are"
    )


def _with_rest(job: JobState) -> str:
    """Its width, and what cells make of it."""
    return str(job.width) if job.gpus == job.width else f"{job.width} (in cells {job.gpus})"


def _why_apart(core: Core, job: JobState) -> str:
    """Why there is no cell for a job that its pool's unused quota has the GPUs for."""
    places, pool = core.state.places, job.pool.name
    if places is not None and places.within(pool, job.width):
        return "and jobs that borrow, or nodes that are out, are in the way"
    return f"and other jobs of {pool} leave no such cell"


def _on_spare(book: Book, core: Core, job: JobState) -> list[str]:
    """Why it does not start on what others do not need."""
    options, group = core.state.options, job.pool.group
    if not book.lending:
        return [f"lending is {book.mode.value}: sia lending on"]
    if job.run_time >= UNKNOWN_RUN_TIME:
        return [
            "nobody lends to it, as nothing is known of how long it runs: a time_limit would say"
        ]
    window = bisect_left(options.windows, job.run_time)
    if window == len(options.windows):
        longest = duration(options.windows[-1])
        thought = f"it is thought to run {duration(job.run_time)}"
        return [f"nobody lends to it: {thought}, and nobody foresees more than {longest}"]
    return [_held_from(group, window, options, job)]


def _held_from(group: GroupState, window: int, options: Options, job: JobState) -> str:
    """Which pools' reservations leave too few idle GPUs."""
    held = sorted(((held_back(p, window, options), p.name) for p in group.pools), reverse=True)
    total = sum(gpus for gpus, _ in held)
    named = ", ".join(f"{gpus} for {name}" for gpus, name in held[:NAMED] if gpus)
    back = f"{total} are held back ({named})" if total else "none are held back"
    return (
        f"it is thought to be gone within {duration(options.windows[window])}; of "
        f"{counted(group.idle, 'idle GPU')} {back}: {max(0, group.idle - total)} could be lent, "
        f"and it needs {_with_rest(job)}"
    )
