"""What `sia replay` says of `sia-reclaim`: nobody later than alone, stops, and late turns.

Random logs are replayed and judged by a model of each pool alone, which reads only the log, and by
recounting `segments.csv`.
"""

import csv
import json
from collections import Counter
from math import exp, inf, log
from random import Random

import pytest

from sia.limits import SLOWED
from tests.support.budget import budget
from tests.support.clusters.cells import TYPES_FILE
from tests.support.naive.naive_turns import Alone, turns
from tests.support.shell import sia

pytestmark = pytest.mark.usefixtures("blank_pictures")

SEEDS = budget(ci=24, soak=2000)
POLICIES = ["sia-reclaim", "sia-reclaim@random+random", "sia-reclaim@peaks+survival"]


def rows(path):
    with path.open() as file:
        return list(csv.DictReader(file))


def written(folder, name, rows):
    with (folder / name).open("w") as file:
        writer = csv.DictWriter(file, list(rows[0]))
        writer.writeheader()
        writer.writerows(rows)
    return folder / name


def replayed(folder, jobs, pools, *policies, seed=0, options=()):
    """Replay these rows; return the summary of each policy."""
    log, table = written(folder, "jobs.csv", jobs), written(folder, "pools.csv", pools)
    ran = sia("replay", "--trace", log, "--pools", table, "--policy", ",".join(policies),
              "--seed", str(seed), "--no-report", "--json", "--out", folder / "out",
              *options)  # fmt: skip
    assert ran.returncode == 0, ran.stderr
    return json.loads(ran.stdout)["policies"]


def cloud(random):
    """Rows of jobs and pools; quotas only grow, so that what runs alone always fits."""
    grid, scale = random.choice([0.5, 1, 10]), random.choice([10, 60, 1000])
    pools, widest = [], {}
    for name in "abcd"[: random.randint(2, 4)]:
        quota = random.randint(1, 6)
        pools.append({"pool": name, "quota": quota, "from": 0})
        if random.random() < 0.2:
            pools.append({"pool": name, "quota": quota + random.randint(1, 4), "from": 50})
        widest[name] = pools[-1]["quota"]
    costs = random.choice([["restart"], ["restart", "0", "7.5"], ["60"]])
    jobs = [
        {
            "job_id": f"j{number}", "pool": pool, "submit": random.randint(0, 100) * grid,
            "width": random.randint(1, random.choice([1, widest[pool]])),
            "duration": max(0.001, round(random.expovariate(1 / scale)) * grid),
            "preemptible": random.choice(costs),
            "min_run_time": random.choice(["", "", "", 20]),
        }
        for number in range(random.randint(2, 40))
        for pool in [random.choice([*widest])]
    ]  # fmt: skip
    return jobs, pools


def ends_alone(jobs, pools):
    """The end of each job in its pool alone, by id."""
    found = {}
    for name in {pool["pool"] for pool in pools}:
        quotas = [(float(p["from"]), p["quota"]) for p in pools if p["pool"] == name]
        mine = [
            Alone(number, job["submit"], job["width"], 0, job["duration"])
            for number, job in enumerate(jobs)
            if job["pool"] == name
        ]
        mine.sort(key=lambda each: (each.submit, each.arrival))
        mine = [each._replace(arrival=place) for place, each in enumerate(mine)]
        ids = [j["job_id"] for j in sorted(jobs, key=lambda j: j["submit"]) if j["pool"] == name]
        _, ends = turns(quotas, mine)
        found |= {ids[place]: end for place, end in ends.items()}
    return found


def test_nobody_is_later_than_alone_in_random_logs(tmp_path):
    stopped = 0
    for seed in range(SEEDS):
        folder, random = tmp_path / str(seed), Random(seed)
        folder.mkdir()
        jobs, pools = cloud(random)
        label = random.choice(POLICIES)
        found = replayed(folder, jobs, pools, "fcfs", label, seed=seed)[label]
        out, (own,) = folder / "out", (folder / "out").glob("sia-reclaim*")
        alone = ends_alone(jobs, pools)
        assert {r["job_id"]: float(r["end"]) for r in rows(out / "fcfs/jobs.csv")} == alone, seed
        ends = {row["job_id"]: float(row["end"]) for row in rows(own / "jobs.csv")}
        assert ends.keys() == alone.keys(), seed
        late = {job: end for job, end in ends.items() if end > alone[job] + SLOWED}
        assert not late, (seed, label, late)
        assert (found["slowed"], found["late_turns"], rows(own / "late_turns.csv")) == (0, 0, [])
        runs = Counter(row["job_id"] for row in rows(own / "segments.csv"))
        assert found["most_stops_of_a_job"] == max(runs.values()) - 1 <= 2, seed
        stops = sum(runs.values()) - len(runs)
        assert found["stops_for_100_jobs"] == pytest.approx(100 * stops / len(jobs)), seed
        stopped += stops
    assert stopped > SEEDS, "the logs are too tame"


def guest(name, pool, submit, width, duration, preemptible="restart"):
    return {"job_id": name, "pool": pool, "submit": submit, "width": width, "duration": duration,
            "preemptible": preemptible}  # fmt: skip


LATE = [
    guest("own", "a", 0, 1, 500),
    guest("never", "a", 0, 2, 100, "never"),
    guest("first", "b", 20, 3, 50),
    guest("second", "b", 21, 3, 50),
]
"""A job that must not be stopped runs on b's GPUs when b's first job comes."""

TWO = [{"pool": "a", "quota": 2}, {"pool": "b", "quota": 3}]


def test_each_late_turn_is_counted_and_says_who_was_in_the_way(tmp_path):
    found = replayed(tmp_path, LATE, TWO, "fcfs", "sia-reclaim@none+perfect")
    table = tmp_path / "out/sia-reclaim@none+perfect/late_turns.csv"
    assert [tuple(row.values()) for row in rows(table)] == [
        ("first", "b", "20.0", "100.0", "never", ""),
        ("second", "b", "70.0", "150.0", "", "first"),
    ]
    measures = found["sia-reclaim@none+perfect"]
    assert (measures["late_turns"], measures["slowed"]) == (2, 2)


def test_turns_that_wait_for_guests_in_cells_are_counted_and_named(tmp_path):
    """`sia` stops nobody. With the future known it has nobody wait."""
    (tmp_path / "types.toml").write_text(TYPES_FILE)
    jobs = [row | {"width": 8, "preemptible": ""} for row in LATE]
    pools = [{"pool": "a", "quota": 8}, {"pool": "b", "quota": 8}]
    found = replayed(tmp_path, jobs, pools, "fcfs", "sia@none+perfect", "sia",
                     options=("--cells", tmp_path / "types.toml"))  # fmt: skip
    assert [
        tuple(row.values()) for row in rows(tmp_path / "out/sia@none+perfect/late_turns.csv")
    ] == [
        ("first", "b", "20.0", "100.0", "never", ""),
        ("second", "b", "70.0", "150.0", "", "first"),
    ]
    measures = found["sia@none+perfect"]
    assert (measures["late_turns"], measures["slowed"]) == (2, 2)
    assert (found["sia"]["late_turns"], rows(tmp_path / "out/sia/late_turns.csv")) == (0, [])


def test_in_the_hard_mode_nobody_who_must_not_be_stopped_is_in_the_way(tmp_path):
    found = replayed(tmp_path, LATE, TWO, "fcfs", "sia-reclaim:hard@none+perfect")
    measures = found["sia-reclaim:hard@none+perfect"]
    assert (measures["late_turns"], measures["slowed"]) == (0, 0)


def test_the_summary_says_what_was_captured_and_wasted(tmp_path):
    jobs = [
        guest("own", "a", 0, 1, 500),
        guest("stopped", "a", 0, 1, 100),
        guest("owner", "b", 60, 3, 50),
    ]
    quotas = [{"pool": "a", "quota": 1}, {"pool": "b", "quota": 3}]
    found = replayed(tmp_path, jobs, quotas, "fcfs", "sia-reclaim@none+random", "sia")
    measures = found["sia-reclaim@none+random"]
    assert measures["stops_for_100_jobs"] == pytest.approx(100 / 3)
    assert measures["gpu_time_wasted_pct"] == pytest.approx(100 * 60 / (500 + 100 + 150))
    gain = log(measures["speedup_geomean"]) / log(found["sia"]["speedup_geomean"])
    assert measures["captured"] == pytest.approx(gain)
    assert (found["fcfs"]["captured"], found["sia"]["captured"]) == (0.0, 1.0)
    assert exp(log(found["sia"]["speedup_geomean"])) < inf


def test_the_end_of_a_trial_is_no_stop(tmp_path):
    jobs = [guest("tried", "a", 0, 1, 2000), guest("short", "a", 0, 1, 100)]
    found = replayed(tmp_path, jobs, [{"pool": "a", "quota": 32}], "fcfs", "chronus")["chronus"]
    assert len(rows(tmp_path / "out/chronus/profiling.csv")) == 2
    assert (found["stops_for_100_jobs"], found["most_stops_of_a_job"]) == (0.0, 0)
