"""Slurm's answers in each version of its API: 0.0.38 as recorded, later ones as documented."""

import asyncio

import pytest
from aiohttp import web
from aiohttp.test_utils import TestServer

from daemon.backends.slurm import SlurmSection
from daemon.backends.slurm.actions import SlurmActions
from daemon.backends.slurm.adopt import SlurmAdopter
from daemon.backends.slurm.attempts import SlurmAttempt, comment_of, end_of, key_of
from daemon.backends.slurm.config import slurm_problems
from daemon.backends.slurm.hostlist import names_of, numbers_of
from daemon.backends.slurm.interface import SlurmError, script_of
from daemon.backends.slurm.rest import Rest
from daemon.backends.slurm.schema import (
    BASES,
    SlurmJob,
    each_of,
    gpus_of,
    job_of,
    node_of,
    partition_of,
)
from daemon.model.book import JobRecord
from daemon.model.inputs import Cancel, Ended, Lost, StartFailed
from daemon.model.job import JobSpec

OLD = {
    "job_id": 7, "array_job_id": 0, "array_task_id": None, "array_task_string": "",
    "job_state": "FAILED", "state_reason": "NonZeroExitCode", "exit_code": 768, "priority": 0,
    "partition": "vision", "name": "x", "user_name": "root", "comment": "sia:ab:2:a:b",
    "nodes": "n[1-2]", "node_count": 2, "tasks": 2, "tres_per_node": "gres:gpu:4",
    "tres_per_job": "", "time_limit": 5, "restart_cnt": 1, "nice": None, "submit_time": 1795316831,
}  # fmt: skip


def new(value):
    return {"set": True, "infinite": False, "number": value}


NEW = {
    **OLD, "array_job_id": new(0), "array_task_id": {"set": False, "number": 0},
    "job_state": ["FAILED"], "priority": new(0), "node_count": new(2), "tasks": new(2),
    "exit_code": {"status": ["ERROR"], "return_code": new(3), "signal": {"id": new(0)}},
    "tres_per_node": "gres/gpu:4", "time_limit": new(5), "submit_time": new(1795316831),
}  # fmt: skip


@pytest.mark.parametrize("shape", [OLD, NEW])
def test_a_job_is_the_same_in_each_shape(shape):
    job = job_of(shape)
    assert (job.id, job.state, job.gpus, job.on, job.code, job.signal) == (
        7,
        "FAILED",
        8,
        2,
        3,
        None,
    )
    assert (job.time_limit, job.submitted, job.held, job.restarts) == (300.0, 1795316831, True, 1)
    assert (job.nodes, job.refs) == (("n1", "n2"), ["7"])


@pytest.mark.parametrize("state", [state for state in BASES if state != "PENDING"])
def test_jobs_that_run_or_ended_in_slurm_are_no_longer_pending(state):
    record = JobRecord(JobSpec("slurm-7", "a", 1, origin="7@0"), 0.0, None)
    adopter = SlurmAdopter(SlurmSection(), None, None)
    assert asyncio.run(adopter._waits(record, SlurmJob(7, state))) == [
        Cancel("slurm-7", actor="slurm")
    ]


def test_states_without_flags_of_older_versions_are_read():
    for alone, is_now in (("RESV_DEL_HOLD", "PENDING"), ("CONFIGURING", "RUNNING")):
        assert job_of({**OLD, "job_state": alone}).state == is_now


def test_states_may_be_lists_with_flags():
    assert job_of({**NEW, "job_state": ["RUNNING", "COMPLETING"]}).flags == {"COMPLETING"}
    assert job_of({**OLD, "job_state": "COMPLETING"}).state == ""
    assert job_of({**OLD, "job_state": "REQUEUE_HOLD"}).state == "PENDING"
    assert job_of({**OLD, "exit_code": 9}).signal == 9
    unlimited = {"set": True, "infinite": True, "number": 0}
    assert job_of({**NEW, "time_limit": unlimited}).time_limit is None


def test_tasks_that_wait_together_are_told_apart():
    together = {**OLD, "job_state": "PENDING", "array_job_id": 7, "array_task_string": "0-1,3%2"}
    assert job_of(together).refs == ["7_0", "7_1", "7_3"]
    assert job_of({**OLD, "array_job_id": 5, "array_task_id": 3}).refs == ["5_3"]


def test_a_truncated_list_of_tasks_is_recognized():
    cut = {**OLD, "job_state": "PENDING", "array_job_id": 7, "array_task_string": "1,3,25-4...%2"}
    job = job_of(cut)
    assert job.refs == ["7_1", "7_3"]
    assert "SLURM_BITSTR_LEN=0" in job.unsupported


def test_a_part_of_a_heterogeneous_job_is_told_apart():
    assert "heterogeneous" in job_of({**OLD, "het_job_id": 7}).unsupported
    assert "heterogeneous" in job_of({**NEW, "het_job_id": new(7)}).unsupported
    assert not job_of({**NEW, "het_job_id": new(0)}).unsupported
    assert not job_of({**OLD, "het_job_id": 0}).unsupported


@pytest.mark.parametrize(
    ("text", "gpus"),
    [("gres:gpu:2", 2), ("gres/gpu:a100:3,gres/nic:1", 3), ("gpu", 1), ("gres:gpu:a100", 1),
     ("gpu:8(S:0-1)", 8), ("gpu:1g.5gb:2", 2), ("gres/gpu=4", 4), ("nic:2", 0), ("", 0)],
)  # fmt: skip
def test_gpus_are_counted(text, gpus):
    assert gpus_of(text) == gpus


def test_compressed_host_lists_are_expanded():
    assert names_of("n[1-3,07],login") == ["n1", "n2", "n3", "n07", "login"]
    assert names_of("r[1-2]n[08-10]") == [f"r{r}n{n}" for r in (1, 2) for n in ("08", "09", "10")]
    assert numbers_of("0-8:4,9%3") == [0, 4, 8, 9]
    assert names_of("(null)") == names_of("") == []
    with pytest.raises(ValueError, match="more than"):
        names_of("n[1-99999999]")


def test_nodes_and_partitions():
    old = {
        "name": "n1",
        "gres": "gpu:8",
        "state": "idle",
        "state_flags": ["DRAIN"],
        "reason": "disk",
    }
    assert node_of(old).against == "drained: disk"
    assert node_of({**old, "state": ["IDLE"], "state_flags": [], "reason": ""}).against == ""
    assert node_of({**old, "state": ["DOWN", "NOT_RESPONDING"], "reason": ""}).against
    up = {"name": "p", "nodes": {"configured": "n[1-2]"}, "partition": {"state": ["UP"]}}
    assert partition_of(up).up
    assert partition_of(up).nodes == ("n1", "n2")
    assert not partition_of({"name": "p", "nodes": "n1", "state": "DOWN"}).up


def test_rows_that_are_not_jobs_are_left_out():
    assert each_of(job_of, [None, 3, {}, {"job_id": 1}, {**OLD, "nodes": "n[1-x]"}]) == []
    assert len(each_of(job_of, [OLD, {}])) == 1


class Order:
    job, attempt = "a", 1

    class spec:  # noqa: N801
        origin = ""


@pytest.mark.parametrize(
    ("state", "said"),
    [("COMPLETED", Ended("a", 1, code=0, by_itself=True)), ("TIMEOUT", Ended),
     ("OUT_OF_MEMORY", Ended), ("DEADLINE", Ended), ("CANCELLED", Ended), ("NODE_FAIL", Lost),
     ("PREEMPTED", Lost), ("BOOT_FAIL", StartFailed), ("RUNNING", type(None)),
     ("PENDING", type(None))],
)  # fmt: skip
def test_each_kind_of_end_has_its_reason(state, said):
    found = end_of(SlurmAttempt(Order, searched=True), SlurmJob(1, state))
    assert found == said if not isinstance(said, type) else isinstance(found, said)
    assert getattr(found, "cancelled", False) is (state == "CANCELLED")
    if isinstance(found, Ended):
        assert found.by_itself is (state != "CANCELLED"), (
            "that is what it is once it is told to end"
        )


def test_comments_name_the_attempt():
    assert key_of("ab", comment_of("ab", ("x:y", 2))) == ("x:y", 2)
    for other in ("", "sia", "sia:cd:1:x", "sia:ab:one:x", "mine"):
        assert key_of("ab", other) is None


def test_every_job_writes_to_its_own_file():
    acts = SlurmActions(SlurmSection(folder="/out"), None, None, "ab", {})
    long = "ö" * 199
    ids = ["a", "a.1", "a/1", f"{long}a", f"{long}b"]
    ids.append(acts.output(f"{long}a", 1, "").name.removesuffix(".1."))
    files = {acts.output(job, attempt, "stdout").name for job in ids for attempt in (1, 2)}
    assert len(files) == 2 * len(ids)
    assert "a.1.stdout" in files
    assert max(map(len, files)) < 255


def test_words_of_a_command_are_not_interpreted_by_a_shell():
    text = script_of(("echo", "$HOME; rm -rf /", "it's"), {"A": "`x`\n"})
    assert text == "#!/bin/sh\nexport A='`x`\n'\nexec echo '$HOME; rm -rf /' 'it'\"'\"'s'\n"


def test_all_errors_of_the_configuration_are_reported():
    wrong = SlurmSection(rest="tcp://x", commands=True, partitions={"nobody": "p", "a": "b"})
    assert len(list(slurm_problems(wrong, ["a", "b"]))) == 3
    assert len(list(slurm_problems(SlurmSection(rest="http://[::1]:1"), ["a"]))) == 1
    assert len(list(slurm_problems(SlurmSection(), ["a"]))) == 1
    assert not list(slurm_problems(SlurmSection(commands=True), ["a"]))
    (nowhere,) = slurm_problems(SlurmSection(commands=True, folder="/nowhere/at/all"), ["a"])
    assert nowhere.startswith("backend.folder: there is no folder /nowhere/at/all; make it")


@pytest.mark.parametrize(
    ("rest", "plain", "wrong"),
    [("http://10.0.0.1:6820", False, 1), ("http://10.0.0.1:6820", True, 0),
     ("https://10.0.0.1:6820", False, 0), ("http://localhost:6820", False, 0),
     ("http://127.0.0.1@evil:1", False, 1)],
)  # fmt: skip
def test_a_token_is_not_sent_unencrypted_over_a_network(rest, plain, wrong):
    config = SlurmSection(rest=rest, jwt_file="jwt", user="sia", plain_http=plain)
    assert len(list(slurm_problems(config, ["a"]))) == wrong


def test_a_token_is_not_sent_after_a_redirect(tmp_path):
    (tmp_path / "jwt").write_text("a.b.c")
    heard = []

    async def answer(request):
        heard.append(request.path)
        raise web.HTTPTemporaryRedirect("/elsewhere")

    async def story():
        app = web.Application()
        app.router.add_route("*", "/{path:.*}", answer)
        async with TestServer(app) as server:
            rest = Rest(f"http://127.0.0.1:{server.port}", tmp_path / "jwt", "root")
            with pytest.raises(SlurmError, match="redirects"):
                await rest.cancel("1")
            await rest.close()

    asyncio.run(story())
    assert "/elsewhere" not in heard
    assert len(heard) == 1
