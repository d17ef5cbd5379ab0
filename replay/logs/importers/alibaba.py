"""Alibaba PAI, the GPU cluster of 2020: `pai_job_table.csv` and `pai_task_table.csv`.

Both files have no header. The log has one row per job: job_name, inst_id, user, status,
start_time, end_time. The second file has one row per task; a job has one or more tasks (workers,
parameter servers, evaluators): job_name, task_name, inst_num, status, start_time, end_time,
plan_cpu, plan_mem, plan_gpu, gpu_type. If `pai_group_tag_table.csv` is in the same folder as the
task table, it assigns jobs to groups that do the same work: inst_id, user, gpu_type_spec, group,
workload. Times are in seconds; an empty cell or 0 means unknown.

Each of a task's inst_num instances requests plan_gpu percent of a GPU. In the real cluster,
instances below 100 share GPUs. A replay allocates whole GPUs, so the width of a task is
inst_num · plan_gpu / 100, rounded up, and the width of a job is the sum over its tasks. All GPUs of
one type form a pool. A job is submitted at its start_time and runs from the launch of its first
task to its end; the time between is its wait.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from math import ceil, inf
from pathlib import Path
from sys import intern

from msgspec import Struct

from replay.logs.importers.local_time import midnight
from replay.logs.importers.selection import ImportedJobs
from replay.logs.read import BadCellError, columns_of, number, open_table, take_rows, whole
from replay.logs.trace import PoolTable, Trace
from sia.console.errors import UserError
from sia.limits import MAX_QUOTA
from sia.model import Job
from sia.wording import counted

JOBS = ("job_name", "inst_id", "user", "status", "start_time", "end_time")
TASKS = (
    "job_name", "task_name", "inst_num", "status", "start_time", "end_time", "plan_cpu",
    "plan_mem", "plan_gpu", "gpu_type",
)  # fmt: skip
GROUPS = ("inst_id", "user", "gpu_type_spec", "group", "workload")
GROUP_FILES = ("pai_group_tag_table.csv", "pai_group_tag_table.csv.gz")
SHANGHAI = 8 * 3600.0
"""Offset of the cluster's clock from UTC, in seconds. Read as Unix time, the log's times have the
true hour of the day in Shanghai and a fictitious date."""
WHOLE_GPU = 100.0
"""Percent."""


class _Tasks(Struct, gc=False):
    """The GPUs that the tasks of one job request."""

    gpus: int = 0
    gpu_type: str = ""
    shares: bool = False
    """Whether an instance uses a fraction of a GPU, so that `gpus` was rounded up."""
    problem: str = ""
    """Why the width or the pool of the job is unknown; empty if both are known."""
    launch: float = inf
    listed: bool = False
    """Whether the job is in the job table."""


def read(log: Path, pools: Path | None) -> tuple[Trace, PoolTable | None]:
    """Return the GPU jobs that ran. `pools` is the task table. The log has no pool sizes.

    Second 0 is the midnight before the first submission. Raises UserError.
    """
    jobs_out = ImportedJobs(log, "job_name", "state", what="GPU job")
    with open_table(log, JOBS) as table:
        if pools is None:
            raise UserError(
                f"{log}: the widths of jobs are in pai_task_table.csv; give it as the second file"
            )
        at = columns_of(log, table.header, JOBS)
        tasks = _read_tasks(pools)
        named, groups = _read_groups(pools.parent)
        found = _Jobs(at, tasks, groups, jobs_out)
        take_rows(log, table, found.take)
    origin = midnight(jobs_out.first() + SHANGHAI) - SHANGHAI
    jobs_out.notes += [
        "second 0 is midnight in Shanghai; the date was not published",
        "a job is submitted at its start_time and runs from the launch of its first task",
        *found.notes(),
        named,
    ]
    return jobs_out.trace(origin), None


class _Jobs:
    """The job table, joined with the tasks and groups of its jobs."""

    def __init__(
        self,
        at: dict[str, int],
        tasks: dict[str, _Tasks],
        groups: dict[str, str],
        jobs_out: ImportedJobs,
    ) -> None:
        self._at, self._tasks, self._groups, self._jobs_out = at, tasks, groups, jobs_out
        self._shares = self._unnamed = 0

    def take(self, cells: Sequence[str]) -> None:
        """Add the job of a row, or count the reason for dropping it. Raises BadCellError."""
        submit, end = _time(cells, "start_time", self._at), _time(cells, "end_time", self._at)
        request = self._tasks.get(cells[self._at["job_name"]])
        if request is None:
            self._jobs_out.dropped["not in the task table"] += 1
            return
        request.listed = True
        if request.problem or not request.gpus:
            self._jobs_out.dropped[request.problem or "CPU job"] += 1
        elif submit is None:
            self._jobs_out.dropped["without a submission time"] += 1
        elif request.launch == inf:
            self._jobs_out.dropped["never started"] += 1
        elif end is None:
            self._jobs_out.dropped["without an end"] += 1
        else:
            self._keep(cells, request, submit, end - request.launch)

    def _keep(self, cells: Sequence[str], request: _Tasks, submit: float, duration: float) -> None:
        job_id, inst_id, user, state = (cells[self._at[name]] for name in JOBS[:4])
        name = self._groups.get(inst_id, "")
        job = Job(job_id, request.gpu_type, submit, request.gpus, intern(user), name)
        if self._jobs_out.add(job, duration, state):
            self._shares += request.shares
            self._unnamed += not name

    def notes(self) -> Iterator[str]:
        """Yield the notes on changes made to the jobs."""
        if self._shares:
            jobs = counted(self._shares, "job")
            yield f"{jobs} used fractions of GPUs; each task is rounded up to whole GPUs"
        unlisted = sum(not request.listed for request in self._tasks.values())
        if unlisted:
            yield f"{counted(unlisted, 'job')} of the task table not found in the job table"
        if self._groups and self._unnamed:
            jobs = counted(self._unnamed, "job")
            yield f"{jobs} without a name: the group table lists no group or several groups"


def _read_tasks(path: Path) -> dict[str, _Tasks]:
    """Return the requests of each job by job ID."""
    tasks: dict[str, _Tasks] = {}
    with open_table(path, TASKS) as table:
        at = columns_of(path, table.header, TASKS)

        def take(cells: Sequence[str]) -> None:
            job_id = cells[at["job_name"]]
            if job_id not in tasks:
                tasks[job_id] = _Tasks()
            _add_task(tasks[job_id], cells, at)

        take_rows(path, table, take)
    return tasks


def _add_task(job: _Tasks, cells: Sequence[str], at: dict[str, int]) -> None:
    """Add the request of one task. Raises BadCellError."""
    launch = _time(cells, "start_time", at)
    if launch is not None:
        job.launch = min(job.launch, launch)
    gpus, gpu_type = _percent(cells, at), intern(cells[at["gpu_type"]].strip())
    if gpus == 0:
        return
    instances = 0
    if cells[at["inst_num"]].strip():
        instances = whole(cells, "inst_num", at["inst_num"], least=0)
    if not instances:
        job.problem = "without a number of instances"
    elif not gpu_type:
        job.problem = "without a GPU type"
    elif job.gpu_type and job.gpu_type != gpu_type:
        job.problem = "on GPUs of several types"
    job.gpu_type = gpu_type
    _widen(job, instances * gpus)


def _widen(job: _Tasks, percent: float) -> None:
    """Add `percent` of a GPU, rounded up to whole GPUs. Raises BadCellError."""
    job.gpus += ceil(percent / WHOLE_GPU)
    job.shares |= percent % WHOLE_GPU != 0
    if job.gpus > MAX_QUOTA:
        problem = f"{job.gpus} GPUs exceed the largest pool ({MAX_QUOTA})"
        raise BadCellError("plan_gpu", problem, "remove the job", "")


def _read_groups(folder: Path) -> tuple[str, dict[str, str]]:
    """Return a note, and the group of each inst_id; the group is empty if several are listed."""
    found = [folder / name for name in GROUP_FILES if (folder / name).exists()]
    if not found:
        return f"jobs have no names: {GROUP_FILES[0]} is not in the task table's folder", {}
    groups: dict[str, str] = {}
    with open_table(found[0], GROUPS) as table:
        at = columns_of(found[0], table.header, GROUPS)
        inst_id, group = at["inst_id"], at["group"]

        def take(cells: Sequence[str]) -> None:
            if groups.setdefault(cells[inst_id], intern(cells[group])) != cells[group]:
                groups[cells[inst_id]] = ""

        take_rows(found[0], table, take)
    return f"job names are the groups of {found[0].name}", groups


def _time(cells: Sequence[str], column: str, at: dict[str, int]) -> float | None:
    """Return a time in seconds, or None if it is unknown. Raises BadCellError."""
    if not cells[at[column]].strip():
        return None
    fix = "write seconds, or leave it empty"
    return number(cells, column, at[column], zero=True, negative=fix) or None


def _percent(cells: Sequence[str], at: dict[str, int]) -> float:
    """Return the percent of a GPU that each instance of a task requests. Raises BadCellError."""
    if not cells[at["plan_gpu"]].strip():
        return 0.0
    unit = "percent of a GPU"
    fix = f"write {unit}, 0 or more"
    return number(cells, "plan_gpu", at["plan_gpu"], zero=True, negative=fix, unit=unit)
