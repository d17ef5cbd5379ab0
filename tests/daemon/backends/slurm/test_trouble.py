"""Slurm, or the daemon, goes away and comes back; nodes and partitions do too."""

import asyncio
import signal
import time
from types import SimpleNamespace

import pytest

from daemon.backends.slurm import attempts, rest
from daemon.backends.slurm.attempts import FORGOTTEN, LOST_IT
from daemon.model.inputs import SetPool, Submit
from daemon.model.job import PoolMode
from tests.support.clusters.slurm import waits_for
from tests.support.clusters.slurm_daemons import phase_is, serving, submit, until
from tests.support.daemons.daemons import job


def part(service):
    return next((p for p in service.parts.all() if p.name == "backend"), None)


def lines_of(path):
    return sorted(path.read_text().split()) if path.exists() else []


def told(slurm, name, then="true"):
    """A command that says once for each run that it ran."""
    return ("sh", "-c", f"echo $SIA_JOB_ID >> {slurm.root}/out/{name}; {then}")


@pytest.mark.parametrize("way", ["token", "commands"])
def test_slurmctld_is_killed_and_comes_back(slurm, tmp_path, way):
    async def story():
        async with serving(tmp_path, slurm, way) as service:
            ran = slurm.root / "out" / f"killed-{way}"
            gate = slurm.gate()
            await submit(service, "before", command=told(slurm, ran.name, waits_for(gate)))
            await phase_is(service, "before", "running")
            slurm.kill("slurmctld")
            await until(lambda: not part(service).ok)
            assert part(service).mend
            await submit(service, "during", command=told(slurm, ran.name))
            assert service.book.job("during").phase.value == "starting"
            await asyncio.to_thread(slurm.start_ctld)
            gate.touch()
            await phase_is(service, "before", "finished")
            await phase_is(service, "during", "finished")
            await until(lambda: part(service).ok)
            assert lines_of(ran) == ["before", "during"]

    asyncio.run(story())


@pytest.mark.parametrize("whose", ["the daemon's", "Slurm's"])
def test_a_change_of_the_clock_hides_no_job(slurm, monkeypatch, whose):
    async def story():
        client = rest.Rest(slurm.url, slurm.jwt, "root")
        await client.jobs()
        if whose == "Slurm's":  # then what was seen is later than all that comes
            client._seen += 3600
            monkeypatch.setattr(client, "_whole_due", 0.0)
        else:
            stepped = SimpleNamespace(time=lambda: time.time() + 3600)
            monkeypatch.setattr(rest, "time", stepped)
            slurm.sbatch("--hold")
            assert await client.jobs(changed=True) is not None
        ref = slurm.sbatch("--hold")
        found = await client.jobs(changed=True)
        assert ref in [str(job.id) for job in found]
        await client.close()

    asyncio.run(story())


def test_the_next_daemon_continues_with_running_jobs(slurm, tmp_path):
    async def story():
        ran, gate = slurm.root / "out" / "again", slurm.gate()
        async with serving(tmp_path, slurm) as service:
            await submit(service, "long", command=told(slurm, "again", "sleep 300"))
            await submit(service, "short", command=told(slurm, "again", waits_for(gate)))
            held = slurm.sbatch("--hold", "-p", "speech", "--gres=gpu:2", "-t", "5")
            await phase_is(service, "long", "running")
            await phase_is(service, "short", "running")
            await phase_is(service, f"slurm-{held}", "running")
        gate.touch()
        await until(lambda: len(slurm.squeue()) == 2)
        async with serving(tmp_path, slurm) as service:
            await phase_is(service, "short", "finished")
            assert service.book.job("long").phase.value == "running"
            assert service.book.job(f"slurm-{held}").phase.value == "running"
            assert lines_of(ran) == ["long", "short"]

    asyncio.run(story())


def test_a_submitted_job_that_was_not_recorded_is_found_and_runs_once(slurm, tmp_path, monkeypatch):
    """The daemon dies after the submission, before what it is called is durable."""

    async def story():
        ran = slurm.root / "out" / "once"
        submitted = rest.Rest.submit

        async def lost(self, wanted):
            await submitted(self, wanted)
            raise rest.SlurmError("the answer is lost", "")

        async with serving(tmp_path, slurm, poll=60.0) as service:
            await until(lambda: part(service) is not None)
            monkeypatch.setattr(rest.Rest, "submit", lost)
            await submit(service, "a", command=told(slurm, "once"))
            await until(slurm.squeue)
        monkeypatch.undo()
        assert [state for _, _, state, *_ in slurm.squeue()] == ["PENDING"]
        async with serving(tmp_path, slurm) as service:
            await phase_is(service, "a", "finished")
            await until(lambda: not slurm.squeue())
        assert lines_of(ran) == ["a"]

    asyncio.run(story())


def test_a_job_that_slurm_forgot_has_ended_in_an_unknown_way(slurm, tmp_path, monkeypatch):
    async def story():
        async with serving(tmp_path, slurm) as service:
            await submit(service, "a", requeue=True)
            await phase_is(service, "a", "running")
            monkeypatch.setattr(attempts, "FORGETS", 0.0)  # it has ended long ago
            service.backend._runs["a", 1].ref = "39999"  # as if its number were gone
            record = await phase_is(service, "a", "failed")
            assert (record.why, record.attempt) == (FORGOTTEN, 1)

    asyncio.run(story())


def test_a_job_that_slurm_loses_is_lost_and_requeued_if_allowed(slurm, tmp_path):
    async def story():
        async with serving(tmp_path, slurm) as service:
            await submit(service, "once")
            await submit(service, "again", requeue=True)
            for name in ("once", "again"):
                await phase_is(service, name, "running")
                service.backend._runs[name, 1].ref = "39999"  # as if its state were gone
            assert (await phase_is(service, "once", "lost")).why == LOST_IT
            await until(lambda: service.book.job("again").attempt == 2)
            await phase_is(service, "again", "running")

    asyncio.run(story())


def test_a_node_is_drained_in_slurm_and_returns(slurm, tmp_path):
    async def story():
        async with serving(tmp_path, slurm) as service:
            await until(lambda: part(service) is not None)
            slurm.run("scontrol", "update", "NodeName=n3", "State=DRAIN", "Reason=a disk")
            reasons = service.book.nodes["n3"].reasons
            await until(lambda: "a disk" in reasons.get("backend", ""))
            await submit(service, "a", "speech", 8)
            await submit(service, "b", "vision", 8)
            record = await phase_is(service, "b", "running")
            assert record.nodes[0][0] != "n3"
            slurm.run("scontrol", "update", "NodeName=n3", "State=RESUME")
            await until(lambda: not reasons)
            record = await phase_is(service, "a", "running")

    asyncio.run(story())


def test_a_reservation_for_maintenance_takes_its_node_out(slurm, tmp_path):
    async def story():
        async with serving(tmp_path, slurm) as service:
            await until(lambda: part(service) is not None)
            slurm.run(
                "scontrol", "create", "reservation", "ReservationName=m1", "StartTime=now",
                "Duration=5", "Nodes=n4", "Flags=maint,ignore_jobs", "Users=root",
            )  # fmt: skip
            reasons = service.book.nodes["n4"].reasons
            await until(lambda: "maintenance" in reasons.get("backend", ""))
            slurm.run("scontrol", "delete", "ReservationName=m1")
            await until(lambda: not reasons)

    asyncio.run(story())


def test_a_missing_partition_is_reported(slurm, tmp_path):
    async def story():
        async with serving(tmp_path, slurm) as service:
            await until(lambda: part(service) is not None and part(service).ok)
            slurm.run("scontrol", "update", "PartitionName=robots", "State=DOWN")
            await until(lambda: "robots is closed" in part(service).why)
            await until(lambda: service.book.nodes["n4"].reasons)
            slurm.run("scontrol", "delete", "PartitionName=robots")
            await until(lambda: "robots of pool" in part(service).why)
            slurm.run("scontrol", "create", "PartitionName=robots", "Nodes=n4", "State=UP")
            await until(lambda: part(service).ok and not service.book.nodes["n4"].reasons)

    asyncio.run(story())


def test_a_token_that_expired_is_read_again(slurm, tmp_path):
    async def story():
        slurm.new_token()
        async with serving(tmp_path, slurm) as service:
            await until(lambda: part(service) is not None and part(service).ok)
            slurm.new_token(lifespan=1)
            await until(lambda: "expired" in part(service).why)
            assert "jwt_file" in part(service).mend
            slurm.new_token()
            await until(lambda: part(service).ok)
            assert "eyJ" not in repr(service.parts.all())

    asyncio.run(story())


async def released(slurm, service, name, monkeypatch):
    """A user's job that Slurm was told to run, and keeps for now; what it knew before that.

    A look has shown that it was told.
    """
    update = rest.Rest._update

    async def later(self, ref, changes):
        await update(self, ref, {**changes, "begin_time": "now+1hour"})

    await service.submit([SetPool("speech", state=PoolMode.HOLD)])
    asked = ("-p", "speech", "--gres=gpu:1", "-t", "5")
    ref = slurm.sbatch("--hold", *asked, script=f"echo ran >> {slurm.root}/out/{name}")
    await until(lambda: slurm.reason(ref) == "JobHeldAdmin")
    await asyncio.to_thread(slurm.saves)
    before = slurm.job_state.read_bytes()
    monkeypatch.setattr(rest.Rest, "_update", later)
    await service.submit([SetPool("speech", state=PoolMode.OPEN)])
    await until(lambda: slurm.reason(ref) == "BeginTime")
    await until(lambda: service.backend._runs[f"slurm-{ref}", 1].free)
    monkeypatch.undo()
    return ref, before


def test_a_release_that_slurm_forgets_is_repeated(slurm, tmp_path, monkeypatch):
    """slurmctld is killed, and comes back with what it had saved before."""

    async def story():
        async with serving(tmp_path, slurm) as service:
            ref, before = await released(slurm, service, "forgot", monkeypatch)
            slurm.stop("slurmctld", signal.SIGKILL)
            slurm.job_state.write_bytes(before)
            await until(lambda: not part(service).ok)
            await asyncio.to_thread(slurm.start_ctld)
            record = await phase_is(service, f"slurm-{ref}", "finished")
            assert record.attempt == 1
            assert lines_of(slurm.root / "out" / "forgot") == ["ran"]

    asyncio.run(story())


def test_a_hold_after_the_release_is_respected(slurm, tmp_path, monkeypatch):
    async def story():
        async with serving(tmp_path, slurm) as service:
            ref, _ = await released(slurm, service, "heard", monkeypatch)
            slurm.run("scontrol", "hold", ref)
            await phase_is(service, f"slurm-{ref}", "held")
            assert slurm.reason(ref) == "JobHeldAdmin"

    asyncio.run(story())


def test_a_hold_before_the_release_was_seen_is_respected(slurm, tmp_path, monkeypatch):
    async def story():
        update = rest.Rest._update

        async def and_held(self, ref, changes):
            if changes["hold"]:
                await update(self, ref, changes)
            else:
                await update(self, ref, {**changes, "begin_time": "now+1hour"})
                slurm.run("scontrol", "hold", ref)

        async with serving(tmp_path, slurm) as service:
            monkeypatch.setattr(rest.Rest, "_update", and_held)
            ref = slurm.sbatch("--hold", "-p", "speech", "--gres=gpu:1", "-t", "5")
            await phase_is(service, f"slurm-{ref}", "held")
            assert slurm.reason(ref) == "JobHeldAdmin"

    asyncio.run(story())


def test_a_submission_that_slurmctld_forgets_runs_once(slurm, tmp_path, monkeypatch):
    """It is killed, and comes back with what it had saved before: numbers come again."""

    async def story():
        submitted, calls, taken = rest.Rest.submit, [], asyncio.Event()

        async def dies(self, wanted):
            calls.append(wanted)
            if len(calls) == 1:
                ref = await submitted(self, wanted)
                taken.set()
                return ref
            await taken.wait()
            slurm.stop("slurmctld", signal.SIGKILL)
            slurm.job_state.write_bytes(before)
            raise rest.SlurmError("slurmctld is away", "")

        async with serving(tmp_path, slurm) as service:
            slurm.sbatch("--hold")
            await asyncio.to_thread(slurm.saves)
            before = slurm.job_state.read_bytes()
            monkeypatch.setattr(rest.Rest, "submit", dies)
            jobs = [job(name, "speech", command=told(slurm, "forgets")) for name in ("a", "b")]
            await service.submit([Submit(each) for each in jobs])
            await until(lambda: not part(service).ok)
            monkeypatch.undo()
            await asyncio.to_thread(slurm.start_ctld)
            for each in jobs:
                await phase_is(service, each.id, "finished")
            assert len(calls) == 2
            assert lines_of(slurm.root / "out" / "forgets") == ["a", "b"]

    asyncio.run(story())


def test_a_slurmrestd_of_an_unknown_version_is_reported_and_retried(slurm, tmp_path):
    def speaks(version):
        for name in ("rest", "rest.jwt"):
            slurm.stop(name)
        slurm.start_rest(version)

    async def story():
        async with serving(tmp_path, slurm) as service:
            await until(lambda: part(service) is not None and part(service).ok)
            await asyncio.to_thread(speaks, "v0.0.37")
            await until(lambda: "supports none of the API versions" in part(service).why)
            assert part(service).mend
            await submit(service, "a", command=("true",))
            await asyncio.to_thread(speaks, "v0.0.38")
            await until(lambda: part(service).ok)
            await phase_is(service, "a", "finished")

    try:
        asyncio.run(story())
    finally:
        speaks("v0.0.38")


def test_a_loan_is_in_the_owners_partition(slurm, tmp_path):
    async def story():
        async with serving(tmp_path, slurm) as service:
            await submit(service, "own", "speech", 8)
            await phase_is(service, "own", "running")
            await submit(service, "guest", "speech", 2, run_time=60.0, time_limit=120.0)
            record = await phase_is(service, "guest", "running")
            assert record.loans
            lender = record.loans[0][0]
            assert record.area == lender != "speech"
            assert lender in [part for _, part, *_ in slurm.squeue()]

    asyncio.run(story())


def test_an_error_in_one_poll_does_not_end_the_polling(slurm, tmp_path, monkeypatch):
    """A job that was queued again is over when it is to be held; then something unforeseen."""

    async def story():
        async def no(self, ref):
            raise rest.SlurmRefusedError("Job/step already completing or completed")

        def never(self, run, view):
            raise ZeroDivisionError

        async with serving(tmp_path, slurm) as service:
            ref = slurm.sbatch("--hold", "--requeue", "-p", "speech", "--gres=gpu:1", "-t", "5")
            await phase_is(service, f"slurm-{ref}", "running")
            monkeypatch.setattr(rest.Rest, "hold", no)
            slurm.run("scontrol", "requeue", ref)
            await until(lambda: service.book.job(f"slurm-{ref}").attempt == 2)
            monkeypatch.setattr(type(service.backend), "_go_on", never)
            await until(lambda: not part(service).ok)
            assert "ZeroDivisionError" in part(service).why
            monkeypatch.undo()
            await until(lambda: part(service).ok)
            await submit(service, "next", "robots")
            await phase_is(service, "next", "running")

    asyncio.run(story())
