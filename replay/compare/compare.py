"""Two outcomes of the same jobs, or of the same runs, compared pair by pair with intervals.

Pairs are drawn anew with replacement, again and again (a paired percentile bootstrap): a job that
is long in both stays in its pair, so that only what the two do differently moves the result.
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
"""Share of repetitions in which an interval is to hold the true value."""

FEW_PAIRS = 20
"""Below so many pairs a percentile interval is known to be too narrow: at 10, one of 95 % holds the
true mean in 90 % of cases, at 20 in 92 % (tests/replay/compare/test_compare.py holds it)."""

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
"""The measures of runs that are compared; None where neither direction is better in itself."""

SAME_DRAW = ("seed", "queues", "size", "withdrawn", "total_gpus")
"""What two runs of one number must agree in: else they are not of the same piece of a log."""


class Side(NamedTuple):
    """One of the two that are compared: a policy's folder, or an experiment's policy ("": all)."""

    folder: Path
    kind: str
    policy: str = ""


class JobTimes(NamedTuple):
    """When a job was submitted and how long it took to complete, in seconds."""

    submit: float
    jct: float


class MeasuredRun(NamedTuple):
    """What a run was drawn as, and its measures; None where no job was measured."""

    draw: Mapping[str, str]
    measures: Mapping[str, float | None]


class IntervalEstimate(msgspec.Struct, frozen=True):
    """A value with the ends of its interval; None where one pair, or none, gives no interval."""

    value: float
    low: float | None
    high: float | None

    def excludes(self, value: float) -> bool:
        """Whether the interval lies wholly on one side of `value`."""
        return self.low is not None and self.high is not None and not self.low <= value <= self.high


class Resampling(NamedTuple):
    """How often pairs are drawn anew, and by which seed."""

    resamples: int = 10_000
    seed: int = 0

    def estimate(
        self,
        columns: Sequence[FloatArray],
        statistics: Sequence[Callable[[FloatArray], FloatArray]],
    ) -> list[IntervalEstimate]:
        """Statistics of the columns' means, each from (…, columns) to (…), with their intervals.

        The columns hold a value a pair, one pair or more. O(resamples · pairs · columns).
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
        """Means of each column over pairs drawn with replacement, of shape (resamples, columns)."""
        random = np.random.default_rng(self.seed)
        pairs = values.shape[1]
        step = max(1, DRAWN_AT_ONCE // pairs)
        means = np.empty((self.resamples, len(values)))
        for first in range(0, self.resamples, step):
            rows = min(step, self.resamples - first)
            # How often each pair is drawn is cheaper to multiply with than pairs are to gather.
            picks = random.integers(0, pairs, (rows, pairs)) + pairs * np.arange(rows)[:, None]
            times = np.bincount(picks.ravel(), minlength=rows * pairs).reshape(rows, pairs)
            means[first : first + rows] = np.einsum("kn,rn->rk", values, times) / pairs
        return means


def side_of(text: str) -> Side:
    """What the user means by A or B. Raises UserError."""
    folder, policy = _folder_and_policy(text)
    if holds_experiment(folder) and not (folder / RUNS).is_file():
        raise UserError(f"{folder}: this experiment is not finished; repeat its command")
    if (folder / RUNS).is_file():
        return Side(folder, RUNS, policy)
    if not policy and (folder / JOBS).is_file():
        return Side(folder, JOBS)
    wanted = RUNS if policy else f"{JOBS} or {RUNS}"
    raise UserError(
        f"{folder}: holds no {wanted}; name a policy's folder of a replay, like out/sia, or an "
        "experiment's folder and a policy, like experiment:sia"
    )


def _folder_and_policy(text: str) -> tuple[Path, str]:
    """Where a folder's name ends and a policy's begins: both may have colons, like peaks:0.95.

    Of several folders that fit, an experiment's comes first, then the shorter policy.
    """
    if Path(text).is_dir():
        return Path(text), ""
    parts = text.split(":")
    splits = [(":".join(parts[:i]), ":".join(parts[i:])) for i in range(len(parts) - 1, 0, -1)]
    found = [(Path(head), tail) for head, tail in splits if Path(head).is_dir()]
    if not found:
        raise UserError(f"{text}: there is no such folder; write OUT/POLICY or EXPERIMENT:POLICY")
    return next((split for split in found if holds_experiment(split[0])), found[0])


@contextmanager
def _parsing(path: Path, row: LogRow, width: int) -> Iterator[None]:
    """Say in one line which cell of a row was wrong."""
    try:
        if len(row.cells) != width:
            problem = f"the row has {len(row.cells)} cells, the header {width}"
            raise BadCellError("1", problem, "write the results anew", "")
        yield
    except BadCellError as bad:
        raise bad_row(path, row, bad) from None


def read_jobs(folder: Path) -> dict[str, JobTimes]:
    """The jobs of a policy's folder by id. Raises UserError."""
    path = folder / JOBS
    jobs: dict[str, JobTimes] = {}
    with open_table(path) as table:
        at = columns_of(path, table.header, ("job_id", "submit", "end"))
        for row in table.rows:
            with _parsing(path, row, len(table.header)):
                job_id = row.cells[at["job_id"]]
                if job_id in jobs:
                    twice = f"{shown(job_id)} stands twice"
                    raise BadCellError("job_id", twice, "give every job an id of its own", "")
                submit = number(row.cells, "submit", at["submit"], zero=True)
                end = number(row.cells, "end", at["end"], zero=True)
                if end < submit:
                    early = "the job ends before it was submitted"
                    raise BadCellError("end", early, "write the results anew", "")
            jobs[job_id] = JobTimes(submit, end - submit)
    return jobs


def read_runs(folder: Path) -> dict[str, dict[int, MeasuredRun]]:
    """The runs of an experiment, by policy and number. Raises UserError."""
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
                    twice = "this run of this policy stands twice"
                    raise BadCellError("run", twice, "write the results anew", "")
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
    """Measures of the jobs of both, paired by id; times are seconds.

    Jobs that A has before `warmup` are left out, and those of a JCT of 0, too short for its time's
    float. Raises UserError where no job is left.
    """
    # By id and not by place: the same pairs are drawn however the rows were ordered.
    both = [(a[job_id], b[job_id]) for job_id in sorted(a.keys() & b.keys())]
    warm = [pair for pair in both if pair[0].submit >= warmup]
    if both and not warm:
        last = max(mine.submit for mine, _ in both)
        raise UserError(
            f"--warmup {as_typed(warmup)}: no job is left to compare, the last came at "
            f"{last:,.0f} s; give a shorter one"
        )
    pairs = [pair for pair in warm if pair[0].jct > 0 and pair[1].jct > 0]
    if not pairs:
        raise UserError(
            f"no job to compare: {len(both):,} of {len(a):,} and {len(b):,} job ids stand in both, "
            f"{len(both) - len(warm):,} of them before the warm-up; give two outcomes of one log"
        )
    of_a, of_b = (np.array([pair[i].jct for pair in pairs]) for i in (0, 1))
    later = of_a - of_b
    # Where submissions differ, as in a closed loop, a job may end sooner and take no less.
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
    """Means over the runs of both, and of the differences A − B, run by run.

    Raises UserError where no run is in both, or runs of one number are not of one draw.
    """
    numbers = sorted(a.keys() & b.keys())
    if not numbers:
        raise UserError(f"no run to compare: of {len(a):,} and {len(b):,} none has the same number")
    for run in numbers:
        odd = [key for key in SAME_DRAW if a[run].draw[key] != b[run].draw[key]]
        if odd:
            mine, theirs = (shown(side[run].draw[odd[0]]) for side in (a, b))
            raise UserError(
                f"run {run}: {odd[0]} is {mine} in A and {theirs} in B; compare experiments that "
                "drew the same pieces of the same log"
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
