"""The local backend stops jobs that go on: real processes that save their work."""

import signal

import pytest

from daemon.model.inputs import Ended
from daemon.model.outputs import PreemptEffect
from tests.daemon.backends.local.test_local import (  # noqa: F401  the fixture sees to all ends
    PATIENCE,
    nothing_left,
    play,
    shell,
    until,
)

COUNTS = """
    count=$(cat "$SIA_CHECKPOINT_DIR/count" 2>/dev/null || echo 0)
    trap 'echo $count > "$SIA_CHECKPOINT_DIR/count"; exit 75' USR1
    echo "attempt $SIA_ATTEMPT of width $SIA_WIDTH and rank $SIA_RANK begins at $count"
    while [ $count -lt 5 ]; do
        if [ $SIA_ATTEMPT = 1 ] && [ $count = 3 ]; then sleep 0.05; continue; fi
        count=$((count + 1))
        echo $count
    done
"""
"""Counts to 5, and saves how far it is when it is told to. Its first attempt stays at 3."""


def stop(attempt=1, **more):
    return PreemptEffect("a", attempt, 30.0, **more)


def test_a_job_saves_its_work_and_goes_on_in_the_same_folder(tmp_path):
    async def story(machine):
        await machine.backend.start(shell("a", COUNTS, checkpoint="USR1"))
        await until(lambda: "3\n" in machine.output("a"))
        await machine.backend.preempt(stop())
        await machine.backend.preempt(stop())  # as after a restart of the daemon
        end = await machine.said_of("a", Ended)
        assert end == Ended("a", 1, code=75, why="stopped on request")
        machine.said.clear()
        end = await machine.run(shell("a", COUNTS, attempt=2, checkpoint="USR1"))
        assert end == Ended("a", 2, code=0, by_itself=True)
        begins = "attempt 2 of width 1 and rank 0 begins at 3"
        assert machine.output("a", 2).split("\n") == [begins, "4", "5", ""]

    play(tmp_path / "state", story)


def test_a_job_without_a_checkpoint_is_told_by_sigterm(tmp_path):
    async def story(machine):
        await machine.backend.start(shell("a", "trap 'exit 9' TERM; echo ready; kill -STOP $$"))
        await until(lambda: "ready" in machine.output("a"))
        await machine.backend.preempt(stop())
        assert (await machine.said_of("a", Ended)).code == 9

    play(tmp_path / "state", story)


@pytest.mark.parametrize("name", ["TERM", "USR1"])
@pytest.mark.parametrize("main", ["", "B:"])
def test_with_b_a_signal_goes_only_to_the_main_process(tmp_path, main, name):
    """The other processes get it if the main process passes it on, or when the job is ended."""
    heard = "" if main else "&& [ -e heard ]"
    worker = f"trap 'echo worker; touch heard' {name}; echo ready; while :; do sleep 0.02; done"
    script = f"""
        trap 'touch told' {name}
        sh -c "{worker}" &
        until [ -e told ] {heard}; do sleep 0.02; done
        kill -KILL $!
        wait $!
        echo main
        exit 7
    """

    async def story(machine):
        home = tmp_path / "home"
        home.mkdir()
        script_there = f"cd {home}\n{script}"
        await machine.backend.start(shell("a", script_there, checkpoint=f"{main}{name}"))
        await until(lambda: "ready" in machine.output("a"))
        await machine.backend.preempt(stop())
        assert (await machine.said_of("a", Ended)).code == 7
        said = machine.output("a").split()
        assert said[-1] == "main"
        assert said[0] == "ready"
        assert ("worker" in said) is (not main)

    play(tmp_path / "state", story, kill_after=PATIENCE)


def test_a_job_that_does_not_handle_its_signal_is_ended(tmp_path):
    async def story(machine):
        await machine.backend.start(shell("a", "echo ready; sleep 60", checkpoint="USR2"))
        await until(lambda: "ready" in machine.output("a"))
        await machine.backend.preempt(stop())
        assert (await machine.said_of("a", Ended)).signal == signal.SIGTERM

    play(tmp_path / "state", story)


def test_a_command_saves_the_work_and_then_the_job_is_ended(tmp_path):
    save = "sh -c 'echo saved attempt $SIA_ATTEMPT > $SIA_CHECKPOINT_DIR/work; echo done'"

    async def story(machine):
        script = "trap 'cat $SIA_CHECKPOINT_DIR/work; exit 3' TERM; echo ready; sleep 60 & wait"
        await machine.backend.start(shell("a", script, checkpoint=save))
        await until(lambda: "ready" in machine.output("a"))
        await machine.backend.preempt(stop())
        assert (await machine.said_of("a", Ended)).code == 3
        assert machine.output("a") == "ready\ndone\nsaved attempt 1\n"

    play(tmp_path / "state", story, kill_after=PATIENCE)


@pytest.mark.parametrize("checkpoint", ["USR1", "sleep 60", "/no/such/program"])
def test_a_job_that_goes_on_saving_is_ended_when_its_grace_time_is_over(tmp_path, checkpoint):
    async def story(machine):
        script = "trap 'echo saving' USR1; echo ready; while :; do sleep 0.05; done"
        await machine.backend.start(shell("a", script, checkpoint=checkpoint))
        await until(lambda: "ready" in machine.output("a"))
        await machine.backend.preempt(stop())
        if checkpoint == "USR1":
            await until(lambda: "saving" in machine.output("a"))
        await machine.backend.preempt(stop(force=True))
        assert (await machine.said_of("a", Ended)).signal == signal.SIGTERM

    play(tmp_path / "state", story)


def test_a_job_that_ended_before_the_signal_ended_by_itself(tmp_path):
    async def story(machine):
        end = await machine.run(shell("a", "exit 4"))
        await machine.backend.preempt(stop())
        assert end == Ended("a", 1, code=4, by_itself=True)

    play(tmp_path / "state", story)
