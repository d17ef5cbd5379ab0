"""The cases: fixed commands on fixed inputs, and which of their outputs are compared.

The cases use only the command line and its files, so that code can move freely below them. The one
exception is `play_engine`, which steps the engine.

Texts for people (notes, reports, reasons) are not hashed, as they may be reworded. Neither are
settings that a file repeats, the version of SIA, or how long a command took.

Jobs, loans and segments are hashed byte by byte: their times are sums of the log's own numbers.
Measures are rounded to 9 significant digits first: numpy adds in the order that suits the
processor, and the last digits of a mean may differ among machines.
"""

from __future__ import annotations

import csv
import gzip
import json
import os
from collections.abc import Callable
from hashlib import sha256
from itertools import islice
from pathlib import Path
from typing import Any

from tests.support import shell
from tests.support.pictures import blank_pictures

TRACES = Path(
    os.environ.get("SIA_TRACES", Path(__file__).resolve().parents[3] / "shared" / "traces")
)

Files = dict[str, bytes]
"""The outputs of a case that are compared, by name."""

IN_POOLS = (
    "fcfs", "ssf", "gssf", "mmfs", "sia", "sia-recall", "sia-reclaim", "sia-vc", "sjf", "easy",
    "themis", "srtf", "srsf", "las", "emmfs", "kueue-strict", "kueue-best-effort",
)  # fmt: skip
ELASTIC = (
    "elastic-fifo", "elastic-srtf", "elastic-srsf", "afs", "themis-lease", "fair-share", "wfq",
)  # fmt: skip
"""Policies that tell each job when it will end."""
IN_ROUNDS = ("gavel", "gandiva-fair", "ossp", "mst", "ftf", "allox", "filter", "shockwave")
ON_NODES = ("jvu", "prio")
"""Policies that choose among nodes that differ."""
WITH_DEADLINES = ("chronus", "edf", "3sigma", "genie", "yarn-cs")
IN_CELLS = ("fcfs", "ssf", "gssf", "mmfs", "sia", "sia-recall", "sia-reclaim", "hived")

TYPES = """\
types = [
    { name = "gpu" },
    { name = "pair", child = "gpu", count = 2 },
    { name = "quad", child = "pair", count = 2 },
    { name = "node", child = "quad", count = 2, node = true },
    { name = "rack", child = "node", count = 4 },
]
"""

DAY = 86400.0
MORNING = 14 * DAY + 8 * 3600.0
"""Second of the made-up cloud's log at which its day begins."""


def sia(*arguments: object) -> None:
    """Run the command line in this process, whose hash seed is random.

    Pictures of reports are blank: no case compares them, and drawing takes as long as the rest.
    """
    with blank_pictures():
        ran = shell.sia(*arguments)
    if ran.returncode:
        raise AssertionError(f"sia {' '.join(map(str, arguments))}\n{ran.stderr}")


def philly_known(folder: Path) -> Files:
    """Three days of four pools of Philly, with perfect forecasts and run times."""
    piece = _philly(folder, start="75d", length="3d", queues=4, load="0.8-1.1", seed=3)
    return _replay(folder, piece, IN_POOLS)


def philly_foreseen(folder: Path) -> Files:
    """Four days of five pools of Philly; loads and run times are forecast."""
    piece = _philly(folder, start="60d", length="4d", queues=5, load="0.7-1.1", seed=2)
    foreseen = ("--forecast", "peaks", "--durations", "survival",
                "--load-quantile", "0.95", "--run-time-quantile", "0.9")  # fmt: skip
    return _replay(folder, piece, IN_POOLS, *foreseen)


def philly_cells(folder: Path) -> Files:
    """The log of the first case on a cluster of cells."""
    piece = _philly(folder, start="75d", length="3d", queues=4, load="0.8-1.1", seed=3)
    types = folder / "types.toml"
    types.write_text(TYPES)
    files = _replay(folder, piece, IN_CELLS, "--cells", types)
    return files | {"cells.toml": (folder / "out" / "cells.toml").read_bytes()}


def preset(folder: Path) -> Files:
    """Three days of the preset "base"; most jobs may be stopped, at a cost."""
    stopped = ("--preemptible", "60:2m", "--resume-cost", "1m", "--recall", "1", "--seed", "1",
               "--forecast", "random", "--durations", "survival")  # fmt: skip
    return _replay(folder, _synth(folder, "base", seed=1, days=3), IN_POOLS, *stopped)


def elastic(folder: Path) -> Files:
    """A day of the preset "base" under elastic policies, with wrong sizes and resume costs."""
    wrong = ("--durations", "within:20", "--resume-cost", "1m", "--seed", "2")
    return _replay(folder, _synth(folder, "base", seed=2, days=1), ELASTIC, *wrong)


def in_rounds(folder: Path) -> Files:
    """Thirty jobs that change while they run, on eight GPUs."""
    jobs = folder / "log.csv"
    with gzip.open(TRACES / "shockwave_120.csv.gz", "rt") as log:
        jobs.write_text("".join(islice(log, 31)))
    pools = folder / "pools.csv"
    pools.write_text("pool,quota\nall,8\n")
    return _replay(folder, (jobs, pools), IN_ROUNDS)


def deadlines_and_nodes(folder: Path) -> Files:
    """Fig. 6 of JamaisVu: two deadlines on nodes that differ, with and without kills."""
    log = folder / "log.csv", folder / "pools.csv"
    log[0].write_text(
        "job_id,pool,submit,width,duration,deadline,prefers,slowdown\n"
        "one,a,0,2,20,,,\ntwo,a,10,2,20,35,same:rack,1.5\nthree,a,10,2,20,35,gpu,1.5\n"
        "four,a,12,3,9,80,,\nfive,a,13,1,30,,rack:r2,\n"
    )
    log[1].write_text("pool,quota\na,4\n")
    nodes = folder / "nodes.csv"
    nodes.write_text(
        "node,gpus,attributes\nm1,1,gpu rack:r1\nm2,1,gpu rack:r1\nm3,1,rack:r2\nm4,1,rack:r2\n"
    )
    policies = ("fcfs", "jvu", "jvu:base", "jvu:puol:greedy:delay=5", "prio", "prio:kill")
    return _replay(folder, log, policies, "--nodes", nodes)


def leases(folder: Path) -> Files:
    """Jobs with hard and soft deadlines on one node; deadlines are promised and kept by leases."""
    log = folder / "log.csv", folder / "pools.csv"
    log[0].write_text(
        "job_id,pool,submit,width,duration,deadline,soft,preemptible\n"
        "one,a,0,4,3000,6000,,0\ntwo,a,0,8,2000,9000,paper,10\nthree,a,10,4,100,3000,1:90+2.2:20,\n"
        "four,a,20,4,500,,,0\nfive,a,30,4,3000,4000,,0\nsix,a,30,2,30,,,0\nseven,a,1300,2,9000,,,5\n"
        "eight,a,1400,1,250,2000,paper,restart\n"
    )
    log[1].write_text("pool,quota\na,24\n")
    policies = ("chronus", "chronus:profile=0:fill", "edf", "yarn-cs:slo=50", "3sigma", "genie")
    return _replay(folder, log, policies, "--resume-cost", "15s")


def closed_loop(folder: Path) -> Files:
    """A log with users whose jobs resemble each other; run times are learned per user."""
    loop = ("--closed-loop", "--forecast", "sliding-max", "--durations", "jvupredict")
    return _replay(folder, _helios(), ("fcfs", "sia"), *loop)


def experiment(folder: Path) -> Files:
    """Two pieces of Philly, with and without forecasts."""
    sia(
        "experiment", "--trace", TRACES / "philly.csv.gz", "--pools", TRACES / "philly_pools.csv",
        "--queues", "2,3", "--weeks", "0.4", "--runs", "1", "--load", "0.7-1.0", "--warmup", "12h",
        "--policy", "fcfs,gssf,sia,sia@peaks:0.95+survival:0.9+guard", "--out", folder / "out",
        "--jobs", "1",  # each process would read all of the log
    )  # fmt: skip
    out = folder / "out"
    files = {"experiments.csv": _rounded_table(out / "experiments.csv")}
    for run in sorted(out.glob("runs/*/run.json")):
        found = json.loads(run.read_bytes())
        files[str(run.relative_to(out))] = _as_json(
            {key: found[key] for key in ("from_s", "length_s", "pools", "jobs", "policies")}
        )
    return files


def oracle(folder: Path) -> Files:
    """A workload that the oracle solves to the optimum.

    Only the optimum is compared: two threads search for it, and which of several best plans they
    find first depends on the machine.
    """
    trace, pools = _synth(folder, "more-skewed", seed=2, days=1)
    out = folder / "out"
    sia("oracle", "solve", "--trace", trace, "--pools", pools, "--window", "14h", "--slot", "10m",
        "--time-limit", "10m", "--out", out)  # fmt: skip
    found = json.loads((out / "oracle.json").read_bytes())
    assert found["status"] == "optimal", found["status"]
    answer = {
        key: found[key]
        for key in ("status", "jobs", "total_wait_s", "bound_wait_s", "baseline_wait_s",
                    "objective", "objective_bound", "gap", "slot_s")
    }  # fmt: skip
    return {
        "oracle.json": _as_json(answer),
        "trace.csv": (out / "trace.csv").read_bytes(),
        "pools.csv": (out / "pools.csv").read_bytes(),
    }


def forecast(folder: Path) -> Files:
    """Train and evaluate a small model, and forecast run times.

    The trees themselves are not compared: xgboost states no bytes that are the same on every
    processor. Its scores stand in the files with four to six digits.
    """
    trace, pools = _helios()
    log = ("--trace", trace, "--pools", pools)
    sia("forecast", "train", *log, "--windows", "1h", "--out", folder / "model")
    sia("forecast", "evaluate", *log, "--model", folder / "model", "--out", folder / "out")
    return {
        name: _as_json(json.loads((folder / "out" / name).read_bytes()))
        for name in ("arrivals.json", "run_times.json")
    }


def demo_day(folder: Path) -> Files:
    """A day of a made-up cloud through the daemon's engine, until its last job has ended."""
    trace, pools = _synth(folder, "cloud", seed=1, days=21, pools=6)
    config = folder / "sia.toml"
    with pools.open(newline="") as file:
        tables = [
            f'[[pool]]\nname = "{row["pool"]}"\nquota = {row["quota"]}\n'
            for row in csv.DictReader(file)
        ]
    config.write_text("".join(tables))
    with trace.open(newline="") as file:
        jobs = [job for job in csv.DictReader(file) if 0 <= float(job["submit"]) - MORNING < DAY]
    lines = play_engine(config, jobs)
    return {"decisions.jsonl": b"".join(_as_json(line) for line in lines)}


def play_engine(config: Path, jobs: list[dict[str, str]]) -> list[Any]:
    """Step the engine in virtual time; return the decisions, starts and notices of each step.

    This is the only function here that imports SIA. Run times are known; the forecast says
    that new jobs take half of each pool, so that some of what is idle is lent.
    """
    from msgspec import to_builtins  # noqa: PLC0415

    from daemon.config.read import read_config  # noqa: PLC0415
    from daemon.engine.engine import Engine  # noqa: PLC0415
    from daemon.model.inputs import Ended, Foreseen, Started, Submit, Tick  # noqa: PLC0415
    from daemon.model.job import JobSpec  # noqa: PLC0415
    from daemon.model.outputs import StartEffect  # noqa: PLC0415
    from daemon.process.build import setup_of  # noqa: PLC0415
    from sia.model import Load  # noqa: PLC0415

    setup = setup_of(read_config(config), None, {})
    engine = Engine.new(setup)
    windows = range(len(setup.options.windows))
    some = [Load(pool.name, window, pool.quota // 2) for pool in setup.pools for window in windows]
    due: list[tuple[float, int, Any]] = [(MORNING, 0, Foreseen(some))]
    for job in jobs:
        spec = JobSpec(
            job["job_id"], job["pool"], int(job["width"]), user=job["user"], name=job["name"],
            duration=float(job["duration"]),
        )  # fmt: skip
        submit = Submit(spec, run_time=float(job["duration"]))
        due.append((float(job["submit"]), len(due), submit))
    number, lines = len(due), []
    while due:
        due.sort(key=lambda entry: entry[:2])
        now = min(due[0][0], max(engine.due, engine.core.state.now))
        inputs = [each for time, _, each in due if time <= now] or [Tick()]
        due = [entry for entry in due if entry[0] > now]
        step = engine.step(now, inputs)
        for effect in step.effects:
            assert isinstance(effect, StartEffect), effect
            key = (effect.job, effect.attempt)
            due.append((now, number, Started(*key)))
            due.append((now + (effect.spec.duration or 0.0), number + 1, Ended(*key, code=0)))
            number += 2
        decided = [to_builtins(decision) for decision in step.decisions]
        for decision in decided:
            decision.pop("reason", None)  # a text for people
        told = [[n.seq, n.kind, n.job, n.pool, n.node] for n in step.notices]
        started = [[each.job, each.attempt, list(each.nodes)] for each in step.effects]
        lines.append([now, decided, started, told])
        engine.check()
    assert not engine.book.jobs, "every job has ended"
    return lines


CASES: dict[str, Callable[[Path], Files]] = {
    case.__name__: case
    for case in (
        philly_known, philly_foreseen, philly_cells, preset, in_rounds, closed_loop, experiment,
        oracle, forecast, demo_day, elastic, deadlines_and_nodes, leases,
    )
}  # fmt: skip


def sums_of(case: str, folder: Path) -> dict[str, str]:
    """Run a case in an empty folder; return the SHA-256 sum of each compared output."""
    files = CASES[case](folder)
    return {name: sha256(files[name]).hexdigest() for name in sorted(files)}


def _philly(
    folder: Path, *, start: str, length: str, queues: int, load: str, seed: int
) -> tuple[Path, Path]:
    sia(
        "trace", "slice", "--trace", TRACES / "philly.csv.gz",
        "--pools", TRACES / "philly_pools.csv", "--from", start, "--length", length,
        "--queues", queues, "--load", load, "--seed", seed, "--out", folder / "piece",
    )  # fmt: skip
    return folder / "piece" / "trace.csv", folder / "piece" / "pools.csv"


def _synth(
    folder: Path, name: str, *, seed: int, days: int, pools: int | None = None
) -> tuple[Path, Path]:
    of_cloud = () if pools is None else ("--pools", pools)
    sia("trace", "synth", "--preset", name, "--seed", seed, "--days", days, *of_cloud,
        "--out", folder / "piece")  # fmt: skip
    return folder / "piece" / "trace.csv", folder / "piece" / "pools.csv"


def _helios() -> tuple[Path, Path]:
    return TRACES / "helios_venus_2vc.csv.gz", TRACES / "helios_venus_2vc_pools.csv"


def _replay(
    folder: Path, log: tuple[Path, Path], policies: tuple[str, ...], *options: object
) -> Files:
    """Replay a log; return each policy's schedule and measures, and the log if it was cut."""
    trace, pools = log
    out = folder / "out"
    sia("replay", "--trace", trace, "--pools", pools, "--policy", ",".join(policies), *options,
        "--no-report", "--out", out)  # fmt: skip
    files = {str(path.relative_to(out)): path.read_bytes() for path in sorted(out.glob("*/*.csv"))}
    assert set(policies) == {name.split("/")[0] for name in files}
    summary = json.loads((out / "summary.json").read_bytes())
    for policy in policies:
        files[f"summary.json of {policy}"] = _as_json(summary["policies"][policy])
    if folder in trace.parents:
        files |= {path.name: path.read_bytes() for path in log}
    return files


def _as_json(value: Any) -> bytes:
    return json.dumps(_rounded(value), sort_keys=True).encode() + b"\n"


def _rounded(value: Any) -> Any:
    if isinstance(value, float):
        return float(f"{value:.9g}")
    if isinstance(value, dict):
        return {key: _rounded(each) for key, each in value.items()}
    if isinstance(value, list | tuple):
        return [_rounded(each) for each in value]
    return value


def _rounded_table(path: Path) -> bytes:
    with path.open(newline="") as file:
        return _as_json([[_number(cell) for cell in row] for row in csv.reader(file)])


def _number(cell: str) -> str | float:
    try:
        return float(cell)
    except ValueError:
        return cell
