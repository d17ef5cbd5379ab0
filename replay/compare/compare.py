"""Compare two results of the same jobs or runs by a paired percentile bootstrap.

The bootstrap resamples pairs with replacement. A job that is long in both results stays in its
pair, so only differences between the results affect the intervals.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NamedTuple

import msgspec
import numpy as np
from numpy.typing import NDArray

from replay.experiment.folder import holds_experiment
from replay.logs.limits import DRAWN_AT_ONCE
from replay.logs.read import BadCellError, LogRow, bad_row, columns_of, number, open_table, shown
from sia.console.errors import UserError
from sia.limits import SLOWED
from sia.wording import as_typed

FloatArray = NDArray[np.float64]

CONFIDENCE = 0.95
"""Confidence level of the intervals."""

FEW_PAIRS = 20
"""Number of pairs below which a note is shown. Percentile intervals are too narrow for few pairs: a
95 % interval covers the true mean in 90 % of cases with 10 pairs, in 92 % with 20
(tests/replay/compare/test_compare.py)."""

JOBS, RUNS = "jobs.csv", "experiments.csv"

HIGHER_IS_BETTER = {
    "speedup_mean": True,
    "speedup_geomean": True,
    "speedup_p5": True,
    "speedup_p50": True,
    "speedup_p90": True,
    "speedup_p95": True,
    "avg_jct_s": False,
    "avg_jct_ratio": True,
    "slowed_pct": False,
    "slowdown_total_min": False,
    "slowdown_max_min": False,
    "utilisation_pct": None,
    "gpu_hours_lent": None,
}
"""The compared measures of runs; None if neither direction is better."""

SAME_DRAW = ("seed", "queues", "size", "withdrawn", "total_gpus")
"""Columns in which paired runs must agree; otherwise they replay different pieces of a log."""


class Side(NamedTuple):
    """One side of a comparison: a policy's folder, or an experiment's policy ("": all)."""

    folder: Path
    kind: str
    policy: str = ""


class JobTimes(NamedTuple):
    """A job's submission and completion time, in seconds."""

    submit: float
    jct: float


class MeasuredRun(NamedTuple):
    """A run's draw and measures; a measure is None if no job was measured."""

    draw: Mapping[str, str]
    measures: Mapping[str, float | None]


class IntervalEstimate(msgspec.Struct, frozen=True):
    """A value and the ends of its interval; None if there are fewer than two pairs."""

    value: float
    low: float | None
    high: float | None

    def excludes(self, value: float) -> bool:
        """Return whether `value` lies outside of the interval."""
        return self.low is not None and self.high is not None and not self.low <= value <= self.high


class Resampling(NamedTuple):
    """Number of bootstrap resamples, and their seed."""

    resamples: int = 10_000
    seed: int = 0

    def estimate(
        self,
        columns: Sequence[FloatArray],
        statistics: Sequence[Callable[[FloatArray], FloatArray]],
    ) -> list[IntervalEstimate]:
        """Estimate statistics of the columns' means, with intervals.

        Each column has one value per pair, at least one. A statistic maps means of shape (…,
        columns) to shape (…). O(resamples · pairs · columns).
        """
        values = np.asarray(columns, dtype=np.float64)
        means = values.mean(axis=1)
        if values.shape[1] < 2:
            return [IntervalEstimate(float(of(means)), None, None) for of in statistics]
        drawn = self._means(values)
        tails = [(1 - CONFIDENCE) / 2, (1 + CONFIDENCE) / 2]
        ends = [np.quantile(of(drawn), tails) for of in statistics]
        return [
            IntervalEstimate(float(of(means)), float(low), float(high))
            for of, (low, high) in zip(statistics, ends, strict=True)
        ]

    def _means(self, values: FloatArray) -> FloatArray:
        """Return the resampled means of the columns, shape (resamples, columns)."""
        random = np.random.default_rng(self.seed)
        pairs = values.shape[1]
        step = max(1, DRAWN_AT_ONCE // pairs)
        means = np.empty((self.resamples, len(values)))
        for first in range(0, self.resamples, step):
            rows = min(step, self.resamples - first)
            # Multiplying by counts is faster than gathering the drawn pairs.
            picks = random.integers(0, pairs, (rows, pairs)) + pairs * np.arange(rows)[:, None]
            times = np.bincount(picks.ravel(), minlength=rows * pairs).reshape(rows, pairs)
            means[first : first + rows] = np.einsum("kn,rn->rk", values, times) / pairs
        return means


def side_of(text: str) -> Side:
    """Parse A or B of the command line. Raises UserError."""
    folder, policy = _folder_and_policy(text)
    if holds_experiment(folder) and not (folder / RUNS).is_file():
        raise UserError(f"{folder}: the experiment is not finished; repeat its command")
    if (folder / RUNS).is_file():
        return Side(folder, RUNS, policy)
    if not policy and (folder / JOBS).is_file():
        return Side(folder, JOBS)
    wanted = RUNS if policy else f"{JOBS} or {RUNS}"
    raise UserError(
        f"{folder}: contains no {wanted}; give a policy's folder of a replay, like out/sia, or an "
        "experiment's folder and a policy, like experiment:sia"
    )


def _folder_and_policy(text: str) -> tuple[Path, str]:
    """Split FOLDER:POLICY; both can contain colons, like peaks:0.95.

    If several splits name a folder, prefer an experiment's folder, then the longest folder name.
    """
    if Path(text).is_dir():
        return Path(text), ""
    parts = text.split(":")
    splits = [(":".join(parts[:i]), ":".join(parts[i:])) for i in range(len(parts) - 1, 0, -1)]
    found = [(Path(head), tail) for head, tail in splits if Path(head).is_dir()]
    if not found:
        raise UserError(f"{text}: no such folder; write OUT/POLICY or EXPERIMENT:POLICY")
    return next((split for split in found if holds_experiment(split[0])), found[0])


@contextmanager
def _parsing(path: Path, row: LogRow, width: int) -> Iterator[None]:
    """Turn a BadCellError into a UserError of one line."""
    try:
        if len(row.cells) != width:
            problem = f"the row has {len(row.cells)} cells, but the header has {width}"
            raise BadCellError("1", problem, "write the results again", "")
        yield
    except BadCellError as bad:
        raise bad_row(path, row, bad) from None


def read_jobs(folder: Path) -> dict[str, JobTimes]:
    """Read the jobs of a policy's folder by job ID. Raises UserError."""
    path = folder / JOBS
    jobs: dict[str, JobTimes] = {}
    with open_table(path) as table:
        at = columns_of(path, table.header, ("job_id", "submit", "end"))
        for row in table.rows:
            with _parsing(path, row, len(table.header)):
                job_id = row.cells[at["job_id"]]
                if job_id in jobs:
                    twice = f"duplicate {shown(job_id)}"
                    raise BadCellError("job_id", twice, "give every job a unique ID", "")
                submit = number(row.cells, "submit", at["submit"], zero=True)
                end = number(row.cells, "end", at["end"], zero=True)
                if end < submit:
                    early = "the job ends before it was submitted"
                    raise BadCellError("end", early, "write the results again", "")
            jobs[job_id] = JobTimes(submit, end - submit)
    return jobs


def read_runs(folder: Path) -> dict[str, dict[int, MeasuredRun]]:
    """Read the runs of an experiment by policy and run number. Raises UserError."""
    path = folder / RUNS
    policies: dict[str, dict[int, MeasuredRun]] = {}
    with open_table(path) as table:
        at = columns_of(
            path, table.header, ("run", "policy", "measured", *SAME_DRAW, *HIGHER_IS_BETTER)
        )
        for row in table.rows:
            with _parsing(path, row, len(table.header)):
                runs = policies.setdefault(row.cells[at["policy"]], {})
                run = int(number(row.cells, "run", at["run"], zero=True))
                if run in runs:
                    twice = "duplicate run of a policy"
                    raise BadCellError("run", twice, "write the results again", "")
                measured = number(row.cells, "measured", at["measured"], zero=True)
                measures = {
                    key: number(row.cells, key, at[key], zero=True)
                    if measured and row.cells[at[key]]
                    else None
                    for key in HIGHER_IS_BETTER
                }
            runs[run] = MeasuredRun({key: row.cells[at[key]] for key in SAME_DRAW}, measures)
    return policies


def compare_jobs(
    a: Mapping[str, JobTimes], b: Mapping[str, JobTimes], warmup: float, resampling: Resampling
) -> dict[str, Any]:
    """Compare jobs paired by ID; times are in seconds.

    Jobs submitted before `warmup` in A are omitted, and jobs with a JCT of 0, which is below the
    floating-point resolution. Raises UserError if no job is left.
    """
    # Sorted by ID, so that the resamples do not depend on the order of the rows.
    both = [(a[job_id], b[job_id]) for job_id in sorted(a.keys() & b.keys())]
    warm = [pair for pair in both if pair[0].submit >= warmup]
    if both and not warm:
        last = max(mine.submit for mine, _ in both)
        raise UserError(
            f"--warmup {as_typed(warmup)}: no job is left to compare, because the last was "
            f"submitted at {last:,.0f} s; use a shorter warm-up"
        )
    pairs = [pair for pair in warm if pair[0].jct > 0 and pair[1].jct > 0]
    if not pairs:
        raise UserError(
            f"no job to compare: {len(both):,} of {len(a):,} and {len(b):,} job IDs are in both, "
            f"{len(both) - len(warm):,} of them before the warm-up; give two results of one log"
        )
    of_a, of_b = (np.array([pair[i].jct for pair in pairs]) for i in (0, 1))
    later = of_a - of_b
    # If submissions differ, as in a closed loop, a job can end earlier with the same JCT.
    ends_later = later + np.array([x.submit - y.submit for x, y in pairs])
    columns = [of_a, of_b, np.log(of_a / of_b), later < -SLOWED, later > SLOWED, ends_later]
    statistics: dict[str, Callable[[FloatArray], FloatArray]] = {
        "avg_jct_a_s": lambda means: means[..., 0],
        "avg_jct_b_s": lambda means: means[..., 1],
        "difference_s": lambda means: means[..., 0] - means[..., 1],
        "end_difference_s": lambda means: means[..., 5],
        "ratio_of_averages": lambda means: means[..., 0] / means[..., 1],
        "geomean_ratio": lambda means: np.exp(means[..., 2]),
        "sooner_pct": lambda means: 100 * means[..., 3],
        "later_pct": lambda means: 100 * means[..., 4],
        "equal_pct": lambda means: 100 * np.maximum(0, 1 - means[..., 3] - means[..., 4]),
    }
    estimates = resampling.estimate(columns, list(statistics.values()))
    return {
        "pairs": len(pairs),
        "only_a": len(a) - len(both),
        "only_b": len(b) - len(both),
        "before_warmup": len(both) - len(warm),
        "without_duration": len(warm) - len(pairs),
        "measures": dict(zip(statistics, map(msgspec.structs.asdict, estimates), strict=True)),
    }


def compare_runs(
    a: Mapping[int, MeasuredRun], b: Mapping[int, MeasuredRun], resampling: Resampling
) -> dict[str, Any]:
    """Compare runs paired by number: means of both sides, and of the differences A − B.

    Raises UserError if there is no pair, or if paired runs have different draws.
    """
    numbers = sorted(a.keys() & b.keys())
    if not numbers:
        raise UserError(
            f"no run to compare: {len(a):,} and {len(b):,} runs have no number in common; give two "
            "results of one experiment design"
        )
    for run in numbers:
        different = [key for key in SAME_DRAW if a[run].draw[key] != b[run].draw[key]]
        if different:
            mine, theirs = (shown(side[run].draw[different[0]]) for side in (a, b))
            raise UserError(
                f"run {run}: {different[0]} is {mine} in A and {theirs} in B; compare experiments "
                "with the same pieces of the same log"
            )
    kinds = Counter((a[run].draw["size"], a[run].draw["withdrawn"]) for run in numbers)
    measures = {}
    for key in HIGHER_IS_BETTER:
        found = [(a[run].measures[key], b[run].measures[key]) for run in numbers]
        measures[key] = _difference(
            [(x, y) for x, y in found if x is not None and y is not None], resampling
        )
    return {
        "pairs": len(numbers),
        "only_a": len(a) - len(numbers),
        "only_b": len(b) - len(numbers),
        "one_log": len(kinds) > 1,
        "measures": measures,
    }


def _difference(pairs: Sequence[tuple[float, float]], resampling: Resampling) -> dict[str, Any]:
    if not pairs:
        return {"pairs": 0}
    of_a, of_b = np.array(pairs, dtype=np.float64).T
    [difference] = resampling.estimate([of_a - of_b], [lambda means: means[..., 0]])
    return {
        "pairs": len(pairs),
        "a": float(of_a.mean()),
        "b": float(of_b.mean()),
        "difference": msgspec.structs.asdict(difference),
        "above": int(np.count_nonzero(of_a > of_b)),
        "below": int(np.count_nonzero(of_a < of_b)),
    }
