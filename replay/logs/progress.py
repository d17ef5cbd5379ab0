"""What jobs report while they run: column `progress` of a job log, as `0.25:1.0;0.5:1.7:3:1-6`.

Each point is the share of its work that the job has done, its speed from then on, and optionally
its regime and the range of GPUs that its trials can use. The points are shares of the work and not
times, because it depends on the policy when a job reaches them.
"""

from __future__ import annotations

from replay.logs.trace import PROGRESS, Trace
from sia.console.errors import UserError
from sia.core.playout import ProgressPoint
from sia.limits import MAX_QUOTA, MAX_REGIME, MAX_SPEED, MIN_SPEED

FORM = (
    "write done:speed, done:speed:regime or done:speed:regime:gpus, separated by semicolons, like "
    "0.25:1;0.5:1.7:3;0.7:1::1-6"
)


def parse_progress(text: str) -> tuple[ProgressPoint, ...]:
    """Parse a cell. Raises ValueError with the problem and, after a semicolon, the fix."""
    points = tuple(_point(part.strip()) for part in text.split(";")) if text.strip() else ()
    last = None
    for point in points:
        last = following(point, last)
    return points


def following(point: ProgressPoint, last: ProgressPoint | None) -> ProgressPoint:
    """Return the point that follows `last`; it stays in the last regime if it does not name one.

    Raises ValueError, as `parse_progress` does, if it goes back. A daemon refuses that, too.
    """
    if last is None:
        return point
    if point.done <= last.done:
        raise ValueError(
            f"{point.done:g} follows {last.done:g}; write the reports of a job in ascending order"
        )
    if point.regime is None:
        return point._replace(regime=last.regime)
    if last.regime is not None and point.regime < last.regime:
        raise ValueError(
            f"regime {point.regime} follows regime {last.regime}; number the regimes of a job in "
            "the order in which it is in them"
        )
    return point


def _point(text: str) -> ProgressPoint:
    done, colon, rest = text.partition(":")
    speed, _, more = rest.partition(":")
    regime, _, gpus = more.partition(":")
    try:
        if "_" in text or not colon or more.endswith(":") or (rest.endswith(":")):
            raise ValueError
        point = ProgressPoint(
            float(done), float(speed), int(regime) if regime else None, _widths(gpus)
        )
    except ValueError:
        raise ValueError(f"{text[:40]!a} is not a report of progress; {FORM}") from None
    if not 0 <= point.done < 1:
        raise ValueError(f"{done} is not a share of the work; write a number from 0 to below 1")
    if not MIN_SPEED <= point.speed <= MAX_SPEED:
        raise ValueError(
            f"{speed} is not allowed as a speed; write a number from {MIN_SPEED:g} to {MAX_SPEED:g}"
        )
    if point.regime is not None and not 0 <= point.regime <= MAX_REGIME:
        raise ValueError(
            f"{regime} is not allowed as a regime; write a whole number from 0 to {MAX_REGIME}"
        )
    return point


def _widths(gpus: str) -> tuple[int, int] | None:
    """Parse `1-6`. Raises ValueError."""
    if not gpus:
        return None
    least, most = map(int, gpus.split("-"))
    if not 1 <= least <= most <= MAX_QUOTA:
        raise ValueError
    return least, most


def progress_of(trace: Trace, parts: int = 1) -> dict[str, tuple[ProgressPoint, ...]]:
    """Return the reports of each job that makes some, by job ID. O(jobs) if the log has the column.

    The reader of the log has already checked the cells. Their widths are in GPUs; the returned ones
    are in parts of a GPU, of which each has `parts`.
    """
    if PROGRESS not in trace.columns:
        return {}
    at = trace.columns.index(PROGRESS)
    cells = ((job.id, trace.extras[job.id][at]) for job, _ in trace.arrivals)
    return {
        job_id: _in_parts(parse_progress(cell), parts) for job_id, cell in cells if cell.strip()
    }


def _in_parts(points: tuple[ProgressPoint, ...], parts: int) -> tuple[ProgressPoint, ...]:
    widest = max((point.widths[1] for point in points if point.widths is not None), default=0)
    if widest * parts > MAX_QUOTA:
        raise UserError(
            f"--parts {parts}: trials on {widest:,} GPUs would be more than {MAX_QUOTA:,} parts; "
            "use fewer"
        )
    return tuple(
        point if point.widths is None or parts == 1
        else point._replace(widths=(point.widths[0] * parts, point.widths[1] * parts))
        for point in points
    )  # fmt: skip
