"""Run the example of the paper's Fig. 1 with the real code, as a figure and a table.

`python docs/drawn.py` writes docs/figures/anticipation.svg and prints the table of
docs/understand/algorithm.md.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import NamedTuple

from replay.logs.trace import PoolTable, Trace
from replay.plotting.canvas import PALETTE, STYLE, SVG_METADATA
from replay.run.run import Settings, replay_all
from replay.run.schedule import Schedule
from sia.core.playout import Arrival
from sia.model import Job, Options, Pool

PICTURE = Path(__file__).parent / "figures" / "anticipation.svg"

HOUR = 3600.0

POOLS = (Pool("green", 2), Pool("orange", 2))

POLICIES = {"fcfs": "each pool alone", "mmfs": "max-min fairness", "sia": "SIA"}

WINDOWS = (1 * HOUR, 3 * HOUR, 12 * HOUR)

STORY = (
    ("J0", "green", 0, 2, 5),
    ("J1", "orange", 0, 1, 3),
    ("J2", "green", 1, 1, 9),
    ("J3", "green", 1.25, 1, 0.75),
    ("J4", "green", 1.5, 1, 0.75),
    ("J5", "green", 2, 1, 4),
    ("J6", "orange", 4, 2, 3),
    ("J7", "orange", 6, 1, 2),
)
"""Jobs: name, pool, hour of submission, GPUs, hours."""

NAMES = [job[0] for job in STORY]


class Bar(NamedTuple):
    """A job on one GPU from one hour to another."""

    job: str
    pool: str
    row: int
    start: float
    end: float


def played() -> dict[str, Schedule]:
    """Return the schedule of the example under each policy, with a known future."""
    arrivals = [
        Arrival(Job(id=name, pool=pool, submit=submit * HOUR, width=gpus), hours * HOUR)
        for name, pool, submit, gpus, hours in STORY
    ]
    settings = Settings(policies=(*POLICIES,), options=Options(windows=WINDOWS))
    results = replay_all(Trace(arrivals), PoolTable([*POOLS]), settings)
    return {result.schedule.policy: result.schedule for result in results}


def bars(schedule: Schedule) -> list[Bar]:
    """Return a bar for each job and GPU: rows 0 and 1 are green's GPUs, 2 and 3 orange's.

    A loan that moves to another lender continues in a row of that lender.
    """
    stays = [
        (loan.start, loan.end, loan.donor, STORY[NAMES.index(loan.job_id)])
        for loan in schedule.loans
    ]
    for i, job in enumerate(STORY):
        start, end = schedule.starts[i], schedule.ends[i]
        if not schedule.spare[i] and start is not None and end is not None:
            stays.append((start, end, job[1], job))
    free, found = [0.0] * 4, []
    for start, end, owner, (job, pool, _, gpus, _) in sorted(stays):
        first = 0 if owner == "green" else 2
        fit = [row for row in (first, first + 1) if free[row] <= start][:gpus]
        assert len(fit) == gpus, f"{job} has no GPUs of {owner}"
        for row in fit:
            free[row] = end
            found.append(Bar(job, pool, row, start / HOUR, end / HOUR))
    return found


def table(schedules: Mapping[str, Schedule]) -> Iterator[str]:
    """Return the hours at which jobs end as a Markdown table, compared with each pool alone."""
    yield "| hour at which it ends | " + " | ".join(NAMES) + " |"
    yield "|---|" + "---|" * len(NAMES)
    alone = schedules["fcfs"].ends
    for policy, name in POLICIES.items():
        ends = schedules[policy].ends
        cells = (_cell(end, usual) for end, usual in zip(ends, alone, strict=True))
        yield f"| {name} | " + " | ".join(cells) + " |"


def _cell(end: float | None, usual: float | None) -> str:
    assert end is not None
    assert usual is not None
    mark = " ✓" if end < usual else " **✗**" if end > usual else ""
    return f"{end / HOUR:g}{mark}"


def draw(schedules: Mapping[str, Schedule], to: Path) -> None:
    """Draw the figure, with one chart for each policy."""
    import matplotlib as mpl  # noqa: PLC0415  a slow import
    from matplotlib.figure import Figure  # noqa: PLC0415  the same

    colours = {"green": PALETTE[2], "orange": "#f0a92b"}
    with mpl.rc_context({**STYLE, "svg.hashsalt": "sia"}):
        figure = Figure(figsize=(9, 5.4), layout="constrained")
        for axes, (policy, name) in zip(
            figure.subplots(3, 1, sharex=True), POLICIES.items(), strict=True
        ):
            for bar in bars(schedules[policy]):
                edge = "#1d2d44" if (bar.row >= 2) != (bar.pool == "orange") else "white"
                axes.barh(
                    bar.row, bar.end - bar.start, left=bar.start, height=0.86,
                    color=colours[bar.pool], edgecolor=edge, linewidth=1.4,
                )  # fmt: skip
                axes.text((bar.start + bar.end) / 2, bar.row, bar.job, ha="center", va="center")
            for submitted in STORY:
                axes.axvline(submitted[2], color="#9aa3ab", linewidth=0.5, zorder=0)
            axes.set_title(name, loc="left", fontsize=9)
            axes.set_yticks(range(4), ["green 1", "green 2", "orange 1", "orange 2"])
            axes.set_ylim(3.6, -0.6)
            axes.grid(visible=False)
        axes.set_xlabel("hours; dark frames: on a GPU of the other pool; grey lines: submissions")
        figure.savefig(to, format="svg", metadata=SVG_METADATA)


def lines(parts: Iterable[str]) -> str:
    """Join the lines of a page."""
    return "\n".join(parts)


if __name__ == "__main__":
    outcome = played()
    draw(outcome, PICTURE)
    print(lines(table(outcome)))  # noqa: T201  it is a script
