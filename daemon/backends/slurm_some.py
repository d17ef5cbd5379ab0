"""A look at a few jobs, where Slurm remembers very many: those that are over cost nothing."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence

from daemon.backends.slurm_api import Slurm
from daemon.backends.slurm_runs import View

AT_ONCE = 8
"""Requests that are on their way at a time."""


async def look_at(slurm: Slurm, before: View, refs: Sequence[str], began: float) -> View:
    """What was known, these as they are now, and those that came since. Raises SlurmError.

    Slurm counts its jobs: who came since has the next numbers. Should one be left out, the next
    list of all shows those behind it.
    """
    jobs = dict(before.jobs)
    for i in range(0, len(refs), AT_ONCE):
        some = refs[i : i + AT_ONCE]
        for ref, found in zip(some, await asyncio.gather(*map(slurm.job, some)), strict=True):
            jobs.pop(ref, None)
            jobs.update({name: job for job in found for name in job.refs})
    number = before.next
    while found := await slurm.job(str(number)):
        jobs.update({name: job for job in found for name in job.refs})
        number += 1
    return View(jobs, began, number)
