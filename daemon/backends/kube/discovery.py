"""Inventory of a Kubernetes cluster at the daemon's start: nodes, GPUs, and pools' nodes."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor

from msgspec import DecodeError, Struct, json
from msgspec.structs import replace

from daemon.backends.kube.client import Kube, KubeError, KubeExpiredError, KubeRefusedError
from daemon.backends.kube.config import KubeConfig
from daemon.backends.kube.schema import KubeNode
from daemon.journal.journal import Journal
from sia.console.errors import UserError
from sia.model import Nodes

MARK = "kube/found"
"""Key of the note with the last inventory, for a start while Kubernetes is unreachable."""

NODES = "/api/v1/nodes"


class KubeInventory(Struct, frozen=True, omit_defaults=True):
    """Nodes with GPUs, and the nodes of each pool if pools are limited to nodes."""

    gpus: Nodes
    areas: dict[str, tuple[str, ...]] = {}
    out: dict[str, str] = {}
    """Reason by node, for nodes on which no job starts."""
    away: tuple[str, str] = ("", "")
    """Reason and fix if Kubernetes was unreachable and this is the stored inventory."""


def find(config: KubeConfig, pools: Iterable[str], journal: Journal) -> KubeInventory:
    """Query Kubernetes, or use the stored inventory if it is unreachable. Blocks.

    With Kueue the inventory is empty, because Kueue places jobs. Raises UserError if there is
    no inventory or a pool has no node.
    """
    if config.kueue:
        return KubeInventory(())
    with ThreadPoolExecutor(1) as aside:  # the calling thread may already run an event loop
        try:
            nodes = aside.submit(asyncio.run, _ask(config)).result()
        except KubeError as error:
            known = journal.marks(MARK).get(MARK)
            why = UserError(f"backend: {error.why}; {error.mend}")
            if known is None:
                raise why from None
            try:
                return replace(json.decode(known, type=KubeInventory), away=(error.why, error.mend))
            except DecodeError:
                raise why from None
    found = found_in(nodes, config, list(pools))
    journal.mark({MARK: json.encode(found).decode()})
    return found


async def _ask(config: KubeConfig) -> list[KubeNode]:
    kube, found = Kube(config), list[KubeNode]()
    try:
        async for page in kube.pages(NODES, {}):
            found += [json.decode(raw, type=KubeNode) for raw in page.items]
    except (KubeExpiredError, KubeRefusedError) as error:
        raise KubeError(str(error)) from None
    except DecodeError as error:
        why = f"cannot parse the API server's nodes: {error}"
        raise KubeError(why, "report this with the version of Kubernetes") from None
    finally:
        await kube.close()
    return found


def found_in(nodes: Sequence[KubeNode], config: KubeConfig, pools: Sequence[str]) -> KubeInventory:
    """Return the nodes with GPUs by pool. Raises UserError if a pool has none."""
    gpus = {node.metadata.name: node.gpus(config.gpu) for node in nodes}
    there = [node for node in nodes if gpus[node.metadata.name]]
    if not there:
        raise UserError(
            f"backend.gpu: no node in Kubernetes has {config.gpu}; run kubectl describe nodes"
        )
    areas = {}
    for pool in pools:
        wanted = config.nodes.get(pool, {}).items()
        labels = {node.metadata.name: (node.metadata.labels or {}).items() for node in there}
        areas[pool] = tuple(name for name in labels if wanted <= labels[name])
        if not areas[pool]:
            asked = ", ".join(f"{key}={value}" for key, value in wanted)
            raise UserError(
                f"backend.nodes: no node with GPUs has the labels {asked} of pool {pool}; "
                f"run kubectl get nodes -l {asked.replace(', ', ',')}"
            )
    used = {node for area in areas.values() for node in area}
    against = {node.metadata.name: node.against(config.tolerations) for node in there}
    return KubeInventory(
        tuple((name, tuple(range(many))) for name, many in gpus.items() if name in used),
        areas if config.nodes else {},
        {name: why for name, why in against.items() if why and name in used},
    )
