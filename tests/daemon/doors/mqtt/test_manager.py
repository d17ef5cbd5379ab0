"""An external cluster manager on the bus: what is ordered runs once, whoever is away when."""

import asyncio
import os
import subprocess
import sys
from types import SimpleNamespace

from daemon.config.config import PoolConfig
from daemon.doors.mqtt.manager.config import MqttBackendConfig
from daemon.model.inputs import Cancel, Submit
from daemon.model.job import JobPhase, JobSpec
from daemon.process.serve import serving
from daemon.runtime.fence import SoleLeader
from tests.support.daemons.daemons import until
from tests.support.servers.managers import EXAMPLES, example, manager_on
from tests.support.servers.mqtt import daemon_on, on_bus, part, peer

GONE = MqttBackendConfig(gone_after=5)


def story(tell):
    def test(tmp_path, broker):
        asyncio.run(asyncio.wait_for(tell(tmp_path, broker), 120))

    test.__name__ = tell.__name__
    return test


def cluster(folder, port, **more):
    return daemon_on(folder, port, **{"backend": GONE, **more})


def job(job_id, duration=30.0, **more):
    return Submit(JobSpec(job_id, "vision", 1, ("true",), duration=duration, **more), actor="test")


def phase(service, job_id):
    return service.book.job(job_id).phase


@story
async def test_jobs_run_at_the_manager_and_their_ends_are_reported(folder, broker):
    async with (
        manager_on(folder, broker.port) as manager,
        cluster(folder, broker.port) as service,
    ):
        await service.submit([job(f"j{i}") for i in range(30)])
        await until(lambda: len(service.book.ended) == 30)
        assert {record.phase for record in service.book.ended.values()} == {JobPhase.FINISHED}
        assert manager.memory.started == {(f"j{i}", 1) for i in range(30)}


@story
async def test_a_cancelled_job_ends_at_the_manager(folder, broker):
    async with (
        manager_on(folder, broker.port) as manager,
        cluster(folder, broker.port) as service,
    ):
        await service.submit([job("a", 1e6)])
        await until(lambda: phase(service, "a") is JobPhase.RUNNING)
        await service.submit([Cancel("a")])
        await until(lambda: phase(service, "a") is JobPhase.CANCELLED)
        assert not manager.running


@story
async def test_a_missing_manager_is_reported_and_loses_no_job(folder, broker):
    async with cluster(folder, broker.port) as service:
        await until(lambda: not part(service, "backend").ok)
        assert "no heartbeat" in part(service, "backend").why
        assert "sia/v1/main/manager/state" in part(service, "backend").mend
        await service.submit([job("a"), job("b", 1e6)])
        async with manager_on(folder, broker.port):
            await until(lambda: part(service, "backend").ok)
            await until(lambda: phase(service, "a") is JobPhase.FINISHED)
            await until(lambda: phase(service, "b") is JobPhase.RUNNING)
        await until(lambda: not part(service, "backend").ok)
        assert phase(service, "b") is JobPhase.RUNNING  # nobody says that it is lost
        async with manager_on(folder, broker.port):  # started anew: its jobs are no more
            await until(lambda: phase(service, "b") is JobPhase.LOST)


@story
async def test_a_daemon_that_returns_learns_which_jobs_ended_meanwhile(folder, broker):
    async with manager_on(folder, broker.port) as manager:
        async with cluster(folder, broker.port) as service:
            await service.submit([job("a", 500.0), job("b", 1e6)])
            await until(lambda: phase(service, "b") is JobPhase.RUNNING)
        await until(lambda: ("a", 1) in manager.memory.over)
        async with cluster(folder, broker.port) as service:
            await until(lambda: phase(service, "a") is JobPhase.FINISHED)
            assert phase(service, "b") is JobPhase.RUNNING
            assert sorted(manager.memory.started) == [("a", 1), ("b", 1)]


@story
async def test_a_broker_that_lost_its_state_receives_all_orders_again(folder, broker):
    async with (
        manager_on(folder, broker.port) as manager,
        cluster(folder, broker.port) as service,
    ):
        await service.submit([job("before", 1e6)])
        await until(lambda: phase(service, "before") is JobPhase.RUNNING)
        broker.stop(9)
        await until(lambda: not part(service, "backend").ok)
        await service.submit([job("meanwhile"), Cancel("before")])
        broker.start()
        await until(lambda: phase(service, "meanwhile") is JobPhase.FINISHED)
        await until(lambda: phase(service, "before") is JobPhase.CANCELLED)
        await until(lambda: part(service, "backend").ok and part(service, "mqtt").ok)
        assert manager.memory.started == {("before", 1), ("meanwhile", 1)}


@story
async def test_orders_of_a_former_leader_and_reports_of_an_old_manager_are_ignored(folder, broker):
    async with (
        manager_on(folder, broker.port) as manager,
        cluster(folder, broker.port) as service,
        peer(broker.port) as other,
    ):
        await service.submit([job("a", 1e6)])
        await until(lambda: phase(service, "a") is JobPhase.RUNNING)
        epoch = service.fence.epoch
        assert manager.memory.daemon == epoch
        stop = {"do": "stop", "job": "a", "attempt": 1, "kind": "end"}
        await other.say("sia/v1/main/manager/order", {**stop, "epoch": epoch - 1})
        start = {"do": "start", "job": "x", "attempt": 1, "pool": "vision", "gpus": 1}
        await other.say("sia/v1/main/manager/order", {**start, "duration": 1, "epoch": epoch - 1})
        ended = {"say": "ended", "job": "a", "attempt": 1, "code": 0}
        now = manager.memory.epoch
        await other.say("sia/v1/main/manager/report", {**ended, "manager": now - 1})
        await other.say("sia/v1/main/manager/report", {**ended, "manager": now, "attempt": 2})
        for wrong in (b"", b"\0", b"[]", b"{", b"[" * 50_000, b'{"say":"ended"}', b"\xff"):
            await other.say("sia/v1/main/manager/report", wrong)
            await other.say("sia/v1/main/manager/state", wrong)
        await service.submit([job("b", 1e6)])
        await until(lambda: phase(service, "b") is JobPhase.RUNNING)
        assert phase(service, "a") is JobPhase.RUNNING
        assert sorted(manager.running) == [("a", 1), ("b", 1)]


@story
async def test_a_daemon_with_another_database_is_told_which_daemon_the_manager_follows(
    folder, broker
):
    async with (
        manager_on(folder, broker.port) as manager,
        cluster(folder, broker.port) as service,
    ):
        await until(lambda: is_well_now(service))
        manager.memory.keep("daemon", value=service.fence.epoch + 50)
        await until(lambda: "obeys daemon epoch" in part(service, "backend").why)
        said = part(service, "backend")
        assert f"obeys daemon epoch {service.fence.epoch + 50}, and this daemon has" in said.why
        assert "earlier database" in said.mend


@story
async def test_a_daemon_without_the_lease_sends_no_orders(folder, broker):
    async with (
        manager_on(folder, broker.port) as manager,
        cluster(folder, broker.port) as service,
    ):
        await until(lambda: is_well_now(service))
        house = service.backend._context
        shut = Shut(service.fence.epoch)
        service.backend._context = house._replace(fence=shut)
        await service.submit([job("a")])
        before = shut.asked
        await until(lambda: shut.asked >= before + 3)
        assert not manager.memory.started
        service.backend._context = house
        await until(lambda: phase(service, "a") is JobPhase.FINISHED)


@story
async def test_more_ends_than_the_broker_accepts_at_once_all_arrive(folder, broker):
    pools = (PoolConfig("vision", 200),)
    async with (
        manager_on(folder, broker.port) as manager,
        cluster(folder, broker.port, pools=pools) as service,
    ):
        await service.submit([job(f"j{i}", 1e7) for i in range(100)])
        await until(lambda: len(manager.running) == 100)
        await until(lambda: all(phase(service, f"j{i}") is JobPhase.RUNNING for i in range(100)), 9)
        broker.stop(9)
        await until(lambda: not part(service, "backend").ok)
        await service.submit([Cancel(f"j{i}") for i in range(100)])
        broker.start()
        for i in range(100):
            await service.submit([job(f"m{i}")])
        await until(lambda: len(service.book.ended) == 200)
        await until(lambda: part(service, "backend").ok)


@story
async def test_a_defect_of_the_backend_is_reported_and_does_not_end_it(folder, broker):
    async with (
        manager_on(folder, broker.port),
        cluster(folder, broker.port) as service,
    ):
        said = []
        roster, house = service.backend._roster, service.backend._context
        service.backend._context = house._replace(
            parts=SimpleNamespace(say=lambda *words: (said.append(words), house.parts.say(*words)))
        )
        overdue = roster.overdue
        roster.overdue = lambda *_: (setattr(roster, "overdue", overdue), 1 / 0)
        await until(lambda: any("ZeroDivisionError" in str(words) for words in said))
        await service.submit([job("a")])
        await until(lambda: phase(service, "a") is JobPhase.FINISHED)
        await until(lambda: part(service, "backend").ok)


def test_an_unknown_host_is_retried_and_reported(tmp_path):
    async def tell():
        config = on_bus(tmp_path, 1883, mqtt={"host": "bus..example"}, backend=GONE)
        async with serving(config) as (daemon, _):
            for name in ("mqtt", "backend"):
                await until(lambda: "no such host" in said(daemon, name))  # noqa: B023
            assert not any(task.done() for task in daemon.service.backend._tasks)

    def said(daemon, name):
        found = part(daemon.service, name)
        return found.why if found else ""

    asyncio.run(asyncio.wait_for(tell(), 120))


class Shut(SoleLeader):
    """A fence that lets nobody act; `asked` counts who wanted to."""

    asked = 0

    def holds(self):
        self.asked += 1
        return False


def is_well_now(service):
    found = part(service, "backend")
    return found is not None and found.ok


def command(job_id, folder, line):
    """A job of a shell line, which says its pid."""
    words = ("/bin/sh", "-c", f"echo $$ >{folder}/{job_id}.pid; {line}")
    return Submit(JobSpec(job_id, "vision", 1, words), actor="test")


def own_manager(folder, port):
    words = [
        sys.executable,
        EXAMPLES / "manager.py",
        "--port",
        port,
        "--memory",
        folder / "m.jsonl",
    ]
    return subprocess.Popen([*map(str, words)], stdout=subprocess.DEVNULL)


@story
async def test_jobs_outlive_a_killed_manager_and_are_reported_by_the_next(folder, broker):
    go, manager = folder / "go", own_manager(folder, broker.port)
    try:
        async with cluster(folder, broker.port) as service:
            await service.submit([
                command("on", folder, "sleep 300 & wait"),
                command("meanwhile", folder, f"until [ -e {go} ]; do sleep 0.1; done; exit 3"),
            ])  # fmt: skip
            await until(
                lambda: all((folder / f"{j}.pid").exists() for j in ("on", "meanwhile")), 20
            )
            manager.kill()
            manager.wait()
            go.touch()
            await until(lambda: list((folder / "m.exits").iterdir()))
            await until(lambda: not part(service, "backend").ok)
            manager = own_manager(folder, broker.port)
            await until(lambda: phase(service, "meanwhile") is JobPhase.FAILED)
            assert service.book.job("meanwhile").code == 3
            assert phase(service, "on") is JobPhase.RUNNING
            pid = int((folder / "on.pid").read_text())
            os.kill(pid, 0)
            await service.submit([Cancel("on")])
            await until(lambda: phase(service, "on") is JobPhase.CANCELLED)
            assert example("manager").stat(pid) is None
    finally:
        manager.kill()
        manager.wait()
