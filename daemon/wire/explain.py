"""HTTP bodies of explanations: why a job is pending, runs or has ended."""

from __future__ import annotations

from typing import Annotated

from msgspec import Meta, Struct

from daemon.model.job import JobPhase
from sia.explain.obstacles import (
    EarlyObstacle,
    GuestObstacle,
    LeastTime,
    Length,
    LimitObstacle,
    OrderObstacle,
    OtherPools,
    Out,
    QuotaObstacle,
    Reservation,
    Rival,
    RoomObstacle,
    RoundObstacle,
    TurnOnly,
    Width,
)
from sia.model import Stream

POSITION = "Position in the pool's queue, from 1. Left out under `chronus`, which has no queue."


class Held(Struct, frozen=True, tag="hold"):
    """The job is held. Without this obstacle the job would be released."""


class PoolHeld(Struct, frozen=True, tag="pool_hold"):
    """The pool of the job is on hold. Without this obstacle the pool would be open."""

    pool: str


class PoolNotLending(Struct, frozen=True, tag="kept"):
    """A pool is not lending. Without this obstacle it would lend without limits.

    `why` has a text for each kind of reason (docs/operate/guardrails.md); the texts are empty if
    the caller may not see the pool. `limit` is the pool's lending limit; null: no limit.
    """

    pool: str
    why: dict[str, str]
    limit: int | None


class PlacementObstacle(Struct, frozen=True, tag="place"):
    """The job has been started, but its GPUs are not free yet.

    GPUs of `nodes`, which are out, are not used.
    """

    gpus: int
    nodes: tuple[str, ...]


ObstacleView = (
    OrderObstacle | GuestObstacle | EarlyObstacle | QuotaObstacle | RoomObstacle | Reservation
    | Rival | OtherPools | LimitObstacle | Out | Length | LeastTime | TurnOnly
    | RoundObstacle | Width
    | Held | PoolHeld | PoolNotLending | PlacementObstacle
)  # fmt: skip


class WayView(Struct):
    """One way to start: `turn`, within the pool's quota; `spare`, on GPUs that no pool needs."""

    name: str
    open: Annotated[bool, Meta(description="Whether the job can ever start in this way.")]
    obstacles: list[ObstacleView]
    exact: Annotated[
        bool, Meta(description="Whether the job started in a trial without these obstacles.")
    ] = False


class TurnView(Struct):
    """A job's turn: its start in its pool alone. Policies such as `sia-reclaim` use it."""

    time: Annotated[
        float | None, Meta(description="Time at which the turn comes; null if unknown.")
    ]
    came: Annotated[
        bool, Meta(description="Whether the turn has come. If not, `time` is an estimate.")
    ]
    guest: Annotated[
        bool,
        Meta(
            description="Whether the job runs before its turn. It may then be stopped if its "
            "`preemptible` allows it."
        ),
    ]


class PlannedView(Struct, omit_defaults=True):
    """How the policy's current plan runs a job. Plans change. Times are seconds since the epoch."""

    start: Annotated[
        float | None,
        Meta(
            description="Planned start; null if the plan, which has a horizon, contains no start."
        ),
    ]
    end: float | None
    in_time: Annotated[
        bool | None,
        Meta(
            description="Whether the planned end is at or before the deadline; null without a "
            "deadline or a planned end."
        ),
    ] = None
    kills: Annotated[
        list[str], Meta(description="Running jobs that the plan kills to start this job.")
    ] = []
    before: Annotated[
        list[str], Meta(description="Pending jobs that the plan starts before this job.")
    ] = []
    spared: Annotated[
        list[str],
        Meta(description="Running jobs whose kill would cost more than a start now would gain."),
    ] = []
    cost: Annotated[
        float,
        Meta(description="Cost of killing the jobs in `spared`, in the policy's unit of value."),
    ] = 0.0
    gain: Annotated[float, Meta(description="Gain of starting this job now, in the same unit.")] = (
        0.0
    )
    promised: Annotated[
        bool,
        Meta(description="Whether the deadline is guaranteed. The plan may change nevertheless."),
    ] = False
    late: Annotated[
        float,
        Meta(
            description="Seconds after its deadline at which the pending job would end by its "
            "estimate if it started now at full speed; 0 if it would be in time."
        ),
    ] = 0.0


class OutlookView(Struct, omit_defaults=True):
    """A job's place in the plan of a policy that plans rounds ahead, like `shockwave`."""

    weight: Annotated[
        float, Meta(description="Weight of the job relative to other jobs of its pool.")
    ]
    fairness: Annotated[
        float, Meta(description="Estimated finish-time fairness; above 1 is unfair.")
    ]
    place: Annotated[int, Meta(description="Rank of the job's weight in its pool, from 1.")]
    jobs: Annotated[int, Meta(description="Number of jobs of its pool.")]
    begins: Annotated[float, Meta(description="Begin of the first planned round.")]
    round: Annotated[float, Meta(description="Length of a round in seconds.")]
    plan: Annotated[
        list[int],
        Meta(description="One number for each planned round: 1 if the job runs in it, else 0."),
    ]
    other: Annotated[
        str, Meta(description="The job that would lose a round if this job had one more.")
    ] = ""
    loss: Annotated[
        float, Meta(description="Loss of that job, as a multiple of the gain of this job.")
    ] = 0.0
    changes_after: Annotated[
        float,
        Meta(
            description="Seconds of work after which the speed is expected to change; "
            "0 if it is not."
        ),
    ] = 0.0
    speed: Annotated[float, Meta(description="Factor on the speed from then on.")] = 1.0


class JobWhy(Struct, omit_defaults=True):
    """Why a job waits. If `exact`, it would start at once without `obstacles`.

    There are no obstacles if the job starts in the next pass, or does not wait.
    """

    id: str
    pool: str
    phase: JobPhase
    time: Annotated[float, Meta(description="Time of the explanation.")]
    words: Annotated[list[str], Meta(description="The explanation in sentences.")]
    exact: Annotated[
        bool,
        Meta(
            description="Whether the job started in a trial pass without these obstacles. If "
            "not, there may be further obstacles."
        ),
    ] = False
    obstacles: list[ObstacleView] = []
    ways: list[WayView] = []
    position: Annotated[int | None, Meta(description=POSITION)] = None
    stream: Stream | None = None
    reason: Annotated[str, Meta(description="Why it was started.")] = ""
    loans: Annotated[
        dict[str, int], Meta(description="GPUs that the job uses, by the pool that owns them.")
    ] = {}
    turn: Annotated[
        TurnView | None,
        Meta(description="Absent if the job has ended, or the policy has no turns."),
    ] = None
    planned: Annotated[
        PlannedView | None, Meta(description="Absent if the policy makes no such plans.")
    ] = None
    outlook: Annotated[
        OutlookView | None, Meta(description="Absent if the policy plans no rounds ahead.")
    ] = None
