"""A fictitious company whose teams share a cloud: the endless workload of `sia demo`.

The users are those of `cloud.py`, in a closed loop, but their jobs are drawn as time passes. A user
submits the next jobs some time after the last ones have ended, so fewer jobs arrive when waits are
long. Each team has its own habits, so every week shows the same pattern.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from heapq import heappop, heappush
from math import inf
from typing import NamedTuple

from replay.synthetic.cloud_parameters import Cloud, PoolProfile
from replay.synthetic.cloud_users import User
from sia.core.playout import Arrival
from sia.model import Pool
from sia.wording import DAY, HOUR, MINUTE

OFFICE = (0.95,) * 5 + (0.1,) * 2
"""Share of Mondays, of Tuesdays, … on which a user of an office works."""


class Team(NamedTuple):
    """A team, its pool and its habits."""

    profile: PoolProfile
    habits: Cloud
    users: Sequence[str]
    pause: float
    """Mean pause of a user between two experiments, in seconds."""
    story: str
    """What the team does, in a few words."""


def _team(
    name: str,
    quota: int,
    story: str,
    users: str,
    *,
    width: int,
    median: float,
    burst: float,
    pause: float,
    habits: Cloud,
    spread: float = 0.8,
) -> Team:
    people = users.split()
    profile = PoolProfile(
        Pool(name, quota), width, mixed=False, load=0.5, median=median, spread=spread, burst=burst,
        users=len(people), zone=0.0,
    )  # fmt: skip
    return Team(profile, habits, people, pause, story)


TEAMS = (
    _team(
        "vision", 96, "trains in office hours", "ada bela cara dino emil",
        width=8, median=3 * HOUR, burst=0.3, pause=3 * HOUR, spread=0.6,
        habits=Cloud(
            tuned=0.0, works=OFFICE, rises=(8 * HOUR, 10 * HOUR), awake=9 * HOUR, burst_spread=0.5
        ),
    ),
    _team(
        "speech", 16, "tunes with many short jobs, at night too", "finn gita hugo",
        width=2, median=30 * MINUTE, burst=1.0, pause=5 * HOUR, spread=0.5,
        habits=Cloud(
            tuned=0.6, works=(0.95,) * 5 + (0.5,) * 2, bursts=4.0, burst_spread=0.5,
            rises=(8 * HOUR, 10 * HOUR),
        ),
    ),
    _team(
        "language", 128, "sleeps until Thursday, then trains for two days", "jan kim lena",
        width=32, median=5 * HOUR, burst=0.3, pause=1 * HOUR, spread=0.3,
        habits=Cloud(
            tuned=0.0, works=(0.0, 0.0, 0.0, 1.0, 1.0, 0.0, 0.0), rises=(9 * HOUR, 10 * HOUR),
            awake=12 * HOUR, burst_spread=0.3,
        ),
    ),
    _team(
        "robotics", 48, "simulates at night", "mia nils olga",
        width=4, median=75 * MINUTE, burst=0.8, pause=2 * HOUR, spread=0.5,
        habits=Cloud(
            tuned=0.0, works=(0.9,) * 4 + (0.6, 0.2, 0.8), rises=(19 * HOUR, 21 * HOUR),
            awake=8 * HOUR, burst_spread=0.4,
        ),
    ),
    _team(
        "search", 32, "retrains by schedule, weekends too", "paul quin",
        width=4, median=40 * MINUTE, burst=0.7, pause=3 * HOUR, spread=0.3,
        habits=Cloud(
            tuned=0.0, works=(1.0,) * 7, rises=(0.0, 0.0), awake=DAY, think=2 * HOUR,
            think_spread=0.3, burst_spread=0.3, bursts=12.0,
        ),
    ),
    _team(
        "students", 8, "all need the same few GPUs after lunch", "rosa sam tara uwe vera willi yan",
        width=1, median=35 * MINUTE, burst=0.8, pause=12 * HOUR, spread=0.5,
        habits=Cloud(
            tuned=0.0, works=(0.8,) * 4 + (0.6, 0.3, 0.8), rises=(10 * HOUR, 13 * HOUR),
            awake=11 * HOUR, burst_spread=0.5, bursts=3.0,
        ),
    ),
)  # fmt: skip
"""Teams that are idle at different times, two of them short of GPUs."""


class Crowd:
    """The users of some teams, who submit jobs without end and wait for their results.

    Second 0 is midnight of a Monday. Which jobs a user submits depends on the seed alone, when
    depends on the ends of the user's earlier jobs. Memory is bounded: O(jobs that have not ended).
    """

    def __init__(self, seed: int, teams: Iterable[Team] = TEAMS) -> None:
        """Plan each user's first jobs."""
        self._coming: list[tuple[float, int, Arrival]] = []
        self._planned = 0
        self._whose: dict[str, User] = {}  # user of each job that has not ended
        for team in teams:
            for name in team.users:
                user = User(team.habits, team.profile, f"{seed} {name}", name, team.pause)
                self._plan(user, 0.0)

    @property
    def next(self) -> float:
        """When the next job is submitted; infinite while all users wait for jobs."""
        return self._coming[0][0] if self._coming else inf

    def due(self, now: float) -> list[Arrival]:
        """Return the jobs to submit by now, in order, each once."""
        found = []
        while self._coming and self._coming[0][0] <= now:
            found.append(heappop(self._coming)[2])
        return found

    def ended(self, now: float, job_id: str) -> None:
        """Tell a job's user that it has ended. Unknown jobs are ignored."""
        user = self._whose.pop(job_id, None)
        if user is None:
            return
        user.waits_for -= 1
        if not user.waits_for:
            self._plan(user, now)

    def put_back(self, arrivals: Iterable[Arrival]) -> None:
        """Plan jobs again that were due already and have not ended."""
        for arrival in arrivals:
            self._planned += 1
            heappush(self._coming, (arrival.job.submit, self._planned, arrival))

    def _plan(self, user: User, now: float) -> None:
        """Plan the user's next jobs."""
        burst = user.burst(now)
        user.waits_for = len(burst)
        self._whose.update((arrival.job.id, user) for arrival in burst)
        self.put_back(burst)
