"""Alibaba PAI, the GPU cluster of 2020: `pai_job_table.csv` and `pai_task_table.csv`.

Both come without headers. The log has a row a job: job_name, inst_id, user, status, start_time,
end_time. The second file has a row a task, of which a job has one or several (workers, parameter
servers, evaluators): job_name, task_name, inst_num, status, start_time, end_time, plan_cpu,
plan_mem, plan_gpu, gpu_type. `pai_group_tag_table.csv`, if it lies beside the task table, tells
which jobs do the same: inst_id, user, gpu_type_spec, group, workload. Times are seconds, unknown
where empty or 0.

Each of a task's inst_num instances asks for plan_gpu percent of a GPU. In that cluster instances
below 100 share GPUs; here GPUs are whole, and a task is as wide as what its instances ask for
together, inst_num · plan_gpu / 100, rounded up. A job is as wide as its tasks together. GPUs of one
type are a pool. A job runs from the launch of its first task to its end: its own start_time is its
submission, and what is between is the wait.
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
"""Seconds by which the cluster's clock is ahead of UTC: as seconds of the Unix epoch, the times
have the true hour of the day in Shanghai, and a made-up date."""
WHOLE_GPU = 100.0
"""Percent."""


class _Tasks(Struct, gc=False):
    """What the tasks of a job ask for."""

    gpus: int = 0
    gpu_type: str = ""
    shares: bool = False
    """Whether instances use parts of GPUs, so that `gpus` was rounded up."""
    problem: str = ""
    """Why it cannot be told how many GPUs of which pool the job needs."""
    launch: float = inf
    listed: bool = False
    """Whether the job is in the job table."""


def read(log: Path, pools: Path | None) -> tuple[Trace, PoolTable | None]:
    """GPU jobs that ran; `pools` is the task table. How many GPUs there are is not in them.

    Second 0 is the midnight before the first submission.
    """
    kept = ImportedJobs(log, "job_name", "state", what="GPU job")
    with open_table(log, JOBS) as table:
        if pools is None:
            raise UserError(f"{log}: widths are in pai_task_table.csv; give it as the second file")
        at = columns_of(log, table.header, JOBS)
        tasks = _read_tasks(pools)
        named, groups = _read_groups(pools.parent)
        found = _Jobs(at, tasks, groups, kept)
        take_rows(log, table, found.take)
    origin = midnight(kept.first() + SHANGHAI) - SHANGHAI
    kept.notes += [
        "second 0 is a midnight in Shanghai; the publisher does not tell the date",
        "a job is submitted at its start_time and runs from the launch of its first task",
        *found.notes(),
        named,
    ]
    return kept.trace(origin), None


class _Jobs:
    """The job table, joined with what is known of its jobs from elsewhere."""

    def __init__(
        self,
        at: dict[str, int],
        tasks: dict[str, _Tasks],
        groups: dict[str, str],
        kept: ImportedJobs,
    ) -> None:
        self._at, self._tasks, self._groups, self._kept = at, tasks, groups, kept
        self._shares = self._nameless = 0

    def take(self, cells: Sequence[str]) -> None:
        """Keep the job of a row, or count why not. Raises BadCellError."""
        submit, end = _time(cells, "start_time", self._at), _time(cells, "end_time", self._at)
        wants = self._tasks.get(cells[self._at["job_name"]])
        if wants is None:
            self._kept.dropped["not in the task table"] += 1
            return
        wants.listed = True
        if wants.problem or not wants.gpus:
            self._kept.dropped[wants.problem or "CPU job"] += 1
        elif submit is None:
            self._kept.dropped["without a submission time"] += 1
        elif wants.launch == inf:
            self._kept.dropped["never started"] += 1
        elif end is None:
            self._kept.dropped["without an end"] += 1
        else:
            self._keep(cells, wants, submit, end - wants.launch)

    def _keep(self, cells: Sequence[str], wants: _Tasks, submit: float, duration: float) -> None:
        job_id, inst_id, user, state = (cells[self._at[name]] for name in JOBS[:4])
        name = self._groups.get(inst_id, "")
        job = Job(job_id, wants.gpu_type, submit, wants.gpus, intern(user), name)
        if self._kept.add(job, duration, state):
            self._shares += wants.shares
            self._nameless += not name

    def notes(self) -> Iterator[str]:
        """What was done to the jobs."""
        if self._shares:
            jobs = counted(self._shares, "job")
            yield f"{jobs} on parts of GPUs; each task is rounded up to whole ones"
        strange = sum(not wants.listed for wants in self._tasks.values())
        if strange:
            yield f"{counted(strange, 'job')} of the task table, not in the log"
        if self._groups and self._nameless:
            jobs = counted(self._nameless, "job")
            yield f"{jobs} without a name, as no group or several are given"


def _read_tasks(path: Path) -> dict[str, _Tasks]:
    """What each job asks for."""
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
    """Add what a task asks for. Raises BadCellError."""
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
    """Add percent of a GPU, rounded up to whole ones. Raises BadCellError."""
    job.gpus += ceil(percent / WHOLE_GPU)
    job.shares |= percent % WHOLE_GPU != 0
    if job.gpus > MAX_QUOTA:
        problem = f"{job.gpus} GPUs are more than a pool may have"
        raise BadCellError("plan_gpu", problem, "remove the job", "")


def _read_groups(folder: Path) -> tuple[str, dict[str, str]]:
    """A note, and the group of each inst_id; none where several are given."""
    found = [folder / name for name in GROUP_FILES if (folder / name).exists()]
    if not found:
        return f"jobs have no names: {GROUP_FILES[0]} is not beside the task table", {}
    groups: dict[str, str] = {}
    with open_table(found[0], GROUPS) as table:
        at = columns_of(found[0], table.header, GROUPS)
        inst_id, group = at["inst_id"], at["group"]

        def take(cells: Sequence[str]) -> None:
            if groups.setdefault(cells[inst_id], intern(cells[group])) != cells[group]:
                groups[cells[inst_id]] = ""

        take_rows(found[0], table, take)
    return f"names are the groups of {found[0].name}", groups


def _time(cells: Sequence[str], column: str, at: dict[str, int]) -> float | None:
    """Seconds, None where they are not known. Raises BadCellError."""
    if not cells[at[column]].strip():
        return None
    mend = "write seconds, or leave it empty"
    return number(cells, column, at[column], zero=True, negative=mend) or None


def _percent(cells: Sequence[str], at: dict[str, int]) -> float:
    """Percent of a GPU for each instance of a task. Raises BadCellError."""
    if not cells[at["plan_gpu"]].strip():
        return 0.0
    unit = "percent of a GPU"
    mend = f"write {unit}, 0 or more"
    return number(cells, "plan_gpu", at["plan_gpu"], zero=True, negative=mend, unit=unit)
