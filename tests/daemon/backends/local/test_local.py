"""The local backend with real processes."""

import asyncio
import gc
import os
import re
import shutil
import signal
import subprocess
import sys
import time
from contextlib import contextmanager
from pathlib import Path
from types import SimpleNamespace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from daemon.backends.interface import Expected
from daemon.backends.local import supervisor
from daemon.backends.local.attempt_files import AttemptFiles, folder_name
from daemon.backends.local.backend import LocalBackend
from daemon.backends.local.gpus import count_gpus
from daemon.backends.local.supervisor_protocol import order_of
from daemon.model.inputs import Ended, Lost, Started, StartFailed, Stray
from daemon.model.job import JobPhase, JobSpec
from daemon.model.outputs import StartEffect
from sia.console.errors import UserError
from tests.support.budget import budget
from tests.support.daemons.daemons import MemoryNotes, house

PATIENCE = 10.0
"""Seconds until a test gives up waiting."""


def order(job, *command, attempt=1, gpus=(0,), **spec):
    spec = JobSpec(job, "vision", 1, command=command, **spec)
    return StartEffect(job, attempt, spec, (("local", gpus),))


def shell(job, script, **more):
    return order(job, "/bin/sh", "-c", script, **more)


class Machine:
    """A backend, and what it has said."""

    def __init__(self, folder, **options):
        self.said = []
        self.backend = LocalBackend(folder, **{"gpus": 4, "kill_after": 0.3, **options})

    async def __aenter__(self):
        await self.backend.open(house(self.said.append))
        return self

    async def __aexit__(self, *_):
        self.backend.check()
        await self.backend.close()

    async def said_of(self, job, *kinds):
        """The first thing of one of these kinds that it says of this job, once it does."""
        deadline = time.monotonic() + PATIENCE
        while time.monotonic() < deadline:
            for one in self.said:
                if one.job == job and isinstance(one, kinds):
                    return one
            await asyncio.sleep(0.005)
        raise AssertionError(f"nothing of {job}; said {self.said}")

    async def run(self, order):
        await self.backend.start(order)
        return await self.said_of(order.job, Ended, StartFailed, Lost)

    def output(self, job, attempt=1, stream="stdout"):
        path = self.backend.log(job, attempt, stream)
        return path.read_text() if path else ""


def play(folder, story, **options):
    """Run a story on one machine."""

    async def played():
        async with Machine(folder, **options) as machine:
            return await story(machine)

    return asyncio.run(played())


ENDING = 10.0
"""Seconds in which a supervisor that has reported an end ends itself, on a machine that is busy."""


@pytest.fixture(autouse=True)
def nothing_left(tmp_path):
    """Each test sees to the end of all that it has started."""
    yield
    patience = time.monotonic() + ENDING
    while (left := supervisors_in(tmp_path)) and time.monotonic() < patience:
        time.sleep(0.01)
    for found in left:
        supervisor.send(found, signal.SIGTERM)
    assert left == []


def supervisors_in(folder):
    return [found for found in supervisor.processes() if str(folder) in supervised(found.pid)]


def supervised(pid):
    try:
        return Path(f"/proc/{pid}/cmdline").read_text()
    except OSError:
        return ""


async def until(true, what="it never came about"):
    deadline = time.monotonic() + PATIENCE
    while not true():
        assert time.monotonic() < deadline, what
        await asyncio.sleep(0.005)


def runs(pid):
    found = supervisor.process(pid)
    return found is not None and not found.gone


def read_pid(path: Path):
    """A pid that a job writes down, once it has."""
    return int(path.read_text()) if path.exists() and path.read_text().endswith("\n") else None


async def pid_in(path):
    await until(lambda: read_pid(path), f"{path} was never written")
    return read_pid(path)


def test_a_job_runs_and_its_code_and_output_are_kept(tmp_path):
    async def story(machine):
        end = await machine.run(shell("a", "echo out; echo err >&2; exit 3"))
        assert (
            machine.said
            == [Started("a", 1), Ended("a", 1, code=3, by_itself=True)]
            == [machine.said[0], end]
        )
        assert machine.output("a") == "out\n"
        assert machine.output("a", stream="stderr") == "err\n"
        assert machine.backend.log("a", 2, "stdout") is None

    play(tmp_path / "state", story)


def test_a_job_knows_its_gpus_and_itself_and_little_else(tmp_path, monkeypatch):
    monkeypatch.setenv("SECRET_OF_THE_DAEMON", "x")

    async def story(machine):
        asked = order(
            "j/1.2",
            "env",
            attempt=7,
            gpus=(1, 3),
            env={"MINE": "a b=c", "LANG": "C", "CUDA_VISIBLE_DEVICES": "0,1,2,3"},
            array=(2, 5),
        )
        await machine.run(asked)
        return dict(line.split("=", 1) for line in machine.output("j/1.2", 7).splitlines())

    env = play(tmp_path / "state", story)
    assert env["CUDA_VISIBLE_DEVICES"] == "1,3"
    assert (env["SIA_JOB_ID"], env["SIA_ATTEMPT"], env["SIA_POOL"]) == ("j/1.2", "7", "vision")
    assert (env["SIA_ARRAY_INDEX"], env["SIA_ARRAY_SIZE"]) == ("2", "5")
    assert env["MINE"] == "a b=c"
    assert env["LANG"] == "C"
    assert "SECRET_OF_THE_DAEMON" not in env
    assert {"PATH", "HOME"} < set(env)


def test_a_job_without_gpus_sees_none(tmp_path):
    async def story(machine):
        await machine.run(shell("a", 'echo "[$CUDA_VISIBLE_DEVICES]"', gpus=()))
        assert machine.output("a") == "[]\n"

    play(tmp_path / "state", story)


def test_a_job_starts_in_its_folder_with_empty_input_and_default_signals(tmp_path):
    async def story(machine):
        os.dup2(0, os.open(os.devnull, os.O_RDONLY))  # inheritable, as by who started the daemon
        script = "pwd; cat; grep -E 'Sig(Blk|Ign)' /proc/self/status; ls /proc/self/fd | wc -l"
        await machine.run(shell("a", script, cwd=str(tmp_path)))
        where, blocked, ignored, files = machine.output("a").splitlines()
        assert where == str(tmp_path)
        assert int(blocked.split()[1], 16) == 0
        assert int(ignored.split()[1], 16) & 0x7FFFFFFF == 0  # 32 and 33 are the C library's own
        assert int(files) == 4  # three, and the one that ls reads the folder by

    play(tmp_path / "state", story)


@pytest.mark.parametrize(
    ("asked", "code", "why"),
    [
        (
            order("a", "no-such-command"),
            127,
            "no-such-command: command or its interpreter not found",
        ),
        (order("a", "/etc/passwd"), 126, "/etc/passwd: Permission denied"),
        (order("a", "true", cwd="/no/such"), 126, "cwd: /no/such: No such file or directory"),
        (order("a"), 127, "no command; submit"),
        (order("a", "true", "x\0y"), 126, "contains NUL"),
        (order("a", "true", env={"A=B": "c"}), 126, "'A=B' is not a valid name"),
        (order("a", "true", "x" * 200_000), 126, "true: Argument list too long"),
    ],
)
def test_a_command_that_cannot_run_ends_with_the_reason(tmp_path, asked, code, why):
    async def story(machine):
        end = await machine.run(asked)
        assert machine.said == [end]
        assert end == Ended("a", 1, code=code, why=end.why)
        assert why in end.why

    play(tmp_path / "state", story)


def test_a_place_on_another_node_is_refused(tmp_path):
    async def story(machine):
        end = await machine.run(StartEffect("a", 1, JobSpec("a", "p", 1), (("n2", (0,)),)))
        assert end == StartFailed("a", 1, "placed on node n2, but this machine is local")

    play(tmp_path / "state", story)


def test_a_job_killed_from_outside_names_the_signal(tmp_path):
    async def story(machine):
        end = await machine.run(shell("a", "kill -KILL 0"))  # all of its group
        assert (end.code, end.signal) == (None, signal.SIGKILL)
        assert "out of memory" in end.why

    play(tmp_path / "state", story)


def test_a_job_told_to_end_may_clean_up(tmp_path):
    async def story(machine):
        script = "trap 'echo bye; exit 5' TERM; echo ready; while :; do sleep 0.05; done"
        await machine.backend.start(shell("a", script))
        await until(lambda: "ready" in machine.output("a"))
        await machine.backend.stop("a", 1, "end")
        end = await machine.said_of("a", Ended)
        assert end == Ended("a", 1, code=5, why="ended on request")
        assert machine.output("a") == "ready\nbye\n"

    play(tmp_path / "state", story, kill_after=PATIENCE)


def test_a_job_suspended_by_a_signal_is_woken_to_end(tmp_path):
    async def story(machine):
        await machine.backend.start(shell("a", "trap 'exit 5' TERM; echo ready; kill -STOP $$"))
        await until(lambda: "ready" in machine.output("a"))
        await machine.backend.stop("a", 1, "end")
        assert (await machine.said_of("a", Ended)).code == 5

    play(tmp_path / "state", story, kill_after=PATIENCE)


STUBBORN = "import signal, time; signal.signal(signal.SIGTERM, signal.SIG_IGN); {}; time.sleep(60)"
WRITE_PID = "import os; open({!r}, 'w').write(str(os.getpid()) + chr(10))"


def test_the_whole_process_tree_is_ended_including_stubborn_and_detached_processes(tmp_path):
    stubborn, runaway = tmp_path / "stubborn", tmp_path / "runaway"
    clean = "import os; os.setsid(); os.environ.clear(); "
    script = f"""
        {sys.executable} -c "{STUBBORN.format(WRITE_PID.format(str(stubborn)))}" &
        env -i {sys.executable} -c "{clean + STUBBORN.format(WRITE_PID.format(str(runaway)))}" &
        sleep 60
    """

    async def story(machine):
        await machine.backend.start(shell("a", script))
        pids = [await pid_in(stubborn), await pid_in(runaway)]
        assert all(map(runs, pids))
        assert os.getsid(pids[1]) == pids[1]
        await machine.backend.stop("a", 1, "end")
        end = await machine.said_of("a", Ended)
        assert end == Ended("a", 1, signal=signal.SIGTERM, why="killed 0.3 s after SIGTERM")
        assert not any(map(runs, pids))

    play(tmp_path / "state", story)


def test_leftover_processes_are_ended_before_the_end_is_reported(tmp_path):
    script = f"""
        (setsid {sys.executable} -c "{STUBBORN.format(WRITE_PID.format(str(tmp_path / "pid")))}" &)
        while [ ! -s {tmp_path / "pid"} ]; do sleep 0.02; done
        exit 4
    """

    async def story(machine):
        end = await machine.run(shell("a", script))
        assert end.code == 4
        assert end.why == "remaining processes were killed 0.3 s after SIGTERM"
        assert not runs(read_pid(tmp_path / "pid"))

    play(tmp_path / "state", story)


def test_a_warning_reaches_those_that_handle_it_and_harms_no_other(tmp_path):
    script = """
        trap 'echo warned' USR1
        sleep 60 &
        until grep -q sleep /proc/$!/cmdline; do :; done
        echo ready
        while kill -0 $! 2>/dev/null; do wait; done
    """

    async def story(machine):
        await machine.backend.start(shell("hears", script))
        await machine.backend.start(shell("deaf", "echo ready; sleep 60"))
        for job in ("hears", "deaf"):
            await until(lambda job=job: "ready" in (machine.output(job)))
            await machine.backend.stop(job, 1, "warn")
        await until(lambda: "warned" in machine.output("hears"))
        await asyncio.sleep(0.05)
        assert not [one for one in machine.said if isinstance(one, Ended)]
        for job in ("hears", "deaf"):
            await machine.backend.stop(job, 1, "end")
            await machine.said_of(job, Ended)

    play(tmp_path / "state", story)


def test_a_job_told_to_end_before_it_has_begun_ends(tmp_path):
    async def story(machine):
        await machine.backend.start(order("a", "sleep", "60"))
        await machine.backend.stop("a", 1, "end")
        assert (await machine.said_of("a", Ended)).signal == signal.SIGTERM
        await machine.backend.stop("a", 1, "end")  # long gone
        await machine.backend.stop("b", 1, "end")  # never was
        starting = asyncio.create_task(machine.backend.start(order("c", "sleep", "60")))
        await asyncio.sleep(0)
        await machine.backend.stop("c", 1, "end")
        assert (await machine.said_of("c", Ended)).signal == signal.SIGTERM
        await starting

    play(tmp_path / "state", story)


def test_a_job_started_many_times_at_once_runs_once(tmp_path):
    count = tmp_path / "count"
    asked = shell("a", f"echo >> {count}; sleep 0.2")

    async def story(machine):
        await asyncio.gather(*(machine.backend.start(asked) for _ in range(3)))
        other = AttemptFiles(
            tmp_path / "state", "a", 1
        )  # as a daemon would that knows nothing of it
        # a shell each is their parent, as that daemon would be: one of them may be the supervisor,
        # whom this backend would wait for if it were this process's own child
        parent = "/bin/sh", "-c", '"$@"; exit $?', "rival"
        rivals = [await asyncio.create_subprocess_exec(*parent, *other.command) for _ in range(5)]
        await machine.said_of("a", Ended)
        assert [await rival.wait() for rival in rivals] == [0] * 5
        await machine.backend.start(asked)
        await until(lambda: len(machine.said) == 4)
        assert machine.said == [Started("a", 1), Ended("a", 1, code=0, by_itself=True)] * 2
        assert count.read_text() == "\n"
        await machine.backend.start(shell("a", f"echo >> {count}", attempt=2))
        await until(lambda: Ended("a", 2, code=0, by_itself=True) in machine.said)
        assert count.read_text() == "\n\n"

    play(tmp_path / "state", story)


def test_fifty_jobs_start_at_once(tmp_path):
    async def story(machine):
        jobs = [shell(f"j{i}", f"echo {i}; exit {i}") for i in range(50)]
        await asyncio.gather(*(machine.backend.start(job) for job in jobs))
        ends = [await machine.said_of(job.job, Ended) for job in jobs]
        assert [end.code for end in ends] == list(range(50))
        assert [machine.output(job.job) for job in jobs] == [f"{i}\n" for i in range(50)]

    play(tmp_path / "state", story)
    assert list((tmp_path / "state" / "alive").iterdir()) == []


@contextmanager
def forked(serve):
    """A daemon in a process of its own that says when it is ready, killed as the block ends."""
    ready, tell = os.pipe()
    pid = os.fork()
    if not pid:
        try:
            gc.freeze()  # keep the tests' objects out of the daemon's garbage collection
            asyncio.run(serve(lambda: os.write(tell, b"ready")))
        finally:
            os._exit(1)
    os.close(tell)
    try:
        assert os.read(ready, 5) == b"ready"
        yield
    finally:
        os.close(ready)
        os.kill(pid, signal.SIGKILL)
        os.waitpid(pid, 0)


def daemon_of(folder, jobs):
    """A daemon that starts these jobs, sees them run, and is killed at the end of the block."""

    async def serve(ready):
        machine = Machine(folder)
        await machine.__aenter__()
        for job, script in jobs.items():
            await machine.backend.start(shell(job, script))
            await machine.said_of(job, object)
        ready()
        await asyncio.sleep(60)

    return forked(serve)


def killed_daemon(folder, jobs):
    with daemon_of(folder, jobs):
        pass


def expected(*orders, started=1.0):
    return [Expected(order, started) for order in orders]


def test_jobs_outlive_a_killed_daemon_and_are_found_again(tmp_path):
    go, state = tmp_path / "go", tmp_path / "state"
    wait = f"echo one; while [ ! -e {go} ]; do sleep 0.02; done; echo two; exit 6"
    jobs = {"runs": wait, "told": wait, "over": "exit 2", "stray": "sleep 60"}
    killed_daemon(state, jobs)
    runs, told, over, _ = (shell(job, script) for job, script in jobs.items())
    never = shell("never", "true")

    async def story(machine):
        known = expected(runs, over) + expected(told, never, started=None)
        assert await machine.backend.reconcile(known) == [never]
        assert (await machine.said_of("over", Ended)).code == 2
        assert Started("runs", 1) not in machine.said  # it was known to run
        assert Started("told", 1) in machine.said
        assert Stray("stray", 1) in machine.said
        await machine.backend.start(runs)  # again: nothing happens
        go.touch()
        for job in ("runs", "told"):
            assert await machine.said_of(job, Ended) == Ended(job, 1, code=6, by_itself=True)
            assert machine.output(job) == "one\ntwo\n"
        await machine.backend.stop("stray", 1, "end")
        assert (await machine.said_of("stray", Ended)).signal == signal.SIGTERM

    play(state, story)


def hasty_jobs(folder):
    return [shell(f"j{i}", f"echo >> {folder.parent}/ran{i}; exit {i}") for i in range(12)]


MOMENTS = budget(ci=(0.0, 0.05, 0.2), soak=(0.0, 0.02, 0.05, 0.1, 0.2, 0.4))


@pytest.mark.parametrize("seconds", MOMENTS)
def test_each_job_runs_once_if_the_daemon_is_killed_during_starts(tmp_path, seconds):
    """What the killed daemon had begun is not begun again, and what it had not is."""
    jobs = hasty_jobs(tmp_path / "state")

    async def serve(ready):
        async with Machine(tmp_path / "state") as machine:
            ready()
            await asyncio.gather(*map(machine.backend.start, jobs))
            await asyncio.sleep(60)

    with forked(serve):
        time.sleep(seconds)

    async def story(machine):
        for unseen in await machine.backend.reconcile(expected(*jobs, started=None)):
            await machine.backend.start(unseen)
        for i, job in enumerate(jobs):
            assert await machine.said_of(job.job, Ended, Lost, StartFailed) == Ended(
                job.job, 1, code=i, by_itself=True
            )

    play(tmp_path / "state", story)
    assert [(tmp_path / f"ran{i}").read_text() for i in range(12)] == ["\n"] * 12


def test_after_a_restart_of_the_machine_running_jobs_are_lost(tmp_path):
    state, pid = tmp_path / "state", tmp_path / "pid"
    jobs = {"runs": f"echo $$ > {pid}; sleep 60", "over": "exit 2", "stray": "sleep 60"}
    killed_daemon(state, jobs)
    runs, over, stray = (shell(job, script) for job, script in jobs.items())

    async def story(machine):
        assert await machine.backend.reconcile(expected(runs, over)) == []
        assert not [one for one in machine.said if one.job == "stray"]
        assert machine.said[0] == Lost("runs", 1, "the machine was rebooted while the job ran")
        assert (await machine.said_of("over", Ended)).code == 2

    play(state, story, boot="another boot")

    async def clean(machine):  # the machine was not really started anew
        await machine.backend.reconcile(expected(runs, stray))
        for job in ("runs", "stray"):
            await machine.backend.stop(job, 1, "end")
            await machine.said_of(job, Ended)

    play(state, clean)


@pytest.mark.parametrize("seen", [True, False])
def test_a_job_whose_supervisor_is_killed_is_ended_and_lost(tmp_path, seen):
    """Whether the daemon sees it happen or only hears of it at its next start."""
    state, pid = tmp_path / "state", tmp_path / "pid"
    far, near = tmp_path / "far", tmp_path / "near"
    script = f"""
        echo $$ > {pid}
        setsid sh -c 'echo $$ > {far}; sleep 60' &
        env -i sh -c 'echo $$ > {near}; sleep 60' &
        wait
    """

    async def killed(machine):
        await pid_in(far)
        await pid_in(near)
        parent = supervisor.process(read_pid(pid)).parent
        os.kill(parent, signal.SIGKILL)
        await until(lambda: not runs(parent))

    async def story(machine):
        await machine.backend.start(shell("a", script))
        await machine.said_of("a", Started)
        await killed(machine)
        if seen:
            await lost(machine)

    async def lost(machine):
        assert await machine.said_of("a", Lost, Ended) == Lost(
            "a", 1, "the supervisor died (no message); the job was killed"
        )
        assert not any(runs(read_pid(path)) for path in (pid, far, near))

    async def later(machine):
        assert await machine.backend.reconcile(expected(shell("a", script))) == []
        await lost(machine)

    play(state, story)
    if not seen:
        play(state, later)


@pytest.fixture
def bystander():
    """A process that has nothing to do with any job."""
    with subprocess.Popen(["sleep", "60"], start_new_session=True) as process:
        yield supervisor.process(process.pid)
        process.kill()


def test_a_signal_reaches_only_the_process_that_it_was_meant_for(bystander):
    earlier = supervisor.Process(bystander.pid, b"S", 1, bystander.pid, bystander.start - 1)
    supervisor.send(earlier, signal.SIGKILL)
    assert supervisor.open_process(earlier.pid, earlier.start) is None
    time.sleep(0.02)
    assert runs(bystander.pid)
    supervisor.send(bystander, signal.SIGKILL)
    asyncio.run(until(lambda: not runs(bystander.pid)))


def test_reused_pids_are_left_alone(tmp_path, bystander):
    """A supervisor died with its job, and a process that came later has the pids of both."""
    state = tmp_path / "state"
    killed_daemon(state, {"a": "sleep 60"})
    attempt = AttemptFiles(state, "a", 1)
    parent = int(attempt.started["supervisor"])
    os.kill(parent, signal.SIGKILL)
    asyncio.run(until(lambda: not runs(parent)))
    for found in attempt.remains():
        supervisor.send(found, signal.SIGKILL)
    taken = {"supervisor": bystander.pid, "job": bystander.pid}
    supervisor.write_whole(
        str(attempt.folder / "started"), supervisor.packed(attempt.started | taken)
    )

    async def story(machine):
        await machine.backend.reconcile(expected(shell("a", "sleep 60")))
        await machine.said_of("a", Lost)
        assert runs(bystander.pid)

    play(state, story)


def test_a_zombie_process_is_not_a_leftover(tmp_path, bystander):
    attempt = AttemptFiles(tmp_path, "a", 1)
    attempt.folder.mkdir(parents=True)
    started = {"job": bystander.pid, "job_start": bystander.start}
    supervisor.write_whole(str(attempt.folder / "started"), supervisor.packed(started))
    assert [found.pid for found in attempt.remains()] == [bystander.pid]
    os.kill(bystander.pid, signal.SIGKILL)
    os.waitid(os.P_PID, bystander.pid, os.WEXITED | os.WNOWAIT)
    assert supervisor.process(bystander.pid).gone
    assert attempt.remains() == []


def test_two_daemons_cannot_share_a_folder_and_a_later_one_can_have_it(tmp_path):
    refused = pytest.raises(UserError, match="another daemon uses this folder")
    with daemon_of(tmp_path / "state", {}), refused:
        play(tmp_path / "state", asyncio.sleep)
    play(tmp_path / "state", lambda machine: machine.run(order("a", "true")))


def test_an_impossible_folder_is_reported_to_the_user(tmp_path):
    (tmp_path / "file").touch()
    with pytest.raises(UserError, match=r"not usable \(Not a directory\)"):
        asyncio.run(LocalBackend(tmp_path / "file" / "state", gpus=1).open(house(print)))


def test_the_folder_is_private_to_its_user(tmp_path):
    (tmp_path / "state").mkdir(mode=0o755)
    play(tmp_path / "state", lambda machine: machine.run(order("a", "true")))
    assert (tmp_path / "state").stat().st_mode & 0o777 == 0o700
    written = [path for path in (tmp_path / "state").rglob("*") if path.is_file()]
    assert written
    assert all(path.stat().st_mode & 0o077 == 0 for path in written)


@pytest.mark.parametrize(
    ("blocked", "why"),
    [
        ("a", "a/1: Not a directory"),
        ("a/1/order.new/", "a/1/order.new: Is a directory"),
        ("a/1/started.new/", "the supervisor failed (started: Is a directory)"),
        ("a/1/stdout/", "the supervisor failed (logs: Is a directory)"),
    ],
)
def test_a_disk_that_refuses_is_a_start_that_failed(tmp_path, blocked, why):
    async def story(machine):
        path = tmp_path / "state" / "jobs" / blocked
        if blocked.endswith("/"):
            path.mkdir(parents=True)
        else:
            path.touch()
        failed = await machine.run(shell("a", f"touch {tmp_path / 'ran'}"))
        assert isinstance(failed, StartFailed)
        assert failed.why.endswith(why)
        assert machine.said == [failed]
        assert not (tmp_path / "ran").exists()

    play(tmp_path / "state", story)


def test_an_end_that_cannot_be_written_is_reported_once_the_disk_has_room(tmp_path):
    refusing = tmp_path / "state" / "jobs" / "a" / "1" / "exit.new"

    async def story(machine):
        refusing.mkdir(parents=True)
        await machine.backend.start(shell("a", "exit 3"))
        await machine.said_of("a", Started)
        await asyncio.sleep(0.2)
        assert len(machine.said) == 1
        refusing.rmdir()
        assert await machine.said_of("a", Ended) == Ended("a", 1, code=3, by_itself=True)

    play(tmp_path / "state", story)


def test_a_job_whose_folder_is_deleted_still_ends(tmp_path):
    async def story(machine):
        await machine.backend.start(shell("a", f"echo $$ > {tmp_path / 'pid'}; sleep 60"))
        pid = await pid_in(tmp_path / "pid")
        parent = supervisor.process(pid).parent
        shutil.rmtree(tmp_path / "state" / "jobs")
        await machine.backend.stop("a", 1, "end")
        await until(lambda: not runs(parent))
        assert not runs(pid)
        assert isinstance(await machine.said_of("a", Ended, Lost, StartFailed), Lost)

    play(tmp_path / "state", story)


def test_a_job_whose_supervisor_has_just_begun_is_followed(tmp_path):
    """A daemon is killed as it starts a job; the next one starts the job again."""
    asked = shell("a", f"echo >> {tmp_path / 'count'}; exit 3")

    async def story(machine):
        attempt = AttemptFiles(tmp_path / "state", "a", 1)
        _, news = attempt.begin(order_of(asked, attempt, 1.0, {}))
        assert await machine.backend.reconcile(expected(asked, started=None)) in ([asked], [])
        assert (await machine.run(asked)).code == 3
        assert (tmp_path / "count").read_text() == "\n"
        os.close(news)

    play(tmp_path / "state", story)


AWKWARD = [
    "a",
    "A",
    "",
    ".",
    "..",
    "../x",
    "a/b",
    "a%2Fb",
    "%",
    "=",
    "é",
    "e",
    "a" * 300,
    "ü" * 250,
]


@given(st.lists(st.text(max_size=260) | st.sampled_from(AWKWARD), max_size=20))
def test_each_id_has_its_own_folder_name(ids):
    names = {job: folder_name(job) for job in ids}
    assert len(set(names.values())) == len(names)
    for name in names.values():
        assert re.fullmatch(r"[A-Za-z0-9_.%=-]{1,200}", name)
        assert not name.startswith(".")


def test_common_ids_are_names_as_they_are():
    assert folder_name("train_7.3-b") == "train_7.3-b"
    assert folder_name("../x") == "%2E.%2Fx"


@pytest.mark.parametrize("job", ["a/../../b", "ü" * 250, "x y\n'\"", "."])
def test_jobs_of_any_name_run_and_are_found(tmp_path, job):
    async def story(machine):
        await machine.backend.start(order(job, "sleep", "60"))
        await machine.said_of(job, Started)

    async def later(machine):
        await machine.backend.reconcile([])
        assert machine.said == [Stray(job, 1)]
        await machine.backend.stop(job, 1, "end")
        await machine.said_of(job, Ended)

    play(tmp_path / "state", story)
    play(tmp_path / "state", later)


def test_gpus_are_those_that_the_driver_lists_else_the_device_files(tmp_path, monkeypatch):
    tool = tmp_path / "nvidia-smi"
    tool.write_text("#!/bin/sh\necho 'GPU 0: A (UUID: x)'\necho '  MIG 1g'\necho 'GPU 1: B'\n")
    tool.chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}:/bin")
    assert count_gpus() == 2
    tool.write_text("#!/bin/sh\nexit 9\n")
    devices = tmp_path / "dev"
    devices.mkdir()
    for name in ("nvidia0", "nvidia1", "nvidia12", "nvidiactl", "nvidia-uvm"):
        (devices / name).touch()
    assert count_gpus(devices) == 3
    tool.unlink()
    assert count_gpus(tmp_path) == 0
    assert LocalBackend(tmp_path, gpus=2, node="n1").gpus == (("n1", (0, 1)),)


def test_jobs_that_run_elsewhere_are_not_started_here_too(tmp_path):
    """On a database that two machines can reach, or after the folder was changed."""

    async def story():
        notes = MemoryNotes()
        running = {"one": SimpleNamespace(placed=True, phase=JobPhase.RUNNING)}
        book = SimpleNamespace(jobs={})
        for folder, jobs in (("a", {}), ("a", running), ("b", {}), ("b", running)):
            book.jobs = jobs
            backend = LocalBackend(tmp_path / folder, 1, 1.0)
            await backend.open(house(print, notes=notes, book=lambda: book))
            await backend.close()
        backend = LocalBackend(tmp_path / "a", 1, 1.0)
        for _ in range(2):
            with pytest.raises(UserError, match=r"run on .*, in .*/b; start the daemon there"):
                await backend.open(house(print, notes=notes, book=lambda: book))

    asyncio.run(story())
