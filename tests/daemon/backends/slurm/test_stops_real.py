"""A job stops for a shorter one and goes on, on a real Slurm, while the daemon is killed.

`make soak` stops it 50 times, `make servers` once for each moment at which the daemon is killed.
"""

from itertools import pairwise

import pytest

from tests.support.budget import budget
from tests.support.daemons.served import ServedDaemon

MOMENTS = ("told", "waits", "gone")
"""The daemon is killed when the job was told to stop, and the job leaves before the next daemon is
there, or when its grace time is over; or the daemon is killed when the job is gone."""

STOPS = budget(ci=3, soak=50)
GPUS = 16
GRACE = 2
"""Seconds; a job that waits for the end of its grace time ends then."""

SETTINGS = f"""\
policy = "srtf"
forecast = "none"
grace = "{GRACE}s"
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
echo "$SLURM_JOB_ID $n" >> runs
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

    def __init__(self, slurm, folder, way, whose):
        self.slurm, self.whose = slurm, whose
        self.work = slurm.root / "out" / f"stops-{whose}-{way}"
        self.work.mkdir()
        self.work.chmod(0o777)
        access = ACCESS[way].format(url=slurm.url, jwt=slurm.jwt, conf=slurm.conf)
        rest = f'[backend]\nkind = "slurm"\npoll = 0.2\nwork_dir = "{self.work}"\n{access}'
        rest += f'\n[[pool]]\nname = "vision"\nquota = {GPUS}\n'
        self.daemon = ServedDaemon(folder, SETTINGS, rest)
        self.script = WORK.format(folder=self.work)
        self.ref, self.long = "", "long"

    def begin(self):
        """Submit the long job."""
        self.daemon.start()
        if self.whose == "own":
            job = {"checkpoint": "USR1", "command": ["sh", "-c", self.script], "run_time": 90000}
            self.submit(self.long, **job)
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
        for name in ("told", "leave"):
            (self.work / name).unlink(missing_ok=True)
        self.submit(f"short-{number}", command=["true"], run_time=1)
        self.daemon.until((self.work / "told").exists, "the long job to be told")
        if moment == "gone":
            (self.work / "leave").touch()
            self.daemon.until(lambda: not (self.work / "running").exists(), "the long job to leave")
        self.daemon.kill()
        if moment == "told":
            (self.work / "leave").touch()
            self.daemon.until(lambda: not (self.work / "running").exists(), "the long job to leave")
        self.daemon.start()
        self.daemon.until(
            lambda: self.daemon.job(f"short-{number}")["phase"] == "finished", "the short job"
        )


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
    done = [int(line) for line in story.lines("work")]
    assert done == [*range(1, len(done) + 1)], "each unit of work was done once"
    assert not story.lines("wrong")
    refs = [line.split()[0] for line in story.lines("runs")]
    if whose == "adopted":
        assert {*refs} == {story.ref}, "it is the same job in Slurm"
    else:
        assert len({*refs}) == STOPS + 1, "each attempt is a job of its own in Slurm"
    saved = [int(line.split()[1]) for line in story.lines("runs")]
    assert all(before < after for before, after in pairwise(saved))
    slurm.wait(lambda: not slurm.squeue(), "no job to be left in Slurm")
