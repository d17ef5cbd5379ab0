"""Client interface to Slurm, implemented over slurmrestd and over Slurm's commands."""

from __future__ import annotations

import re
import shlex
from collections.abc import Sequence
from typing import Literal, NamedTuple, Protocol

from daemon.backends.slurm.schema import SlurmJob, SlurmNode, SlurmPartition

REF = re.compile(r"\d{1,10}(?:_\d{1,7})?")
"""Pattern of a Slurm job id, or of an array task."""

PATH = "/usr/local/bin:/usr/bin:/bin"
"""Default PATH of a job."""


class SlurmError(Exception):
    """Slurm is unreachable: why, and the fix. The caller retries."""

    def __init__(self, why: str, mend: str) -> None:
        """Store the reason, one line, and the fix."""
        super().__init__(why)
        self.why, self.mend = why, mend


class SlurmRefusedError(Exception):
    """Slurm refused a request; a retry would fail too."""


class SlurmTarget(NamedTuple):
    """The partition and nodes on which Slurm should run a job."""

    partition: str
    nodes: Sequence[tuple[str, int]]
    """Nodes with the number of GPUs on each."""

    @property
    def names(self) -> str:
        """Comma-separated node names."""
        return ",".join(name for name, _ in self.nodes)

    @property
    def gpus(self) -> int:
        """Total number of GPUs."""
        return sum(gpus for _, gpus in self.nodes)

    @property
    def alike(self) -> int | None:
        """GPUs per node, if equal on all nodes."""
        counts = {gpus for _, gpus in self.nodes}
        return counts.pop() if len(counts) == 1 else None


class SlurmSubmission(NamedTuple):
    """A job to submit in held state. Times are minutes."""

    name: str
    comment: str
    place: SlurmTarget
    script: str
    folder: str
    minutes: int | None
    out: str
    err: str


SignalTarget = Literal["all", "batch", "steps"]
"""Which processes of a job get a signal: all, the batch script's shell, or the processes of its
steps."""


class Slurm(Protocol):
    """All methods raise SlurmError if Slurm is unreachable; changes also SlurmRefusedError."""

    single: bool
    """Whether querying one job is cheaper than listing all."""

    @property
    def requeues(self) -> bool:
        """Whether it can requeue a job."""

    async def jobs(self, *, changed: bool = False) -> list[SlurmJob] | None:
        """Return all jobs; None if `changed` is set and nothing changed since the last call."""

    async def job(self, ref: str) -> list[SlurmJob]:
        """Return a job and the tasks pending with it; empty if there is none."""

    async def nodes(self) -> list[SlurmNode]:
        """Return all nodes."""

    async def partitions(self) -> list[SlurmPartition]:
        """Return all partitions."""

    async def submit(self, wanted: SlurmSubmission) -> str:
        """Submit a held job; return its Slurm job id."""

    async def release(self, ref: str, place: SlurmTarget) -> None:
        """Set partition and nodes, and release a job without Slurm's two-minute requeue delay.

        Idempotent.
        """

    async def hold(self, ref: str) -> None:
        """Hold a job so that its owner cannot release it."""

    async def signal(self, ref: str, name: str, to: SignalTarget) -> None:
        """Send a signal like `USR1` to these processes of a running job."""

    async def requeue(self, ref: str, *, ended: bool = False) -> None:
        """End a running job and requeue it in held state; no effect if it is pending.

        A job that has ended is requeued only with `ended`: a finished job must not run again.
        """

    async def cancel(self, ref: str) -> None:
        """Cancel a job; no effect if it has ended."""

    async def close(self) -> None:
        """Close connections."""


CHECKPOINTS = "SIA_CHECKPOINT_DIR"
"""The variable with the folder for a job's saved work."""


def script_of(command: Sequence[str], env: dict[str, str], folder: str = "") -> str:
    """Return a script that makes a folder, exports the variables and executes the command verbatim.

    The variables are not passed through the submission's environment, where some would change
    the behaviour of Slurm's commands.
    """
    lines = [f"export {name}={shlex.quote(value)}" for name, value in env.items()]
    if folder:
        lines.append(f"mkdir -p {shlex.quote(folder)}")
    return "\n".join(["#!/bin/sh", *lines, f"exec {shlex.join(command)}", ""])
