"""A cluster of cells at one time: the state of each GPU, and what each pool owns and uses."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from functools import cached_property
from typing import Any, NamedTuple

from cells.layout.shape import Shape
from cells.layout.spec import Spec
from replay.cluster.at_time import ClusterAt, Running
from replay.cluster.gpu_names import CellGpus, Chain
from replay.cluster.shortages import shortages
from replay.cluster.text_map import BAD, DEDICATED, FREE, MARKS, PINNED, SPARE
from sia.wording import as_typed


class Holding(NamedTuple):
    """The cells that a pool owns, by chain and type, and the GPUs that it uses now."""

    quota: Mapping[str, Mapping[str, int]]
    pinned: Sequence[str]
    owned: int
    dedicated: int
    spare: int


class ClusterView:
    """The cells of a file, and the jobs in them.

    Attributes:
        marks: A character of `text_map.MARKS` for each GPU, by number.
    """

    def __init__(self, spec: Spec, gpus: CellGpus, second: ClusterAt | None = None) -> None:
        """Mark each GPU. O(GPUs). The file must be valid."""
        self.spec, self.gpus, self.second = spec, gpus, second
        marks = [FREE] * gpus.count
        for pinned in spec.pinned:
            for place in gpus.pinned(pinned):
                marks[place] = PINNED
        for chain in gpus.chains:
            for i, node in enumerate(chain.nodes):
                if node.bad:
                    marks[slice_of(chain, i)] = BAD * len(chain.gpus_of(i))
        for job in self.running:
            for place in job.places:
                marks[place] = SPARE if job.spare else DEDICATED
        self.marks = "".join(marks)

    @cached_property
    def shortages(self) -> list[str]:
        """Return a line for each type of cells that pools lack because nodes are bad."""
        return shortages(self.spec)

    @property
    def running(self) -> Sequence[Running]:
        """Return the running jobs; empty if no second was given."""
        return self.second.running if self.second else ()

    def rows(self, chain: Chain) -> list[str]:
        """Return the marks of each node."""
        return [self.marks[slice_of(chain, i)] for i in range(len(chain.nodes))]

    def holdings(self) -> dict[str, Holding]:
        """Return what each pool owns and uses, in file order; pools without cells come last."""
        shapes = {chain.name: chain.shape for chain in self.gpus.chains}
        quotas: dict[str, dict[str, dict[str, int]]] = {}
        pinned: dict[str, list[str]] = {}
        owned: Counter[str] = Counter()
        for pool, chain, kind, count in _quotas(self.spec):
            quotas.setdefault(pool, {}).setdefault(chain, {})[kind] = count
            owned[pool] += count * _size(shapes[chain], kind)
        for pin in self.spec.pinned:
            pinned.setdefault(pin.pool, []).append(pin.name)
            owned[pin.pool] += len(self.gpus.pinned(pin))
        used: Counter[tuple[str, bool]] = Counter()
        for job in self.running:
            used[job.pool, job.spare] += len(job.places)
        names = dict.fromkeys([*quotas, *pinned, *(pool for pool, _ in used)])
        return {
            name: Holding(
                quotas.get(name, {}),
                pinned.get(name, []),
                owned[name],
                used[name, False],
                used[name, True],
            )
            for name in names
        }


def slice_of(chain: Chain, node: int) -> slice:
    """Return the numbers of the GPUs of a node."""
    places = chain.gpus_of(node)
    return slice(places.start, places.stop)


def _quotas(spec: Spec) -> list[tuple[str, str, str, int]]:
    return [(quota.pool, quota.chain, quota.type, quota.count) for quota in spec.quotas]


def _size(shape: Shape, kind: str) -> int:
    return shape.size[shape.names.index(kind)]


def nobody(second: ClusterAt) -> str:
    """Describe that no job runs at that second, and when jobs do run."""
    if second.begin > second.end:
        return f"no job runs at {as_typed(second.at)}; there are none"
    span = f"{second.begin:,.0f} s to {second.end:,.0f} s"
    return f"no job runs at {as_typed(second.at)}; jobs run from {span}"


def data(view: ClusterView) -> dict[str, Any]:
    """Return everything that is shown as plain values, for `--json`."""
    answer: dict[str, Any] = {
        "chains": {chain.name: types(chain.shape) for chain in view.gpus.chains},
        "nodes": [
            {
                "name": node.name,
                "chain": chain.name,
                "in": _around(chain.shape, i),
                "bad": node.bad,
                "gpus": {
                    str(gpu): MARKS[mark]
                    for gpu, mark in zip(view.gpus.numbers(node.name), marks, strict=True)
                },
            }
            for chain in view.gpus.chains
            for i, (node, marks) in enumerate(zip(chain.nodes, view.rows(chain), strict=True))
        ],
        "pools": {name: holding._asdict() for name, holding in view.holdings().items()},
    }
    notes = [*view.shortages]
    if view.second is not None:
        answer["at"] = view.second.at
        answer["jobs"] = [
            {
                "job_id": job.job_id,
                "pool": job.pool,
                "stream": "spare" if job.spare else "dedicated",
                "start": job.start,
                "end": job.end,
                "gpus": len(job.places),
                "nodes": job.nodes,
            }
            for job in view.running
        ]
        notes += [] if view.running else [nobody(view.second)]
    return answer | {"notes": notes}


def types(shape: Shape) -> list[dict[str, Any]]:
    """Return the levels of a chain, the largest first."""
    return [
        {
            "type": shape.names[level],
            "children": shape.fan[level] if level else 0,
            "gpus": shape.size[level],
            "node": level == shape.node,
        }
        for level in reversed(shape.levels)
    ]


def _around(shape: Shape, node: int) -> dict[str, int]:
    """Return the numbers of the cells that contain a node, the largest first."""
    return {
        shape.names[level]: node * shape.size[shape.node] // shape.size[level]
        for level in range(shape.top, shape.node, -1)
    }
