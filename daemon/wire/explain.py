"""What goes over HTTP of why a job waits, runs or is over."""

from __future__ import annotations

from typing import Annotated

from msgspec import Meta, Struct

from daemon.model.job import JobPhase
from sia.explain.obstacles import (
    GuestObstacle,
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
    Width,
)
from sia.model import Stream


class Held(Struct, frozen=True, tag="hold"):
    """It is held. Taken away: it is released."""


class PoolHeld(Struct, frozen=True, tag="pool_hold"):
    """Its pool is on hold. Taken away: the pool is open."""

    pool: str


class PoolNotLending(Struct, frozen=True, tag="kept"):
    """A pool is kept from lending. Taken away: it is not, and may lend whatever it has.

    `why` is in words, by kind of reason (docs/operate/guardrails.md); empty words where the asker
    may not see the pool. `limit` is what it may lend besides; None without a limit.
    """

    pool: str
    why: dict[str, str]
    limit: int | None


class PlacementObstacle(Struct, frozen=True, tag="place"):
    """It is due to start, and its GPUs are not free yet; `nodes` that are out give none."""

    gpus: int
    nodes: tuple[str, ...]


ObstacleView = (
    OrderObstacle | GuestObstacle | QuotaObstacle | RoomObstacle | Reservation | Rival | OtherPools
    | LimitObstacle | Out | Length | RoundObstacle | Width
    | Held | PoolHeld | PoolNotLending | PlacementObstacle
)  # fmt: skip


class WayView(Struct):
    """One way to start: `turn`, in its pool's quota; `spare`, on what others do not need."""

    name: str
    open: Annotated[bool, Meta(description="Whether it could ever start in this way.")]
    obstacles: list[ObstacleView]
    exact: Annotated[
        bool, Meta(description="That it started in a trial without these obstacles.")
    ] = False


class TurnView(Struct):
    """A job's turn: its start in its pool alone, which `sia-reclaim` and its like go by."""

    time: Annotated[float | None, Meta(description="When its turn comes; null: not known.")]
    came: Annotated[bool, Meta(description="Whether its turn has come; else `time` is estimated.")]
    guest: Annotated[
        bool, Meta(description="Whether the job runs before its turn, so that it may be stopped.")
    ]


class PlannedView(Struct, omit_defaults=True):
    """How the policy's present plan runs a job. No promise: plans change. Times since the epoch."""

    start: Annotated[
        float | None, Meta(description="Null: the plan, which looks only so far, has no start.")
    ]
    end: float | None
    in_time: Annotated[
        bool | None,
        Meta(description="Whether it ends by its deadline so; null without a deadline or a start."),
    ] = None
    kills: Annotated[list[str], Meta(description="Running jobs that it kills for this job.")] = []
    before: Annotated[list[str], Meta(description="Pending jobs that it starts before.")] = []
    spared: Annotated[
        list[str],
        Meta(description="Running jobs whose kill would cost more than a start now would gain."),
    ] = []
    cost: Annotated[float, Meta(description="Of these kills, in the policy's values.")] = 0.0
    gain: Annotated[float, Meta(description="Of a start now, in the policy's values.")] = 0.0
    promised: Annotated[
        bool, Meta(description="That its deadline is promised, though the plan may change.")
    ] = False


class OutlookView(Struct, omit_defaults=True):
    """What is planned for a job by a policy that plans rounds ahead, like `shockwave`."""

    weight: Annotated[float, Meta(description="Of the job against others in its pool.")]
    fairness: Annotated[
        float, Meta(description="Its finish-time fairness as estimated; above 1 is unfair.")
    ]
    place: Annotated[int, Meta(description="By weight; 1 is the first.")]
    jobs: Annotated[int, Meta(description="Jobs of its pool.")]
    begins: Annotated[float, Meta(description="When the first planned round began, in seconds.")]
    round: Annotated[float, Meta(description="Seconds of a round.")]
    plan: Annotated[list[int], Meta(description="1 for each of the rounds in which it runs.")]
    other: Annotated[
        str, Meta(description="The job that would lose a round if this one had one more.")
    ] = ""
    loss: Annotated[
        float, Meta(description="What that job would lose, as a multiple of what this one gains.")
    ] = 0.0
    changes_after: Annotated[
        float, Meta(description="Seconds of work until its speed is foreseen to change.")
    ] = 0.0
    speed: Annotated[float, Meta(description="How many times as fast it is then.")] = 1.0


class JobWhy(Struct, omit_defaults=True):
    """Why a job waits: with `exact`, it would start at once without `obstacles`.

    There are none where it starts in the next pass, or where it does not wait.
    """

    id: str
    pool: str
    phase: JobPhase
    time: Annotated[float, Meta(description="Of the state that is spoken of.")]
    words: Annotated[list[str], Meta(description="The same for people.")]
    exact: Annotated[
        bool,
        Meta(
            description="That a pass was tried on a copy without these obstacles, and the job "
            "started. Otherwise they are what is known, and there may be others."
        ),
    ] = False
    obstacles: list[ObstacleView] = []
    ways: list[WayView] = []
    position: Annotated[int | None, Meta(description="In its pool's queue; 1 is the first.")] = None
    stream: Stream | None = None
    reason: Annotated[str, Meta(description="Why it was started.")] = ""
    loans: Annotated[dict[str, int], Meta(description="Whose GPUs it uses.")] = {}
    turn: Annotated[
        TurnView | None, Meta(description="Absent if it has ended, or the policy knows no turns.")
    ] = None
    planned: Annotated[
        PlannedView | None, Meta(description="Absent if the policy makes no such plans.")
    ] = None
    outlook: Annotated[
        OutlookView | None, Meta(description="Absent if the policy plans no rounds ahead.")
    ] = None
