"""Which jobs run where at one second of a replay, from its `jobs.csv` and `segments.csv`."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from math import inf
from pathlib import Path
from typing import NamedTuple

from replay.cluster.gpu_names import CellGpus
from replay.logs.read import BadCellError, columns_of, number, open_table, shown, take_rows

SEGMENTS = "segments.csv"

TIMES = ("job_id", "start", "end", "nodes")


class Running(NamedTuple):
    """A job that holds these GPUs from `start` to `end` (seconds); `nodes` is the cell's text."""

    job_id: str
    pool: str
    spare: bool
    start: float
    end: float
    nodes: str
    places: Sequence[int]


class ClusterAt(NamedTuple):
    """The jobs that run at a second, by the numbers of their GPUs, and the span of the replay."""

    at: float
    running: list[Running]
    begin: float
    end: float


class _Stay(NamedTuple):
    start: float
    end: float
    nodes: str
    places: Sequence[int]


class _Reader:
    """Reads rows with times and nodes: keeps those of one second, and the span of all rows."""

    def __init__(self, gpus: CellGpus, at: float) -> None:
        self.begin, self.end = inf, -inf
        self._gpus, self._at = gpus, at
        self._taken: dict[int, str] = {}

    def stay(self, cells: Sequence[str], columns: Mapping[str, int]) -> _Stay | None:
        """Return where the job of a row runs, None if not at that second. Raises BadCellError."""
        start, end = (number(cells, key, columns[key], zero=True) for key in ("start", "end"))
        self.begin, self.end = min(self.begin, start), max(self.end, end)
        if not start <= self._at < end:
            return None
        text = cells[columns["nodes"]]
        try:
            places = sorted(self._gpus.places(text))
        except ValueError as error:
            mend = "give the cells file of this replay"
            raise BadCellError("nodes", str(error), mend, "") from None
        if not places:
            raise BadCellError("nodes", "it names no GPUs", "replay with --cells", "")
        job_id = cells[columns["job_id"]]
        for place in places:
            if place in self._taken:
                both = f"{shown(self._taken[place])} and {shown(job_id)} have one GPU of it"
                raise BadCellError("nodes", both, "write the results again", "")
            self._taken[place] = job_id
        return _Stay(start, end, text, places)


def running_at(path: Path, at: float, gpus: CellGpus) -> ClusterAt:
    """Return the jobs that run at a second of the replay whose `jobs.csv` is at `path`.

    A job with rows in the `segments.csv` of the same folder is located by these rows alone.
    O(rows). Raises UserError with file, row and column.
    """
    reader = _Reader(gpus, at)
    segments = path.with_name(SEGMENTS)
    stopped = _segments_at(segments, reader) if segments.is_file() else {}
    running: list[Running] = []
    with open_table(path) as table:
        columns = columns_of(path, table.header, (*TIMES, "pool", "stream"))

        def take(cells: Sequence[str]) -> None:
            job_id, pool, stream = (cells[columns[key]] for key in ("job_id", "pool", "stream"))
            stay = stopped[job_id] if job_id in stopped else reader.stay(cells, columns)
            if stream not in ("dedicated", "spare"):
                wrong = f"it is {shown(stream)}"
                raise BadCellError("stream", wrong, "write dedicated or spare", "")
            if stay is not None:
                running.append(Running(job_id, pool, stream == "spare", *stay))

        take_rows(path, table, take)
    running.sort(key=lambda job: job.places[0])
    return ClusterAt(at, running, reader.begin, reader.end)


def _segments_at(path: Path, reader: _Reader) -> dict[str, _Stay | None]:
    """Return the location at that second of each job in a `segments.csv`, or None."""
    found: dict[str, _Stay | None] = {}
    with open_table(path) as table:
        columns = columns_of(path, table.header, TIMES)

        def take(cells: Sequence[str]) -> None:
            job_id = cells[columns["job_id"]]
            found[job_id] = reader.stay(cells, columns) or found.get(job_id)

        take_rows(path, table, take)
    return found
