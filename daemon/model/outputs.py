"""Outputs of the engine: answers to commands, effects for the backend, notices for people."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, Literal

from msgspec import Struct

from daemon.model.job import JobSpec
from sia.model import Nodes
from sia.wording import nearest


class Accepted(Struct, frozen=True, gc=False, tag=True, omit_defaults=True):
    """The command was carried out."""

    new: bool = True
    """False if it changed nothing, because it had been carried out before."""
    version: int = 0
    """Version of the pool that it changed."""


class Refused(Struct, frozen=True, gc=False, tag=True, omit_defaults=True):
    """The command was refused: an HTTP status, a title, what is wrong, and how to fix it."""

    status: int
    title: str
    detail: str
    mend: str
    retry_after: float = 0.0
    """Seconds after which a retry may succeed; 0 if time alone does not help."""


Answer = Accepted | Refused


def unknown_pool(pool: str, known: Iterable[str]) -> Refused:
    """Refuse a pool that does not exist, and name the nearest one."""
    return Refused(404, "no such pool", f"there is no pool {pool!r}", name_a_pool(pool, known))


def name_a_pool(pool: str, known: Iterable[str]) -> str:
    """Return what to do about the name of a pool that does not exist."""
    close = nearest(pool, known)
    return "see: sia pools" if close is None else f"did you mean {close!r}? see: sia pools"


class StartEffect(Struct, frozen=True, tag=True):
    """Start a job on these GPUs. Idempotent."""

    job: str
    attempt: int
    spec: JobSpec
    nodes: Nodes
    area: str = ""
    """The pool whose area the nodes are in; empty where there are no areas."""


class StopEffect(Struct, frozen=True, gc=False, tag=True):
    """Warn a job of its end, or end it. Idempotent."""

    job: str
    attempt: int
    kind: Literal["warn", "end"]


Effect = StartEffect | StopEffect


class Notice(Struct, frozen=True, omit_defaults=True):
    """One entry of the event stream. `seq` counts notices from 1."""

    seq: int
    time: float
    kind: str
    job: str = ""
    pool: str = ""
    node: str = ""
    data: dict[str, Any] = {}
