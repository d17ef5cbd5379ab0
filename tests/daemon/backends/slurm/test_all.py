"""Three partitions, jobs by HTTP, MQTT and plain `sbatch`, lending on, while all of it is killed.

`make soak` runs it with 200 jobs, `make servers` with 40.
"""

import asyncio
import signal
import time
from collections import Counter
from random import Random

from tests.support.budget import budget
from tests.support.clusters.slurm import THREE, waits_for
from tests.support.daemons.served import PATIENCE, ServedDaemon
from tests.support.servers.mqtt import peer

JOBS = budget(ci=40, soak=200)
LASTS = "lasts"
"""A job that runs whenever slurmctld is killed, and ends while it is away."""
LIMIT, RUNS = 600, 60
"""Seconds for which jobs may run, and are thought to. The end of one is told to slurmctld again and
again while that is away, a quarter of a minute apart, and until it is heard it seems to run."""
QUOTAS = {"vision": 16, "speech": 8, "robots": 8}
HELD = "PENDING", "JobHeld"
NODES = {name: set(nodes) for name, nodes in THREE.items()}

SETTINGS = """\
forecast = "none"
tick = "5s"
windows = ["5s", "30s", "2m"]
"""

REST = """\
[backend]
kind = "slurm"
rest = "{url}"
jwt_file = "{jwt}"
user = "root"
poll = 0.5
work_dir = "{out}"

[mqtt]
port = {bus}
"""


def daemon_of(slurm, bus, folder):
    rest = REST.format(url=slurm.url, jwt=slurm.jwt, out=slurm.root / "out", bus=bus)
    for name, quota in QUOTAS.items():
        rest += f'\n[[pool]]\nname = "{name}"\nquota = {quota}\n'
    return ServedDaemon(folder, SETTINGS, rest)


def script(slurm, name):
    """Says who ran where on how many GPUs, once for each run."""
    return (
        f'echo "{name} $SLURM_JOB_PARTITION $SLURMD_NODENAME $CUDA_VISIBLE_DEVICES" '
        f">> {slurm.root}/out/all; sleep $1"
    )


async def publish(bus, jobs):
    """Each to its pool, again until the daemon has answered that it has it."""
    missing = {job["id"]: job for job in jobs}
    async with peer(bus, "sia/v1/main/pool/+/event") as one:
        end = time.monotonic() + PATIENCE
        while missing:
            assert time.monotonic() < end, f"nobody took {len(missing)}"
            for job in missing.values():
                body = {key: value for key, value in job.items() if key != "pool"}
                await one.say(f"sia/v1/main/pool/{job['pool']}/submit", body)
            await asyncio.sleep(1)
            for event in one.on("/event"):
                missing.pop(event.get("job"), None)


def submit_all(slurm, bus, daemon, rng):
    """By three ways in turn; most want more than their pool has. Returns widths by id."""
    jobs, batch, bused = {}, [], []
    for i in range(JOBS):
        pool = rng.choice(["vision", "speech", "speech", "robots"])
        gpus, seconds = rng.choice([1, 1, 2, 4, 8]), rng.choice(["0.5", "1", "2"])
        if i % 3 == 0:
            told = script(slurm, "slurm-$SLURM_JOB_ID").replace("$1", seconds)
            ref = slurm.sbatch(
                "-H", "-p", pool, f"--gres=gpu:{gpus}", "-t", str(LIMIT // 60), script=told
            )
            jobs[f"slurm-{ref}"] = pool, gpus
        else:
            told = script(slurm, "$SIA_JOB_ID").replace("$1", seconds)
            name, some = (f"api-{i}", batch) if i % 3 == 1 else (f"bus-{i}", bused)
            some.append({"id": name, "pool": pool, "gpus": gpus, "run_time": RUNS,
                         "time_limit": LIMIT, "command": ["sh", "-c", told]})  # fmt: skip
            jobs[name] = pool, gpus
    asyncio.run(publish(bus, bused))
    assert daemon.ask("POST", "/jobs", {"jobs": batch})["accepted"] == len(batch)
    return jobs


def submit_lasting(slurm, daemon, gate):
    """One that the test has end; it starts at once, for nobody else is there."""
    told = script(slurm, "$SIA_JOB_ID").replace("sleep $1", waits_for(gate))
    asked = {"id": LASTS, "pool": "robots", "gpus": 1, "time_limit": LIMIT}
    daemon.ask("POST", "/jobs", {"jobs": [{**asked, "command": ["sh", "-c", told]}]})
    return {LASTS: ("robots", 1)}


def kill_slurmctld(slurm, *running):
    """While these run, and all others are over or held: a start or an end that it has not saved,
    it forgets, so that what has ended runs again, or seems to for minutes."""

    def rests():
        rows = slurm.squeue("%j %T %r")
        return [name for name, state, why, *_ in rows if (state, why[:7]) != HELD] == [*running]

    slurm.wait(rests, "all but what lasts to be over or held", PATIENCE)
    slurm.saves()
    while not rests():  # a request was still on its way
        slurm.wait(rests, "all but what lasts to be over or held", PATIENCE)
        slurm.saves()
    slurm.stop("slurmctld", signal.SIGKILL)


def over(daemon, jobs):
    """Phases of those that are over, by id; all are asked at once."""
    found, cursor = {}, ""
    while cursor is not None:
        page = daemon.ask("GET", f"/history?limit=500{cursor}")
        found |= {job["id"]: job for job in page["jobs"] if job["id"] in jobs}
        cursor = None if page["next"] is None else f"&before={page['next']}"
    return found


def until_over(daemon, jobs, share, seconds):
    end = time.monotonic() + seconds
    loans = Counter()
    while len(found := over(daemon, jobs)) < share * len(jobs):
        for loan in daemon.ask("GET", "/loans")["loans"]:
            loans[loan["job"]] += 1
        left = {**jobs}
        for each in found:
            left.pop(each)
        first = next(iter(left))
        assert time.monotonic() < end, (
            f"{len(found)} are over; {daemon.ask('GET', f'/jobs/{first}')}"
        )
        time.sleep(0.3)
    return found, loans


def test_each_job_runs_once_where_it_was_placed(slurm, broker, tmp_path):
    (slurm.root / "out" / "all").touch()
    (slurm.root / "out" / "all").chmod(0o666)
    rng = Random(7)
    daemon = daemon_of(slurm, broker.port, tmp_path)
    daemon.start()
    try:
        gate = slurm.gate()
        jobs = submit_lasting(slurm, daemon, gate)
        jobs |= submit_all(slurm, broker.port, daemon, rng)
        wait = PATIENCE + 2 * JOBS
        until_over(daemon, jobs, 0.1, wait)
        slurm.run("scontrol", "update", "NodeName=n1", "State=DRAIN", "Reason=test")
        until_over(daemon, jobs, 0.25, wait)
        daemon.kill()
        daemon.start()
        until_over(daemon, jobs, 0.4, wait)
        slurm.run("scontrol", "update", "NodeName=n1", "State=RESUME")
        daemon.process.send_signal(signal.SIGSTOP)
        try:
            kill_slurmctld(slurm, LASTS)
        finally:
            daemon.process.send_signal(signal.SIGCONT)
        slurm.start_ctld()
        until_over(daemon, jobs, 0.6, wait)
        daemon.kill()
        kill_slurmctld(slurm, LASTS)
        gate.touch()
        daemon.start()
        time.sleep(1)
        slurm.start_ctld()
        found, _ = until_over(daemon, jobs, 1.0, wait)
        check(slurm, daemon, jobs, found)
    finally:
        daemon.stop()


def check(slurm, daemon, jobs, found):
    wrong = {job_id: job for job_id, job in found.items() if job["phase"] != "finished"}
    assert not wrong, [(job_id, job["why"]) for job_id, job in wrong.items()]
    lines = [line.split() for line in (slurm.root / "out" / "all").read_text().splitlines()]
    assert Counter(line[0] for line in lines) == Counter(dict.fromkeys(jobs, 1))
    lent = alone = parted = 0
    for job_id, partition, node, gpus in lines:
        pool, width = jobs[job_id]
        decided = found[job_id]["nodes"]
        assert sum(map(len, decided.values())) == width, job_id
        assert set(decided) <= NODES[partition], job_id
        assert node == min(decided), job_id  # a batch script runs on the first
        if len({len(each) for each in decided.values()}) == 1:  # else Slurm parts them itself
            assert len(gpus.split(",")) == len(decided[node]), job_id
            parted += len(decided) > 1
        alone += len(decided) == 1
        lent += partition != pool
    assert lent, "nobody was on another pool's partition"
    assert alone + parted > 0.8 * len(jobs)
    # What a killed slurmctld had not saved that it was cancelled, the daemon has to cancel again.
    end = time.monotonic() + 60
    while left := slurm.squeue():
        assert time.monotonic() < end, left
        time.sleep(0.3)
