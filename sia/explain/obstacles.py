"""Why a job waits, as data: for each way in which it could start, the obstacles on that way.

`explain` removes obstacles from a copy of the core and makes a pass, so its answers are confirmed
by trials; `glance` reports facts without trials. "Removed" in a class says what a trial assumes.
"""

from __future__ import annotations

from typing import Literal

from msgspec import Struct


class EndingJob(Struct, frozen=True):
    """A running job that would free GPUs at `end` (seconds), or at an unknown time (None).

    `late` is true if the job has run longer than expected, so that it may end at any time. The
    daemon shows all jobs of a pool that the caller may not see as one, without `job` and `end`.
    """

    job: str
    pool: str
    gpus: int
    end: float | None
    late: bool = False


class OrderObstacle(Struct, frozen=True, tag="turn"):
    """Jobs of its pool are ahead of it. Removed: they are cancelled."""

    jobs: int
    gpus: int
    first: str


class GuestObstacle(Struct, frozen=True, tag="guests"):
    """Guests of its own pool run and are placed before it. Removed: they have ended."""

    jobs: int
    gpus: int
    first: str


class EarlyObstacle(Struct, frozen=True, tag="early"):
    """It fits in its pool's quota before its turn, which a job of `priority` might need.

    The turn is its start in the pool alone. Removed: it has this priority.
    """

    priority: int


class QuotaObstacle(Struct, frozen=True, tag="quota"):
    """Its pool's quota has `short` too few GPUs left. Removed: the jobs in `ends` have ended."""

    pool: str
    short: int
    left: int
    quota: int
    ends: tuple[EndingJob, ...]


class RoomObstacle(Struct, frozen=True, tag="room"):
    """Its sharing group has `short` too few idle GPUs. Removed: the jobs in `ends` have ended."""

    short: int
    idle: int
    ends: tuple[EndingJob, ...]


class Reservation(Struct, frozen=True, tag="reservation"):
    """The policy reserves `gpus` GPUs for a pool in a window (seconds).

    `load` is the pool's forecast for the window; removed: the forecast is 0 in every window.
    `waiting` is the number of GPUs of the pool's pending jobs; removed: they are cancelled. A cause
    that is 0 is left as it is. The present reservation lasts until `until` at most, unless the
    pool's queue or its forecast grows.
    """

    pool: str
    window: float
    gpus: int
    waiting: int
    load: int
    until: float


class Rival(Struct, frozen=True, tag="rival"):
    """A pool whose pending jobs compete for the same GPUs. Removed: they are cancelled."""

    pool: str
    jobs: int
    gpus: int


class OtherPools(Struct, frozen=True, tag="others"):
    """All other pools of its sharing group that have pending jobs or GPUs reserved, together.

    Removed: their pending jobs are cancelled and their forecasts are 0. `gpus` is the number of
    GPUs of the pending jobs, `held` the number reserved in the window (seconds). `largest` has the
    pools with the largest reservations.
    """

    pools: int
    jobs: int
    gpus: int
    window: float
    held: int
    largest: tuple[tuple[str, int], ...]


class LimitObstacle(Struct, frozen=True, tag="limit"):
    """Lending is off, or a pool may lend or borrow no more. Removed: there is no such limit.

    `lend` without a `pool` means the limits on lending of all pools of the group.
    """

    kind: Literal["lending", "lend", "borrow"]
    pool: str = ""
    limit: int = 0


class Out(Struct, frozen=True, tag="out"):
    """GPUs of its group are on nodes that are out; spare jobs leave as many idle.

    Removed: all nodes are back.
    """

    gpus: int


class Length(Struct, frozen=True, tag="length"):
    """Its run time is unknown (None) or longer than all windows. Removed: it is `longest`."""

    run_time: float | None
    longest: float


class LeastTime(Struct, frozen=True, tag="least_time"):
    """Its minimum run time is longer than all windows, of which the last is `longest` seconds."""

    min_run_time: float
    longest: float


class TurnOnly(Struct, frozen=True, tag="turn_only"):
    """It starts at its turn only; the way on spare GPUs is closed.

    `why` is `stops` if it was stopped as often as the policy allows, or `hard` if the policy has
    this option and the job must not be stopped.
    """

    why: str


class RoundObstacle(Struct, frozen=True, tag="round"):
    """The policy chooses jobs only when a round begins, the next time at `begins` (seconds)."""

    begins: float


class Width(Struct, frozen=True, tag="width"):
    """It needs more GPUs than its pool's quota, or than could ever be lent to it.

    `most` is the largest number of GPUs that a job can get in this way; the way is closed.
    """

    gpus: int
    most: int


Obstacle = (
    OrderObstacle
    | GuestObstacle
    | EarlyObstacle
    | QuotaObstacle
    | RoomObstacle
    | Reservation
    | Rival
    | OtherPools
    | LimitObstacle
    | Out
    | Length
    | LeastTime
    | TurnOnly
    | RoundObstacle
    | Width
)


class StartPath(Struct, frozen=True):
    """One way to start: within its pool's quota (`turn`), or on spare GPUs (`spare`).

    It is not `open` if the job is too wide for it, or starts at its turn only. If `exact`, the job
    started in this way in a pass without these obstacles; otherwise the obstacles are facts of the
    state.
    """

    name: str
    open: bool
    obstacles: tuple[Obstacle, ...]
    exact: bool = False


class Explanation(Struct, frozen=True):
    """What a job waits for: all ways to start, and the obstacles of the way with the fewest."""

    obstacles: tuple[Obstacle, ...]
    ways: tuple[StartPath, ...]
    exact: bool
    """Whether the job started in a pass without `obstacles`."""
