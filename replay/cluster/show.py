"""The output of `sia cells show`: a cluster's cells, their owners, and where jobs run."""

from __future__ import annotations

import shutil
from collections import Counter
from collections.abc import Mapping
from pathlib import Path

import click

from cells.layout.spec import CellsError, Spec, only_chain
from replay.cluster.at_time import ClusterAt, running_at
from replay.cluster.cells_file import read_cells, read_spec
from replay.cluster.gpu_names import CellGpus, Chain
from replay.cluster.text_map import MARKS, ChainPicture, described, legend
from replay.cluster.view import ClusterView, data, nobody, types
from replay.logs.limits import ROWS_SHOWN
from sia.console.as_json import print_json
from sia.console.errors import UserError
from sia.console.tables import show_table
from sia.wording import NONE, as_typed, counted, duration, some


def show(path: Path, jobs: Path | None, at: float | None, *, as_json: bool) -> None:
    """Print the cells of a file, and the jobs at a second of a replay. Raises UserError."""
    if (jobs is None) != (at is None):
        raise UserError("--jobs and --at belong together; give both or none")
    spec = read_spec(path)
    if not spec.tops:
        _show_types(path, spec, jobs, as_json=as_json)
        return
    read_cells(path)  # refuses what cannot be
    gpus = CellGpus(spec)
    second = running_at(jobs, at, gpus) if jobs is not None and at is not None else None
    view = ClusterView(spec, gpus, second)
    if as_json:
        _echo_json(data(view))
        return
    for chain in gpus.chains:
        _show_chain(view, chain)
    click.echo(f"\n{legend()}")
    if not spec.quotas:
        click.echo("\nnote: no quota; a replay makes it from the pools file")
    _show_pools(view)
    for words in view.shortages:
        click.echo(f"\nnote: {words}")
    if second is not None:
        _show_jobs(second)


def _echo_json(value: object) -> None:
    print_json(value)


def _show_types(path: Path, spec: Spec, jobs: Path | None, *, as_json: bool) -> None:
    """Describe a file without nodes: a replay generates as many cells as its pools need."""
    if jobs is not None:
        raise UserError(f"{path}: has types only; name its cells with their nodes for --jobs")
    try:
        shape = only_chain(spec.types)
    except CellsError as error:
        raise UserError(f"{path}: {error}") from error
    if as_json:
        _echo_json({"chains": {shape.names[-1]: types(shape)}, "nodes": [], "pools": {}})
        return
    sizes = f"{counted(shape.size[-1], 'GPU')}, {shape.size[shape.node]:,} a node"
    click.echo(f"{described(shape)}: {sizes}")
    click.echo("note: types only, no cells and no quota")


def _show_chain(view: ClusterView, chain: Chain) -> None:
    shape = chain.shape
    rows = view.rows(chain)
    tops = len(chain.gpus) // shape.size[shape.top]
    bad = sum(node.bad for node in chain.nodes)
    of_each = Counter(view.marks[chain.gpus.start : chain.gpus.stop])
    gpus = ", ".join(f"{of_each[mark]:,} {words}" for mark, words in MARKS.items() if of_each[mark])
    click.echo(f"\n{tops:,} {described(shape)}")
    click.echo(
        f"{counted(len(chain.nodes), 'node')}{f', {bad:,} of them bad' if bad else ''}; "
        f"{counted(len(chain.gpus), 'GPU')}: {gpus}\n"
    )
    width = shutil.get_terminal_size().columns
    for line in ChainPicture(shape, chain.nodes, rows, width).lines():
        click.echo(line)


def _show_pools(view: ClusterView) -> None:
    holdings = view.holdings()
    if not holdings:
        return
    shown = sorted(holdings, key=lambda name: (-holdings[name].owned, name))[:ROWS_SHOWN]
    rows = [
        [
            name,
            _quota_words(pool.quota, several=len(view.gpus.chains) > 1),
            some(pool.pinned) or NONE,
            *(f"{gpus:,}" for gpus in (pool.owned, pool.dedicated, pool.spare)),
        ]
        for name, pool in holdings.items()
        if name in shown
    ]
    cut = f" ({ROWS_SHOWN} of {len(holdings)})" if len(holdings) > ROWS_SHOWN else ""
    header = ["pool", "quota", "pinned", "GPUs", "dedicated", "spare"]
    show_table(f"Pools{cut}", header, rows, text=["quota", "pinned"])


def _quota_words(quota: Mapping[str, Mapping[str, int]], *, several: bool) -> str:
    """Return text like `2 node, 1 quad`; with the chain if there are several."""
    return (
        ", ".join(
            f"{count:,} {kind}{f' of {chain}' if several else ''}"
            for chain, kinds in quota.items()
            for kind, count in kinds.items()
        )
        or NONE
    )


def _show_jobs(second: ClusterAt) -> None:
    if not second.running:
        click.echo(f"\nnote: {nobody(second)}")
        return
    widest = sorted(second.running, key=lambda job: -len(job.places))[:ROWS_SHOWN]
    rows = [
        [
            job.job_id,
            job.pool,
            "spare" if job.spare else "dedicated",
            f"{len(job.places):,}",
            duration(second.at - job.start),
            duration(job.end - second.at),
            some(job.nodes.split(";")),
        ]
        for job in widest
    ]
    every = len(second.running)
    cut = f" (the widest {ROWS_SHOWN} of {every:,})" if every > ROWS_SHOWN else ""
    header = ["job", "pool", "stream", "GPUs", "for", "ends in", "where"]
    title = f"Running at {as_typed(second.at)}{cut}"
    show_table(title, header, rows, text=["pool", "stream", "where"])
