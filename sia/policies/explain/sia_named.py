"""What was found to be in a job's way under SIA, as an answer shows it."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from typing import NamedTuple

from sia.explain import why
from sia.explain.glance import LARGEST
from sia.explain.why import (
    LimitObstacle,
    Obstacle,
    Out,
    QuotaObstacle,
    Reservation,
    Rival,
    RoomObstacle,
    leaves,
    turn_of,
)
from sia.model import Stream
from sia.policies.explain.pass_inputs import Others, PassInputs
from sia.policies.explain.why_least import Kind, Unit
from sia.state.state import JobState, PoolState


class Subject(NamedTuple):
    """Of which job, in which state."""

    ground: PassInputs
    job: JobState
    before: Sequence[JobState]
    """Jobs of its pool that wait before it."""
    window: int
    """In which it would be a spare job; their number for none."""
    now: float


def named(
    asked: Subject, units: Collection[Unit], rivals: Collection[PoolState]
) -> tuple[Obstacle, ...]:
    """Things that would have to go: the turn, the quota, room, then pools, nodes and limits.

    `rivals` are pools that were found to start jobs before it.
    """
    found: list[Obstacle] = []
    if any(unit.kind is Kind.TURN for unit in units):
        found.append(turn_of(asked.before))
    found += _ends(asked, [unit.of for unit in units if unit.kind is Kind.END])
    found += (_others(asked, unit.of) for unit in units if unit.kind is Kind.OTHERS)
    of_pools = (Kind.QUEUE, Kind.LOAD, Kind.KEEP)
    pools = dict.fromkeys(unit.of for unit in units if unit.kind in of_pools)
    found += (_pool(asked, pool, units, rivals) for pool in pools)
    if any(unit.kind is Kind.OUT for unit in units):
        found.append(Out(asked.ground.group.out))
    found += (limit for unit in units if (limit := _limit(unit)) is not None)
    return tuple(found)


def others_of(job: JobState, pool: PoolState) -> int:
    """GPUs of a pool's waiting jobs, this one left out."""
    return pool.pending_width - (job.gpus if pool is job.pool else 0)


def _ends(asked: Subject, ended: list[JobState]) -> list[Obstacle]:
    job, pool, idle = asked.job, asked.job.pool, asked.ground.group.idle
    found: list[Obstacle] = []
    own = [each for each in ended if each.pool is pool and each.stream is Stream.DEDICATED]
    short = pool.dedicated + job.width - pool.quota
    if short > 0 and own:
        gone = tuple(leaves(each, asked.now) for each in own)
        left = max(0, pool.quota - pool.dedicated)
        found.append(QuotaObstacle(pool.name, short, left, pool.quota, gone))
        ended = [each for each in ended if each not in own]
    if ended:
        gone = tuple(leaves(each, asked.now) for each in ended)
        found.append(RoomObstacle(max(0, job.width - idle), max(0, idle), gone))
    return found


def _pool(
    asked: Subject, pool: PoolState, units: Collection[Unit], rivals: Collection[PoolState]
) -> Obstacle:
    queue, load = Unit(Kind.QUEUE, pool) in units, Unit(Kind.LOAD, pool) in units
    keeps = Unit(Kind.KEEP, pool) in units
    waiting = len(pool.pending) + len(pool.aside) - (pool is asked.job.pool)
    if pool in rivals and not load and not keeps:
        return Rival(pool.name, waiting, others_of(asked.job, pool))
    window = asked.window
    span = asked.ground.options.windows[window]
    return Reservation(
        pool.name, span, asked.ground.held[pool][window],
        others_of(asked.job, pool) if queue else 0,
        pool.load[window] if load else 0, keeps, asked.now + span,
    )  # fmt: skip


def _others(asked: Subject, others: Others) -> Obstacle:
    windows, held = asked.ground.options.windows, asked.ground.held
    window = min(asked.window, len(windows) - 1)
    order = sorted(others.pools, key=lambda pool: (-held[pool][window], pool.name))
    return why.OtherPools(
        len(order), sum(len(pool.pending) + len(pool.aside) for pool in order),
        sum(pool.pending_width for pool in order), windows[window], others.held[window],
        tuple((pool.name, held[pool][window]) for pool in order[:LARGEST]),
    )  # fmt: skip


def _limit(unit: Unit) -> LimitObstacle | None:
    if unit.kind is Kind.LENDING:
        return LimitObstacle("lending")
    if unit.kind is Kind.LEND:
        return LimitObstacle("lend", unit.of.name, unit.of.lend_limit)
    if unit.kind is Kind.LENDS:
        return LimitObstacle("lend")
    if unit.kind is Kind.BORROW:
        return LimitObstacle("borrow", unit.of.name, unit.of.borrow_limit)
    return None
