"""The users of a cloud's pools: when they submit bursts, and which (§2)."""

from __future__ import annotations

from math import exp, log, log2
from random import Random
from typing import NamedTuple

from replay.synthetic.cloud_parameters import APART, MAYFLY, PROMPT, Cloud, PoolProfile, Range
from sia.core.playout import Arrival
from sia.model import Job
from sia.wording import DAY, HOUR


class JobChain(NamedTuple):
    """Similar jobs in a chain of bursts: GPUs, seconds, jobs per burst."""

    tag: str
    width: int
    median: float
    size: float
    bursts: int


class User:
    """A user who submits bursts. Draws depend only on the number of the burst, not on its time."""

    def __init__(
        self, cloud: Cloud, nature: PoolProfile, seed: str, name: str, pause: float
    ) -> None:
        """Draw the user's habits; `pause` is the mean time between two experiments (seconds)."""
        self._cloud, self._nature, self._seed, self._pause = cloud, nature, seed, pause
        random = Random(seed)  # noqa: S311
        self._name = name
        self._tuned = random.random() < cloud.tuned
        self._rises = nature.zone + random.uniform(*cloud.rises)
        self._bursts = self._experiments = self._left = 0
        self._experiment: JobChain
        self.waits_for = 0

    def burst(self, now: float) -> list[Arrival]:
        """Return the burst that follows the one whose last job has ended now."""
        random = Random(f"{self._seed} burst {self._bursts}")  # noqa: S311
        again = self._left > 0
        time = now + self._wait(random, again=again)
        if not again:
            self._experiment = self._begin()
            self._left = self._experiment.bursts
        jobs = self._jobs(random, time if again and self._tuned else self._when_awake(time))
        self._bursts += 1
        self._left -= 1
        return jobs

    def _wait(self, random: Random, *, again: bool) -> float:
        if not self._bursts:
            return random.uniform(0, self._pause)  # at second 0, somewhere in a pause
        if not again:
            return random.expovariate(1 / self._pause)
        if self._tuned:
            return random.uniform(*PROMPT)
        return self._cloud.think * exp(random.gauss(0, self._cloud.think_spread))

    def _when_awake(self, time: float) -> float:
        """Return this time, or when the user is next at work."""
        while True:
            day, since = divmod(time - self._rises, DAY)
            if since < self._cloud.awake and self._day(day)[0]:
                return time
            time = (day + 1) * DAY + self._rises + self._day(day + 1)[1]

    def _day(self, day: float) -> tuple[bool, float]:
        """Return whether the user works on a day, and by how many seconds later than usual."""
        random = Random(f"{self._seed} day {day:.0f}")  # noqa: S311
        return random.random() < self._cloud.works[int(day % 7)], random.uniform(0, HOUR)

    def _begin(self) -> JobChain:
        cloud, nature = self._cloud, self._nature
        random = Random(f"{self._seed} experiment {self._experiments}")  # noqa: S311
        tag = f"{self._name}-x{self._experiments}"
        self._experiments += 1
        width = nature.width
        if nature.mixed:
            width = 2 ** random.randint(0, int(log2(min(4 * width, nature.pool.quota / 2))))
        elif random.random() < cloud.odd:
            width = max(1, width // 2)
        share = nature.burst * exp(random.gauss(0, cloud.burst_spread))
        return JobChain(
            tag,
            width,
            median=_clamp(nature.median * exp(random.gauss(0, nature.spread)), cloud.duration),
            size=share * nature.pool.quota / width,
            bursts=1 + int(log(1 - random.random()) / log(1 - 1 / cloud.bursts)),
        )

    def _jobs(self, random: Random, time: float) -> list[Arrival]:
        cloud, experiment = self._cloud, self._experiment
        most = cloud.largest * self._nature.pool.quota / experiment.width
        size = max(1, round(min(most, experiment.size * random.uniform(0.5, 1.5))))
        jobs = []
        for i in range(size):
            job = Job(
                f"{self._name}-b{self._bursts}-{i}",
                self._nature.pool.name,
                round(time, 3),
                experiment.width,
                self._name,
                experiment.tag,
            )
            if random.random() < cloud.failing:
                duration = random.uniform(*MAYFLY)
            else:
                duration = experiment.median * exp(random.gauss(0, cloud.alike))
            jobs.append(Arrival(job, float(round(_clamp(duration, cloud.duration)))))
            time += random.uniform(*APART)
        return jobs


def _clamp(value: float, bounds: Range) -> float:
    return min(max(value, bounds[0]), bounds[1])
