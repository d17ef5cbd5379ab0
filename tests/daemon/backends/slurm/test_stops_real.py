"""A job stops for a shorter one and goes on, on a real Slurm, while the daemon is killed.

`make soak` stops it 50 times, `make servers` once for each moment at which the daemon is killed.
"""

from itertools import pairwise

import pytest

from tests.support.budget import budget
from tests.support.clusters.slurm import waits_for
from tests.support.daemons.served import ServedDaemon

MOMENTS = ("told", "waits", "gone")
"""The daemon is killed when the job was told to stop, and the job leaves before the next daemon is
there, or when its grace time is over; or the daemon is killed when the job is gone."""

STOPS = budget(ci=3, soak=50)
WIDTHS = budget(ci=1, soak=50)
GPUS = 16
SETTINGS = """\
policy = "{policy}"
forecast = "none"
grace = "2s"
stops_per_job = 1000
estimates = false
"""

ACCESS = {
    "token": 'rest = "{url}"\njwt_file = "{jwt}"\nuser = "root"\n',
    "both": 'rest = "{url}"\njwt_file = "{jwt}"\nuser = "root"\ncommands = true\nconf = "{conf}"\n',
    "commands": 'commands = true\nconf = "{conf}"\n',
}

WORK = """\
cd {folder}
n=$(cat saved 2>/dev/null || echo 0)
mkdir running || echo "two at once at $n" >> wrong
echo "$SLURM_JOB_ID $n $SLURM_JOB_NUM_NODES $SIA_WIDTH $SIA_RANK" >> runs
leave() {{ echo $n > saved; rmdir running; exit 3; }}
trap 'told=1; touch told' USR1
trap leave TERM
while [ ! -e finish ]; do
  if [ -n "$told" ]; then
    [ ! -e leave ] || leave
  else
    n=$((n + 1)); echo $n >> work
  fi
  sleep 0.05
done
rmdir running
"""
"""Counts one unit of work after the other. It saves how far it has come, and works no more, when it
is told to stop; it leaves when the test says so, or on SIGTERM."""


class Story:
    """A long job that runs on all GPUs of a pool, and the short jobs that it stops for."""

    def __init__(self, slurm, folder, way, whose, policy="srtf"):
        self.slurm, self.whose = slurm, whose
        self.work = slurm.root / "out" / f"stops-{whose}-{way}-{policy}"
        self.work.mkdir()
        self.work.chmod(0o777)
        access = ACCESS[way].format(url=slurm.url, jwt=slurm.jwt, conf=slurm.conf)
        rest = f'[backend]\nkind = "slurm"\npoll = 0.2\nwork_dir = "{self.work}"\n{access}'
        rest += f'\n[[pool]]\nname = "vision"\nquota = {GPUS}\n'
        self.daemon = ServedDaemon(folder, SETTINGS.format(policy=policy), rest)
        self.script = WORK.format(folder=self.work)
        self.ref, self.long = "", "long"

    def begin(self, **more):
        """Submit the long job."""
        self.daemon.start()
        if self.whose == "own":
            how = {"checkpoint": "USR1", "command": ["sh", "-c", self.script]}
            self.submit(self.long, run_time=90000, **how, **more)
            return
        asked = (
            "--gres=gpu:8",
            "-N2",
            "--comment=sia:preemptible=0s,checkpoint=B:USR1,estimate=20h",
        )
        self.ref = self.slurm.sbatch("-H", "-p", "vision", *asked, script=self.script)
        self.long = f"slurm-{self.ref}"

    def submit(self, job_id, **more):
        job = {"id": job_id, "pool": "vision", "gpus": GPUS, "preemptible": 0, **more}
        answer = self.daemon.ask("POST", "/jobs", {"jobs": [job]})
        assert answer["accepted"] == 1, answer

    def lines(self, name):
        path = self.work / name
        return path.read_text().splitlines() if path.exists() else []

    def works(self, runs):
        """Wait until the long job does something in its run of this number, and all know that."""
        self.daemon.until(lambda: len(self.lines("runs")) == runs, f"run {runs} of the long job")
        before = len(self.lines("work"))
        self.daemon.until(lambda: len(self.lines("work")) > before, "work of the long job")
        self.daemon.until(
            lambda: self.daemon.job(self.long)["phase"] == "running", "the long job to be seen"
        )

    def stop_for(self, number, moment):
        """Let the long job stop for a short one, and kill the daemon meanwhile."""
        self.untold()
        self.submit(f"short-{number}", command=["true"], run_time=1)
        self.killed_at(moment)
        self.finishes(f"short-{number}")

    def untold(self):
        for name in ("told", "leave"):
            (self.work / name).unlink(missing_ok=True)

    def finishes(self, job_id):
        self.daemon.until(lambda: self.daemon.job(job_id)["phase"] == "finished", job_id)

    def killed_at(self, moment):
        """Kill the daemon while the long job stops."""
        self.daemon.until((self.work / "told").exists, "the long job to be told")
        if moment == "gone":
            (self.work / "leave").touch()
            self.daemon.until(lambda: not (self.work / "running").exists(), "the long job to leave")
        self.daemon.kill()
        if moment == "told":
            (self.work / "leave").touch()
            self.daemon.until(lambda: not (self.work / "running").exists(), "the long job to leave")
        self.daemon.start()

    def all_is_done_once(self):
        done = [int(line) for line in self.lines("work")]
        assert done == [*range(1, len(done) + 1)], "each unit of work was done once"
        assert not self.lines("wrong")


@pytest.mark.usefixtures("leaves_nothing")
@pytest.mark.parametrize(
    ("whose", "way"), [("own", "token"), ("adopted", "both"), ("adopted", "commands")]
)
def test_a_job_stops_and_goes_on_and_nothing_is_lost_or_done_twice(slurm, tmp_path, whose, way):
    story = Story(slurm, tmp_path, way, whose)
    daemon = story.daemon
    try:
        story.begin()
        story.works(1)
        for i in range(STOPS):
            story.stop_for(i, MOMENTS[i % len(MOMENTS)])
            story.works(i + 2)
        (story.work / "finish").touch()
        job = daemon.until(
            lambda: (j := daemon.job(story.long))["phase"] == "finished" and j, "the long job"
        )
    finally:
        daemon.stop()
    assert job["attempt"] == STOPS + 1
    story.all_is_done_once()
    refs = [line.split()[0] for line in story.lines("runs")]
    if whose == "adopted":
        assert {*refs} == {story.ref}, "it is the same job in Slurm"
    else:
        assert len({*refs}) == STOPS + 1, "each attempt is a job of its own in Slurm"
    saved = [int(line.split()[1]) for line in story.lines("runs")]
    assert all(before < after for before, after in pairwise(saved))
    slurm.wait(lambda: not slurm.squeue(), "no job to be left in Slurm")


@pytest.mark.usefixtures("leaves_nothing")
def test_a_job_goes_on_at_another_width(slurm, tmp_path):
    """It gives half of its GPUs to another job, and takes them back when that one has ended."""
    story = Story(slurm, tmp_path, "token", "own", "emmfs")
    daemon, go = story.daemon, story.work / "go"
    try:
        story.begin(min_width=8, max_width=16)
        story.works(1)
        for i in range(WIDTHS):
            story.untold()
            go.unlink(missing_ok=True)
            waits = ["sh", "-c", waits_for(go)]
            story.submit(f"short-{i}", gpus=8, preemptible="never", command=waits)
            story.killed_at(MOMENTS[i % len(MOMENTS)])
            story.works(2 * i + 2)
            daemon.until(lambda: daemon.job(f"short-{i}")["phase"] == "running", "the other job")  # noqa: B023
            story.untold()
            (story.work / "leave").touch()
            go.touch()
            story.finishes(f"short-{i}")
            story.works(2 * i + 3)
        (story.work / "finish").touch()
        story.finishes("long")
    finally:
        daemon.stop()
    story.all_is_done_once()
    told = [tuple(line.split()[2:]) for line in story.lines("runs")]  # nodes, width, rank
    assert told == [("2", "16", "0"), *[("1", "8", "0"), ("2", "16", "0")] * WIDTHS]
