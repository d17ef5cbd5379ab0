"""Fakes of Slurm: its job table in memory, and a slurmrestd with answers set by a test."""

from contextlib import asynccontextmanager
from types import SimpleNamespace

from aiohttp import web
from msgspec.structs import replace

from daemon.backends.slurm import SlurmSection
from daemon.backends.slurm.backend import SlurmBackend
from daemon.backends.slurm.discovery import SlurmInventory
from daemon.backends.slurm.interface import SlurmError, SlurmRefusedError
from daemon.backends.slurm.schema import SlurmJob, SlurmNode, SlurmPartition
from daemon.model.job import JobSpec
from daemon.model.outputs import StartEffect
from tests.support.daemons.daemons import house

CONFIG = SlurmSection(rest="unix:/nowhere", poll=0.05, work_dir="/")
FOUND = SlurmInventory((("n1", tuple(range(8))),), {"a": ("n1",)})
NOW = 1000.0
"""Submit time of all jobs: several jobs may have the same second."""


class FakeSlurm:
    """See `Slurm`. `rows`: jobs by number; `away`: no request succeeds; `asked`: jobs requested."""

    single = requeues = True

    def __init__(self):
        self.rows, self.next, self.away = {}, 5, False
        self.ran, self.asked, self.lists, self.told = [], [], 0, []
        self.on_submit = self.on_release = lambda *_: None

    def has(self, number, **more):
        job = SlurmJob(number, "PENDING", held=True, gpus=1, on=1, submitted=NOW, **more)
        self.rows[number] = job
        return job

    def change(self, number, **more):
        self.rows[number] = replace(self.rows[number], **more)

    def begins_anew(self, *rows):
        """Forget all jobs but the saved ones; the numbers of the others are used again."""
        self.rows, self.next = dict(rows), 5 + len(rows)
        self.on_submit, self.away = lambda *_: None, False

    def _there(self):
        if self.away:
            raise SlurmError("slurmctld is away", "")

    async def jobs(self, *, changed=False):
        self._there()
        self.lists += 1
        return [*self.rows.values()]

    async def job(self, ref):
        self._there()
        self.asked.append(ref)
        return [self.rows[int(ref)]] if int(ref) in self.rows else []

    async def nodes(self):
        self._there()
        return [SlurmNode("n1", 8, "")]

    async def partitions(self):
        self._there()
        return [SlurmPartition("a", ("n1",), up=True)]

    async def submit(self, wanted):
        self.on_submit(wanted)
        self._there()
        number = self.next
        self.next += 1
        self.has(number, comment=wanted.comment, user="root", partition="a", nodelist=("n1",))
        return str(number)

    async def release(self, ref, place):
        self._there()
        if int(ref) not in self.rows:
            raise SlurmRefusedError("Invalid job id specified")
        where = {"partition": place.partition, "nodelist": tuple(name for name, _ in place.nodes)}
        self.change(int(ref), state="RUNNING", held=False, **where)
        self.ran.append(ref)
        self.on_release(ref)

    async def hold(self, ref):
        self._there()
        self.change(int(ref), held=True, reason="JobHeldAdmin")

    async def signal(self, ref, name, to):
        self._there()
        self.told.append((ref, f"{name} to {to}"))

    async def requeue(self, ref, *, ended=False):
        """Requeue a job; its processes are gone when the test calls `leaves`."""
        self._there()
        self.told.append((ref, "requeue, ended" if ended else "requeue"))
        job = self.rows[int(ref)]
        runs = job.state == "RUNNING"
        if runs or (ended and job.state != "PENDING"):
            flags = frozenset({"COMPLETING"} if runs else ())
            self.change(
                int(ref), state="PENDING", flags=flags, held=True, reason="JobHeldUser",
                restarts=job.restarts + 1,
            )  # fmt: skip

    def leaves(self, number):
        """Let the processes of a requeued job be gone."""
        self.change(number, flags=frozenset())

    async def cancel(self, ref):
        self._there()
        self.told.append((ref, "cancel"))
        if self.rows[int(ref)].state in ("PENDING", "RUNNING"):
            self.change(int(ref), state="CANCELLED")

    async def close(self):
        pass


@asynccontextmanager
async def backend_of(door, said, expected=(), records=None, **more):
    """Return a backend without a daemon; its reports are appended to `said`."""
    book = SimpleNamespace(
        jobs=records or {}, ended={}, nodes={}, pools={"a": 1}, job=lambda _: None
    )
    backend = SlurmBackend(replace(CONFIG, adopt=False), door, FOUND)
    await backend.open(house(said.append, book=lambda: book, **more))
    await backend.reconcile(expected)
    try:
        yield backend
    finally:
        await backend.close()


def order(name, **more):
    return StartEffect(name, 1, JobSpec(name, "a", 1, ("true",), **more), (("n1", (0,)),), area="a")


def row_of(number, state="PENDING", **more):
    """Return a job in the format of slurmrestd."""
    return {
        "job_id": number, "job_state": state, "user_name": "root", "submit_time": 100,
        "partition": "a", "priority": 0 if state == "PENDING" else 1, "tres_per_node": "gpu:1",
        "node_count": 1, "time_limit": 5, **more,
    }  # fmt: skip


class FakeRest:
    """A slurmrestd that answers requests for jobs with `body`: a text, or a value for JSON."""

    def __init__(self):
        self.rows, self.body, self.told = {}, None, []
        self.looks = 0  # number of requests for jobs

    def _jobs(self, _request):
        self.looks += 1
        if isinstance(self.body, str):
            return web.Response(text=self.body, content_type="text/html")
        said = {"jobs": [*self.rows.values()]} if self.body is None else self.body
        return web.json_response(said)

    async def _get(self, request):
        if request.path.rpartition("/v0.0.44/")[2].startswith("job"):
            return self._jobs(request)
        nodes = [{"name": "n1", "gres": "gpu:8", "state": ["IDLE"]}]
        parts = [{"name": "a", "nodes": "n1", "state": "UP"}]
        return web.json_response({"statistics": {}, "nodes": nodes, "partitions": parts})

    async def _post(self, request):
        said = await request.json()
        self.told.append((request.path.rpartition("/")[2], said))
        if "job" in said:
            self.rows[5] = row_of(5, comment=said["job"]["comment"])
            return web.json_response({"job_id": 5})
        for row in self.rows.values():
            row.update(state_reason="JobHeldAdmin" if said["hold"] else "None")
            if not said["hold"]:
                row.update(job_state="RUNNING", priority=1)
        return web.json_response({})

    async def _delete(self, request):
        self.told.append(("DELETE", request.path))
        return web.json_response({})

    @asynccontextmanager
    async def serving(self):
        """Address of the server."""
        app = web.Application()
        every = "/slurm/v0.0.44/{rest:.*}"
        app.router.add_get(every, self._get)
        app.router.add_post(every, self._post)
        app.router.add_delete(every, self._delete)
        runner = web.AppRunner(app)
        await runner.setup()
        try:
            await web.TCPSite(runner, "127.0.0.1", 0).start()
            yield f"http://127.0.0.1:{runner.addresses[0][1]}"
        finally:
            await runner.cleanup()
