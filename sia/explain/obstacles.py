"""Why a job waits, as data: for each way in which it could start, the obstacles on that way.

Each obstacle says what taking it away means. `explain` takes obstacles away from a copy of the core
and makes a pass, so what it reports is tried; `glance` reports facts and tries nothing.
"""

from __future__ import annotations

from typing import Literal

from msgspec import Struct


class EndingJob(Struct, frozen=True):
    """A running job that would free GPUs. `end` is when it is expected to (seconds); None: unknown.

    A job that has run longer than expected may end at any time: `late`. The daemon adds up the jobs
    of a pool that the caller may not see and shows them as one, without `job` and `end`.
    """

    job: str
    pool: str
    gpus: int
    end: float | None
    late: bool = False


class OrderObstacle(Struct, frozen=True, tag="turn"):
    """Jobs of its pool are ahead of it. Taken away: they are cancelled."""

    jobs: int
    gpus: int
    first: str


class GuestObstacle(Struct, frozen=True, tag="guests"):
    """Guests of its own pool run and keep a place before it. Taken away: they have ended."""

    jobs: int
    gpus: int
    first: str


class QuotaObstacle(Struct, frozen=True, tag="quota"):
    """Its pool's quota has `short` too few GPUs left. Taken away: `ends` have ended."""

    pool: str
    short: int
    left: int
    quota: int
    ends: tuple[EndingJob, ...]


class RoomObstacle(Struct, frozen=True, tag="room"):
    """Too few GPUs are idle in its sharing group. Taken away: `ends` have ended."""

    short: int
    idle: int
    ends: tuple[EndingJob, ...]


class Reservation(Struct, frozen=True, tag="reservation"):
    """The policy reserves `gpus` GPUs for a pool in a window (seconds).

    `load` is the pool's forecast for the window; taken away: the forecast is 0 in every window.
    `waiting` are the GPUs of the pool's pending jobs; taken away: they are cancelled. A cause that
    is 0 may stay. The reservation made now lasts until `until` at most, unless the pool's queue or
    its forecast grows.
    """

    pool: str
    window: float
    gpus: int
    waiting: int
    load: int
    until: float


class Rival(Struct, frozen=True, tag="rival"):
    """A pool whose pending jobs compete for the same GPUs. Taken away: they are cancelled."""

    pool: str
    jobs: int
    gpus: int


class OtherPools(Struct, frozen=True, tag="others"):
    """All other pools of its sharing group that have pending jobs or GPUs reserved, together.

    Taken away: their pending jobs are cancelled and their forecasts are 0. `gpus` are those of the
    pending jobs, `held` those reserved in the window (seconds); `largest` are the pools with the
    largest reservations.
    """

    pools: int
    jobs: int
    gpus: int
    window: float
    held: int
    largest: tuple[tuple[str, int], ...]


class LimitObstacle(Struct, frozen=True, tag="limit"):
    """Lending is off, or a pool may lend or borrow no more. Taken away: there is no such limit.

    `lend` without a `pool` means the limits on lending of all pools of the group.
    """

    kind: Literal["lending", "lend", "borrow"]
    pool: str = ""
    limit: int = 0


class Out(Struct, frozen=True, tag="out"):
    """GPUs of its group are on nodes that are out; spare jobs leave as many idle.

    Taken away: all nodes are back.
    """

    gpus: int


class Length(Struct, frozen=True, tag="length"):
    """Its run time is unknown (None) or longer than a window. Taken away: it is `longest`."""

    run_time: float | None
    longest: float


class RoundObstacle(Struct, frozen=True, tag="round"):
    """The policy decides in rounds who runs; the next one begins at `begins` (seconds)."""

    begins: float


class Width(Struct, frozen=True, tag="width"):
    """It needs more GPUs than its pool's quota, or than could ever be lent to it.

    `most` is the most that this way offers; the way is closed.
    """

    gpus: int
    most: int


Obstacle = (
    OrderObstacle
    | GuestObstacle
    | QuotaObstacle
    | RoomObstacle
    | Reservation
    | Rival
    | OtherPools
    | LimitObstacle
    | Out
    | Length
    | RoundObstacle
    | Width
)


class StartPath(Struct, frozen=True):
    """One way to start: within its pool's quota (`turn`), or on spare GPUs (`spare`).

    It is not `open` if the job is too wide for it. With `exact` a pass was made without these
    obstacles and the job started on this way; otherwise they are facts of the state.
    """

    name: str
    open: bool
    obstacles: tuple[Obstacle, ...]
    exact: bool = False


class Explanation(Struct, frozen=True):
    """What a job waits for: `obstacles` are those of the way with the fewest; and all the ways."""

    obstacles: tuple[Obstacle, ...]
    ways: tuple[StartPath, ...]
    exact: bool
    """A pass was made without `obstacles`, and the job started."""
