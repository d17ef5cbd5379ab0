"""What jobs wrote, over HTTP and from the command line: real processes, real files."""

import json
import os
import re
import time

import pytest

from daemon.backends.local.config import LocalConfig
from daemon.config.config import PoolConfig
from daemon.doors.http.routes import logs
from tests.daemon.cli.test_commands import Served
from tests.support.daemons.doors import asked, door, job_in, story

POOLS = (PoolConfig("vision", 2),)


def local(folder):
    return door(folder, pools=POOLS, backend=LocalConfig(gpus=2, folder=str(folder / "jobs")))


async def run(client, job_id, script, **more):
    """Submit a job that runs this in a shell."""
    job = {"id": job_id, "pool": "vision", "gpus": 1, "command": ["sh", "-c", script], **more}
    await asked(client, "POST", "/v1/jobs", job, status=201)


async def piece(client, path):
    """What is there, and where it goes on."""
    async with client.get(path) as response:
        assert response.status == 200, await response.text()
        assert response.content_type == "text/plain"
        following = re.search("<(.*)>", response.headers.get("Link", "<>"))[1]
        return await response.read(), following


@story
async def test_a_log_is_read_to_its_end(folder):
    async with local(folder) as client:
        await run(client, "a", "echo out; echo err >&2")
        await job_in(client, "a", "finished")
        assert await piece(client, "/v1/jobs/a/log") == (b"out\n", "")
        assert await piece(client, "/v1/jobs/a/log?stream=stderr") == (b"err\n", "")
        assert await piece(client, "/v1/jobs/a/log?after=2&attempt=1") == (b"t\n", "")
        assert await piece(client, "/v1/jobs/a/log?after=9999") == (b"", "")
        for wrong in ("stream=stdin", "after=-1", "attempt=0", "attempt=x", "path=/etc/passwd"):
            await asked(client, "GET", f"/v1/jobs/a/log?{wrong}", status=422)


@story
async def test_a_log_is_served_in_pieces_byte_for_byte(folder):
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(logs, "LOG_PIECE", 1000)
        async with local(folder) as client:
            await run(client, "a", r"for i in $(seq 1 700); do printf '%d\377\0 ' $i; done")
            await job_in(client, "a", "finished")
            whole, path, sizes = b"", "/v1/jobs/a/log", []
            while path:
                data, path = await piece(client, path)
                whole += data
                sizes.append(len(data))
        assert whole == b"".join(b"%d\377\0 " % i for i in range(1, 701))
        assert sizes == [1000, 1000, 1000, 1000, len(whole) - 4000]


@story
async def test_more_may_come_while_it_runs(folder):
    async with local(folder) as client:
        await run(client, "a", f"echo 1; while [ ! -e {folder}/go ]; do sleep 0.05; done; echo 2")
        await job_in(client, "a", "running")
        data, path = b"", "/v1/jobs/a/log"
        while data != b"1\n":
            more, path = await piece(client, path)
            data += more
            assert path == f"/v1/jobs/a/log?stream=stdout&attempt=1&after={len(data)}"
        assert await piece(client, path) == (b"", path)
        (folder / "go").touch()
        await job_in(client, "a", "finished")
        assert await piece(client, path) == (b"2\n", "")


@story
async def test_a_missing_log_is_reported(folder):
    async with local(folder) as client:
        await run(client, "held", "true", hold=True)
        await run(client, "many", "true", array=2)
        for each in ("many.0", "many.1"):
            await job_in(client, each, "finished")
        for path, why in (
            ("nobody/log", "there is no job 'nobody'"),
            ("held/log", "held was started 0 times"),
            ("many/log", "many is an array"),
            ("many.1/log?attempt=2", "many.1 was started 1 time"),
        ):
            said = await asked(client, "GET", f"/v1/jobs/{path}", status=404)
            assert said["detail"] == why
            assert said["mend"]
        (folder / "jobs" / "jobs" / "many.0" / "1" / "stdout").unlink()
        said = await asked(client, "GET", "/v1/jobs/many.0/log", status=404)
        assert "there is no output" in said["detail"]
    async with door(folder / "simulated") as client:
        job = {"id": "a", "pool": "vision", "gpus": 1, "duration": 9}
        await asked(client, "POST", "/v1/jobs", job, status=201)
        await job_in(client, "a", "finished")
        said = await asked(client, "GET", "/v1/jobs/a/log", status=404)
        assert said["detail"] == "this backend does not store job output"


@story
async def test_only_the_log_is_read_even_if_a_job_replaces_it(folder):
    secret = folder / "secret"
    secret.write_text("secret")
    async with local(folder) as client:
        await run(client, "a", "true")
        await job_in(client, "a", "finished")
        attempt = folder / "jobs" / "jobs" / "a" / "1"
        log = attempt / "stdout"

        async def refused():
            return (await asked(client, "GET", "/v1/jobs/a/log", status=404))["title"]

        for make in (
            lambda: log.symlink_to(secret),
            lambda: log.symlink_to(attempt / "order"),
            lambda: os.mkfifo(log),
            log.mkdir,
        ):
            log.unlink(missing_ok=True)
            make()
            assert await refused() == "no log"
        log.rmdir()
        attempt.rename(attempt.with_name("old"))
        attempt.symlink_to(folder)
        (folder / "stdout").write_text("secret")
        assert await refused() == "no log"
        for path in ("..%2F..%2Fsecret", "a%2F1%2Fstdout", "..", "a%00"):
            await asked(client, "GET", f"/v1/jobs/{path}/log", status=404)


CONFIG = """
[daemon]
state = "state"
listen = "127.0.0.1:{port}"
[backend]
kind = "local"
gpus = 1
[[pool]]
name = "vision"
quota = 1
"""


@pytest.fixture(scope="module")
def served(tmp_path_factory):
    daemon = Served(tmp_path_factory.mktemp("served"), CONFIG)
    yield daemon
    assert daemon.end() == 0


def submitted(served, job_id, script, *options):
    done = served("submit", "--pool", "vision", "--id", job_id, *options, "--", "sh", "-c", script)
    assert done.returncode == 0, done.stderr


def test_a_log_is_printed(served):
    submitted(served, "a", "echo out; echo err >&2", "--wait")
    assert served("log", "a").stdout == "out\n"
    assert served("log", "a", "--stream", "stderr", "--attempt", "1").stdout == "err\n"
    assert served("log", "a", "--follow").stdout == "out\n"
    none = served("log", "nobody")
    assert (none.returncode, none.stdout) == (1, "")
    assert none.stderr == "sia: there is no job 'nobody'; list jobs: sia jobs\n"
    assert served("log", "a", "--stream", "stdin").returncode == 2


def test_a_log_is_followed_from_before_the_start_to_the_end(served):
    submitted(served, "first", "sleep 1.2")
    submitted(served, "b", "echo 1; sleep 1.2; echo 2")
    assert served.said("job", "b")["phase"] == "pending"
    began = time.monotonic()
    assert served("log", "b", "--follow").stdout == "1\n2\n"
    assert time.monotonic() - began < 8
    assert json.loads(served("job", "b", "--json").stdout)["phase"] == "finished"
