"""The output of `sia forecast evaluate`: numbers for scripts, one page, and figures as files."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from itertools import groupby, pairwise
from operator import itemgetter
from pathlib import Path
from typing import Any, NamedTuple

from markupsafe import Markup

from predictors.learning.features import GROUPS
from replay.forecast.arrivals import BASE, ArrivalScores, ScoreRow
from replay.forecast.arrivals_figures import draw_ageing, draw_recall, draw_reliability
from replay.forecast.evaluate import Evaluation
from replay.forecast.refinements import Refinement
from replay.forecast.run_times import PairScores, RunTimeScores
from replay.forecast.run_times_figures import draw_chosen, draw_errors, draw_outside
from replay.forecast.run_times_figures import draw_reliability as draw_run_time_reliability
from replay.plotting.canvas import RenderedFigure
from replay.plotting.numbers import inlined
from replay.report.report import page
from replay.run.output import write_json
from sia.wording import NONE, as_typed, decimal, duration

SETS = {BASE: "as before", **{name: f"+ {name}" for name in GROUPS}, "periodic": "periodic only"}
"""Sets of features in the words of Tables 20 and 23; each set includes those above it."""

PICTURES = (
    *("arrivals-recall", "arrivals-reliability", "arrivals-ageing"),
    *("run-times-errors", "run-times-outside", "run-times-chosen", "run-times-reliability"),
)
"""All possible figures: those of an earlier report that are no longer drawn are removed."""

PRF = ("precision", "recall", "f")


class Grid(NamedTuple):
    """A table: `groups` of columns (title, columns), and `parts` of rows (heading, rows)."""

    header: Sequence[str]
    parts: Sequence[tuple[str, Sequence[Sequence[str]]]]
    groups: Sequence[tuple[str, int]] = ()

    @property
    def begins(self) -> list[int]:
        """Return the columns at which a group begins, without the first column."""
        return [sum(span for _, span in self.groups[:i]) for i in range(len(self.groups))]


class PageSection(NamedTuple):
    """A section of the page, and how to read it."""

    title: str
    reading: str
    grid: Grid | None = None
    drawn: RenderedFigure | None = None

    @property
    def picture(self) -> Markup | None:
        """A figure as HTML of the page."""
        return None if self.drawn is None else inlined(self.drawn.inline)


def write_results(folder: Path, figures: Path, found: Evaluation) -> None:
    """Write arrivals.json, run_times.json and report.html, and figures into `figures`.

    Forecasts that were not requested have no file. Equal input gives equal bytes.
    """
    if found.arrivals is not None:
        write_json(folder / "arrivals.json", found.arrival_rows())
    if found.run_times:
        write_json(folder / "run_times.json", found.run_time_rows())
    parts = sections(found)
    for drawn in (part.drawn for part in parts):
        if drawn is not None:
            (figures / f"{drawn.name}.svg").write_bytes(drawn.svg)
    html = page(
        "forecast.html",
        name=found.split.name,
        facts=_facts(found),
        notes=found.notes,
        sections=parts,
    )
    (folder / "report.html").write_text(html, "utf-8", errors="replace", newline="\n")


def _facts(found: Evaluation) -> list[tuple[str, str]]:
    """Describe how the log was split."""
    trace, since = found.split.trace, found.split.since
    submits = [arrival.job.submit for arrival in trace.arrivals]
    later = sum(submit >= since for submit in submits)
    return [
        ("Jobs", f"{len(submits):,}, of which {later:,} after the cut"),
        ("Before the cut", duration(max(0.0, since - submits[0]))),
        ("After it", duration(submits[-1] - max(since, submits[0]))),
        ("Windows", ", ".join(map(as_typed, found.split.windows))),
    ]


def sections(found: Evaluation) -> list[PageSection]:
    """Return the sections that the log allows."""
    return [
        *(_of_arrivals(found.arrivals, found.ages, found.loads) if found.arrivals else []),
        *(_of_run_times(found) if found.run_times else []),
    ]


def _of_arrivals(
    scores: ArrivalScores, ages: Sequence[ScoreRow], loads: Sequence[ScoreRow]
) -> list[PageSection]:
    parts = [
        PageSection(
            "Will jobs arrive? By features used",
            "P, precision: the share of windows with predicted arrivals in which jobs arrived. R, "
            "recall: the share of windows with arrivals for which they were predicted. F: the "
            "harmonic mean of both. “As before” predicts the arrivals of the last window. Each "
            "further row adds features to those above it; the last row has all features, as the "
            "model. Counts are summed over pools and over ticks of five minutes (Tables 20 and "
            "23).",
            arrivals_grid(scores),
        ),
        PageSection(
            "Recall, by hour and by pool",
            "A curve's height at x is the share of hours (left), or pools (right), in which at "
            "most x of the windows with arrivals were predicted. Jumps at 0 and at 1 show hours in "
            "which none or all of them were predicted (Figs. 21 and 22).",
            drawn=draw_recall(scores),
        ),
        PageSection(
            "How accurate are the stated quantiles of load?",
            "On the diagonal, the share of covered windows equals the stated quantile. Below it, "
            "forecasts are too high, so less is lent; above it, they are too low. If many windows "
            "have no arrivals, even a low quantile covers all of those.",
            reliability_grid(scores.reliability),
            draw_reliability(scores.reliability),
        ),
        PageSection(
            "How often are peaks and sliding maxima enough?",
            "Neither needs training. The forecast peaks states a quantile of the largest number of "
            "GPUs that new jobs held at once; the sliding maximum, the largest load that arrived "
            "in one of the last N windows. The percentages are of windows for which the forecast "
            "was high enough: for this peak, and for the sum of all arrivals. The mean number of "
            "GPUs counts at most the pool's quota, if it is known.",
            loads_grid(loads),
        ),
    ]
    if ages:
        parts.append(
            PageSection(
                "How the model ages",
                "The scores of the model in each week after its training data.",
                drawn=draw_ageing(ages),
            )
        )
    return parts


def arrivals_grid(scores: ArrivalScores) -> Grid:
    """Return rows by window and set of features, columns by group of pools of similar duration."""
    bounds = [*dict.fromkeys((row["over_min"], row["up_to_min"]) for row in scores.groups)]
    pools = {(row["over_min"], row["up_to_min"]): row["pools"] for row in scores.groups}
    cells = {_key(row): row for row in scores.table}
    cells |= {(*_key(row), row["over_min"]): row for row in scores.groups}
    groups = [("all pools", 3), *((f"{_between(*b)} ({pools[b]})", 3) for b in bounds)]
    parts = []
    for window, rows in groupby(scores.table, itemgetter("window_s")):
        lines = []
        for row in rows:
            own = [row, *(cells.get((*_key(row), least)) for least, _ in bounds)]
            numbers = [_number(of, key) for of in own for key in PRF]
            lines.append([SETS[row["feature_set"]], *numbers])
        parts.append((f"within {as_typed(window)}", lines))
    return Grid(["foretold from", *"PRF" * len(groups)], parts, groups)


def _key(row: ScoreRow) -> tuple[Any, ...]:
    return row["window_s"], row["feature_set"]


def _number(row: ScoreRow | None, key: str) -> str:
    return NONE if row is None or not row["positives"] else decimal(row[key])


def _between(least: float, most: float | None) -> str:
    """Describe a group of pools by the mean duration of their jobs, in minutes."""
    if most is None:
        return f"jobs run over {least:g} min"
    return f"{least:g} to {most:g} min" if least else f"up to {most:g} min"


def reliability_grid(rows: Sequence[ScoreRow]) -> Grid:
    """Return rows by stated quantile of load: its coverage, and the mean statement."""
    keys = ("covered", "covered_as_learned")
    parts = [
        (
            f"within {as_typed(window)}: no arrivals in {_percent(own[0]['nothing_came'])} %",
            [
                [
                    _percent(row["stated"]),
                    *(_percent(row[key]) for key in keys),
                    decimal(row["mean_gpus"], 1),
                ]
                for row in own
            ],
        )
        for window, group in groupby(rows, itemgetter("window_s"))
        for own in [list(group)]
    ]
    return Grid(["% stated", "% covered", "% as learned", "GPUs on average"], parts)


def loads_grid(rows: Sequence[ScoreRow]) -> Grid:
    """Return rows by window, forecast and its setting."""
    parts = [
        (
            f"within {as_typed(window)}",
            [
                [
                    f"{row['forecast']} {row['setting']:g}",
                    *(_percent(row[key]) for key in ("covered_peak", "covered_sum")),
                    decimal(row["mean_gpus"], 1),
                ]
                for row in own
            ],
        )
        for window, own in groupby(rows, itemgetter("window_s"))
    ]
    return Grid(["forecast", "% of peaks", "% of all", "GPUs on average"], parts)


def _percent(share: float) -> str:
    return decimal(100 * share, 1)


def _of_run_times(found: Evaluation) -> list[PageSection]:
    scores = found.run_times
    reliable = {name: of for name, of in scores.items() if of.reliability}
    return [
        PageSection(
            "How long will jobs run?",
            "Jobs are estimated at their submission, from jobs that have ended by then. “Known”: "
            "there is an estimate. Within 2: the estimate is between half and twice the true run "
            "time; within 10 likewise. Shares are of all measured jobs; jobs without an estimate "
            "are in neither. The predictor history is too high on purpose: it states a high "
            "quantile. The predictor survival states only the window in which a job ends, if any. "
            "The curves show jobs by the error of their estimate; the last point has all errors of "
            "100 % and more (JamaisVu, Fig. 11).",
            run_times_grid(scores),
            draw_errors(scores),
        ),
        *(_of_pairs(found.pairs) if found.pairs else []),
        *(_of_refinements(found.refinements) if found.refinements else []),
        PageSection(
            "How accurate are the stated quantiles of run time?",
            "The percentage of measured jobs that ran no longer than the stated quantile. On the "
            "diagonal, it equals the quantile.",
            quantiles_grid(reliable),
            draw_run_time_reliability(reliable),
        ),
        *_of_outlasting(scores),
        PageSection(
            "Which window does a job fit? Predicted and true",
            "Rows are the true bins of run time, columns the predicted ones, and numbers are in "
            "percent of the row's jobs. Right of the diagonal, a chance to borrow was missed; left "
            "of it, a lender may have been slowed.",
            confusion_grid(scores, found.split.windows),
        ),
    ]


def _of_outlasting(scores: Mapping[str, RunTimeScores]) -> list[PageSection]:
    """Return the section on new estimates for jobs that have outlasted theirs."""
    parts = [
        (
            name,
            [
                [
                    decimal(of.times, 0),
                    f"{of.n:,}",
                    *map(_percent, (of.within_2x, of.by_p50, of.by_p90)),
                ]
                for of in each.outlasting
            ],
        )
        for name, each in scores.items()
        if each.outlasting
    ]
    if not parts:
        return []
    return [
        PageSection(
            "How long will a job run that has outlasted its estimate?",
            "Measured jobs that ran longer than once or twice their estimate, and the new estimate "
            "at that time. Within 2: the new estimate is between half and twice the true run time. "
            "By p50 and p90: jobs that ran no longer than the new median and the new 90th "
            "percentile.",
            Grid(["times estimated", "jobs", "% within 2", "% by p50", "% by p90"], parts),
        )
    ]


def _of_pairs(pairs: PairScores) -> list[PageSection]:
    """Return the section on JamaisVu's method: use the pair with the lowest error so far."""
    return [
        PageSection(
            "JamaisVu's pairs of feature and estimator, each alone",
            "Jobs whose estimate is wrong by more than a factor of two or of ten, if all estimates "
            "are from this pair or (chosen) from the pair with the lowest normalised RMSE so far "
            "(JamaisVu, Fig. 12). The table shows for each feature the same share for the mean of "
            "the last 20 run times, and the jobs with a value that no ended job had (Table 1).",
            features_grid(pairs),
            draw_outside(pairs),
        ),
        PageSection(
            "How often each pair is chosen",
            "Of the measured jobs (JamaisVu, Fig. 13).",
            drawn=draw_chosen(pairs),
        ),
    ]


def _of_refinements(found: Sequence[Refinement]) -> list[PageSection]:
    """Return the section on Kruskal-Wallis tests of secondary features."""
    rows = [
        [of.primary, of.secondary, f"{of.values:,}", f"{of.median_p:.3g}", _percent(of.significant)]
        for of in found
    ]
    return [
        PageSection(
            "Do secondary features distinguish run times?",
            "The jobs of each user (name, logical name) with more than 20 jobs are divided by a "
            "secondary feature. The p-value of a Kruskal-Wallis test is the probability that run "
            "times differ as much by chance: below 0.05, the division is significant (JamaisVu, "
            "§3.2).",
            Grid(["jobs of a", "divided by", "tested", "median p", "% below 0.05"], [("", rows)]),
        )
    ]


def features_grid(pairs: PairScores) -> Grid:
    """Return a row per feature, like JamaisVu's Table 1."""
    rows = [
        [row["feature"], _percent(row["outside_2x"]), _percent(row["unseen"])]
        for row in pairs.table()
    ]
    return Grid(["feature", "% off by more than 2", "% not seen before"], [("", rows)])


def run_times_grid(scores: Mapping[str, RunTimeScores]) -> Grid:
    """Return a row per predictor."""
    rows = [
        [name, f"{of.n:,}", *map(_percent, (of.coverage, of.within_2x, of.within_10x))]
        for name, of in scores.items()
    ]
    return Grid(["foretold by", "jobs", "% known", "% within 2", "% within 10"], [("", rows)])


def quantiles_grid(scores: Mapping[str, RunTimeScores]) -> Grid:
    """Return a row per predictor, with a column per stated quantile."""
    levels = [*next(iter(scores.values())).reliability]
    rows = [[name, *map(_percent, of.reliability.values())] for name, of in scores.items()]
    return Grid(["% stated", *(f"{100 * level:g}" for level in levels)], [("", rows)])


def confusion_grid(scores: Mapping[str, RunTimeScores], windows: Sequence[float]) -> Grid:
    """Return the share of each estimated bin (columns) among jobs of each bin (rows)."""
    bins = [*_bins(windows)]
    parts = [
        (
            f"{name}: {_percent(_too_short(of.confusion) / of.n)} % predicted too short",
            [
                [label, f"{sum(row):,}", *(_percent(n / max(1, sum(row))) for n in row)]
                for label, row in zip(bins, of.confusion, strict=True)
            ],
        )
        for name, of in scores.items()
    ]
    groups = [("", 1), ("foretold", len(bins))]
    return Grid(["true", "jobs", *bins], parts, groups)


def _too_short(confusion: Sequence[Sequence[int]]) -> int:
    """Return the number of jobs that outlasted the window in which they were expected to end."""
    return sum(sum(row[:true]) for true, row in enumerate(confusion))


def _bins(windows: Sequence[float]) -> Iterable[str]:
    yield f"to {as_typed(windows[0])}"
    for least, most in pairwise(windows):
        yield f"{as_typed(least)} to {as_typed(most)}"
    yield f"over {as_typed(windows[-1])}"
