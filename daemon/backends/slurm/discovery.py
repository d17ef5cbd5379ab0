"""Inventory of a Slurm cluster at the daemon's start: nodes, GPUs and the pools' partitions."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from msgspec import DecodeError, Struct, json
from msgspec.structs import replace

from daemon.backends.slurm.cli import Commands
from daemon.backends.slurm.config import SlurmConfig
from daemon.backends.slurm.interface import Slurm, SlurmError
from daemon.backends.slurm.rest import Rest
from daemon.journal.journal import Journal
from sia.console.errors import UserError
from sia.model import Nodes

MARK = "slurm/found"
"""Key of the note with the last inventory, used for a start while Slurm is unreachable."""


class SlurmInventory(Struct, frozen=True, omit_defaults=True):
    """Nodes with GPUs in the pools' partitions, and the nodes of each pool."""

    gpus: Nodes
    areas: dict[str, tuple[str, ...]]
    away: tuple[str, str] = ("", "")
    """Reason and fix if Slurm was unreachable and this is the stored inventory."""


def door_of(config: SlurmConfig) -> Slurm:
    """Return the configured Slurm client."""
    commands = Commands(config.conf) if config.commands else None
    if config.rest:
        jwt_file = Path(config.jwt_file) if config.jwt_file else None
        return Rest(config.rest, jwt_file, config.user, commands)
    assert commands is not None, "the configuration names one of them"
    return commands


def find(config: SlurmConfig, pools: Iterable[str], journal: Journal) -> SlurmInventory:
    """Query Slurm, or use the stored inventory if Slurm is unreachable. Blocks.

    Raises UserError if there is no inventory or a pool has no partition.
    """
    with ThreadPoolExecutor(1) as aside:  # the calling thread may already run an event loop
        try:
            found = aside.submit(asyncio.run, _ask(config, list(pools))).result()
        except SlurmError as error:
            known = journal.marks(MARK).get(MARK)
            if known is None:
                raise UserError(f"backend: {error.why}; {error.mend}") from None
            try:
                return replace(
                    json.decode(known, type=SlurmInventory), away=(error.why, error.mend)
                )
            except DecodeError:
                raise UserError(f"backend: {error.why}; {error.mend}") from None
    journal.mark({MARK: json.encode(found).decode()})
    return found


async def _ask(config: SlurmConfig, pools: list[str]) -> SlurmInventory:
    door = door_of(config)
    try:
        nodes, partitions = await door.nodes(), await door.partitions()
    finally:
        await door.close()
    gpus = {node.name: node.gpus for node in nodes if node.gpus}
    known = {part.name: part for part in partitions}
    areas = {}
    for pool in pools:
        name = config.partition_of(pool)
        if name not in known:
            there = ", ".join(sorted(known)[:8])
            raise UserError(
                f"backend.partitions: pool {pool} uses partition {name!r}, but Slurm has {there}; "
                "set one of these, or create the partition in Slurm"
            )
        areas[pool] = tuple(node for node in known[name].nodes if node in gpus)
        if not areas[pool]:
            raise UserError(
                f"backend.partitions: no node of partition {name!r} has GPUs; run sinfo -o '%P %G'"
            )
    used = {node for area in areas.values() for node in area}
    return SlurmInventory(
        tuple((name, tuple(range(many))) for name, many in gpus.items() if name in used), areas
    )
