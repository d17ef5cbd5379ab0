"""How well loads were foreseen, in numbers worked out by hand and by a naive model."""

from random import Random

from daemon.config.config import PoolConfig
from daemon.forecasts.load_errors import ForecastErrors, LoadErrors
from daemon.model.inputs import Foreseen
from sia.events import ForecastUpdated, JobCancelled, JobFinished, JobSubmitted
from sia.model import Job, Load
from tests.support.daemons.doors import asked, door, job_in, story


def came(time, job_id, pool, gpus):
    return JobSubmitted(time, Job(job_id, pool, time, gpus), 60.0)


def test_forecasts_are_compared_with_the_outcome():
    errors = LoadErrors(1000.0, (100.0, 300.0), {"a": [4, 10], "b": [0, 0]})
    first = [
        came(1010.0, "a1", "a", 3),
        came(1020.0, "a2", "a", 2),  # 5 at once: 1 more than foreseen
        JobFinished(1030.0, "a1"),
        came(1040.0, "b1", "b", 2),  # 2 more
        ForecastUpdated(1050.0, [Load("a", 0, 1), Load("b", 0, 8)]),  # counts from 1100 on
        came(1100.0, "a3", "a", 2),  # at its very end: 2 + 2 at once, no more than before
    ]
    assert list(errors.hear(first)) == []
    second = [
        JobFinished(1110.0, "a2"),  # of the window before
        came(1120.0, "b2", "b", 7),
        JobCancelled(1130.0, "b2"),
        came(1140.0, "b3", "b", 8),
        JobFinished(1150.0, "nobody"),
    ]
    assert list(errors.hear(second)) == [ForecastErrors(100.0, 0, 2, 3)]
    # 1100 to 1200 brought a nothing and b 8 of 8; 1200 to 1300 and 1300 to 1400 nothing.
    # 1000 to 1300 brought a 5 of 10, and b 10 of 0 at once (b1 is still there).
    assert list(errors.hear([came(1401.0, "a4", "a", 2)])) == [
        ForecastErrors(100.0, 6, 0, 0),
        ForecastErrors(300.0, 1, 1, 10),
    ]
    assert list(errors.hear([came(1501.0, "a5", "a", 1)])) == [ForecastErrors(100.0, 1, 1, 1)]


def test_in_cells_a_job_takes_what_its_cell_has():
    errors = LoadErrors(0.0, (10.0,), {"a": [4]}, lambda _, width: 8 if width > 4 else width)
    events = [came(1.0, "a1", "a", 5), came(11.0, "a2", "a", 1)]
    assert list(errors.hear(events)) == [ForecastErrors(10.0, 0, 1, 4)]


def test_running_sums_equal_a_scan_of_the_whole_history():
    for seed in range(30):
        rng = Random(seed)
        windows, pools = (7.0, 20.0), "ab"
        loads = {pool: [rng.randrange(6) for _ in windows] for pool in pools}
        events, here, now = [], [], 0.5
        for i in range(150):
            now += rng.choice((0.0, 0.5, 1.0, 3.0, 30.0))
            kind = rng.randrange(3)
            if kind == 0:
                load = Load(rng.choice(pools), rng.randrange(2), rng.randrange(8))
                events.append(ForecastUpdated(now, [load]))
            elif kind == 1 and here:
                job = here.pop(rng.randrange(len(here)))
                events.append(rng.choice((JobFinished, JobCancelled))(now, job))
            else:
                here.append(f"j{i}")
                events.append(came(now, here[-1], rng.choice(pools), rng.randrange(1, 4)))
        found = {window: [0, 0, 0] for window in windows}
        errors = LoadErrors(0.0, windows, loads)
        for window, *counts in errors.hear(events):
            found[window] = [a + b for a, b in zip(found[window], counts, strict=True)]
        assert found == {w: naive(events, i, w, loads, now) for i, w in enumerate(windows)}


def naive(events, index, length, loads, now):
    """Covered, missed, GPUs: each window and pool by itself."""
    counts, begin = [0, 0, 0], 0.0
    while begin + length < now:
        for pool in loads:
            said, held, peak, mine = loads[pool][index], 0, 0, {}
            for event in events:
                if isinstance(event, ForecastUpdated) and event.time <= begin:
                    said = {(x.pool, x.window): x.gpus for x in event.loads}.get(
                        (pool, index), said
                    )
                if not begin < event.time <= begin + length:
                    continue
                if isinstance(event, JobSubmitted) and event.job.pool == pool:
                    mine[event.job.id] = event.job.width
                elif isinstance(event, JobFinished | JobCancelled):
                    mine.pop(event.job_id, None)
                held = sum(mine.values())
                peak = max(peak, held)
            counts[peak > said] += 1
            counts[2] += max(0, peak - said)
        begin += length
    return counts


@story
async def test_errors_of_load_forecasts_are_exported_to_prometheus(folder):
    pools = (PoolConfig("vision", 8), PoolConfig("speech", 4))
    async with door(folder, pools=pools, speed=1000.0, windows=(5.0, 1e6)) as client:
        service = client.service
        service.observe(Foreseen([Load("vision", 0, 1), Load("speech", 0, 4)]))
        while not service.engine.core.state.pools["vision"].load[0]:
            await asked(client, "GET", "/healthz")
        job = {"pool": "vision", "gpus": 3, "duration": 30}
        await asked(client, "POST", "/v1/jobs", {"id": "a", **job}, status=201)
        await job_in(client, "a", "finished")
        async with client.get("/metrics") as response:
            lines = (await response.text()).splitlines()
    assert 'sia_load_forecasts_total{outcome="missed",window="5"} 1.0' in lines
    assert 'sia_load_missed_gpus_total{window="5"} 2.0' in lines
    covered = next(line for line in lines if 'outcome="covered",window="5"' in line)
    assert float(covered.split()[-1]) >= 11  # over half a minute of two pools, but for that one
    assert not any('window="1e+06"' in line for line in lines)
