"""All that the engine says: answers to commands, effects for the backend, notices for people."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, Literal

from msgspec import Struct

from daemon.model.job import JobSpec
from sia.model import Nodes
from sia.wording import nearest


class Accepted(Struct, frozen=True, gc=False, tag=True, omit_defaults=True):
    """A command was done."""

    new: bool = True
    """False where it had been done before and nothing changed."""
    version: int = 0
    """Of the pool that it changed."""


class Refused(Struct, frozen=True, gc=False, tag=True, omit_defaults=True):
    """A command was not done: an HTTP status, what is wrong, where, and the mend."""

    status: int
    title: str
    detail: str
    mend: str
    retry_after: float = 0.0
    """Seconds after which it may be another answer, where time alone helps."""


Answer = Accepted | Refused


def unknown_pool(pool: str, known: Iterable[str]) -> Refused:
    """Refuse a pool that does not exist, and name the nearest one."""
    return Refused(404, "no such pool", f"there is no pool {pool!r}", name_a_pool(pool, known))


def name_a_pool(pool: str, known: Iterable[str]) -> str:
    """Return what to do about the name of a pool that does not exist."""
    close = nearest(pool, known)
    return "see: sia pools" if close is None else f"did you mean {close!r}? see: sia pools"


class StartEffect(Struct, frozen=True, tag=True):
    """A job is to start on these GPUs. Doing it twice is doing it once."""

    job: str
    attempt: int
    spec: JobSpec
    nodes: Nodes
    area: str = ""
    """The pool in whose area these are, where there are areas."""


class StopEffect(Struct, frozen=True, gc=False, tag=True):
    """A job is to be warned of its end, or ended."""

    job: str
    attempt: int
    kind: Literal["warn", "end"]


Effect = StartEffect | StopEffect


class Notice(Struct, frozen=True, omit_defaults=True):
    """One line of the event stream. `seq` grows by 1 from one to the next, from 1 on."""

    seq: int
    time: float
    kind: str
    job: str = ""
    pool: str = ""
    node: str = ""
    data: dict[str, Any] = {}
