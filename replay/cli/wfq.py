"""`sia wfq`: search settings of the policy `wfq`, and show the front that a search has found."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from time import monotonic
from typing import Any

import click
import msgspec

from replay.cli.options import Cost
from replay.experiment.folder import RUNS, opened, replace_results, writable
from replay.experiment.run import checksum
from replay.logs.importers.workload import read_workload
from replay.logs.limits import MAX_LOAD
from replay.logs.read import read_pools, read_trace
from replay.report.terminal import PRINT_EVERY, progress_bars
from replay.run.output import write_json, write_rows
from replay.search.algorithms import algorithms
from replay.search.front import front_json, show_front, show_point
from replay.search.objectives import (
    DEFAULT,
    Objective,
    Prepared,
    parse_objective,
    prepare,
    quarter_limits,
)
from replay.search.search import Found, SearchPlan, search
from replay.search.space import MOST_QUEUES, SPACES, RawSpace, Space
from replay.search.workload import JobSource, LogSource, Side, WorkloadSource, jobs_of_pool
from sia import __version__
from sia.console.as_json import json_option, print_json
from sia.console.errors import UserError
from sia.console.groups import Group
from sia.console.text import BoundedFloatType
from sia.limits import MAX_GROUP
from sia.wording import counted, duration, some

COMMAND = "sia wfq search"

FRONT, POINTS, FIGURE = "front.json", "points.csv", "front"
"""Files of a search: the front, all points, and the picture as .svg and .png."""

INTERRUPTED = 130
"""Exit code, as `sia` has it after Ctrl-C or SIGTERM."""

LOAD = 0.8
"""Default load of a workload given as distributions, which do not state a rate of arrival."""

MAX_ARRIVALS, MAX_SAMPLES, MAX_SIMULATIONS = 100_000, 100, 1_000_000
"""Maximum arrivals per sample, samples per side, and simulations: together, years of computing."""


@click.group(cls=Group)
def wfq() -> None:
    """Search for settings of the policy wfq, show what they mean, and set them."""


class ObjectiveType(click.ParamType[Objective]):
    """An objective, like `avg:jct`."""

    name = "measure:metric"

    def convert(
        self, value: object, param: click.Parameter | None, ctx: click.Context | None
    ) -> Objective:
        """Return the objective."""
        try:
            return parse_objective(str(value))
        except ValueError as error:
            self.fail(str(error), param, ctx)


# Options of every search, whether its jobs are from a log or from the history of a daemon.
POOL = click.option("--pool", help="Pool whose jobs are drawn.  [default: the only one]")
SIMULATIONS = click.option(
    "--simulations",
    type=click.IntRange(1, MAX_SIMULATIONS),
    default=1000,
    show_default=True,
    help="Simulations on training samples.",
)
ARRIVALS = click.option(
    "--arrivals",
    type=click.IntRange(1, MAX_ARRIVALS),
    default=1000,
    show_default=True,
    help="Jobs of a sample.",
)


@wfq.command("search")
@click.option("--trace", "log", type=Path, help="Job log to draw jobs from: CSV, .csv.gz, Parquet.")
@click.option(
    "--workload",
    metavar="FILE:NAME",
    help="Workload of distributions to draw jobs from, in place of a log.",
)
@click.option("--pools", type=Path, help="Pools file with the quota of the pool.")
@POOL
@click.option(
    "--gpus", type=click.IntRange(1, MAX_GROUP), help="Number of GPUs, in place of --pools."
)
@click.option(
    "--load",
    type=BoundedFloatType(0, MAX_LOAD, min_open=True),
    help="Load at which jobs arrive, like 0.8.  "
    f"[default: that of the log; {LOAD:g} for a workload]",
)
@click.option(
    "--objective",
    "objectives",
    type=ObjectiveType(),
    multiple=True,
    default=DEFAULT,
    help="What to minimise, like avg:jct or p99:pred_err; repeatable: avg, p50, p90, p99 or max of "
    "jct, pred_err or unfairness.  [default: avg:jct and avg:pred_err]",
)
@SIMULATIONS
@click.option(
    "--samples",
    type=click.IntRange(1, MAX_SAMPLES),
    default=3,
    show_default=True,
    help="Samples on which each point is simulated, and as many for the test.",
)
@ARRIVALS
@click.option(
    "--space",
    type=click.Choice([*SPACES]),
    default="heuristics",
    show_default=True,
    help="Search T, W, zeta and delta, or limits and weights of the queues themselves.",
)
@click.option(
    "--queues",
    type=click.IntRange(1),
    help=f"Largest number of queues, with --space queues.  [default: {MOST_QUEUES}, or the GPUs "
    "of the pool if they are fewer]",
)
@click.option(
    "--algorithm",
    type=click.Choice(algorithms()),
    default="spea2",
    show_default=True,
    help="Search algorithm.",
)
@click.option(
    "--resume-cost",
    type=Cost(),
    default="0",
    show_default=True,
    help="Time that a job loses when it resumes or changes its width.",
)
@click.option("--seed", type=int, default=0, show_default=True, help="Seed of what is drawn.")
@click.option(
    "--processes", type=click.IntRange(1), help="Number of processes.  [default: one for each CPU]"
)
@click.option(
    "--ray",
    metavar="ADDRESS",
    help="Simulate on the Ray cluster at this address, in place of processes here; local starts "
    "one. Needs the extra ray.",
)
@click.option("--skip-invalid", is_flag=True, help="Leave out invalid rows of the log.")
@json_option("Print front.json.")
@click.option("--out", type=Path, required=True, help="Folder for the results.")
def search_command(
    log: Path | None, workload: str | None, pools: Path | None, pool: str | None,
    gpus: int | None, load: float | None, objectives: tuple[Objective, ...], simulations: int,
    samples: int, arrivals: int, space: str, queues: int | None, algorithm: str,
    resume_cost: float, seed: int, processes: int | None, skip_invalid: bool, as_json: bool,
    out: Path, *, ray: str | None = None, keep: Callable[[], None] | None = None,
) -> None:  # fmt: skip
    """Search for settings of wfq that trade completion time, its prediction and fairness (§3.3).

    Writes OUT/front.json, OUT/points.csv, OUT/front.svg, OUT/front.png and OUT/runs. To continue an
    interrupted search, repeat its command; with more --simulations it goes on.
    """
    if ray is not None and processes is not None:
        raise click.UsageError("--ray takes the place of --processes; leave one out")
    twice = next((each for each in objectives if objectives.count(each) > 1), None)
    if twice is not None:
        raise UserError(f"--objective {twice}: given twice; leave one out")
    if simulations < samples:
        raise UserError(
            f"--simulations {simulations}: fewer than the {samples} of one point; give more, or "
            "fewer --samples"
        )
    jobs, facts = _workload(log, workload, pools, pool, gpus, load, seed, skip_invalid)
    found_space = _space(space, queues, jobs)
    limits = quarter_limits(jobs.sizes)

    def prepared(side: Side) -> list[Prepared]:
        samples_ = (jobs.sample(side, i, arrivals, seed) for i in range(samples))
        return [prepare(sample, jobs.gpus, limits) for sample in samples_]

    plan = SearchPlan(
        found_space,
        algorithm,
        objectives,
        seed,
        prepared("train"),
        prepared("test"),
        resume_cost,
    )
    facts = {
        "command": COMMAND,
        "version": __version__,
        **facts,
        "load": jobs.load,
        "objectives": [str(each) for each in objectives],
        "arrivals": arrivals,
        "samples": samples,
        "space": space,
        "queues": found_space.queues,
        "algorithm": algorithm,
        "resume_cost_s": resume_cost,
        "seed": seed,
    }
    count = simulations // samples
    with opened(out, facts), writable(out), _resumable(out, count):
        with progress_bars(_ProgressLines()) as done:
            found = search(
                plan, out, count, processes or len(os.sched_getaffinity(0)), done, ray or ""
            )
        facts["simulations"] = {
            "train": len(found.points) * samples,
            "test": len({test.number for _, test in (*found.front, found.fifo)}) * samples,
        }
        front = front_json(found, objectives, limits, facts)
        replace_results(out, partial(_write, found, front))
    if keep is not None:  # before anything is printed, which may fail
        keep()
    if as_json:
        print_json(front)
        return
    if len(found.points) < count:
        click.echo(f"note: the space has no more than {counted(len(found.points), 'point')}")
    show_front(msgspec.json.decode(msgspec.json.encode(front)))
    if keep is None:  # else they are elsewhere now
        click.echo(f"results: {out / FRONT}, {out / FIGURE}.svg")


def _workload(
    log: Path | None, workload: str | None, pools: Path | None, pool: str | None,
    gpus: int | None, load: float | None, seed: int, skip_invalid: bool,
) -> tuple[JobSource, dict[str, Any]]:  # fmt: skip
    """Return the workload that the options describe, and its facts. Raises UserError."""
    if (log is None) == (workload is None):
        raise UserError("give either --trace or --workload")
    if workload is not None:
        if gpus is None or pools is not None or pool is not None:
            raise UserError("--workload needs --gpus, and neither --pools nor --pool")
        path, name = _named(workload)
        found = WorkloadSource(read_workload(path, name), gpus, load or LOAD)
        return found, {"workload": name, "workload_sha256": checksum(path), "gpus": gpus}
    assert log is not None, "one of both is given"
    if (pools is None) == (gpus is None):
        raise UserError("--trace needs either --pools or --gpus")
    trace = read_trace(log, skip_invalid=skip_invalid)
    jobs = jobs_of_pool(trace, pool)
    pool = jobs[0].job.pool
    if gpus is None:
        gpus = _quota(pools, pool)
    made = LogSource(jobs, gpus, seed)
    if load is not None:
        made.at_load(load)
    return made, {"trace_sha256": checksum(log), "pool": pool, "gpus": gpus}


def _named(workload: str) -> tuple[Path, str]:
    """Return the path and the name in FILE:NAME. Raises UserError."""
    path, colon, name = workload.rpartition(":")
    if not colon:
        raise UserError(f"--workload {workload}: write FILE:NAME, like workloads.csv:workload-1")
    return Path(path), name


def _quota(pools: Path | None, pool: str) -> int:
    assert pools is not None, "without --gpus there is a pools file"
    table = read_pools(pools)
    steps = table.quotas().get(pool)
    if steps is None:
        raise UserError(
            f"{pools}: no pool {pool!r}; add it, or choose with --pool: "
            f"{some(sorted(each.name for each in table.pools))}"
        )
    quota = max(quota for _, quota in steps)
    if not quota:
        raise UserError(f"{pools}: pool {pool} has no GPUs; give its quota, or --gpus")
    return quota


def _space(name: str, queues: int | None, jobs: JobSource) -> Space:
    """Return the space. Raises UserError for queues that it or the cluster cannot have."""
    if queues is None:
        return SPACES[name](jobs.sizes, jobs.gpus, capped=jobs.capped)
    if name != "queues":
        raise UserError("--queues works only with --space queues; leave it out")
    if queues > jobs.gpus:
        raise UserError(
            f"--queues {queues}: more queues than the {counted(jobs.gpus, 'GPU')} that they share; "
            f"give at most {jobs.gpus}"
        )
    return RawSpace(jobs.sizes, jobs.gpus, queues, capped=jobs.capped)


@contextmanager
def _resumable(out: Path, points: int) -> Iterator[None]:
    """On Ctrl-C, print how many points are done, and exit with code 130."""
    try:
        yield
    except KeyboardInterrupt:
        done = sum(path.name.isdecimal() for path in (out / RUNS).iterdir())
        click.echo(
            f"sia: interrupted; {counted(done, 'result')} of about {points} points are stored, "
            "repeat the command to continue",
            err=True,
        )
        raise click.exceptions.Exit(INTERRUPTED) from None


class _ProgressLines:
    """Progress without a terminal: a line every PRINT_EVERY seconds, and at the end of a part."""

    def __init__(self) -> None:
        self._began = self._printed = monotonic()

    def __call__(self, what: str, done: int, total: int) -> None:
        now = monotonic()
        if done < total and now - self._printed < PRINT_EVERY:
            return
        self._printed = now
        took = f" after {duration(now - self._began)}"
        click.echo(f"{done} of {total} {what} done{took}", err=True)


def _write(found: Found, front: Mapping[str, Any], folder: Path) -> None:
    from replay.search.figure import draw_front  # noqa: PLC0415  matplotlib is slow to import

    write_json(folder / FRONT, front)
    measures = list(found.points[0].runs[0])
    best = {point["number"] for point in front["points"]}
    rows = [
        (
            *(each.number, each.point.label, each.point.exact, len(each.point.weights)),
            "yes" if each.number in best else "no",
            *(each.mean(key) for key in measures),
        )
        for each in found.points
    ]
    write_rows(folder / POINTS, ("point", "label", "exact", "queues", "front", *measures), rows)
    means = [{key: each.mean(key) for key in front["objectives"]} for each in found.points]
    figure = draw_front(msgspec.json.decode(msgspec.json.encode(front)), means)
    (folder / f"{FIGURE}.svg").write_bytes(figure.svg)
    (folder / f"{FIGURE}.png").write_bytes(figure.png)


def read_front(path: Path) -> dict[str, Any]:
    """Read front.json of a search, or of its folder. Raises UserError."""
    file = path / FRONT if path.is_dir() else path
    try:
        front = msgspec.json.decode(file.read_bytes(), type=dict[str, Any])
    except OSError as error:
        raise UserError(
            f"{file}: cannot be read ({error.strerror}); give a {FRONT}, which sia wfq search and "
            "sia wfq update write"
        ) from None
    except msgspec.MsgspecError:
        front = {}
    if front.get("command") != COMMAND:
        raise UserError(f"{file}: not a {FRONT} of {COMMAND}; give one")
    return front


@wfq.command()
@click.argument("file", type=Path)
@click.option("--point", metavar="NUMBER|PRESET", help="Show the queues of one point.")
@json_option("Print front.json, or the point.")
def front(file: Path, point: str | None, as_json: bool) -> None:
    """Show the Pareto front of a search. FILE is its front.json or its folder."""
    found = read_front(file)
    if point is None:
        print_json(found) if as_json else show_front(found)
        return
    chosen = point_of(found, point)
    print_json(chosen) if as_json else show_point(chosen)


def point_of(found: Mapping[str, Any], name: str) -> dict[str, Any]:
    """Return a point of a front by its number or by a preset. Raises UserError."""
    points: list[dict[str, Any]] = [*found["points"], found["fifo"]]
    for point in points:
        if name == str(point["number"]) or name in point["presets"]:
            return point
    raise UserError(
        f"--point {name}: no such point or preset; the presets are {', '.join(found['presets'])}, "
        "and sia wfq front lists the points"
    )
