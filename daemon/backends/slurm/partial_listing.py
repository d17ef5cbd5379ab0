"""A look at a few jobs, where Slurm remembers very many: those that are over cost nothing."""

from __future__ import annotations

import asyncio
from collections.abc import Collection, Sequence
from heapq import nsmallest

from daemon.backends.slurm.attempts import SlurmView
from daemon.backends.slurm.interface import Slurm

AT_ONCE = 8
"""Requests that are on their way at a time."""

FEW = 64
"""Jobs that are asked for one by one in a look: at some ms each, that is half a second."""

WAITING = FEW // 4
"""Of them, those that wait here, where there are many of both: GPUs stand still for the others."""


class LeastRecentlyPolled:
    """Says whom to ask for next: those for whom that was the longest ago."""

    def __init__(self) -> None:
        """Nobody was asked for."""
        self._asked: dict[str, int] = {}
        self._look = 0

    def next(self, runs: Collection[str], waiting: Collection[str]) -> list[str]:
        """At most FEW of these. O(runs + waiting)."""

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
    """What was known, these as they are now, and those that came since. Raises SlurmError.

    Slurm counts its jobs: who came since has the next numbers, of which at most FEW are asked for.
    Should one be left out, the next list of all shows those behind it.
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
