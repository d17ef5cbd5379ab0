"""Reasons why a job has no GPUs although it is due to start: nodes that are out, and cells."""

from __future__ import annotations

from daemon.engine.nodes import BACKEND, CONFIG, OPERATOR
from daemon.model.book import Book, JobRecord, NodeRecord
from daemon.model.job import ON_GPUS
from sia.core.core import Core
from sia.state.nodes import SAME
from sia.state.state import JobState
from sia.wording import counted

NAMED = 3
"""Maximum number of nodes that a line names as out, to keep it short."""


def placement_reasons(book: Book, record: JobRecord) -> list[str]:
    """Return why a job that is due to start has no node yet. O(jobs)."""
    gone = out(book)
    if not gone and (leaving := _leaving(book, record)):
        return [leaving]
    if not gone and book.setup.areas:
        needs = counted(record.gpus, "GPU")
        return [f"it is due to start, and its {needs} are not free in any one partition yet"]
    if not gone:
        return ["its GPUs are assigned to it, but the job that holds them has not ended yet"]
    free = {name: len(node.gpus) for name, node in book.nodes.items() if not node.reasons}
    for other in book.jobs.values():
        if other.placed and other.phase in ON_GPUS:
            for node, gpus in other.nodes:
                if node in free:
                    free[node] -= len(gpus)
    needs = f"it is due to start and needs {counted(record.gpus, 'GPU')}"
    return [f"{needs}; nodes that take jobs have {sum(free.values())} free", *gone]


def _leaving(book: Book, record: JobRecord) -> str:
    """Return a line on jobs of the same group that are being stopped; "" if there are none."""
    own = book.pools[record.spec.pool]
    pools = (book.pools[book.jobs[job_id].spec.pool] for job_id in book.leaving)
    count = sum((pool.group, pool.share) == (own.group, own.share) for pool in pools)
    if not count:
        return ""
    return f"its GPUs become free when {counted(count, 'job')} being stopped or ended has gone"


def out(book: Book) -> list[str]:
    """Return a line for each node that is out: who took it out, why, and how to bring it back.

    O(nodes).
    """
    nodes = [node for node in book.nodes.values() if node.reasons]
    more = [f"and {counted(len(nodes) - NAMED, 'more node')}"] if len(nodes) > NAMED else []
    return [*map(_why_out, nodes[:NAMED]), *more]


def _why_out(node: NodeRecord) -> str:
    who = ", ".join(f"{name}: {why}" for name, why in node.reasons.items())
    fixes = [_back(node.name, name) for name in node.reasons]
    return f"node {node.name} is out ({who}): " + ", ".join(fixes)


def _back(node: str, who: str) -> str:
    """Return the command or the action that ends an outage."""
    if who == OPERATOR:
        return f"sia resume {node}"
    if who == CONFIG:
        return f"sia resume {node} if it works although the cells file marks it as bad"
    if who == BACKEND:
        return "its cluster reports it out: fix it there"
    return f"sia maintenance cancel {who.partition(' ')[2]}"


def preference_reason(core: Core, job: JobState) -> list[str]:
    """Return why a job waits if its preferred nodes have too few free GPUs. O(nodes)."""
    table, prefers = core.state.nodes, job.job.prefers
    if table is None or not (prefers or job.job.strl):
        return []
    near = [each.nodes for each in table.places(job.job) if job.job.strl or each.slowdown == 1.0]
    free = max((sum(map(table.free, each)) for each in near), default=0)
    if free >= job.width:
        return []
    if job.job.strl:
        there = counted(free, "free GPU")
        return [f"no set of its STRL has more than {there}, and it needs {job.width}"]
    what = f"any one {prefers.removeprefix(SAME)}" if prefers.startswith(SAME) else prefers
    slow = job.job.slowdown
    elsewhere = "it runs nowhere else"
    if slow is not None:
        elsewhere = f"elsewhere it takes {slow:g} times as long"
    there = counted(free, "free GPU")
    return [f"the nodes of {what} have {there}, and it needs {job.width}; {elsewhere}"]


def fragmentation_reason(core: Core, job: JobState, *, out: bool) -> list[str]:
    """Return why the first job of a pool gets no cell, although the unused quota has enough GPUs.

    With `out`, some nodes are out, and it is not known whether they would have had a cell.
    """
    places, pool = core.state.places, job.pool
    if places is None or pool.head is not job or job.gpus > pool.quota - pool.dedicated:
        return []
    needs = str(job.width) if job.gpus == job.width else f"{job.width} (in cells {job.gpus})"
    spare = any(each.spare for each in pool.group.pools)
    if not places.in_quota(pool.name, job.width):
        others = f"other jobs of {pool.name}"
        why = f"{others}, and nodes that are out, leave" if out else f"{others} leave"
        why += " no such cell"
    elif out:
        why = "jobs on spare GPUs, or nodes that are out," if spare else "nodes that are out"
        why += " are in the way"
    else:
        why = "jobs on spare GPUs are in the way"
    return [f"it needs {needs} GPUs that lie together, and {why}"]
