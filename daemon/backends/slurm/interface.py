"""What the backend asks of Slurm, by whichever door: slurmrestd, or the commands."""

from __future__ import annotations

import re
import shlex
from collections.abc import Sequence
from typing import NamedTuple, Protocol

from daemon.backends.slurm.schema import SlurmJob, SlurmNode, SlurmPartition

REF = re.compile(r"\d{1,10}(?:_\d{1,7})?")
"""What a job, or a task of an array, is called."""

PATH = "/usr/local/bin:/usr/bin:/bin"
"""Where a job finds its programs, unless it says otherwise."""


class SlurmError(Exception):
    """Slurm cannot be asked now: what is wrong, and the mend. It is to be asked again later."""

    def __init__(self, why: str, mend: str) -> None:
        """Say why, in a line."""
        super().__init__(why)
        self.why, self.mend = why, mend


class SlurmRefusedError(Exception):
    """Slurm was asked and said no: asking again changes nothing."""


class SlurmTarget(NamedTuple):
    """Where a job is to run."""

    partition: str
    nodes: Sequence[tuple[str, int]]
    """Nodes, and how many GPUs on each."""

    @property
    def names(self) -> str:
        """Its nodes, as Slurm takes them."""
        return ",".join(name for name, _ in self.nodes)

    @property
    def gpus(self) -> int:
        """On all of them."""
        return sum(gpus for _, gpus in self.nodes)

    @property
    def alike(self) -> int | None:
        """GPUs on each node, where that is the same number."""
        counts = {gpus for _, gpus in self.nodes}
        return counts.pop() if len(counts) == 1 else None


class SlurmSubmission(NamedTuple):
    """A job to be submitted, held. Times are minutes."""

    name: str
    comment: str
    place: SlurmTarget
    script: str
    folder: str
    minutes: int | None
    out: str
    err: str


class Slurm(Protocol):
    """All raise SlurmError where it cannot be asked; what changes something, SlurmRefusedError."""

    single: bool
    """Whether one job costs less to ask for than all."""

    async def jobs(self, *, changed: bool = False) -> list[SlurmJob] | None:
        """All that it knows of; None where that was `changed` in nothing since the last time."""

    async def job(self, ref: str) -> list[SlurmJob]:
        """One, and the tasks that wait with it; nothing if there is none."""

    async def nodes(self) -> list[SlurmNode]:
        """All of them."""

    async def partitions(self) -> list[SlurmPartition]:
        """All of them."""

    async def submit(self, wanted: SlurmSubmission) -> str:
        """Submit a job that waits to be released; returns what it is called."""

    async def release(self, ref: str, place: SlurmTarget) -> None:
        """Have a job run there, at once: after a requeue Slurm would have it wait for two minutes.

        Doing it twice is doing it once.
        """

    async def hold(self, ref: str) -> None:
        """Have a job wait until it is released, whatever its owner says."""

    async def cancel(self, ref: str) -> None:
        """End a job; one that is over is let be."""

    async def close(self) -> None:
        """Let go of what is open."""


def script_of(command: Sequence[str], env: dict[str, str]) -> str:
    """A script that sets these variables and becomes this command, whatever its words are.

    Variables stand in the script and not in the submission's own environment, where some would
    mean something to Slurm's commands.
    """
    lines = [f"export {name}={shlex.quote(value)}" for name, value in env.items()]
    return "\n".join(["#!/bin/sh", *lines, f"exec {shlex.join(command)}", ""])
