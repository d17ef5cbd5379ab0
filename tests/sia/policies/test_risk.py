"""What all loans may come to, against a model that counts all guests anew at each question."""

from math import sqrt
from random import Random
from types import SimpleNamespace

import pytest

from predictors.perfect import PerfectLoads
from predictors.random_forecast import RandomRunTimes
from sia import Core
from sia.contract.labels import params_of
from sia.core.playout import play
from sia.decisions import StartJob
from sia.events import JobFinished
from sia.model import Stream
from sia.policies.sia.policy import Sia, SiaParams
from sia.policies.sia.risk import LendingRisk
from tests.support.budget import budget
from tests.support.builders import SMALL, job, random_workload

ROUNDS = budget(ci=36, soak=600)


class Recount:
    """Everything that happened to spare jobs: [pool, width, submit, window, start, end]."""

    def __init__(self, windows):
        self.windows, self.jobs = windows, {}

    def is_over(self, guest, now):
        return guest[4] + self.windows[guest[3]] < now

    def chance(self, pool, window, now):
        """The share of the latest guests, once their window was over or they had ended."""
        known = []
        for order, guest in enumerate(self.jobs.values()):
            due, end = guest[4] + self.windows[window], guest[5]
            if guest[0] == pool and guest[3] == window:
                if end is not None and end <= due:
                    known.append((end, 0, order, 0.0))
                elif due < now:
                    known.append((due, 1, order, 1.0))
        weights = [0.5 ** (age / 150) for age in range(len(known))][::-1]
        outlasted = sum(w * k[-1] for w, k in zip(weights, sorted(known), strict=True))
        return (outlasted + 10 * 0.12) / (sum(weights) + 10)

    def gpus(self, now, more=()):
        running = [guest for guest in self.jobs.values() if guest[5] is None]
        overdue = sum(guest[1] for guest in running if self.is_over(guest, now))
        batches = {}
        for guest in [*(g for g in running if not self.is_over(g, now)), *more]:
            batch = guest[0], guest[3], guest[1], guest[2] // 3600
            batches[batch] = batches.get(batch, 0) + guest[1]
        mean = square = 0.0
        for (pool, window, *_), gpus in batches.items():
            chance = self.chance(pool, window, now)
            mean += gpus * chance
            square += gpus**2 * chance * (1 - chance)
        return overdue + mean + 2 * sqrt(square)


def replayed(seed, risk):
    """Return a core, and the instants of a story with wrong run times."""
    rng = Random(seed)
    owned, arrivals = random_workload(rng)
    core = Core(owned, Sia(SiaParams(risk)), SMALL)
    return core, play(
        core,
        arrivals,
        run_times=RandomRunTimes(SMALL.windows, seed),
        loads=PerfectLoads([arrival.job for arrival in arrivals], SMALL.windows),
    )


@pytest.mark.parametrize("risk", [0.05, 0.2, 0.5])
def test_all_loans_together_come_to_no_more_than_they_may(risk):
    lent = outlasted = 0
    for seed in range(ROUNDS):
        core, instants = replayed(seed, risk)
        recounts = {group: Recount(SMALL.windows) for group in core.state.groups}
        for instant in instants:
            now = instant.now
            for event in instant.events:
                if type(event) is JobFinished:
                    for recount in recounts.values():
                        if event.job_id in recount.jobs:
                            recount.jobs[event.job_id][5] = now
            for decision in instant.decisions:
                if type(decision) is not StartJob or decision.stream is not Stream.SPARE:
                    continue
                started = core.state.jobs[decision.job_id]
                recount = recounts[started.pool.group]
                window = next(i for i, w in enumerate(SMALL.windows) if started.run_time <= w)
                guest = [started.pool.name, started.width, started.job.submit, window, now, None]
                free = started.pool.group.quota - sum(
                    pool.dedicated for pool in started.pool.group.pools
                )
                assert recount.gpus(now, [guest]) <= risk * free + 1e-9, f"seed {seed}"
                recount.jobs[decision.job_id] = guest
                lent += 1
            core.policy.check()
            for group, recount in recounts.items():
                measured = core.policy._risks[group]
                measured.advance(now)
                assert measured.gpus() == pytest.approx(recount.gpus(now)), f"seed {seed}"
                outlasted += measured.overdue > 0
    assert lent
    assert outlasted


def guest(number, submit, width=1):
    return SimpleNamespace(
        arrival=number,
        width=width,
        pool=SimpleNamespace(name="a"),
        job=job(f"j{number}").at(submit).runs(0).job,
    )


def test_a_batch_is_one_risk():
    batch, others = LendingRisk((300.0,)), LendingRisk((300.0,))
    for number in range(16):
        batch.add(guest(number, 10.0 * number), 0, 1e6)
        others.add(guest(number, 3600.0 * number), 0, 1e6)
    mean = 16 * 0.12
    assert others.gpus() == pytest.approx(mean + 2 * (16 * 0.12 * 0.88) ** 0.5)
    assert batch.gpus() == pytest.approx(mean + 2 * 16 * (0.12 * 0.88) ** 0.5)


def test_guests_that_end_in_time_make_room_and_those_that_do_not_count_in_full():
    good, bad = LendingRisk((300.0,)), LendingRisk((300.0,))
    for number in range(40):
        for risk in (good, bad):
            risk.add(guest(number, 0.0), 0, 1000.0 * number)
        good.drop(guest(number, 0.0), 1000.0 * number + 300.0)
    bad.advance(1e6)
    assert good.chance("a", 0) < 0.03
    assert bad.chance("a", 0) > 0.8
    assert (good.gpus(), bad.gpus()) == (0.0, 40.0)
    assert bad.chance("b", 0) == 0.12, "other pools are not judged by it"


def test_the_option_is_a_share():
    assert params_of("sia:risk=0.02", SiaParams) == SiaParams(0.02)
    assert params_of("sia", SiaParams) == SiaParams(None)
    for wrong, said in (("0", "risk must be above 0"), ("1.5", "risk must be at most 1")):
        with pytest.raises(ValueError, match=said):
            params_of(f"sia:risk={wrong}", SiaParams)
