"""The chance that guests hold GPUs for too long, against a model that asks all outcomes."""

import re
from itertools import product
from math import log, prod
from random import Random
from types import SimpleNamespace

import pytest

from predictors.perfect import PerfectLoads
from predictors.random_forecast import RandomRunTimes
from sia import Core
from sia.contract.labels import params_of
from sia.core.playout import play
from sia.decisions import StartJob
from sia.model import Stream
from sia.policies.sia.ends import GuestEnds
from sia.policies.sia.policy import Sia, SiaParams
from tests.support.budget import budget
from tests.support.builders import SMALL, job, random_workload

ROUNDS = budget(ci=36, soak=600)
WINDOWS = (60.0, 600.0, 3600.0)


class Recount:
    """All jobs that ran: [pool, bin, start, end, batch, width, guest]."""

    def __init__(self):
        self.jobs = []

    def share(self, pools, bin_, window, now):
        """Of jobs that reached a window: the weights of those that outlasted it, and of all."""
        seen = []
        for pool, of, start, end, *_ in self.jobs:
            begin = WINDOWS[window - 1] if window else -1.0
            due = start + WINDOWS[window]
            if pool not in pools or of != bin_ or (end is not None and end - start <= begin):
                continue
            if end is not None and end <= due:
                seen.append((end, 0.0))
            elif due < now:
                seen.append((due, 1.0))
        weights = [0.5 ** (age / 150) for age in range(len(seen))][::-1]
        lasted = sum(w * each[1] for w, each in zip(weights, sorted(seen), strict=True))
        return lasted, sum(weights)

    def survival(self, pool, bin_, now):
        """The chance to outlast each window."""
        found = [1.0]
        for window in range(len(WINDOWS)):
            share = 0.12 if window == bin_ else 0.97 if window < bin_ else 0.7
            for pools, weight in (("ab", 3.0), (pool, 10.0)):
                lasted, all_ = self.share(pools, bin_, window, now)
                share = (lasted + weight * share) / (all_ + weight)
            found.append(found[-1] * share)
        return found

    def lasts(self, pool, bin_, age, after, now):
        survival = self.survival(pool, bin_, now)

        def at(seconds):
            edges = [15.0, *WINDOWS]
            if seconds <= edges[0]:
                return survival[0]
            for i in range(3):
                if seconds <= edges[i + 1]:
                    part = log(seconds / edges[i]) / log(edges[i + 1] / edges[i])
                    return survival[i] * (survival[i + 1] / survival[i]) ** part
            return survival[-1]

        return at(age + after) / at(age)

    def chance(self, new, now, room):
        batches = {}
        for pool, bin_, start, end, batch, width, guest in [*self.jobs, new]:
            if guest and end is None:
                each = self.lasts(pool, bin_, now - start, WINDOWS[new[1]], now)
                batches.setdefault((pool, bin_, batch, width), []).append((width, each))
        events = []
        for members in batches.values():
            gpus = sum(width for width, _ in members)
            events.append((gpus, sum(width * each for width, each in members) / gpus))
        return sum(
            prod(p if stays else 1 - p for stays, (_, p) in zip(outcome, events, strict=True))
            for outcome in product((False, True), repeat=len(events))
            if sum(g for stays, (g, _) in zip(outcome, events, strict=True) if stays) > room
        )


def view(number, pool="a", submit=0.0, width=1):
    return SimpleNamespace(
        arrival=number,
        width=width,
        pool=SimpleNamespace(name=pool),
        job=job(f"j{number}").at(submit).runs(0).job,
    )


@pytest.mark.parametrize("seed", range(ROUNDS))
def test_the_chance_is_that_of_all_outcomes_of_all_batches(seed):
    rng, now = Random(seed), 0.0
    ends, recount, running = GuestEnds(WINDOWS), Recount(), {}
    for number in range(60):
        now += rng.choice([0.0, 0.0, 0.0, 20.0, 61.0, rng.uniform(0, 900)])
        for other in [n for n in running if rng.random() < rng.choice([0.0, 0.2])]:
            started, row = running.pop(other)
            ends.ended(started, now)
            row[3] = now
        pool, bin_ = rng.choice("ab"), rng.randrange(4)
        guest = bin_ < 3 and sum(row[6] for _, row in running.values()) < 7
        started = view(number, pool, rng.choice([0.0, now]), rng.choice([1, 1, 2, 4]))
        batch = started.job.submit // 3600
        for asked_bin in {bin_, rng.randrange(3)} - {3}:
            new = [pool, asked_bin, now, None, batch, started.width, True]
            room = rng.randint(-1, 8)
            asked = ends.chance(started, asked_bin, now, room)
            assert asked == pytest.approx(recount.chance(new, now, room), abs=1e-9)
        ends.started(started, bin_, now, guest=guest)
        row = [pool, bin_, now, None, batch, started.width, guest]
        recount.jobs.append(row)
        running[number] = (started, row)
        if guest and rng.random() < 0.2:
            ends.returned(started)
            row[6] = False
        if rng.random() < 0.1:
            kept, ends = ends.memory(), GuestEnds(WINDOWS)
            ends.resume(kept, {n: each for n, (each, _) in running.items()})
        ends.check([each for each, row in running.values() if row[6]])


def test_a_batch_is_one_event_and_a_guest_that_has_run_for_long_is_likely_to_stay():
    batch, others = GuestEnds(WINDOWS), GuestEnds(WINDOWS)
    for number in range(8):
        batch.started(view(number, submit=10.0 * number), 0, 1000.0, guest=True)
        others.started(view(number, submit=3600.0 * number), 0, 1000.0, guest=True)
    new = view(8, submit=1e6)
    chances = [each.chance(new, 0, 1000.0, room=2) for each in (batch, others)]
    assert chances == [pytest.approx(0.12), pytest.approx(0.0833, abs=1e-3)]
    batch.advance(1061.0)
    assert batch.chance(new, 0, 1061.0, room=2) > 0.8


def test_what_is_measured_decides():
    good, bad = GuestEnds(WINDOWS), GuestEnds(WINDOWS)
    for number in range(60):
        for ends in (good, bad):
            ends.started(view(number), 0, 10_000.0 * number, guest=True)
        good.ended(view(number), 10_000.0 * number + 59.0)
        bad.ended(view(number), 10_000.0 * number + 3000.0)
    new = view(99)
    assert good.chance(new, 0, 1e6, room=0) < 0.03
    assert bad.chance(new, 0, 1e6, room=0) > 0.85
    assert bad.chance(new, 1, 1e6, room=0) == pytest.approx(0.97 * 0.12), "another bin"
    assert bad.chance(new, 0, 1e6, room=-1) == pytest.approx(1.0), "too little room already"


def replayed(seed, chance, risk=None):
    """Return a core, and the instants of a story with wrong run times."""
    rng = Random(seed)
    owned, arrivals = random_workload(rng)
    core = Core(owned, Sia(SiaParams(risk, chance=chance)), SMALL)
    return play(
        core,
        arrivals,
        run_times=RandomRunTimes(SMALL.windows, seed),
        loads=PerfectLoads([arrival.job for arrival in arrivals], SMALL.windows),
    ), core


def lent(chance):
    """Count the spare starts."""
    count = 0
    for seed in range(ROUNDS):
        instants, core = replayed(seed, chance)
        for instant in instants:
            count += sum(
                type(decision) is StartJob and decision.stream is Stream.SPARE
                for decision in instant.decisions
            )
            core.policy.check()
    return count


def test_the_less_chance_is_allowed_the_less_is_lent():
    careful, usual, bold = (lent(chance) for chance in (0.02, 0.3, 1.0))
    assert 0 < careful < usual < bold
    assert bold == lent(None)


def reasons(chance, risk):
    """Return what pending jobs wait for by the options, in all stories."""
    found = set()
    for seed in range(ROUNDS):
        instants, core = replayed(seed, chance, risk)
        for _ in instants:
            pending = [job for job in core.state.jobs.values() if job.stream is None]
            found |= {each.what for job in pending if (each := core.policy.awaits(job))}
    return found


def test_why_a_job_is_lent_nothing():
    what = "a smaller chance that guests keep GPUs which new jobs need after its window: "
    by_chance = reasons(0.02, None)
    assert by_chance
    assert all(re.fullmatch(what + r"\d+\.\d % with it, at most 2 %", s) for s in by_chance)
    what = r"guests to end: with it \d+\.\d GPUs would be at risk, at most \d+\.\d"
    by_risk = reasons(None, 0.1)
    assert by_risk
    assert all(re.fullmatch(what, said) for said in by_risk)
    assert not reasons(None, None)


def test_the_option_is_a_probability():
    assert params_of("sia:chance=0.1", SiaParams) == SiaParams(chance=0.1)
    for wrong, said in (("0", "chance must be above 0"), ("1.5", "chance must be at most 1")):
        with pytest.raises(ValueError, match=said):
            params_of(f"sia:chance={wrong}", SiaParams)
