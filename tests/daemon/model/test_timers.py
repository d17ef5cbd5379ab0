"""What will be due: against a list, and no more of it than there is to look at."""

from functools import partial
from math import inf
from random import Random

import pytest

from daemon.engine.engine import Engine
from daemon.model.inputs import CancelMaintenance, Ended, Maintain, SetPool, Started
from daemon.model.timers import FEW, Timer, Timers
from tests.support.daemons.daemons import setup, submit


@pytest.mark.parametrize("seed", range(20))
def test_timers_are_due_in_order(seed):
    rng = Random(seed)
    timers, naive, now = Timers(), {}, 0.0
    for _ in range(2000):
        key, turn = (rng.choice("ab"), str(rng.randrange(150))), rng.random()
        if turn < 0.6:
            timer = Timer(now + rng.randrange(100), *key, rng.randrange(2))
            timers.set(timer)
            naive[key] = timer
        elif turn < 0.9:
            timers.drop(*key)
            naive.pop(key, None)
        else:
            now += rng.randrange(20)
            due = sorted(timer for timer in naive.values() if timer.time <= now)
            assert [*iter(partial(timers.due, now), None)] == due
            naive = {k: timer for k, timer in naive.items() if timer.time > now}
        assert timers.next == min((timer.time for timer in naive.values()), default=inf)
        assert len(timers) <= FEW + 2 * len(naive)


def test_an_ended_job_has_no_timer():
    engine = Engine.new(setup([8], a=8))
    timers = engine._context.timers
    for i in range(300):
        now = float(i)
        engine.step(now, [submit(f"{i}", time_limit=9e5), Maintain(f"{i}", "n0", 1e6, 2e6)])
        engine.step(now, [Started(f"{i}", 1), SetPool("a", weight=2.0, until=1e6 + now)])
        engine.step(now, [Ended(f"{i}", 1, 0), CancelMaintenance(f"{i}"), SetPool("a", weight=1.0)])
        assert len(timers) <= FEW + 10
    assert engine.due == Engine.restore(engine.dump()).due
