"""Questions answered in children: what they see, what they leave alone, how they end."""

import asyncio
import os
import select
import signal
import socket
import subprocess
import sys
import time
from pathlib import Path

import pytest

from daemon.answers.simulate import fork as module
from daemon.answers.simulate.fork import (
    ASIDE_WAITING,
    ChildFailedError,
    ChildKilledError,
    asides,
    child_worker,
    in_copy,
)
from daemon.model.errors import UnavailableError
from daemon.model.inputs import Submit
from tests.support.daemons.daemons import FakeBackend, job, serving, setup, submit, until
from tests.support.daemons.doors import story


def forever():
    while True:
        time.sleep(1)


async def gone(pid):
    def is_gone():
        try:
            os.kill(pid, 0)
        except ProcessLookupError:
            return True
        return False

    await until(is_gone)


@story
async def test_a_child_answers_and_exits(folder):
    pid = int(await child_worker(lambda: b"%d" % os.getpid(), seconds=5))
    assert pid != os.getpid()
    await gone(pid)


@story
async def test_long_answers_arrive_complete(folder):
    assert await child_worker(lambda: b"x" * 3_000_000, seconds=5) == b"x" * 3_000_000
    assert await child_worker(bytes, seconds=5) == b""


@story
async def test_an_error_in_the_child_is_reported(folder):
    with pytest.raises(ChildFailedError, match="modulo by zero"):
        await child_worker(lambda: 1 // 0, seconds=5)
    with pytest.raises(ChildFailedError, match="SystemExit"):
        await child_worker(lambda: exit(0), seconds=5)  # noqa: PLR1722  whoever ends is a defect too
    assert await child_worker(lambda: b"next", seconds=5) == b"next"


@story
async def test_a_child_makes_trials_in_copies_of_itself_and_stays_unchanged(folder):
    tried = []

    def try_twice():
        counts = [in_copy(lambda: tried.append(1) or len(tried)) for _ in range(2)]
        return bytes([*counts, len(tried)])

    assert await child_worker(try_twice, seconds=5) == bytes([1, 1, 0])
    with pytest.raises(
        ChildFailedError, match="a copy of the worker process ended with status 255"
    ):
        await child_worker(lambda: bytes(in_copy(lambda: 1 // 0)), seconds=5)


@story
async def test_a_child_that_dies_is_an_error(folder):
    def die():
        os.kill(os.getpid(), signal.SIGKILL)

    with pytest.raises(ChildKilledError, match="killed"):
        await child_worker(die, seconds=5)


@story
async def test_a_child_that_hangs_is_killed(folder):
    pids = []
    fork = module._fork
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(module, "_fork", lambda *a: pids.append(fork(*a)) or pids[-1])
        with pytest.raises(UnavailableError, match="no answer within") as refused:
            await child_worker(forever, seconds=0.05)
    assert (refused.value.status, refused.value.retry_after) == (503, module.ASIDE_AGAIN)
    await gone(pids[0])


@story
async def test_a_cancelled_request_ends_its_child(folder):
    pids = []
    fork = module._fork
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(module, "_fork", lambda *a: pids.append(fork(*a)) or pids[-1])
        asked = asyncio.create_task(child_worker(forever, seconds=60))
        await until(lambda: pids)
        asked.cancel()
        with pytest.raises(asyncio.CancelledError):
            await asked
    await gone(pids[0])
    assert await child_worker(lambda: b"room again", seconds=5) == b"room again"


def test_a_child_ends_when_its_daemon_has_ended():
    reader, writer = os.pipe()
    pid = module._fork(forever, writer, 0.01 - module.ASIDE_LATE, 0)
    os.close(writer)
    assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == -signal.SIGALRM
    os.close(reader)


KILLED = """
import os, sys, time
from daemon.answers.simulate.fork import _fork
_fork(lambda: time.sleep(600), 1, 600.0, 0)
os.write(1, b"made")
time.sleep(600)
"""


@pytest.mark.skipif(sys.platform != "linux", reason="elsewhere it ends when its time is over")
def test_a_child_ends_with_a_daemon_that_is_killed():
    """Both hold the pipe: its end is the child's."""
    with subprocess.Popen([sys.executable, "-c", KILLED], stdout=subprocess.PIPE) as daemon:
        assert daemon.stdout.read(4) == b"made"
        daemon.kill()
        assert select.select([daemon.stdout], [], [], 30)[0], "the child lives on"
        assert daemon.stdout.read() == b""


@story
async def test_the_time_that_the_loop_stood_still_is_reported(folder):
    heard = []
    await asides([bytes, bytes], seconds=60, paused=heard.append)
    assert len(heard) == 2
    assert min(heard) > 0


@story
async def test_a_child_inherits_no_descriptors_of_the_daemon(folder):
    """A client whose connection the daemon closes hears so while a child lives."""
    client, server = socket.socketpair()
    slow = asyncio.create_task(child_worker(forever, seconds=60))
    await asyncio.sleep(0)
    found = await child_worker(lambda: b"%d" % len([*Path("/proc/self/fd").iterdir()]), seconds=5)
    assert found == b"2", "its pipe, and what lists the folder"
    server.close()
    client.settimeout(5)
    assert await asyncio.to_thread(client.recv, 1) == b""
    client.close()
    slow.cancel()
    with pytest.raises(asyncio.CancelledError):
        await slow


@story
async def test_a_child_has_no_handlers_of_the_daemons(folder):
    heard = []
    asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, heard.append, 1)

    def end():
        os.kill(os.getpid(), signal.SIGTERM)
        forever()

    with pytest.raises(ChildKilledError, match="killed"):
        await child_worker(end, seconds=5)
    asyncio.get_running_loop().remove_signal_handler(signal.SIGTERM)
    assert not heard
    assert not signal.pthread_sigmask(signal.SIG_BLOCK, ())


@story
async def test_two_questions_run_at_once_and_further_ones_wait(folder):
    first = asyncio.create_task(child_worker(forever, seconds=60))
    second = asyncio.create_task(child_worker(forever, seconds=60))
    await asyncio.sleep(0)
    order = []

    async def ask(name, count):
        await asides([lambda: b""] * count, seconds=5)
        order.append(name)

    tasks = [asyncio.create_task(ask(i, 1 + (i == 1))) for i in range(ASIDE_WAITING)]
    await asyncio.sleep(0)
    with pytest.raises(UnavailableError, match="too many questions are waiting"):
        await child_worker(bytes, seconds=5)
    first.cancel()
    await until(lambda: order)
    assert order == [0], "the next wants room for two, and is not passed"
    tasks[3].cancel()
    second.cancel()
    await asyncio.gather(*tasks, first, second, return_exceptions=True)
    assert sorted(order) == [i for i in range(ASIDE_WAITING) if i != 3]
    assert order[:2] == [0, 1]


@story
async def test_a_cancelled_question_delays_no_other(folder):
    slow = asyncio.create_task(child_worker(forever, seconds=60))
    await asyncio.sleep(0)
    wide = asyncio.create_task(asides([bytes, bytes], seconds=5))
    await asyncio.sleep(0)
    narrow = asyncio.create_task(child_worker(lambda: b"here", seconds=5))
    await asyncio.sleep(0)
    wide.cancel()
    assert await narrow == b"here"
    slow.cancel()
    await asyncio.gather(slow, wide, return_exceptions=True)


@story
async def test_the_daemons_engine_stays_as_it_is(folder):
    """The child steps on; the parent's engine does not, and goes on as if nobody had asked."""
    async with serving(folder / "db", setup(a=4, b=4), FakeBackend()) as service:
        await service.submit([submit(f"j{i}", gpus=2) for i in range(5)])
        await until(lambda: len([j for j in service.book.jobs.values() if j.started]) >= 2)
        before = service.engine.dump()

        def step():
            service.engine.step(2000.0, [Submit(job("late", "b"), 10.0)])
            return service.engine.dump()

        after = await child_worker(step, seconds=5, settled=service.settled)
        assert b'"late"' in after
        assert service.engine.dump() == before
        await service.submit([submit("next", "b")])


@story
async def test_many_questions_while_steps_go_on(folder):
    """Each is asked of a state that is durable and whole."""
    async with serving(folder / "db", setup(a=4), FakeBackend(runs=False)) as service:

        def look():
            service.engine.check()
            return b"%d %d" % (len(service.book.jobs), service.last_notice)

        async def ask():
            return await child_worker(look, seconds=10, settled=service.settled)

        async def work():
            for i in range(60):
                await service.submit([submit(f"j{i}", run_time=5.0)])

        _, *found = await asyncio.gather(work(), *(ask() for _ in range(9)))
        pairs = [tuple(map(int, each.split())) for each in found]
        assert pairs == sorted(pairs)
        assert pairs[0] != pairs[-1]
        assert len(service.book.jobs) == 60
