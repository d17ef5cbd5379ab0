"""Poll a few jobs by number, for clusters where Slurm keeps very many ended jobs."""

from __future__ import annotations

import asyncio
from collections.abc import Collection, Sequence
from heapq import nsmallest

from daemon.backends.slurm.attempts import SlurmView
from daemon.backends.slurm.interface import Slurm

AT_ONCE = 8
"""Maximum number of concurrent requests."""

FEW = 64
"""Maximum number of jobs queried one by one in a turn: about half a second."""

WAITING = FEW // 4
"""Maximum number of pending jobs among these, if many jobs run: a running job whose end is seen
late leaves its GPUs idle."""


class LeastRecentlyPolled:
    """Chooses the jobs to query next: the least recently queried first."""

    def __init__(self) -> None:
        """Start without history."""
        self._asked: dict[str, int] = {}
        self._look = 0

    def next(self, runs: Collection[str], waiting: Collection[str]) -> list[str]:
        """Return at most FEW jobs. O(runs + waiting)."""

        def last(ref: str) -> int:
            return self._asked.get(ref, 0)

        rest = [ref for ref in waiting if ref not in runs]
        found = nsmallest(FEW - min(WAITING, len(rest)), runs, key=last)
        found += nsmallest(FEW - len(found), rest, key=last)
        self._look += 1
        self._asked = {ref: last(ref) for some in (runs, rest) for ref in some if last(ref)}
        self._asked.update(dict.fromkeys(found, self._look))
        return found


async def look_at(slurm: Slurm, before: SlurmView, refs: Sequence[str], began: float) -> SlurmView:
    """Return the earlier view, with these jobs refreshed and new jobs added. Raises SlurmError.

    New jobs have the numbers after the highest known one; at most FEW are queried. The search stops
    at the first unused number, and the next full listing finds the jobs after it.
    """
    jobs, unread, asked = dict(before.jobs), set(before.unread), set(refs)
    new: list[str] = []
    for i in range(0, len(refs), AT_ONCE):
        some = refs[i : i + AT_ONCE]
        for ref, found in zip(some, await asyncio.gather(*map(slurm.job, some)), strict=True):
            jobs.pop(ref, None)
            unread -= {job.id for job in found}
            unread |= {job.id for job in found if job.unread}
            jobs.update({name: job for job in found if not job.unread for name in job.refs})
    number = before.next
    while number < before.next + FEW and (found := await slurm.job(str(number))):
        unread |= {job.id for job in found if job.unread}
        jobs.update({name: job for job in found if not job.unread for name in job.refs})
        new += [name for job in found for name in job.refs]
        number += 1
    return SlurmView(jobs, began, number, frozenset(unread), frozenset(asked.union(new)))
